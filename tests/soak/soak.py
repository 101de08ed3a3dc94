"""A soak: hundreds of swaps with everything going wrong, and at the end nothing may be lost, leaked or left over.

Run it as ``python tests/soak/soak.py [--swaps N] [--seed S] [--clients C] [--simulated] [--json]``. Exit code 1 and the
reasons if anything was.

A ``llmtop serve`` runs five simulated models (a pleasant one, one deaf to every polite stop, one that falls sick, one
that changes its temper before each load, one of an early build) and three real ones with a cap of two. Clients ask,
stream and leave; children are killed, frozen and evicted meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from llmtop.testing.soak_faults import Faults
from llmtop.testing.soak_house import CAP, House, house
from llmtop.testing.soak_traffic import HANG_S, Clients
from llmtop.testing.soak_watch import Measure, Watch, answered, at_rest, brief, open_files, suspicious

GROWTH_MAX = 20 * 2**20
WARM = 24
"""Swaps before the first measure [1]: every model has been loaded by then, every ring begun."""


@dataclass
class Result:
    """What came out.

    Args:
        wrong: What must not be, one line each.
        figures: Everything that was counted and measured, for the table.
    """

    wrong: list[str] = field(default_factory=list[str])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])


async def soak(folder: Path, *, swaps: int, seed: int, clients: int, simulated: bool) -> Result:
    """Run it."""
    result = Result()
    async with house(folder, simulated_only=simulated) as home, home.rig.client() as client:
        rng = random.Random(seed)
        await _warm_up(home, client, rng)
        before, files = await at_rest(home, client), open_files(home.rig.process.pid)
        crowd, faults, watch = Clients(home, rng, clients), Faults(home, rng), Watch(home.rig)
        watcher = asyncio.create_task(watch.run())
        tasks = [asyncio.create_task(crowd.run()), asyncio.create_task(faults.run())]
        begin, first = time.monotonic(), (await client.get("/api/state")).json()["swaps"]["count"]
        state: dict[str, Any] = {}
        while (done := (state := (await client.get("/api/state")).json())["swaps"]["count"] - first) < swaps:
            if any(task.done() for task in (watcher, *tasks)):
                break  # one of ours broke: it says why below
            await asyncio.sleep(0.25)
        took = time.monotonic() - begin
        faults.stop()
        await tasks[1]
        crowd.stop()
        done_in_time, _ = await asyncio.wait([tasks[0]], timeout=HANG_S + 15)
        if not done_in_time:
            result.wrong.append(f"{crowd.ledger.open} requests have no end: {brief(state)}")
            tasks[0].cancel()
        else:
            tasks[0].result()
        state = await _quiet(client)
        after = await at_rest(home, client)
        watcher.cancel()
        await asyncio.sleep(0.6)  # the access log is written twice a second
        _judge(result, home, crowd, faults, watch, state, before, after)
        if after.descriptors > before.descriptors:
            result.wrong.append(f"descriptors left open: {open_files(home.rig.process.pid) - files}")
        result.figures |= {"swaps": done, "seconds": round(took, 1), "seed": seed, "clients": clients}
    return result


async def _warm_up(home: House, client: httpx.AsyncClient, rng: random.Random) -> None:
    """Load every model a few times, without any fault."""
    for _ in range(WARM // len(home.names)):
        for name in rng.sample(home.names, len(home.names)):
            await client.post("/v1/completions", json={"model": name, "prompt": "x", "max_tokens": 1})


async def _quiet(client: httpx.AsyncClient) -> dict[str, Any]:
    """The state a moment after the last client has gone."""
    state: dict[str, Any] = {}
    for _ in range(100):
        state = (await client.get("/api/state")).json()
        if not state["queue"] and not state["requests"] and not any(m["in_flight"] for m in state["models"]):
            break
        await asyncio.sleep(0.1)
    return state


def _judge(
    result: Result,
    home: House,
    crowd: Clients,
    faults: Faults,
    watch: Watch,
    state: dict[str, Any],
    before: Measure,
    after: Measure,
) -> None:
    """Everything that must hold."""
    ledger, wrong = crowd.ledger, result.wrong
    wrong += ledger.wrong + faults.wrong
    ended = ledger.whole + ledger.left + sum(ledger.errors.values()) + len(ledger.wrong)
    lines = answered(home.rig)
    twice = [one for one in ledger.ids if lines[one] > 1]
    unlogged = [one for one in ledger.ids if not lines[one]]
    growth = after.rss - before.rss
    for holds, what in (
        (ended == ledger.sent, f"{ledger.sent} requests sent, {ended} ended"),
        (ledger.whole > ledger.sent / 4, f"only {ledger.whole} of {ledger.sent} requests got a whole answer"),
        (len(set(ledger.ids)) == len(ledger.ids), "a request id was given twice"),
        (not twice, f"requests that ended twice in the access log: {twice[:5]}"),
        (not unlogged, f"answers without a line in the access log: {unlogged[:5]} of {len(unlogged)}"),
        (not state["queue"], f"the queue is not empty: {state['queue']}"),
        (not state["requests"], f"requests in flight that nobody made: {state['requests']}"),
        (not any(m["in_flight"] for m in state["models"]), f"in flight: {brief(state)}"),
        (watch.peak <= CAP, f"{watch.peak} children at once, cap {CAP}"),
        (not watch.zombies, f"zombies: {sorted(watch.zombies)}"),
        (after.threads <= before.threads + 4, f"{before.threads} threads before, {after.threads} after"),
        (after.descriptors <= before.descriptors, f"{before.descriptors} descriptors, then {after.descriptors}"),
        (growth < GROWTH_MAX, f"memory grew by {growth / 2**20:.1f} MiB"),
        (not state["faults"], f"faults: {state['faults']}"),
    ):
        if not holds:
            wrong.append(what)
    wrong += suspicious(home.rig)
    result.figures |= {
        "requests": {"sent": ledger.sent, "whole": ledger.whole, "left": ledger.left, "errors": dict(ledger.errors)},
        "faults": dict(faults.done),
        "children at once": watch.peak,
        "samples": watch.samples,
        "before": asdict(before),
        "after": asdict(after),
    }


def table(result: Result) -> Iterator[str]:
    """The lines to print."""
    f = result.figures
    requests, before, after = f["requests"], f["before"], f["after"]

    def mib(value: int | None) -> str:
        return "n/a" if value is None else f"{value / 2**20:.1f} MiB"

    yield f"{f['swaps']} swaps in {f['seconds']:g} s (seed {f['seed']}, {f['clients']} clients, cap {CAP})"
    yield f"  requests       {requests['sent']}: {requests['whole']} whole, {requests['left']} left by their client"
    yield "  errors         " + (", ".join(f"{n} {k}" for k, n in sorted(requests["errors"].items())) or "none")
    yield "  faults         " + ", ".join(f"{n} times {k}" for k, n in sorted(f["faults"].items()))
    yield f"  children       at most {f['children at once']} at once in {f['samples']} samples"
    yield f"  resident       {mib(before['rss'])} before, {mib(after['rss'])} after"
    yield f"  proportional   {mib(before['pss'])} before, {mib(after['pss'])} after"
    yield f"  descriptors    {before['descriptors']} before, {after['descriptors']} after"
    yield f"  threads        {before['threads']} before, {after['threads']} after"
    yield from (f"  WRONG          {line}" for line in result.wrong)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--simulated", action="store_true", help="leave the real llama-server out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep models, state and logs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmtop-soak-") as folder:
        work = soak(
            args.folder or Path(folder),
            swaps=args.swaps,
            seed=args.seed,
            clients=args.clients,
            simulated=args.simulated,
        )
        result = asyncio.run(work)
    if args.json:
        sys.stdout.write(json.dumps({"wrong": result.wrong, **result.figures}) + "\n")
    else:
        sys.stdout.write("\n".join(table(result)) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
