from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.memory.drm import Drm
from llmtop.memory.linux import GpuReading, LinuxProbe
from llmtop.memory.nvidia import Nvml
from llmtop.memory.sample import Device, Value, missing

GIB = 2**30
MIB = 2**20
KIB = 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A 64 GiB machine with 1 GiB free and 28 available: the files fill the cache."""
    proc = tmp_path / "proc"
    lines = {"MemTotal": 64, "MemFree": 1, "MemAvailable": 28, "Cached": 30, "Shmem": 2, "SReclaimable": 1}
    lines |= {"SwapTotal": 8, "SwapFree": 6, "Zswapped": 0}
    put(
        proc / "meminfo",
        "".join(f"{name}: {size * MIB:>12} kB\n" for name, size in lines.items()) + "HugePages_Total: 0\n",
    )
    put(proc / "self/cgroup", "0::/user.slice/a\n")
    put(
        proc / "pressure/memory",
        "some avg10=0.25 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0 avg300=0 total=0\n",
    )
    put(proc / "7/smaps_rollup", "0-1 ---p 0 0:0 0 [rollup]\nRss:  9000 kB\nPss:     4096 kB\nPss_Anon: 1 kB\n")
    return proc


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def probe(proc: Path, gpus: Sequence[Any] = (), cgroups: Path | None = None) -> LinuxProbe:
    return LinuxProbe(proc=proc, cgroups=cgroups or proc.parent / "cgroup", gpus=gpus, clock=lambda: 5.0)


def test_machine_without_gpu(proc: Path) -> None:
    sample = probe(proc).sample({7: "A", 8: "gone"})
    assert (sample.label, sample.at) == ("MEM", 5.0)
    assert [v.bytes for v in (sample.total, sample.available, sample.used)] == [64 * GIB, 28 * GIB, 36 * GIB]
    assert [v.bytes for v in (sample.swap, sample.cached, sample.compressed)] == [2 * GIB, 29 * GIB, 0]
    assert sample.footprints[7].bytes == sample.host[7].bytes == 4 * MIB
    assert sample.footprints[8].why.endswith("No such file or directory")
    assert sample.wired.text == "n/a: Linux has no count of wired memory"
    assert (sample.pressure.level, sample.pressure.detail) == ("normal", "some avg10=0.25 %")


@pytest.mark.parametrize(("percent", "level"), [("9.99", "normal"), ("10.00", "warn"), ("40.00", "critical")])
def test_pressure_has_a_name(proc: Path, percent: str, level: str) -> None:
    put(proc / "pressure/memory", f"some avg10={percent} avg60=0.00 avg300=0.00 total=9\n")
    assert probe(proc).sample({}).pressure.level == level


def test_missing_files_and_lines_degrade_one_number_each(proc: Path) -> None:
    (proc / "pressure/memory").unlink()
    put(proc / "meminfo", "MemTotal: 1024 kB\nMemAvailable: viel\n")
    sample = probe(proc).sample({})
    assert sample.total.bytes == MIB
    assert sample.available.why == "no line MemAvailable"
    assert sample.used.why == "no line MemAvailable"
    assert sample.cached.why == "no line Cached"
    assert sample.pressure.level is None
    (proc / "meminfo").unlink()
    assert probe(proc).sample({}).total.why.endswith("No such file or directory")


def test_container_counts_its_own_limit(proc: Path, tmp_path: Path) -> None:
    own = tmp_path / "cgroup/user.slice/a"
    put(own / "memory.max", "max\n")
    put(own / "memory.pressure", "some avg10=50.00 avg60=0.00 avg300=0.00 total=9\n")
    put(own.parent / "memory.max", f"{16 * GIB}\n")
    put(own.parent / "memory.current", f"{10 * GIB}\n")
    put(own.parent / "memory.stat", f"anon 5\ninactive_file {2 * GIB}\nactive_file 7\n")
    sample = probe(proc).sample({})
    assert (sample.total.bytes, sample.total.source) == (16 * GIB, "cgroup memory.max")
    assert sample.available.bytes == 8 * GIB
    assert sample.pressure.level == "critical"


def test_limit_above_the_machine_changes_nothing(proc: Path, tmp_path: Path) -> None:
    own = tmp_path / "cgroup/user.slice/a"
    put(own / "memory.max", f"{900 * GIB}\n")
    put(own / "memory.current", f"{10 * GIB}\n")
    sample = probe(proc).sample({})
    assert (sample.total.bytes, sample.available.bytes) == (64 * GIB, 28 * GIB)


def test_cgroup_path_cannot_lead_outside(proc: Path, tmp_path: Path) -> None:
    put(proc / "self/cgroup", "0::/../../elsewhere\n")
    put(tmp_path / "elsewhere/memory.max", "4096\n")
    assert probe(proc).sample({}).total.bytes == 64 * GIB


class Gpu:
    def __init__(self, reading: GpuReading) -> None:
        self._reading = reading

    def read(self, pids: Sequence[int]) -> GpuReading:
        return self._reading


def test_gpu_turns_the_gauge_to_its_memory(proc: Path) -> None:
    devices = tuple(Device(f"G{n}", Value(24 * GIB, "x"), Value(n * GIB, "x")) for n in (1, 2))
    silent = Gpu(GpuReading(notes=("no package",)))
    sample = probe(proc, [silent, Gpu(GpuReading(devices, {7: Value(GIB, "x")}))]).sample({7: "A", 8: "B"})
    assert (sample.label, sample.limit.bytes, sample.used.bytes) == ("VRAM", 48 * GIB, 3 * GIB)
    assert sample.level is sample.used
    assert (sample.footprints[7].bytes, sample.host[7].bytes) == (GIB, 4 * MIB)
    assert sample.footprints[8].bytes is None
    assert sample.notes == ("no package",)


def test_one_device_without_a_number_is_not_passed_over_in_the_sum(proc: Path) -> None:
    gap = missing("x", 0.0, "fell off the bus")
    devices = (Device("G0", Value(GIB, "x"), Value(1, "x")), Device("G1", gap, gap))
    assert probe(proc, [Gpu(GpuReading(devices))]).sample({}).limit.text == "n/a: fell off the bus"


class Error(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.value = code


class Library:
    """NVML with scripted answers; an ``Error`` in place of one is raised."""

    NVMLError = Error

    def __init__(self) -> None:
        self.init: Error | None = None
        self.memory: list[Any] = [SimpleNamespace(total=24 * GIB, used=5 * GIB)]
        self.compute: Any = [SimpleNamespace(pid=7, usedGpuMemory=3 * GIB)]
        self.graphics: Any = [SimpleNamespace(pid=7, usedGpuMemory=2 * GIB), SimpleNamespace(pid=9, usedGpuMemory=None)]
        self.count: Any = None
        self.inits = 0

    @staticmethod
    def _told(answer: Any) -> Any:
        if isinstance(answer, Error):
            raise answer
        return answer

    def nvmlInit(self) -> None:
        self.inits += 1
        self._told(self.init)

    def nvmlDeviceGetCount(self) -> int:
        return int(self._told(self.count if self.count is not None else len(self.memory)))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if isinstance(self.memory[index], Error) and self.memory[index].value == 999:
            raise self.memory[index]
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return b"RTX 3090" if handle == 0 else "RTX 4090"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._told(self.memory[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return self._told(self.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> Any:
        return self._told(self.graphics)


def nvml(library: Library, tmp_path: Path, clock: Any = lambda: 0.0) -> Nvml:
    return Nvml(lambda: library, proc=tmp_path, clock=clock)


def test_nvidia_gives_devices_and_processes(tmp_path: Path) -> None:
    library = Library()
    library.memory.append(SimpleNamespace(total=24 * GIB, used=1 * GIB))
    reading = nvml(library, tmp_path).read([7, 8, 9])
    assert [(d.name, d.total.bytes, d.used.bytes) for d in reading.devices] == [
        ("GPU0 RTX 3090", 24 * GIB, 5 * GIB),
        ("GPU1 RTX 4090", 24 * GIB, 1 * GIB),
    ]
    assert reading.processes[7].bytes == 6 * GIB, "the larger of its two entries, on both devices"
    assert reading.processes[8].why.startswith("NVML does not list it")
    assert reading.processes[9].why == "the driver tells no size for it"
    assert not reading.unified


def test_sentinel_of_the_driver_is_no_size(tmp_path: Path) -> None:
    library = Library()
    library.memory = [SimpleNamespace(total=2**64 - 1, used=None)]
    library.compute, library.graphics = [SimpleNamespace(pid=7, usedGpuMemory=2**64 - 1)], []
    reading = nvml(library, tmp_path).read([7])
    assert [reading.devices[0].total.bytes, reading.devices[0].used.bytes, reading.processes[7].bytes] == [None] * 3


def test_unified_memory_is_not_taken_for_a_device_of_its_own(tmp_path: Path, proc: Path) -> None:
    library = Library()
    library.memory = [Error(3, "Not Supported")]
    library.graphics = []
    sample = probe(proc, [nvml(library, tmp_path)]).sample({7: "A"})
    assert (sample.label, sample.total.bytes, sample.limit.bytes) == ("MEM", 64 * GIB, None)
    assert sample.footprints[7].bytes == 3 * GIB + 4 * MIB
    assert sample.gpu_in_use.bytes == 3 * GIB
    assert sample.notes == ("GPU0 RTX 3090: unified memory",)


@pytest.mark.parametrize("code", [999, 15])
def test_device_that_does_not_answer_is_left_out_and_told_of(tmp_path: Path, code: int) -> None:
    library = Library()
    library.memory.append(Error(code, "GPU is lost"))
    reading = nvml(library, tmp_path).read([])
    assert len(reading.devices) == 1
    assert reading.notes == ("GPU1 does not answer: GPU is lost",)


def test_process_list_that_is_refused_makes_processes_missing(tmp_path: Path) -> None:
    library = Library()
    library.compute = library.graphics = Error(4, "Insufficient Permissions")
    assert nvml(library, tmp_path).read([7]).processes[7].text == "n/a: Insufficient Permissions"


def test_machine_without_the_library_has_no_such_gpu(tmp_path: Path) -> None:
    library = Library()
    library.init = Error(12, "NVML Shared Library Not Found")
    assert nvml(library, tmp_path).read([7]) == GpuReading()


def test_could_not_ask_is_not_no_gpu(tmp_path: Path, proc: Path) -> None:
    library = Library()
    library.init = Error(18, "Driver/library version mismatch")
    sample = probe(proc, [nvml(library, tmp_path)]).sample({})
    assert (sample.label, sample.level.bytes) == ("VRAM", None)
    assert sample.notes == ("NVML cannot be asked: Driver/library version mismatch",)


def test_driver_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    def absent() -> Any:
        raise ImportError("pynvml")

    assert Nvml(absent, proc=tmp_path).read([]) == GpuReading()
    put(tmp_path / "driver/nvidia/version", "NVRM version: 580")
    reading = Nvml(absent, proc=tmp_path).read([])
    assert "install it to see VRAM" in reading.notes[0]
    assert reading.devices[0].total.bytes is None


def test_lost_driver_is_tried_again_after_a_while(tmp_path: Path) -> None:
    library, now = Library(), [0.0]
    source = nvml(library, tmp_path, lambda: now[0])
    source.read([])
    library.count = Error(15, "GPU is lost")
    assert source.read([]).notes == ("NVML cannot be asked: GPU is lost",)
    library.count = None
    assert source.read([]).devices[0].total.bytes is None
    now[0] = 31.0
    assert source.read([]).devices[0].total.bytes == 24 * GIB
    assert library.inits == 2


def card(root: Path, number: int, *, vram: tuple[int, int], gtt: tuple[int, int], metrics: bytes = b"") -> Path:
    device = root / f"sys/devices/pci/0000:0{number}:00.0"
    device.mkdir(parents=True)
    for kind, sizes in (("vram", vram), ("gtt", gtt)):
        for what, size in zip(("total", "used"), sizes, strict=True):
            (device / f"mem_info_{kind}_{what}").write_text(f"{size}\n")
    if metrics:
        (device / "gpu_metrics").write_bytes(metrics)
    for name in (f"card{number}", f"card{number}-DP-1"):
        folder = root / "sys/class/drm" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)
    return device


def client(root: Path, pid: int, descriptor: int, **keys: str) -> None:
    text = "pos:\t0\nflags:\t02\n" + "".join(f"{key.replace('_', '-')}:\t{value}\n" for key, value in keys.items())
    put(root / f"proc/{pid}/fdinfo/{descriptor}", text)


def drm(root: Path) -> Drm:
    return Drm(root / "sys", root / "proc", clock=lambda: 0.0)


def test_amd_card_counts_its_own_memory(tmp_path: Path) -> None:
    card(tmp_path, 1, vram=(24 * GIB, 3 * GIB), gtt=(60 * GIB, GIB), metrics=b"\x78\0\x01\x03")
    for descriptor in (3, 4):
        client(tmp_path, 7, descriptor, drm_driver="amdgpu", drm_pdev="0000:01:00.0", drm_client_id="5",
               drm_resident_vram="2097152 KiB", drm_resident_gtt="1024 KiB")  # fmt: skip
    client(tmp_path, 7, 5, drm_driver="amdgpu", drm_pdev="0000:01:00.0", drm_client_id="6", drm_memory_vram="1024 MiB")
    put(tmp_path / "proc/7/fdinfo/0", "pos:\t0\n")
    reading = drm(tmp_path).read([7, 8])
    assert [(d.total.bytes, d.used.bytes) for d in reading.devices] == [(24 * GIB, 3 * GIB)]
    assert reading.processes[7].bytes == 3 * GIB, "a client is counted once, an older kernel's key too"
    assert reading.processes[8].why.startswith("no GPU client")


def test_amd_apu_lives_off_gtt_as_well(tmp_path: Path) -> None:
    card(tmp_path, 1, vram=(GIB, GIB // 2), gtt=(60 * GIB, 20 * GIB), metrics=b"\x78\0\x02\x02")
    client(tmp_path, 7, 3, drm_client_id="5", drm_resident_vram="1 MiB", drm_resident_gtt="19 GiB")
    reading = drm(tmp_path).read([7])
    assert (reading.devices[0].total.bytes, reading.devices[0].used.bytes) == (61 * GIB, 20 * GIB + GIB // 2)
    assert reading.processes[7].bytes == 19 * GIB + MIB


def test_unreadable_count_of_a_card_is_missing(tmp_path: Path) -> None:
    device = card(tmp_path, 1, vram=(GIB, 0), gtt=(GIB, 0))
    (device / "mem_info_vram_used").write_text("[N/A]\n")
    assert drm(tmp_path).read([]).devices[0].used.bytes is None


def test_discrete_intel_shows_what_children_hold_and_says_so(tmp_path: Path) -> None:
    client(tmp_path, 7, 3, drm_driver="xe", drm_pdev="0000:03:00.0", drm_client_id="5", drm_resident_vram0="4096 MiB")
    source = drm(tmp_path)
    reading = source.read([7])
    assert (reading.devices[0].used.bytes, reading.devices[0].total.bytes) == (4 * GIB, None)
    assert reading.processes[7].bytes == 4 * GIB
    assert "tells no total" in reading.notes[0]
    assert source.read([]).devices[0].used.bytes == 0, "its device is still there when the child is gone"


def test_integrated_intel_is_the_machine_itself(tmp_path: Path) -> None:
    client(tmp_path, 7, 3, drm_driver="i915", drm_client_id="5", drm_resident_system0="400 MiB", drm_resident_vram0="0")
    assert drm(tmp_path).read([7]).devices == ()
    assert drm(tmp_path / "nowhere").read([7]).devices == ()


def test_dear_reading_is_not_repeated_each_second(proc: Path) -> None:
    """Reading takes half a second of this clock, so the next is due after twenty-five."""
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    source = LinuxProbe(proc=proc, cgroups=proc.parent / "cgroup", clock=clock)
    first = source.sample({7: "A"}).host[7]
    put(proc / "7/smaps_rollup", "Pss: 8192 kB\n")
    assert source.sample({7: "A"}).host[7] is first
    now[0] = 30.0
    assert source.sample({7: "A"}).host[7].bytes == 8 * MIB
