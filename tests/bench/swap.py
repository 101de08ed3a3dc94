"""What a swap costs: two tiny models, room for one, asked in turn.

Run it as ``python tests/bench/swap.py [--rounds N] [--markdown FILE]``; it needs a real llama-server.

* The whole swap is the time of a request for the model that is not loaded, in llmtop and in llama.cpp's own router,
  beside spawn-to-ready of a llama-server alone. Each round takes all three in turn, so a busy machine hits them alike.
* The overhead is what passes between a victim's exit and the next child's spawn, seen from outside: the exit by a pidfd
  in this process, the spawn by a script that notes the time and then becomes the llama-server (its own two processes
  are in the figure). Where there is no pidfd (not Linux) that part is left out.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.bench import servers
    from tests.bench.table import Table, machine, parser, publish, ratio
else:
    import servers
    from table import Table, machine, parser, publish, ratio

MODELS = ("ash", "elm")
ROUNDS = 15
AIM_MS = 10.0
PHASES = ("queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s")


@dataclass(frozen=True)
class Gap:
    """One swap as seen from outside [ms].

    Args:
        stop_ms: From the request to the victim's exit.
        gap_ms: From the victim's exit to the next child's spawn.
        load_ms: From the spawn to the answer.
    """

    stop_ms: float
    gap_ms: float
    load_ms: float


def answered_ms(server: servers.Server, model: str) -> float:
    """How long a request for a model takes [ms]."""
    began = time.perf_counter()
    server.asked("/tokenize", {"model": model, "content": "hello"})
    return (time.perf_counter() - began) * 1e3


class ExitWatch(threading.Thread):
    """Notes when a process ends, by its pidfd, which is readable from then on."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._fd = os.pidfd_open(pid)
        self.at_ns = 0

    def run(self) -> None:
        """Wait for the end."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(60_000)
        self.at_ns = time.time_ns()
        os.close(self._fd)


def one_gap(server: servers.Server, model: str, notes: Path) -> Gap:
    """Swap to ``model`` and watch."""
    victim = [spawn for spawn in servers.parse_spawns(notes.read_text()) if spawn.model][-1]
    watch = ExitWatch(victim.pid)
    watch.start()
    began = time.time_ns()
    server.asked("/tokenize", {"model": model, "content": "hello"})
    ended = time.time_ns()
    watch.join(60)
    spawn = [spawn for spawn in servers.parse_spawns(notes.read_text()) if spawn.model == model][-1]
    return gap_of(began, watch.at_ns, spawn.at_ns, ended)


def gap_of(began_ns: int, exit_ns: int, spawn_ns: int, ended_ns: int) -> Gap:
    """The parts of a swap, of four moments [ns]."""
    return Gap((exit_ns - began_ns) / 1e6, (spawn_ns - exit_ns) / 1e6, (ended_ns - spawn_ns) / 1e6)


def spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Median, least and most [ms] as text."""
    return tuple(f"{value:.1f}" for value in (servers.median_of(values), min(values), max(values)))  # type: ignore[return-value]


def whole(folder: Path, models: Path, rounds: int) -> Table:
    """Whole swaps, in turns."""
    taken: dict[str, list[float]] = {"child alone, spawn to ready": [], "llama.cpp router": [], "llmtop": []}
    with servers.running(
        lambda: servers.start_llmtop(folder, models, 1), lambda: servers.start_router(folder, models, 1)
    ) as pair:
        for server in pair:
            answered_ms(server, MODELS[1])
        for number in range(rounds):
            name = MODELS[number % 2]
            alone = servers.start_child(folder, models / f"{name}.gguf")
            alone.stop()
            taken["child alone, spawn to ready"].append(alone.ready_s * 1e3)
            for server in pair:
                taken[server.name].append(answered_ms(server, name))
    table = Table(
        "Swap between two tiny models, cap 1", ("", "median ms", "min", "max", "to the child alone", "to llmtop")
    )
    base, own = (servers.median_of(taken[name]) for name in ("child alone, spawn to ready", "llmtop"))
    for name, values in taken.items():
        middle = servers.median_of(values)
        table.add(name, *spread(values), ratio(middle, base), ratio(middle, own))
    table.notes.append(f"{rounds} rounds, taken in turns")
    return table


def seen_from_outside(folder: Path, models: Path, rounds: int) -> list[Table]:
    """What passes between exit and spawn, and llmtop's own account of the same swaps."""
    script, notes = servers.noting_wrapper(folder)
    table = Table("A swap of llmtop's, seen from outside", ("", "median ms", "min", "max"))
    with servers.running(lambda: servers.start_llmtop(folder, models, 1, server=str(script))) as (server,):
        answered_ms(server, MODELS[1])
        gaps = [one_gap(server, MODELS[number % 2], notes) for number in range(rounds)]
        account: list[dict[str, Any]] = server.asked("/api/swaps")["swaps"][-rounds:]
    table.add("request to the victim's exit", *spread([gap.stop_ms for gap in gaps]))
    table.add("victim's exit to the next spawn", *spread([gap.gap_ms for gap in gaps]))
    table.add("spawn to answer", *spread([gap.load_ms for gap in gaps]))
    middle = servers.median_of([gap.gap_ms for gap in gaps])
    verdict = "kept" if middle < AIM_MS else "MISSED"
    cost = wrapper_ms(folder)
    table.notes.append(f"aim for the median from exit to spawn: below {AIM_MS:g} ms, {verdict} ({middle:.1f} ms)")
    table.notes.append(
        f"the script that notes the time takes {cost:.1f} ms of it here, without it {middle - cost:.1f} ms"
    )
    return [table, phases(account)]


def wrapper_ms(folder: Path) -> float:
    """From a spawn by this process to the time that such a script notes [ms], median."""
    script = folder / "noting-nothing"
    script.write_text('#!/bin/sh\necho "$(date +%s%N)"\n')
    script.chmod(0o755)
    taken: list[float] = []
    for _ in range(15):
        began = time.time_ns()
        noted = subprocess.run([str(script)], capture_output=True, text=True, check=True).stdout
        taken.append((int(noted) - began) / 1e6)
    return servers.median_of(taken)


def phases(account: Sequence[dict[str, Any]]) -> Table:
    """Llmtop's own phases of some swaps."""
    table = Table("The same swaps by /api/swaps", ("phase", "swaps", "median ms", "min", "max"))
    for name in PHASES:
        values = [swap["phases"][name] * 1e3 for swap in account if swap["phases"].get(name) is not None]
        table.add(name.removesuffix("_s"), str(len(values)), *(spread(values) if values else ("-", "-", "-")))
    return table


def main() -> int:
    """Run and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help=f"swaps of each kind ({ROUNDS})")
    given = arguments.parse_args()
    where = machine()
    with servers.scratch("swap") as name:
        folder = Path(name)
        models = servers.tiny_models(folder / "models", MODELS)
        tables = [whole(folder, models, given.rounds)]
        if hasattr(os, "pidfd_open"):
            tables += seen_from_outside(folder, models, given.rounds)
    publish(tables, given.markdown, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
