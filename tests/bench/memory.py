"""What llmtop knows of memory, against the truth: estimates, peaks during swaps, the price of a look, damaged files.

Run it as ``python tests/bench/memory.py [--swaps N] [--gib SIZE] [--fuzz N] [--markdown FILE]``; estimates and swaps
need a real llama-server, peaks Linux (PSS). All models are tiny ones with padding, written for the run.

* Estimates: made from the header and the arguments alone, against the size lines that the server prints when it loads.
* Peak: the PSS of all children summed every 20 ms, while two models that do not fit together are asked in turn.
* A look: what one sample of the probe costs.
* Damaged files: see ``gguf_fuzz.py``.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from llmtop.children.sizes import SizeCollector
from llmtop.config.spec import MIB, ModelSpec
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.memory.estimate import COMPUTE_FACTOR, COMPUTE_MARGIN, Headers, estimate
from llmtop.memory.probe import choose

if TYPE_CHECKING:
    from tests.bench import gguf_fuzz, servers
    from tests.bench.table import Table, machine, parser, publish, ratio
else:
    import gguf_fuzz
    import servers
    from table import Table, machine, parser, publish, ratio

SWAPS, FUZZ = 20, 5_000
SIZE_GIB = 1.5
SAMPLE_S = 0.02
ALLOWANCE = 1.05
PAD_MIB = 64
_SIZE = re.compile(r":\s+\S+\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+)\s*MiB")
CONFIGURATIONS: tuple[tuple[str, ...], ...] = (
    ("-c", "2048", "-np", "1"),
    ("-c", "8192", "-np", "1"),
    ("-c", "8192", "-np", "4"),
    ("-c", "8192"),
    ("-c", "0", "-np", "1"),
    ("-c", "32768", "-np", "2", "-kvu"),
    ("-c", "8192", "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"),
    ("-c", "8192", "-np", "2", "-ctk", "f32", "-ctv", "f32"),
    ("-c", "8192", "-np", "1", "-fa", "on"),
    ("-c", "8192", "-np", "1", "-fa", "off"),
    ("-c", "32768", "-np", "2", "-fa", "off"),
    ("-c", "8192", "-np", "2", "-ub", "2048", "-b", "2048"),
)
SHAPES: tuple[tuple[int, int], ...] = ((4, 128), (24, 512))
"""Blocks and width of the models that are measured: a small one, and one whose cache weighs."""


@dataclass(frozen=True)
class Sizes:
    """What a server says it took [bytes]."""

    weights: float
    cache: float
    compute: float

    @property
    def total(self) -> float:
        """All of it [bytes]."""
        return self.weights + self.cache + self.compute


def parse_sizes(lines: Sequence[str]) -> Sizes:
    """Add up size lines of a load without a fitting pass."""
    sums: dict[str, float] = dict.fromkeys(("model", "KV", "compute", "output", "RS"), 0.0)
    for line in lines:
        if found := _SIZE.search(line):
            sums[found[1]] += float(found[2]) * MIB
    return Sizes(sums["model"], sums["KV"] + sums["RS"], sums["compute"] + sums["output"])


def server_sizes(folder: Path, model: Path, args: Sequence[str]) -> tuple[Sizes, int]:
    """Load a model, and read what the server says: added up here, and as llmtop reads it [bytes]."""
    log = folder / f"sizes-{model.stem}.log"
    log.unlink(missing_ok=True)
    with servers.running(
        lambda: servers.start_child(folder, model, (*args, "--no-warmup", "-lv", "4", "-fit", "off"), log.name)
    ):
        pass
    lines = log.read_text(errors="replace").splitlines()
    collector = SizeCollector(model.stat().st_size)
    for line in lines:
        collector.feed(line)
    return parse_sizes(lines), collector.total or 0


def percent(value: float, truth: float) -> str:
    """How far off it is; a dash where there is nothing to be off from."""
    return f"{(value / truth - 1) * 100:+.1f} %" if truth else "-"


def estimates(folder: Path) -> Table:
    """Estimates against the server's own lines."""
    heads = (
        "configuration",
        "server MiB",
        "estimate MiB",
        "weights off",
        "cache off",
        "compute off",
        "compute MiB off",
        "llmtop's reading off",
    )
    table = Table("Estimates from the header against the server's own size lines", heads)
    headers = Headers()
    for layers, width in SHAPES:
        model = folder / f"tiny-{layers}x{width}.gguf"
        write_tiny(model, layers=layers, width=width, pad_mib=PAD_MIB)
        for args in CONFIGURATIONS:
            truth, read = server_sizes(folder, model, args)
            made, why = estimate(ModelSpec(model.stem, path=str(model), files=(str(model),), args=args), headers)
            if made is None:
                raise RuntimeError(f"no estimate: {why}")
            compute = (made.compute - COMPUTE_MARGIN) / COMPUTE_FACTOR
            plain = made.total - made.compute + compute
            table.add(
                f"{layers} blocks of {width}, {' '.join(args)}",
                f"{truth.total / MIB:.1f}",
                f"{plain / MIB:.1f}",
                percent(made.weights, truth.weights),
                percent(made.kv, truth.cache),
                percent(compute, truth.compute),
                f"{(compute - truth.compute) / MIB:+.1f}",
                percent(read, truth.total),
            )
        model.unlink()
    margin = f"compute buffers are then taken {COMPUTE_FACTOR:g} times, and {COMPUTE_MARGIN // MIB} MiB added"
    table.notes.append(f"estimate: by the formula; for a reservation {margin}")
    return table


