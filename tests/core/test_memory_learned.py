from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmtop.config.spec import ModelSpec
from llmtop.memory.learned import FILE, Learned

GIB = 2**30


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    model, projector = tmp_path / "A.gguf", tmp_path / "mmproj-A.gguf"
    for path in (model, projector):
        path.write_bytes(b"GGUF")
    return ModelSpec("A", path=str(model), files=(str(model), str(projector)), args=("-c", "4096"))


@pytest.fixture
def learned(tmp_path: Path) -> Iterator[Learned]:
    learned = Learned(tmp_path)
    yield learned
    learned.close()


def test_footprint_is_kept_over_a_restart(tmp_path: Path, learned: Learned, spec: ModelSpec) -> None:
    assert learned.get(spec) is None
    assert learned.source(spec) == ""
    learned.put(spec, 30 * GIB, "footprint peak")
    learned.put(spec, 31 * GIB, "size lines")
    learned.close()
    again = Learned(tmp_path)
    assert (again.get(spec), again.source(spec)) == (31 * GIB, "size lines")
    again.close()


def test_file_is_for_its_owner_only(tmp_path: Path, learned: Learned) -> None:
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "8192"),
        ("-c", "4096", "-np", "2"),
        ("-c", "4096", "-ctk", "q8_0"),
        ("-c", "4096", "-ctv", "q8_0"),
        ("-c", "4096", "-ngl", "10"),
        ("-c", "4096", "-ub", "1024"),
        ("-c", "4096", "-fa", "off"),
        ("-c", "4096", "--no-mmproj"),
        ("-c", "4096", "-md", "/m/draft.gguf"),
    ],
)
def test_arguments_that_matter_make_another_model(learned: Learned, spec: ModelSpec, args: tuple[str, ...]) -> None:
    learned.put(spec, GIB, "test")
    assert learned.get(msgspec.structs.replace(spec, args=args)) is None


@pytest.mark.parametrize("args", [("--ctx-size", "4096"), ("-c", "4096", "--temp", "0.5"), ("-c", "1", "-c", "4096")])
def test_arguments_that_do_not_matter_make_none(learned: Learned, spec: ModelSpec, args: tuple[str, ...]) -> None:
    learned.put(spec, GIB, "test")
    assert learned.get(msgspec.structs.replace(spec, args=args, pin=True)) == GIB


def test_changed_file_is_another_model(learned: Learned, spec: ModelSpec) -> None:
    learned.put(spec, GIB, "test")
    os.utime(spec.files[1], ns=(1, 1))
    assert learned.get(spec) is None


def test_model_that_was_moved_is_still_the_same(tmp_path: Path, learned: Learned, spec: ModelSpec) -> None:
    learned.put(spec, GIB, "test")
    (tmp_path / "new").mkdir()
    moved = []
    for file in spec.files:
        Path(file).rename(tmp_path / "new" / Path(file).name)
        moved.append(str(tmp_path / "new" / Path(file).name))
    assert learned.get(msgspec.structs.replace(spec, path=moved[0], files=tuple(moved))) == GIB


def test_models_without_files_go_by_what_names_them(learned: Learned) -> None:
    learned.put(ModelSpec("a", source_args=("-hf", "x/y")), 1, "test")
    learned.put(ModelSpec("b", cmd="server --model z"), 2, "test")
    assert learned.get(ModelSpec("other name", source_args=("-hf", "x/y"))) == 1
    assert learned.get(ModelSpec("b", cmd="server --model z")) == 2
    assert learned.get(ModelSpec("b", cmd="server --model w")) is None


@pytest.mark.parametrize("size", [0, -1, 2**60])
def test_what_is_no_size_is_not_kept(learned: Learned, spec: ModelSpec, size: int) -> None:
    learned.put(spec, size, "test")
    assert learned.get(spec) is None


@pytest.mark.parametrize("damage", [b"not a database at all" * 99, b"SQLite format 3\0" + b"\xff" * 8192])
def test_broken_file_is_set_aside(tmp_path: Path, spec: ModelSpec, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    learned = Learned(tmp_path)
    learned.put(spec, GIB, "test")
    assert (learned.get(spec), learned.fault) == (GIB, "")
    (aside,) = tmp_path.glob(f"{FILE}.broken-*")
    assert aside.read_bytes() == damage
    learned.close()


def test_file_of_another_layout_is_set_aside(tmp_path: Path, spec: ModelSpec) -> None:
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("CREATE TABLE footprint (other TEXT)")
    database.close()
    learned = Learned(tmp_path)
    learned.put(spec, GIB, "test")
    assert learned.get(spec) == GIB
    learned.close()


def test_file_that_breaks_later_is_set_aside(tmp_path: Path, learned: Learned, spec: ModelSpec) -> None:
    learned.put(spec, GIB, "test")
    learned._database.close()  # type: ignore[union-attr]
    for tail in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{tail}").unlink(missing_ok=True)
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    learned._database = sqlite3.connect(tmp_path / FILE)
    assert learned.get(spec) is None
    learned.put(spec, 2 * GIB, "test")
    assert learned.get(spec) == 2 * GIB


def test_folder_out_of_reach_is_no_reason_to_stop(tmp_path: Path, spec: ModelSpec) -> None:
    learned = Learned(tmp_path / "missing")
    learned.put(spec, GIB, "test")
    assert learned.get(spec) is None
    assert "No such file or directory" in learned.fault
    learned.close()


def test_link_is_not_followed(tmp_path: Path, spec: ModelSpec) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    learned = Learned(tmp_path)
    learned.put(spec, GIB, "test")
    assert learned.get(spec) is None
    assert not (tmp_path / "elsewhere").exists()


def test_locked_file_is_done_without(tmp_path: Path, learned: Learned, spec: ModelSpec) -> None:
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    learned.put(spec, GIB, "test")
    other.execute("ROLLBACK")
    other.close()
    assert learned.get(spec) is None
    learned.put(spec, GIB, "test")
    assert learned.get(spec) == GIB


def test_calls_take_a_millisecond(learned: Learned, spec: ModelSpec) -> None:
    learned.put(spec, GIB, "test")
    start = time.process_time()
    for size in range(1, 51):
        learned.put(spec, size, "test")
        assert learned.get(spec) == size
    assert (time.process_time() - start) / 100 < 0.001
