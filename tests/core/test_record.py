from __future__ import annotations

import gzip
import stat
from pathlib import Path

import pytest

from llmtop.client import CoreClient
from llmtop.errors import ConfigError, StartError
from llmtop.record import Recorder, read_recording
from llmtop.replay import ReplayClient
from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.snapshot import LogLine, Model, Snapshot

pytestmark = pytest.mark.anyio


def picture(n: int) -> Snapshot:
    return Snapshot(
        "0",
        1,
        float(n),
        "http://127.0.0.1:8080",
        models=(Model("A", in_flight=n),),
        log=(LogLine(n, 0.0, "A", f"line {n}"),),
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, 100.0, 1_000.0)
    recorder.step(ev.Arrived(1, "A"), [act.Spawn(1, "A", 5, "request", 0.0)], 100.5)
    for n in range(4):
        recorder.snapshot(picture(n), 100.0 + n * 0.2)
    recorder.close()
    return path


def test_what_was_recorded_is_read_back(recording: Path) -> None:
    lines = list(read_recording(recording))
    steps = [line for line in lines if line.event is not None]
    assert len(steps) == 1
    assert steps[0].event == {"type": "Arrived", "request": 1, "model": "A", "autoload": None}
    assert steps[0].actions[0]["type"] == "Spawn"
    assert steps[0].t == 0.5
    assert [line.snapshot for line in lines if line.snapshot] == [picture(0), picture(2)]


def test_at_most_four_snapshots_a_second_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r", 0.0, 0.0)
    for n in range(200):
        recorder.snapshot(picture(n), n / 100)
    recorder.close()
    assert sum(line.snapshot is not None for line in read_recording(tmp_path / "r")) == 8


def test_recording_is_for_its_owner_and_ends_at_its_full_size(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder(path, 0.0, 0.0, max_bytes=2_000)
    for n in range(100):
        recorder.snapshot(picture(n), float(n))
    recorder.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(read_recording(path))[-1].end
    assert path.stat().st_size < 2_500
    assert "ended" in recorder.problem


def test_cut_off_last_line_is_left_out(recording: Path) -> None:
    before = len(list(read_recording(recording)))
    with recording.open("ab") as file:
        file.write(b'{"t": 9, "snapsh')
    assert len(list(read_recording(recording))) == before


def test_packed_recording_is_read_as_if_it_were_not(recording: Path, tmp_path: Path) -> None:
    small = tmp_path / "run.jsonl.gz"
    small.write_bytes(gzip.compress(recording.read_bytes()))
    assert list(read_recording(small)) == list(read_recording(recording))
    assert ReplayClient(small).latest == picture(0)


def test_packed_recording_that_was_cut_off_gives_what_is_whole(recording: Path, tmp_path: Path) -> None:
    small = tmp_path / "run.jsonl.gz"
    small.write_bytes(gzip.compress(recording.read_bytes())[:-12])
    assert list(read_recording(small))[:1] == list(read_recording(recording))[:1]


def test_packed_recording_that_is_damaged_is_refused_in_one_line(recording: Path, tmp_path: Path) -> None:
    small, whole = tmp_path / "run.jsonl.gz", gzip.compress(recording.read_bytes())
    for damaged in (whole[:2] + b"\xff" + whole[3:], whole[:20] + b"\xff" * 20 + whole[40:]):
        small.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"run\.jsonl\.gz.*damaged"):
            list(read_recording(small))


def test_damaged_line_is_named(recording: Path) -> None:
    with recording.open("ab") as file:
        file.write(b'{"t": "soon"}\n')
    with pytest.raises(ConfigError, match=r"run\.jsonl:5: is damaged"):
        list(read_recording(recording))


def test_text_of_a_recording_is_made_safe(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder(path, 0.0, 0.0)
    recorder.snapshot(Snapshot("0", 1, 0.0, "x", next_swap="\x1b]0;title\x07now"), 0.0)
    recorder.close()
    assert [line.snapshot.next_swap for line in read_recording(path) if line.snapshot] == ["now"]


@pytest.mark.parametrize("content", ["", "{}\n", "not JSON\n", '{"llmtop": "1", "started": 0}\n'])
def test_file_that_is_no_recording_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        ReplayClient(path)
    assert "\n" not in str(caught.value)


def test_place_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot record"):
        Recorder(tmp_path / "no" / "where", 0.0, 0.0)


async def test_replay_shows_the_snapshots_in_order(recording: Path) -> None:
    client = ReplayClient(recording, speed=1_000.0)
    assert client.latest == picture(0)
    shown: list[Snapshot] = []
    async for snapshot in client.changes():
        shown.append(snapshot)
        if len(shown) == 2:
            break
    assert shown == [picture(0), picture(2)]
    assert client.position_s == pytest.approx(0.4)
    assert [line.text for line in await client.log("A")] == ["line 0", "line 2"]


async def test_replay_refuses_commands_politely(recording: Path) -> None:
    client: CoreClient = ReplayClient(recording)
    for reply in (await client.model("evict", "A"), await client.queue("hold"), await client.cancel("1")):
        assert not reply.success
        assert reply.refusal is not None
        assert "this is a recording" in reply.refusal.message