class PeakWatch(threading.Thread):
    """Sums the PSS of all processes below one, every 20 ms.

    Args:
        parent: Whose children are counted.
        but: Pids that are not.
    """

    def __init__(self, parent: int, but: Sequence[int] = ()) -> None:
        super().__init__(daemon=True)
        self._parent, self._but = psutil.Process(parent), frozenset(but)
        self._over = threading.Event()
        self.peak = self.samples = self.most_children = 0
        self.took_s = 0.0

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._over.is_set():
            began = time.perf_counter()
            sizes = [size for pid in self._children() if (size := servers.pss_bytes(pid))]
            self.peak = max(self.peak, sum(sizes))
            self.most_children = max(self.most_children, len(sizes))
            self.samples += 1
            took = time.perf_counter() - began
            self.took_s += took
            self._over.wait(max(0.001, SAMPLE_S - took))

    def _children(self) -> list[int]:
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in self._parent.children() if child.pid not in self._but]
        return []

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()


def swapped(server: servers.Server, swaps: int) -> tuple[PeakWatch, list[int]]:
    """Ask two models in turn; gives the watch, and each one's size alone [bytes]."""
    before = [child.pid for child in psutil.Process(server.process.pid).children()]
    alone: list[int] = []
    for model in ("big-a", "big-b"):
        server.asked("/tokenize", {"model": model, "content": "x"})
        time.sleep(0.5)
        children = [c.pid for c in psutil.Process(server.process.pid).children() if c.pid not in before]
        alone.append(sum(servers.pss_bytes(pid) for pid in children))
    watch = PeakWatch(server.process.pid, before)
    watch.start()
    try:
        for number in range(swaps):
            server.asked("/tokenize", {"model": ("big-a", "big-b")[number % 2], "content": "x"})
    finally:
        watch.stop()
    return watch, alone


def peaks(folder: Path, swaps: int, size_gib: float) -> Table:
    """Peak of all children during swaps, under llmtop and under the router."""
    models = servers.tiny_models(folder / "big", ("big-a", "big-b"), pad_mib=round(size_gib * 1024))
    args = ("-c", "2048", "-np", "1", "--no-warmup", "--no-mmap")  # not mapped: memory that must be given back
    heads = (
        "two models, cap 1",
        "larger one MiB",
        "peak MiB",
        "to the larger",
        "children at once",
        "swaps",
        "samples",
        "ms a sample",
    )
    table = Table(f"Peak PSS of all children over swaps between two models of {size_gib:g} GiB", heads)
    for start in (servers.start_llmtop, servers.start_router):
        with servers.running(lambda start=start: start(folder, models, 1, args)) as (server,):  # type: ignore[misc]
            watch, alone = swapped(server, swaps)
            larger = max(alone)
            each_ms = watch.took_s * 1e3 / max(1, watch.samples)
            table.add(
                server.name,
                f"{larger / MIB:.0f}",
                f"{watch.peak / MIB:.0f}",
                ratio(watch.peak, larger, 3),
                str(watch.most_children),
                str(swaps),
                str(watch.samples),
                f"{each_ms:.1f}",
            )
            if server.name == "llmtop":
                verdict = "kept" if larger and watch.peak <= ALLOWANCE * larger else "MISSED"
                table.notes.append(f"aim for llmtop: peak within {ALLOWANCE:g} of the larger, {verdict}")
    table.notes.append(
        "sampled every 20 ms, or as fast as the kernel tells; it shows no PSS of a process that is being torn down"
    )
    return table


