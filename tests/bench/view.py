"""What the screen costs: processor, bytes to the terminal, memory, and how soon it shows and obeys.

Run it as ``python tests/bench/view.py [--rounds N] [--seconds S] [--no-flood] [--markdown FILE]``. The screen runs on a
made-up core (see ``moving.py``) in a pseudo-terminal of 120 by 40, beside ``top -d 1`` (and htop and btop where they
are installed). Each round takes all of them in turn; the figures are medians of the rounds, of keys of all presses.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from llmtop.children.ports import free_port

if TYPE_CHECKING:
    from tests.bench import moving, servers
    from tests.bench.table import Table, machine, parser, publish, ratio
    from tests.bench.terminal import Cost, Terminal
else:
    import moving
    import servers
    from table import Table, machine, parser, publish, ratio
    from terminal import Cost, Terminal

ROUNDS, SECONDS, PRESSES = 2, 10.0, 12
WARM_S = 3.0
BUDGETS = {"quiet": (0.005, 500), "lively": (0.02, 8_000), "burst": (0.10, None)}
"""Mode to the share of a core and the bytes a second that it should keep below."""
FIRST_FRAME_MS, KEY_MS, RSS_MIB = 600, 100, 60
LABELS = {
    "quiet": "llmtop, nothing happens",
    "lively": "llmtop, 6 children, all moves at 1 Hz",
    "burst": "llmtop, 1,000 log lines/s",
}
PEERS = {"top": ("top", "-d", "1"), "htop": ("htop", "-d", "10"), "btop": ("btop",)}


@dataclass
class Runs:
    """Figures of one program over the rounds."""

    costs: list[Cost] = field(default_factory=list[Cost])
    first_ms: list[float] = field(default_factory=list[float])
    first_cpu_ms: list[float] = field(default_factory=list[float])
    cursor_ms: list[float] = field(default_factory=list[float])
    help_ms: list[float] = field(default_factory=list[float])
    lost: int = 0


def environment() -> dict[str, str]:
    """A terminal of 256 colours and UTF-8, whatever the caller's is."""
    return servers.own_environment() | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}


def screen(mode: str) -> Terminal:
    """Llmtop's screen in a mode."""
    return Terminal([sys.executable, str(Path(__file__).with_name("moving.py")), mode], environment())


