"""The benchmarks: that they start, and that what they count with is right. What they measure is nobody's promise."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llmtop.config.spec import MIB

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = ("memory.py", "policy.py", "relay.py", "swap.py", "view.py")
WRK = """\
Running 3s test @ http://127.0.0.1:8080/tokenize
  Latency Distribution
     50%   43.00us
     75%    0.90ms
     90%    1.10ms
     99%    1.25ms
  87000 requests in 3.00s, 17.00MB read
  Non-2xx or 3xx responses: 7
Requests/sec:  29000.50
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a benchmark as its script would; what it imported is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == BENCH:
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_benchmark_says_what_it_takes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--markdown FILE" in done.stdout


def test_a_table_is_written_with_its_figures_to_the_right_and_its_notes_below(bench: Any) -> None:
    table = bench("table").Table("what", ("", "ms", "of it"))
    table.add("child", "1.0", "1.00x")
    table.add("llmtop", "12.5", "12.50x")
    table.notes.append("seen once")
    assert table.plain().splitlines() == [
        "what",
        "            ms   of it",
        "  child    1.0   1.00x",
        "  llmtop  12.5  12.50x",
        "  seen once",
    ]
    assert "| llmtop | 12.5 | 12.50x |\n\n- seen once\n" in table.markdown()
    with pytest.raises(ValueError, match="2 cells under 3 heads"):
        table.add("a", "b")


def test_ratios_are_to_the_base_and_none_is_made_up_without_one(bench: Any) -> None:
    ratio = bench("table").ratio
    assert (ratio(3, 2), ratio(2, 3, 3), ratio(1, 0)) == ("1.50x", "0.667x", "-")


def test_the_figures_of_wrk_are_read_in_microseconds_and_failures_are_kept(bench: Any) -> None:
    relay = bench("relay")
    found = relay.parse_wrk(WRK)
    assert (found.half_us, found.most_us, found.rate) == (43.0, 1250.0, 29000.5)
    assert relay.parse_wrk(WRK, cpu_s=0.87).cpu_us == pytest.approx(10.0)
    assert found.bad == "Non-2xx or 3xx responses: 7"
    with pytest.raises(ValueError, match="not wrk's figures"):
        relay.parse_wrk("unable to connect")


def test_a_peer_is_a_command_with_a_port(bench: Any) -> None:
    relay = bench("relay")
    assert relay.peer_of("swap=swapper --listen :{port} -d {models}") == (
        "swap",
        "swapper --listen :{port} -d {models}",
    )
    for wrong in ("swap", "=x {port}", "swap=swapper"):
        with pytest.raises(ValueError, match="want NAME="):
            relay.peer_of(wrong)


def test_a_relay_adds_what_it_takes_beyond_the_child(bench: Any) -> None:
    relay = bench("relay")
    names = ("child alone", "llama.cpp router", "llmtop")
    runs = {
        (name, count): [relay.Small(half, most, 1e6 / half, "", cpu) for most in (500.0, 700.0)]
        for name, half, cpu in zip(names, (40.0, 440.0, 80.0), (0.0, 90.0, 30.0), strict=True)
        for count in relay.CONNECTIONS
    }
    table = relay.small_table(runs, names, 2)
    by_name = {row[0]: row for row in table.rows if row[1] == "16"}
    assert by_name["llama.cpp router"][4] == "400"
    assert by_name["llmtop"][2:5] == ("80", "600", "40")
    assert by_name["llmtop"][5:] == ("30", "12,500", "0.500x")
    wanted = "1 connections: the router adds 10.0x what llmtop adds to half of the requests, "
    assert table.notes[0] == wanted + "and takes 3.0x its processor time"


def test_the_notes_of_spawns_are_read_and_half_a_line_is_left_for_later(bench: Any) -> None:
    servers = bench("servers")
    text = "17 5 --host 127.0.0.1 --alias ash -m x\n18 6 --help\n19 7 --alias elm\n20 8 --alias o"
    assert [(s.at_ns, s.pid, s.model) for s in servers.parse_spawns(text)] == [
        (17, 5, "ash"),
        (18, 6, ""),
        (19, 7, "elm"),
    ]


