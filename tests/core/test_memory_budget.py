from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.memory.budget import Alone, Held, effective, gib, look_alone, others
from llmtop.memory.devices import Devices, GpuLine, ask_devices, parse_devices
from llmtop.memory.sample import Device, Sample, Value, missing

GIB = 2**30
MIB = 2**20
METAL = Devices((GpuLine("MTL", "Apple M3 Ultra", 228065 * MIB, 228064 * MIB),), "")

NONE, NEVER, NOBODY = Devices(), Alone(), Held()


def value(size: float | None, source: str = "test") -> Value:
    return Value(int(size * GIB), source) if size is not None else missing(source, 0.0, "not told")


def sample(label: Any = "WIRED", **sizes: float | None) -> Sample:
    """A sample of sizes in GiB; what is not given is missing."""
    names = ("total", "available", "used", "wired", "limit", "compressed", "cached", "swap", "gpu_in_use")
    values: dict[str, Any] = {name: value(sizes.get(name), name) for name in names}
    return Sample(at=0.0, **values, label=label)


def auto(reading: Sample | None, devices: Devices = NONE, alone: Alone = NEVER, held: Held = NOBODY) -> float | None:
    size = effective("auto", reading, devices, alone, held).bytes
    return None if size is None else size / GIB


def test_off_is_no_budget() -> None:
    assert effective("off", sample(), METAL, Alone(), Held()).bytes is None


def test_size_is_taken_as_it_is() -> None:
    told = effective(str(48 * GIB), sample(wired=40, limit=10), METAL, Alone(), Held())
    assert (told.bytes, told.why) == (48 * GIB, "48.0 GiB as set with --memory-budget")


def test_list_of_devices_beats_what_the_system_says() -> None:
    told = effective("auto", sample(wired=5, gpu_in_use=1, limit=100), METAL, Alone(), Held())
    assert told.bytes == 228065 * MIB - 512 * MIB - GIB
    assert told.steps == (
        "222.7 GiB GPU limit by llama-server --list-devices",
        "less 512 MiB margin",
        "less 1.0 GiB that other processes hold (as read now)",
    )


def test_without_it_the_limit_of_the_sample_counts() -> None:
    assert auto(sample(wired=6, limit=48)) == 41.5


def test_gpu_in_use_counts_for_others_rather_than_all_that_is_wired() -> None:
    assert auto(sample(wired=6, gpu_in_use=2, limit=48)) == 45.5


def test_unreadable_use_takes_nothing_off() -> None:
    told = effective("auto", sample(limit=48), Devices(), Alone(), Held())
    assert told.bytes == int(47.5 * GIB)
    assert told.steps[2].endswith("(not readable)")


def test_video_memory_less_three_percent_and_what_others_hold() -> None:
    assert auto(sample("VRAM", limit=100, used=10)) == pytest.approx(87)


def test_video_memory_of_children_is_theirs_and_not_others() -> None:
    held = Held(running=1, least=30 * GIB, most=30 * GIB)
    assert auto(sample("VRAM", limit=100, used=40), held=held) == pytest.approx(87)


def test_several_devices_are_one_pool_and_it_is_said() -> None:
    pair = tuple(Device(f"GPU{n}", value(24), value(1)) for n in range(2))
    reading = msgspec.structs.replace(sample("VRAM", limit=48, used=2), devices=pair)
    assert "one pool of 2 devices" in effective("auto", reading, Devices(), Alone(), Held()).why


def test_gpu_that_cannot_be_asked_takes_its_total_from_the_list() -> None:
    listed = Devices((GpuLine("CUDA", "RTX 3090", 24 * GIB, 23 * GIB),), "")
    assert auto(sample("VRAM"), listed) == pytest.approx(24 * 0.97 - 1)
    assert auto(sample("MEM", available=60), listed) == pytest.approx(24 * 0.97 - 1)


def test_unified_gpu_lives_off_the_machine() -> None:
    gap = missing("NVML", 0.0, "not supported")
    reading = msgspec.structs.replace(
        sample("MEM", available=100), devices=(Device("GB10", gap, gap, "unified memory"),)
    )
    listed = Devices((GpuLine("CUDA", "GB10", 119 * GIB, 100 * GIB),), "")
    assert auto(reading, listed, Alone(available=100 * GIB)) == 100


