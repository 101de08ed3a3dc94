"""How long children outlive their llmtop, for every way in which it may die under load.

Run it as ``python tests/soak/deaths.py [--times N] [--only WORDS] [--json]``. One child of each kind is up and busy:
one that speaks the protocol, one of an early build, a ``cmd`` server, one behind a shell, and one that ignores all it
is told (it is given its stop timeout of 1 s before SIGKILL). Times in milliseconds from the blow: median / worst.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path

from llmtop.testing.soak_deaths import KINDS, WAYS, Death, Way, die


def run(way: Way, times: int) -> list[Death]:
    """Die so many times, each in a folder of its own."""
    deaths: list[Death] = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="llmtop-deaths-") as folder:
            deaths.append(asyncio.run(die(Path(folder), way)))
    return deaths


def cell(values: list[float]) -> str:
    """Median and worst of some times [ms]."""
    return f"{statistics.median(values):.0f} / {max(values):.0f}" if values else "-"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="of kill -9; of the others a quarter of it")
    parser.add_argument("--only", default="", help="ways whose name holds this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[tuple[str, list[Death]]] = []
    for way in WAYS:
        if args.only in way.name:
            times = args.times if way.name == "kill -9" else max(1, args.times // 4)
            rows.append((way.name, run(way, times)))
    wrong = [f"{name}: {line}" for name, deaths in rows for d in deaths for line in d.wrong]
    if args.json:
        figures = {name: [{"ended_ms": d.ended_ms, "gone_ms": d.gone_ms} for d in deaths] for name, deaths in rows}
        sys.stdout.write(json.dumps({"wrong": wrong, "deaths": figures}) + "\n")
    else:
        out = [f"{'way':31} {'times':>5}  {'llmtop':>12}  " + "  ".join(f"{kind:>13}" for kind in KINDS)]
        for name, deaths in rows:
            ended = cell([d.ended_ms for d in deaths if d.ended_ms is not None])
            gone = [cell([d.gone_ms[kind] for d in deaths if kind in d.gone_ms]) for kind in KINDS]
            line = f"{name:31} {len(deaths):5}  {ended:>12}  " + "  ".join(f"{text:>13}" for text in gone)
            out.append(
                line if any(d.gone_ms for d in deaths) else f"{name:31} {len(deaths):5}  serves on, every child up"
            )
        sys.stdout.write("\n".join([*out, *(f"WRONG {line}" for line in wrong)]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
