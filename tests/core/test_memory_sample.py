from __future__ import annotations

import math
from pathlib import Path

import pytest

from llmtop.memory.file import FileProbe
from llmtop.memory.linux import LinuxProbe
from llmtop.memory.probe import choose
from llmtop.memory.sample import Value, measured, missing

GIB = 2**30


@pytest.mark.parametrize(
    "raw", [math.nan, math.inf, -math.inf, -1, -0.5, 2**64 - 1, 2**51, None, True, "12", b"1", [1]]
)
def test_what_is_no_size_is_missing_with_a_reason(raw: object) -> None:
    value = measured(raw, "tool", 1.0)
    assert value.bytes is None
    assert value.why
    assert value.text == f"n/a: {value.why}"


@pytest.mark.parametrize(("raw", "size"), [(0, 0), (7, 7), (7.9, 7), (2**50, 2**50)])
def test_what_is_a_size_is_kept(raw: float, size: int) -> None:
    assert measured(raw, "tool", 1.0) == Value(size, "tool", 1.0)


@pytest.mark.parametrize("size", [-1, 2**51])
def test_constructor_refuses_what_is_no_size(size: int) -> None:
    with pytest.raises(ValueError, match="is not a size of memory"):
        Value(size, "tool")


def test_constructor_refuses_a_gap_without_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Value(None, "tool")
    assert missing("tool", 0.0, "").why == "not available"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.json"


def test_file_gives_all_that_it_holds(path: Path) -> None:
    path.write_text(
        '{"total": 64, "wired": 6, "available": 50, "gpu_limit": 48,'
        ' "processes": {"7": 5}, "models": {"A": 30, "B": 9}}'
    )
    sample = FileProbe(str(path)).sample({7: "A", 8: "B", 9: "C"})
    assert [v.bytes for v in (sample.total, sample.wired, sample.available, sample.limit)] == [64, 6, 50, 48]
    assert (sample.label, sample.level.bytes, sample.used.bytes) == ("WIRED", 6, 14)
    assert {pid: v.bytes for pid, v in sample.footprints.items()} == {7: 5, 8: 9, 9: None}
    assert sample.footprints[9].why == "neither its pid nor its model is in the file"
    assert sample.models == {"A": 30, "B": 9}
    assert sample.swap.why == "no 'swap' in the file"


def test_file_without_wired_is_a_machine_of_plain_memory(path: Path) -> None:
    path.write_text('{"total": 64, "available": 50}')
    sample = FileProbe(str(path)).sample({})
    assert (sample.label, sample.level.bytes) == ("MEM", 14)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"total": 1e999', '{"wired": NaN}', "\xff\x00", "[" * 100_000]
)
def test_broken_file_makes_everything_missing(path: Path, text: str) -> None:
    path.write_text(text, "latin-1")
    sample = FileProbe(str(path), sleep=lambda _: None).sample({1: "A"})
    assert sample.total.bytes is sample.wired.bytes is sample.level.bytes is sample.footprints[1].bytes is None
    assert "is not a JSON object" in sample.total.why
    assert sample.notes == (sample.total.why,)


def test_odd_values_in_the_file_are_missing_one_by_one(path: Path) -> None:
    path.write_text(
        '{"total": -1, "wired": "6", "available": 1e30, "gpu_limit": null,'
        ' "models": {"A": -1, "B": 2.0}, "processes": 3}'
    )
    sample = FileProbe(str(path)).sample({1: "A", 2: "B"})
    assert [v.bytes for v in (sample.total, sample.wired, sample.available, sample.limit)] == [None] * 4
    assert sample.label == "WIRED"
    assert [sample.footprints[pid].bytes for pid in (1, 2)] == [None, 2]


def test_torn_file_is_read_once_more(path: Path) -> None:
    path.write_text('{"total": 6')

    def finish_writing(_: float) -> None:
        path.write_text('{"total": 64}')

    assert FileProbe(str(path), sleep=finish_writing).sample({}).total.bytes == 64


def test_unreadable_moment_does_not_change_what_is_counted(path: Path) -> None:
    path.write_text('{"wired": 6}')
    probe = FileProbe(str(path), sleep=lambda _: None)
    probe.sample({})
    path.unlink()
    sample = probe.sample({})
    assert (sample.label, sample.level.bytes) == ("WIRED", None)
    assert sample.level.why == f"cannot read {path}: No such file or directory"


def test_oversized_file_is_not_read(path: Path) -> None:
    path.write_bytes(b" " * (2**20 + 1))
    assert "is larger than" in FileProbe(str(path)).sample({}).total.why


def test_each_look_reads_the_file_afresh(path: Path) -> None:
    probe = FileProbe(str(path))
    seen = []
    for wired in (5, 6):
        path.write_text(f'{{"wired": {wired}}}')
        seen.append(probe.sample({}).wired.bytes)
    assert seen == [5, 6]


@pytest.mark.parametrize("setting", ["file:", "/tmp/x.json", "http://x", "file"])
def test_malformed_setting_says_what_it_should_be(setting: str) -> None:
    sample = choose({"LLMTOP_MEMORY_SOURCE": setting}).sample({})
    assert sample.total.why.startswith("LLMTOP_MEMORY_SOURCE should be file:PATH")


def test_setting_chooses_the_file(path: Path) -> None:
    path.write_text('{"wired": 5}')
    assert choose({"LLMTOP_MEMORY_SOURCE": f"file:{path}"}).sample({}).wired.bytes == 5


def test_linux_gets_its_own_probe() -> None:
    assert isinstance(choose({}, "linux"), LinuxProbe)


def test_macos_gets_its_own_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmtop.memory.macos.Darwin", lambda: "libSystem")
    assert choose({}, "darwin").name == "macos"