def test_plain_memory_is_what_was_available_with_no_child_running() -> None:
    alone = look_alone(sample("MEM", available=50, used=10), Alone(), Held())
    alone = look_alone(sample("MEM", available=20, used=40), alone, Held(running=1))
    assert auto(sample("MEM", available=20, used=40), alone=alone) == 50


def test_vulkan_devices_alone_are_no_pool() -> None:
    listed = Devices((GpuLine("Vulkan", "llvmpipe", 24 * GIB, 24 * GIB),), "")
    assert auto(sample("MEM", available=20), listed, Alone(available=20 * GIB)) == 20


def test_nothing_to_start_from_is_no_budget_and_says_so() -> None:
    told = effective("auto", sample("MEM"), Devices(), Alone(), Held())
    assert told.bytes is None
    assert told.why == "auto: no number to start from (not told): bytes are not counted"
    assert auto(None) is None


@pytest.mark.parametrize(
    ("in_use", "least", "most", "before", "stranded", "expected"),
    [
        (2, 0, 0, None, 0, 2),      # nobody runs: exact
        (32, 2, 30, 2, 0, 2),       # mapped weights are not in the footprint
        (2, 0, 30, 2, 0, 2),        # loading: reserved but not there yet
        (40, 2, 30, 2, 0, 10),      # others have grown beyond doubt
        (31, 30, 30, 2, 0, 1),      # others have shrunk beyond doubt
        (40, 2, 30, 2, 8, 2),       # stranded bytes are not others'
        (1, 30, 30, 2, 0, 0),
    ],
)  # fmt: skip
def test_others_share_is_kept_between_what_is_certain(
    in_use: int, least: int, most: int, before: int | None, stranded: int, expected: int
) -> None:
    held = Held(1, least * GIB, most * GIB, stranded * GIB)
    alone = Alone(others=before * GIB if before is not None else None)
    assert others(sample(gpu_in_use=in_use, wired=50), alone, held) == expected * GIB


def test_stranded_bytes_do_not_pass_for_others_when_nobody_runs() -> None:
    alone = look_alone(sample(wired=14, available=40), Alone(), Held(stranded=8 * GIB))
    assert alone == Alone(available=48 * GIB, others=6 * GIB)


def test_missing_reading_leaves_what_was_known() -> None:
    assert look_alone(sample(), Alone(1, 2), Held()) == Alone(1, 2)
    assert others(sample(), Alone(others=5), Held()) == 5


def test_budget_is_never_negative() -> None:
    assert auto(sample(wired=60, limit=48)) == 0


def test_sizes_for_people() -> None:
    assert [gib(size) for size in (640 * MIB, GIB, int(18.25 * GIB))] == ["640 MiB", "1.0 GiB", "18.2 GiB"]


def test_list_of_devices_is_read() -> None:
    text = (
        "Available devices:\n"
        "  MTL0: Apple M3 Ultra (228065 MiB, 228064 MiB free)\n"
        "  CUDA1: NVIDIA GeForce RTX 3090 (Ti) (24124 MiB, 23000 MiB free)\n"
        "  something else\n"
    )
    assert parse_devices(text).gpus == (
        GpuLine("MTL", "Apple M3 Ultra", 228065 * MIB, 228064 * MIB),
        GpuLine("CUDA", "NVIDIA GeForce RTX 3090 (Ti)", 24124 * MIB, 23000 * MIB),
    )


@pytest.mark.parametrize("text", ["Available devices:\n  (none)\n", "", "  MTL0: broken (x MiB, y MiB free)\n"])
def test_list_without_devices_says_so(text: str) -> None:
    assert parse_devices(text) == Devices((), "llama-server lists no device")


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "llama-server"
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_server_is_asked_for_its_devices(tmp_path: Path) -> None:
    body = "assert sys.argv[1:] == ['--list-devices']; print('  ROCm0: gfx1100 (24560 MiB, 24000 MiB free)')"
    assert ask_devices(script(tmp_path, body)).gpus[0].backend == "ROCm"


@pytest.mark.slow
def test_server_that_hangs_or_fails_gives_a_reason(tmp_path: Path) -> None:
    hangs = ask_devices(script(tmp_path, "time.sleep(60)"), timeout_s=0.3)
    assert hangs.why == "llama-server --list-devices did not answer within 0.3 s"
    assert ask_devices(script(tmp_path, "sys.exit(3)")).why == "llama-server --list-devices exited with 3"
    assert ask_devices(str(tmp_path / "none")).why == "llama-server cannot be run: No such file or directory"
    assert ask_devices("").why == "no llama-server found"