def test_a_swap_is_cut_at_the_exit_and_at_the_spawn(bench: Any) -> None:
    gap = bench("swap").gap_of(1_000_000, 5_000_000, 12_000_000, 90_000_000)
    assert (gap.stop_ms, gap.gap_ms, gap.load_ms) == (4.0, 7.0, 78.0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd on this system")
@pytest.mark.slow
def test_the_watch_notes_the_moment_in_which_a_process_ends(bench: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = bench("swap").ExitWatch(process.pid)
        watch.start()
        before = time.time_ns()
        assert watch.at_ns == 0
        process.communicate(b"\n")
        watch.join(10)
        assert before < watch.at_ns <= time.time_ns()


def test_phases_that_did_not_occur_do_not_count(bench: Any) -> None:
    phases = dict.fromkeys(("queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s"))
    account = [{"phases": phases | {"stop_s": 0.004}}, {"phases": phases | {"stop_s": 0.008}}]
    rows = {row[0]: row[1:] for row in bench("swap").phases(account).rows}
    assert rows["stop"] == ("2", "6.0", "4.0", "8.0")
    assert rows["drain"] == ("0", "-", "-", "-")


def test_a_servers_size_lines_add_up(bench: Any) -> None:
    sizes = bench("memory").parse_sizes(
        [
            "0.00.1 I load_tensors:   CPU_Mapped model buffer size =    64.50 MiB",
            "llama_kv_cache:        CPU KV buffer size =    16.00 MiB",
            "llama_kv_cache:        CPU KV buffer size =     8.00 MiB",
            "llama_context:        CPU  output buffer size =     1.25 MiB",
            "sched_reserve:        CPU compute buffer size =    32.00 MiB",
            "something else = 5 MiB",
        ]
    )
    assert (sizes.weights, sizes.cache, sizes.compute) == (64.5 * MIB, 24 * MIB, 33.25 * MIB)
    assert sizes.total == 121.75 * MIB


def test_an_error_is_told_in_percent_of_the_truth(bench: Any) -> None:
    percent = bench("memory").percent
    assert (percent(110, 100), percent(95, 100), percent(1, 0)) == ("+10.0 %", "-5.0 %", "-")


def test_at_least_eight_configurations_cover_what_changes_the_size(bench: Any) -> None:
    memory = bench("memory")
    words = {word for args in memory.CONFIGURATIONS for word in args}
    assert len(memory.CONFIGURATIONS) >= 8
    assert {"-c", "-np", "-ctk", "-ctv", "-fa", "on", "off", "q8_0"} <= words


def test_damage_is_the_same_for_a_seed_and_differs_between_seeds(bench: Any, tmp_path: Path) -> None:
    fuzz = bench("gguf_fuzz")
    sound = fuzz.originals(tmp_path)
    made = [fuzz.damaged(sound, seed) for seed in range(50)]
    assert made == [fuzz.damaged(sound, seed) for seed in range(50)]
    assert len(set(made)) > 45
    assert not set(made) & set(sound)


def test_damaged_headers_are_read_or_refused(bench: Any, tmp_path: Path) -> None:
    found = bench("gguf_fuzz").fuzz(tmp_path, 300)
    assert (found.tried, found.faults) == (300, [])
    assert found.outcomes["refused"] > 100
    assert found.outcomes["read"] > 5
    assert found.most_bytes < 32 * MIB


def test_a_reader_that_lets_an_error_through_is_caught(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz = bench("gguf_fuzz")

    def careless(path: Path) -> None:
        if path.stat().st_size % 2:
            raise IndexError

    monkeypatch.setattr(fuzz, "read_header", careless)
    found = fuzz.fuzz(tmp_path, 40)
    assert found.outcomes["IndexError"] == len(found.faults) > 0


@pytest.fixture
def scene() -> Any:
    from llmtop_tui.scenes import full

    return full()


def test_when_nothing_happens_only_times_move(bench: Any, scene: Any) -> None:
    quiet = bench("moving").quiet
    one, two = quiet(scene, 3), quiet(scene, 4)
    assert (two.at - one.at, two.uptime_s - one.uptime_s) == (1, 1)
    assert {m.state for m in one.models} == {"loaded"}
    assert len(one.models) == 6
    assert (one.queue, one.requests, one.log, one.events) == ((), (), two.log, two.events)


def test_in_the_lively_scene_every_child_and_every_panel_moves(bench: Any, scene: Any) -> None:
    lively = bench("moving").lively
    one, two = lively(scene, 3), lively(scene, 4)
    assert all(a != b for a, b in zip(one.models, two.models, strict=True))
    assert one.memory != two.memory
    assert one.queue != two.queue
    assert one.requests != two.requests
    assert one.events != two.events
    assert two.log[-1].seq - one.log[-1].seq == 20


def test_the_burst_says_a_thousand_lines_a_second_and_the_flood_leaves_none_out(bench: Any, scene: Any) -> None:
    moving = bench("moving")
    ten = round(1 / moving.PICTURES_S)
    assert moving.burst(scene, ten).log[-1].seq - moving.burst(scene, 0).log[-1].seq == 1_000
    first, second = moving.flood(scene, 0).log, moving.flood(scene, 1).log
    assert second[0].seq == first[-1].seq + 1
    last = moving.flood(scene, moving.FLOOD_LINES // moving.FLOOD_STEP - 1).log[-1]
    assert (last.seq, last.text) == (moving.FLOOD_LINES, moving.OVER)


def test_what_is_above_its_budget_is_said(bench: Any) -> None:
    view = bench("view")
    runs = view.Runs(first_ms=[700.0], cursor_ms=[5.0], help_ms=[9.0])
    told = view.missed("lively", 0.03, 9_000.0, runs)
    assert told == [
        "MISSED, lively: CPU 3.00 %, aim 2 %",
        "MISSED, lively: 9,000 bytes/s, aim 8000",
        "MISSED, lively: first frame 700 ms, aim 600 ms",
    ]
    assert view.missed("top", 1.0, 1e9, runs) == []


@pytest.mark.slow
def test_a_terminal_tells_when_something_shows_and_what_a_key_does(bench: Any) -> None:
    say = "print({!r}, flush=True); sys.stdin.read(1); "
    program = "import sys, tty; tty.setraw(0); " + say.format("ready") + say.format("heard") + "sys.stdin.read()"
    before = threading.active_count()
    terminal = bench("terminal").Terminal([sys.executable, "-c", program], {"PATH": "/usr/bin"})
    try:
        seen = terminal.until(b"ready")
        assert seen is not None
        assert seen > terminal.began
        took = terminal.latency_ms(b"x", b"heard")
        assert took is not None
        assert took > 0
        assert terminal.latency_ms(b"y", b"nothing of the kind", timeout_s=0.05) is None
        assert terminal.total >= len("readyheard")
    finally:
        terminal.close()
    assert threading.active_count() == before