def look(folder: Path) -> Table:
    """What a sample of the probe costs, beside children of several sizes."""
    table = Table("One look at the memory", ("children", "first look µs", "later looks µs", "most µs"))
    model = folder / "look.gguf"
    write_tiny(model, pad_mib=512)
    with contextlib.ExitStack() as stack:
        children: dict[int, str] = {}
        for wanted in (0, 1, 4):
            while len(children) < wanted:
                (child,) = stack.enter_context(
                    servers.running(
                        lambda: servers.start_child(folder, model, ("-c", "512", "--no-warmup", "--no-mmap"))
                    )
                )
                children[child.process.pid] = f"m{len(children)}"
            first = [sampled_us(1, children)[0] for _ in range(9)]
            later = sampled_us(300, children)[1:]
            table.add(
                f"{wanted} of 512 MiB",
                *(f"{v:.0f}" for v in (servers.median_of(first), servers.median_of(later), max(later))),
            )
    table.notes.append("a first look reads every child's PSS; later ones only as often as it takes 2 % of the time")
    return table


def sampled_us(count: int, children: dict[int, str]) -> list[float]:
    """Times of ``count`` looks by a probe that has not looked before [µs]."""
    probe, taken = choose({}), list[float]()
    for _ in range(count):
        began = time.perf_counter()
        probe.sample(children)
        taken.append((time.perf_counter() - began) * 1e6)
    return taken


def damaged_files(folder: Path, count: int) -> Table:
    """The reader on damaged files."""
    found = gguf_fuzz.fuzz(folder, count)
    table = Table(
        "The GGUF reader on damaged files",
        ("inputs", "read", "refused", "otherwise", "mean CPU µs", "slowest CPU ms", "most memory KiB"),
    )
    table.add(
        f"{found.tried:,}", f"{found.outcomes['read']:,}", f"{found.outcomes['refused']:,}",
        f"{len(found.faults):,}", f"{found.took_s * 1e6 / max(1, found.tried):.0f}", f"{found.slowest_ms:.1f}",
        f"{found.most_bytes / 1024:,.0f}",
    )  # fmt: skip
    table.notes.append(f"seed of the slowest {found.slowest_seed}, of the largest {found.most_seed}")
    table.notes.extend(f"FAULT, seed {fault}" for fault in found.faults[:10])
    return table


def main() -> int:
    """Run and print. Exit code 1 when the reader let something through that is no ``GgufError``."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--swaps", type=int, default=SWAPS, help=f"swaps between the two big models ({SWAPS}), 0 none"
    )
    arguments.add_argument("--gib", type=float, default=SIZE_GIB, help=f"size of these [GiB] ({SIZE_GIB:g})")
    arguments.add_argument("--fuzz", type=int, default=FUZZ, help=f"damaged files to try ({FUZZ}), 0 none")
    arguments.add_argument("--only-fuzz", action="store_true", help="leave out what needs a llama-server")
    given = arguments.parse_args()
    where, tables, code = machine(), list[Table](), 0
    with servers.scratch("memory") as name:
        folder = Path(name)
        if not given.only_fuzz:
            tables += [estimates(folder)]
            if given.swaps and sys.platform == "linux":
                tables += [peaks(folder, given.swaps, given.gib)]
            tables += [look(folder)]
        if given.fuzz:
            tables += [damaged_files(folder, given.fuzz)]
            code = int(any("FAULT" in note for note in tables[-1].notes))
    publish(tables, given.markdown, where)
    return code


if __name__ == "__main__":
    sys.exit(main())