def run_screen(mode: str, seconds: float, runs: Runs) -> None:
    """One round of llmtop's screen: first frame, cost, then keys."""
    with closing(screen(mode)) as terminal:
        seen = terminal.until(b"QUEUE")
        if seen is None:
            raise RuntimeError("the screen did not show")
        runs.first_ms.append((seen - terminal.began) * 1e3)
        runs.first_cpu_ms.append(servers.cpu_s(terminal.pid) * 1e3)
        time.sleep(WARM_S)
        runs.costs.append(terminal.cost(seconds))
        for number in range(PRESSES):
            keep(runs, runs.cursor_ms, terminal.latency_ms(b"k" if number % 2 else b"j", b">"))
            time.sleep(0.37)
        for _ in range(PRESSES // 2):
            keep(runs, runs.help_ms, terminal.latency_ms(b"?", b"KEYS"))
            time.sleep(0.37)
            terminal.press(b"\x1b")
            time.sleep(0.37)


def keep(runs: Runs, into: list[float], value: float | None) -> None:
    """Note a latency, or that the key did nothing."""
    if value is None:
        runs.lost += 1
    else:
        into.append(value)


def run_peer(name: str, seconds: float, runs: Runs) -> None:
    """One round of another program."""
    with closing(Terminal(PEERS[name], environment())) as terminal:
        seen = terminal.until(b"\x1b[", 5)
        if seen is not None:
            runs.first_ms.append((seen - terminal.began) * 1e3)
        time.sleep(WARM_S)
        runs.costs.append(terminal.cost(seconds))


def flood() -> tuple[int, int, float]:
    """Memory before and after a million lines [bytes], and how long they took [s]."""
    with closing(screen("flood")) as terminal:
        terminal.until(b"QUEUE")
        before = int(psutil.Process(terminal.pid).memory_info().rss)
        began = time.perf_counter()
        if terminal.until(moving.OVER.encode(), 600) is None:
            raise RuntimeError("the lines did not all come through")
        took = time.perf_counter() - began
        time.sleep(2)
        return before, int(psutil.Process(terminal.pid).memory_info().rss), took


def loads_textual(*arguments: str, until: str) -> bool:
    """Whether a command without a screen imports the terminal library all the same.

    Args:
        arguments: The command.
        until: What it says on its standard error when it has started; it may also end before.
    """
    argv = [sys.executable, "-X", "importtime", "-m", "llmtop_tui", *arguments]
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stderr is not None
            said = list(takewhile(lambda line: until not in line, process.stderr))
        finally:
            process.terminate()
    return any("| " in line and line.split("|")[-1].strip() == "textual" for line in said)


def headless() -> list[str]:
    """What commands without a screen import."""
    with tempfile.TemporaryDirectory(prefix="llmtop-bench-") as folder:
        port = str(free_port())
        serve = ("serve", "--models-dir", folder, "--state-dir", f"{folder}/state", "--port", port)
        commands = {
            "serve": (serve, "llmtop serves"),
            "ps": (("ps", "--url", "http://127.0.0.1:9"), "no llmtop answers"),
        }
        found = [name for name, (command, until) in commands.items() if loads_textual(*command, until=until)]
    return [f"MISSED: {name} imports Textual" for name in found] or [f"{' and '.join(commands)} import no Textual"]


def table_of(every: dict[str, Runs], rounds: int, seconds: float) -> Table:
    """Medians, and what was missed."""
    heads = (
        "120x40",
        "CPU %",
        "to top -d 1",
        "bytes/s",
        "RSS MiB",
        "first frame ms",
        "its CPU ms",
        "cursor key ms",
        "help key ms",
        "slowest key",
    )
    table = Table("The screen, and its peers", heads)
    top = servers.median_of([cost.cpu for cost in every["top"].costs]) if "top" in every else 0.0
    for name, runs in every.items():
        cpu = servers.median_of([cost.cpu for cost in runs.costs])
        speed = servers.median_of([cost.bytes_per_s for cost in runs.costs])
        rss = servers.median_of([cost.rss for cost in runs.costs]) / 2**20
        keys = [f"{servers.median_of(values):.0f}" if values else "-" for values in (runs.cursor_ms, runs.help_ms)]
        first = [f"{servers.median_of(v):.0f}" if v else "-" for v in (runs.first_ms, runs.first_cpu_ms)]
        slowest = f"{max(runs.cursor_ms + runs.help_ms):.0f}" if runs.cursor_ms else "-"
        shown = LABELS.get(name, " ".join(PEERS.get(name, ())))
        table.add(shown, f"{cpu * 100:.2f}", ratio(cpu, top), f"{speed:,.0f}", f"{rss:.0f}", *first, *keys, slowest)
        table.notes.extend(missed(name, cpu, speed, runs))
    table.notes.append(
        f"{rounds} rounds of {seconds:g} s, taken in turns; the made-up core is part of llmtop's figures"
    )
    return table


def missed(name: str, cpu: float, speed: float, runs: Runs) -> list[str]:
    """What is above its budget."""
    if name not in BUDGETS:
        return []
    most_cpu, most_speed = BUDGETS[name]
    first, keys = servers.median_of(runs.first_ms), servers.median_of(runs.cursor_ms + runs.help_ms)
    wanted = (
        (f"CPU {cpu * 100:.2f} %", cpu, most_cpu, f"{most_cpu * 100:g} %"),
        (f"{speed:,.0f} bytes/s", speed, most_speed, f"{most_speed}"),
        (f"first frame {first:.0f} ms", first, FIRST_FRAME_MS, f"{FIRST_FRAME_MS} ms"),
        (f"keys {keys:.0f} ms", keys, KEY_MS, f"{KEY_MS} ms"),
    )
    found = [f"MISSED, {name}: {what}, aim {aim}" for what, value, most, aim in wanted if most and value > most]
    return [*found, f"{name}: {runs.lost} keys without an effect"] if runs.lost else found


def main() -> int:
    """Run and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds ({ROUNDS})")
    arguments.add_argument("--seconds", type=float, default=SECONDS, help=f"seconds that each is watched ({SECONDS:g})")
    arguments.add_argument("--no-flood", action="store_true", help="leave the million log lines out")
    given = arguments.parse_args()
    where = machine()
    peers = [name for name in PEERS if shutil.which(name)]
    every = {name: Runs() for name in (*BUDGETS, *peers)}
    for _ in range(given.rounds):
        for mode in BUDGETS:
            run_screen(mode, given.seconds, every[mode])
        for name in peers:
            run_peer(name, given.seconds, every[name])
    table = table_of(every, given.rounds, given.seconds)
    if not given.no_flood:
        before, after, took = flood()
        verdict = "kept" if after < RSS_MIB * 2**20 else "MISSED"
        table.notes.append(
            f"after {moving.FLOOD_LINES:,} log lines ({took:.0f} s): RSS {after / 2**20:.0f} MiB, {before / 2**20:.0f} "
            f"before; aim {RSS_MIB}, {verdict}"
        )
    table.notes.extend(headless())
    publish([table], given.markdown, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
