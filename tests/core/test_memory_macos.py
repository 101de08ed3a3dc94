from __future__ import annotations

import ctypes
import errno
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmtop.memory import darwin
from llmtop.memory.darwin import Darwin, run_tool
from llmtop.memory.macos import MacProbe, gpu_fraction, parse_ioreg, parse_vm_stat

DATA = Path(__file__).parent / "data" / "memory"
GIB = 2**30
PAGE = 16384
COUNTS = {0: 6_000, 4: 1_000_000, 8: 900_000, 12: 400_000, 88: 20_000, 92: 5_000, 128: 100_000, 136: 700_000}
"""Page counts of a 64 GiB machine by byte offset in vm_statistics64."""


class Function:
    """A C function of the fake library; ctypes sets attributes on it."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.argtypes: Sequence[Any] = ()
        self.restype: Any = None
        self.calls = 0

    def __call__(self, *args: Any) -> int:
        self.calls += 1
        return int(self._body(*args))


class System:
    """libSystem with recorded answers."""

    def __init__(self) -> None:
        self.words = [0] * 38
        for offset, count in COUNTS.items():
            self.words[offset // 4] = count
        self.filled = 38
        self.refuse = 0
        self.sysctls: dict[str, bytes] = {
            "hw.memsize": struct.pack("=q", 64 * GIB),
            "hw.pagesize": struct.pack("=q", PAGE),
            "kern.memorystatus_vm_pressure_level": struct.pack("=i", 1),
            "vm.swapusage": struct.pack("=3Q", 4 * GIB, 3 * GIB, 1 * GIB) + b"\0" * 8,
            "iogpu.wired_limit_mb": struct.pack("=i", 0),
        }
        self.footprints = {41: 7 * GIB}
        self.error = 0
        self.ioreg: str | OSError = (DATA / "ioreg-m3-ultra.txt").read_text("utf-8")
        self.vm_stat: str | OSError = (DATA / "vm_stat-macos-15.txt").read_text("utf-8")
        self.tools: list[str] = []
        self.mach_host_self = Function(lambda: 77)
        self.host_statistics64 = Function(self._statistics)
        self.sysctlbyname = Function(self._sysctl)
        self.proc_pid_rusage = Function(self._rusage)

    def load(self, path: str, *, use_errno: bool) -> System:
        assert (path, use_errno) == ("/usr/lib/libSystem.B.dylib", True)
        return self

    def run(self, argv: Sequence[str]) -> str:
        self.tools.append(argv[0])
        answer = self.ioreg if argv[0].endswith("ioreg") else self.vm_stat
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _statistics(self, host: int, flavor: int, words: Any, count: Any) -> int:
        assert (host, flavor, count[0]) == (77, 4, 38)
        if not self.refuse:
            words[:] = self.words
            count[0] = self.filled
        return self.refuse

    def _sysctl(self, name: bytes, value: Any, size: Any, _new: None, _new_size: int) -> int:
        raw = self.sysctls.get(name.decode())
        if raw is None:
            self.error = errno.ENOENT
            return -1
        ctypes.memmove(value, raw, len(raw))
        size[0] = len(raw)
        return 0

    def _rusage(self, pid: int, flavor: int, words: Any) -> int:
        assert flavor == 4
        if pid not in self.footprints:
            self.error = errno.ESRCH
            return -1
        words[9] = self.footprints[pid]
        return 0

    def probe(self, *, release: str = "25.1.0", clock: Any = lambda: 10.0) -> MacProbe:
        return MacProbe(Darwin(self.load, self.run, lambda: self.error), release=release, clock=clock)


@pytest.fixture
def system() -> System:
    return System()


def test_every_number_has_its_value_and_source(system: System) -> None:
    sample = system.probe().sample({41: "A"})
    used = (1_000_000 + 900_000 + 5_000 + 400_000 + 100_000 - 20_000 - 700_000) * PAGE
    assert sample.label == "WIRED"
    assert sample.total.bytes == 64 * GIB
    assert sample.wired.bytes == sample.level.bytes == 400_000 * PAGE
    assert sample.compressed.bytes == 100_000 * PAGE
    assert sample.cached.bytes == 720_000 * PAGE
    assert sample.used.bytes == used
    assert sample.available.bytes == 64 * GIB - used
    assert sample.swap.bytes == GIB
    assert sample.gpu_in_use.bytes == 43_118_624_768
    assert sample.footprints[41].bytes == 7 * GIB
    assert (sample.pressure.level, sample.pressure.detail) == ("normal", "level 1")
    assert sample.limit.bytes == int(64 * GIB * 0.81)
    assert sample.sources["wired"] == "host_statistics64 wired"
    assert sample.sources["limit"].startswith("usual share of hw.memsize (0.81, Darwin 25)")
    assert sample.notes == ()


def test_host_port_is_taken_once(system: System) -> None:
    probe = system.probe()
    for _ in range(3):
        probe.sample({})
    assert system.mach_host_self.calls == 1
    assert system.mach_host_self.restype is ctypes.c_uint32


def test_full_file_cache_is_available_not_used(system: System) -> None:
    """48 GiB with 0.1 free, 12 inactive, 2 purgeable, 20 of files and 5 wired has room for 30."""
    gib = GIB // PAGE
    counts = {0: gib // 10, 4: 18 * gib, 8: 12 * gib, 12: 5 * gib, 88: 2 * gib, 92: 0, 128: 0, 136: 20 * gib}
    for offset, count in counts.items():
        system.words[offset // 4] = count
    system.sysctls["hw.memsize"] = struct.pack("=q", 48 * GIB)
    available = system.probe().sample({}).available.bytes
    assert available is not None
    assert available >= 30 * GIB


def test_wired_limit_override_wins_over_the_usual_share(system: System) -> None:
    system.sysctls["iogpu.wired_limit_mb"] = struct.pack("=i", 57344)
    limit = system.probe().sample({}).limit
    assert (limit.bytes, limit.source) == (56 * GIB, "sysctl iogpu.wired_limit_mb")


def test_names_that_this_macos_lacks_degrade_one_number_each(system: System) -> None:
    for name in ("iogpu.wired_limit_mb", "vm.swapusage", "kern.memorystatus_vm_pressure_level"):
        del system.sysctls[name]
    sample = system.probe(release="").sample({99: "gone"})
    assert sample.swap.text == "n/a: sysctl vm.swapusage: No such file or directory"
    assert sample.pressure.level is None
    assert sample.sources["pressure"].startswith("n/a: sysctl kern.memorystatus_vm_pressure_level")
    assert sample.footprints[99].text == "n/a: proc_pid_rusage: No such process"
    assert sample.limit.bytes == int(64 * GIB * 0.75)
    assert sample.wired.bytes == 400_000 * PAGE


@pytest.mark.parametrize("raw", [b"", b"\0\0", b"\0" * 16])
def test_sysctl_of_an_unexpected_width_is_missing(system: System, raw: bytes) -> None:
    system.sysctls["hw.memsize"] = raw
    system.sysctls["vm.swapusage"] = raw
    sample = system.probe().sample({})
    assert [v.bytes for v in (sample.total, sample.available, sample.limit, sample.swap)] == [None] * 4
    assert sample.used.bytes is not None


def test_unknown_pressure_level_is_missing(system: System) -> None:
    system.sysctls["kern.memorystatus_vm_pressure_level"] = struct.pack("=i", 3)
    assert system.probe().sample({}).pressure.level is None


def test_refused_call_falls_back_to_the_tool(system: System) -> None:
    system.refuse = 5
    sample = system.probe().sample({})
    assert sample.notes == ("host_statistics64 gave 5",)
    assert (sample.wired.bytes, sample.wired.source) == (211_431 * PAGE, "vm_stat wired")


def test_without_call_and_tool_every_page_count_is_missing(system: System) -> None:
    system.refuse, system.vm_stat = 5, OSError("vm_stat did not answer within 1.5 s")
    sample = system.probe().sample({})
    assert [v.bytes for v in (sample.wired, sample.used, sample.available, sample.cached)] == [None] * 4
    assert sample.notes[1] == "vm_stat did not answer within 1.5 s"
    assert sample.total.bytes == 64 * GIB


def test_short_answer_of_an_older_kernel_loses_the_last_counts_only(system: System) -> None:
    system.filled = 30
    sample = system.probe().sample({})
    assert sample.wired.bytes == 400_000 * PAGE
    assert sample.compressed.text == "n/a: no count of compressor pages"
    assert sample.used.text == "n/a: no count of compressor pages"


def test_page_size_is_asked_for_and_never_assumed(system: System) -> None:
    del system.sysctls["hw.pagesize"]
    assert system.probe().sample({}).wired.text == "n/a: page size not known"
    system.sysctls["vm.pagesize"] = struct.pack("=i", 4096)
    assert system.probe().sample({}).wired.bytes == 400_000 * 4096


def test_ioreg_is_asked_once_a_second(system: System) -> None:
    now = [10.0]
    probe = system.probe(clock=lambda: now[0])
    for now[0] in (10.0, 10.5, 10.9, 11.0):
        probe.sample({})
    assert system.tools == ["/usr/sbin/ioreg"] * 2


def test_failing_ioreg_is_missing_with_its_reason(system: System) -> None:
    system.ioreg = OSError("/usr/sbin/ioreg failed (1)")
    assert system.probe().sample({}).gpu_in_use.text == "n/a: /usr/sbin/ioreg failed (1)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ioreg-m3-ultra.txt", 43_118_624_768),
        ("ioreg-m1.txt", 512_458_752),
        ("ioreg-without-key.txt", None),
    ],
)
def test_ioreg_of_several_systems(name: str, expected: int | None) -> None:
    assert parse_ioreg((DATA / name).read_text("utf-8"), 0.0).bytes == expected


@pytest.mark.parametrize(
    ("name", "size", "wired", "keys"),
    [
        ("vm_stat-macos-15.txt", 16384, 211_431, 9),
        ("vm_stat-intel.txt", 4096, 812_345, 9),
        ("vm_stat-missing-lines.txt", 16384, 400_001, 4),
        ("vm_stat-localized.txt", None, None, 0),
    ],
)
def test_vm_stat_of_several_systems(name: str, size: int | None, wired: int | None, keys: int) -> None:
    counts = parse_vm_stat((DATA / name).read_text("utf-8"))
    assert (counts.get("page_size"), counts.get("wired"), len(counts)) == (size, wired, keys)


@pytest.mark.parametrize(
    ("gib", "kernel", "share"),
    [
        (8, 24, 2 / 3), (32, 24, 2 / 3), (36, 24, 0.75), (128, 24, 0.75),
        (8, 25, 0.6667), (16, 25, 0.74), (24, 25, 0.74), (36, 25, 0.78), (48, 26, 0.78), (64, 25, 0.81),
        (96, 25, 0.81), (128, 25, 0.84), (256, 25, 0.87), (512, 25, 0.87), (4, 25, 2 / 3), (64, 0, 0.75),
    ],
)  # fmt: skip
def test_usual_share_goes_by_memory_and_kernel(gib: int, kernel: int, share: float) -> None:
    assert gpu_fraction(gib * GIB, kernel) == share


def test_tool_runs_in_the_c_locale() -> None:
    out = run_tool([sys.executable, "-c", "import os; print(os.environ['LC_ALL'], os.environ['LANG'])"])
    assert out == "C C\n"


def test_tool_that_fails_tells_its_first_line() -> None:
    with pytest.raises(OSError, match=r"failed \(3\) no such class$"):
        run_tool([sys.executable, "-c", "import sys; sys.stderr.write('no such class\\nmore'); sys.exit(3)"])


def test_tool_that_hangs_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(argv: Sequence[str], **options: Any) -> None:
        assert options["timeout"] == darwin.TOOL_TIMEOUT_S
        raise subprocess.TimeoutExpired(list(argv), options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(OSError, match=r"ioreg did not answer within 1\.5 s"):
        run_tool(["ioreg"])


def test_probe_opens_the_system_library_itself(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmtop.memory.macos.Darwin", lambda: Darwin(system.load, system.run, lambda: 0))
    assert MacProbe().sample({}).wired.bytes == 400_000 * PAGE
