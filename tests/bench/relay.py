"""What a relay adds to a request: llmtop and llama.cpp's own router in front of a llama-server, and one alone.

Run it as ``python tests/bench/relay.py [--rounds N] [--seconds S] [--peer NAME=COMMAND] [--markdown FILE]``; it needs
a real llama-server, and `wrk` for the small requests. All of them run all the time, and each round takes them in turn:
the child, the router, llmtop, llmtop with its screen in a terminal, and each peer: another relay, started by its
command, that serves the models of the folder ``{models}`` on ``{port}`` and answers ``/health``.

* Small requests: ``POST /tokenize`` from 1, 16 and 256 connections.
* Streams: a completion on 1, 8 and 64 of them: time to the first event, gaps between events, events a second, and
  processor time of the relay itself for each event.
* Memory of llmtop with 2,000 streams open, in front of a server that begins answers and ends none.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from llmtop.children.ports import free_port

if TYPE_CHECKING:
    from tests.bench import servers, streams
    from tests.bench.table import Table, machine, parser, publish, ratio
    from tests.bench.terminal import Terminal
else:
    import servers
    import streams
    from table import Table, machine, parser, publish, ratio
    from terminal import Terminal

MODEL = "ash"
ROUNDS, SECONDS, TOKENS = 5, 3, 150
CONNECTIONS = (1, 16, 256)
STREAMS = (1, 8, 64)
CHILD_ARGS = ("-c", str(64 * 256), "-np", "64", "--no-warmup")
HELD, HELD_STEP = 2000, 500
VIEW_MS_MAX = 5.0
"""So much later, at most, 99 % of the events may come with the screen in the same process [ms]."""
NAMES = ("child alone", "llama.cpp router", "llmtop", "llmtop and its view")
_LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)\s*$", re.MULTILINE)
_COUNT = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
_RATE = re.compile(r"^Requests/sec:\s+([\d.]+)", re.MULTILINE)
_BAD = re.compile(r"^\s*Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)$", re.MULTILINE)
_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Relay:
    """Something that answers for the child, or the child itself."""

    name: str
    port: int
    pid: int


@dataclass(frozen=True)
class Small:
    """A run of small requests.

    Args:
        half_us: Latency of half of them [µs].
        most_us: Latency of 99 % [µs].
        rate: Requests a second.
        bad: Requests that failed, as wrk tells it.
        cpu_us: Processor time of the relay for each request [µs].
    """

    half_us: float
    most_us: float
    rate: float
    bad: str = ""
    cpu_us: float = 0.0


@dataclass(frozen=True)
class Stream:
    """Some streams side by side.

    Args:
        first_ms: Time to the first event [ms]: half of them, and 99 %.
        gap_ms: Time between two events of a stream [ms]: the same.
        rate: Events a second, all of them together.
        cpu_us: Processor time of the relay for each event [µs].
    """

    first_ms: tuple[float, float]
    gap_ms: tuple[float, float]
    rate: float
    cpu_us: float


def parse_wrk(text: str, cpu_s: float = 0.0) -> Small:
    """What ``wrk --latency`` printed.

    Args:
        text: Its output.
        cpu_s: Processor time that the relay used meanwhile [s].

    Raises:
        ValueError: It holds no figures.
    """
    latency = {found[1]: float(found[2]) * _UNITS[found[3]] for found in _LATENCY.finditer(text)}
    rate, count = _RATE.search(text), _COUNT.search(text)
    if rate is None or count is None or "50" not in latency or "99" not in latency:
        raise ValueError(f"not wrk's figures: {text[:200]!r}")
    bad = _BAD.search(text)
    cpu_us = cpu_s * 1e6 / max(1, int(count[1]))
    return Small(latency["50"], latency["99"], float(rate[1]), bad[0].strip() if bad else "", cpu_us)


def small_requests(relay: Relay, connections: int, seconds: int, script: Path) -> Small:
    """Run wrk."""
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script)]
    cpu = servers.cpu_s(relay.pid)
    url = f"http://127.0.0.1:{relay.port}/tokenize"
    done = subprocess.run([*argv, url], capture_output=True, text=True, check=True)
    return parse_wrk(done.stdout, servers.cpu_s(relay.pid) - cpu)


def stream_run(relay: Relay, count: int, tokens: int) -> Stream:
    """Some streams side by side."""
    body: dict[str, Any] = {"model": MODEL, "prompt": "abc", "n_predict": tokens, "stream": True, "ignore_eos": True}
    cpu = servers.cpu_s(relay.pid)
    heard = streams.read(relay.port, "/completion", [body | {"seed": seed} for seed in range(count)])
    cpu = servers.cpu_s(relay.pid) - cpu
    first, gap = (
        (streams.quantile(values, 0.5), streams.quantile(values, 0.99)) for values in (heard.first_ms, heard.gaps_ms)
    )
    return Stream(first, gap, heard.events / heard.took_s, cpu * 1e6 / heard.events)


def small_table(runs: dict[tuple[str, int], list[Small]], names: Sequence[str], rounds: int) -> Table:
    """Medians of the rounds; what each adds to the child, and how much less llmtop adds than the router."""
    heads = ("POST /tokenize", "connections", "half µs", "99 % µs", "adds µs", "CPU µs", "requests/s", "to the child")
    table = Table("Small requests through a relay", heads)
    added: dict[tuple[str, int], float] = {}
    for connections in CONNECTIONS:
        base_us = servers.median_of([run.half_us for run in runs[names[0], connections]])
        base_rate = servers.median_of([run.rate for run in runs[names[0], connections]])
        for name in names:
            of_it = runs[name, connections]
            half, rate = (servers.median_of([getattr(run, key) for run in of_it]) for key in ("half_us", "rate"))
            added[name, connections] = half - base_us
            most = servers.median_of([run.most_us for run in of_it])
            adds = "-" if name == names[0] else f"{half - base_us:.0f}"
            cpu = "-" if name == names[0] else f"{servers.median_of([run.cpu_us for run in of_it]):.0f}"
            table.add(
                name,
                str(connections),
                f"{half:.0f}",
                f"{most:.0f}",
                adds,
                cpu,
                f"{rate:,.0f}",
                ratio(rate, base_rate, 3),
            )
        share = ratio(added[names[1], connections], added[names[2], connections], 1)
        router, own = (servers.median_of([run.cpu_us for run in runs[name, connections]]) for name in names[1:3])
        table.notes.append(
            f"{connections} connections: the router adds {share} what llmtop adds to half of the requests, "
            f"and takes {ratio(router, own, 1)} its processor time"
        )
    table.notes.append(f"medians of {rounds} rounds, taken in turns")
    table.notes.extend(sorted({f"{name}: {run.bad}" for (name, _), of_it in runs.items() for run in of_it if run.bad}))
    return table


FIGURES: tuple[Callable[[Stream], float], ...] = (
    lambda run: run.first_ms[0],
    lambda run: run.first_ms[1],
    lambda run: run.gap_ms[0],
    lambda run: run.gap_ms[1],
    lambda run: run.rate,
    lambda run: run.cpu_us,
)
"""A row's, in the order of its columns."""


def _middle(runs: Sequence[Stream], what: Callable[[Stream], float]) -> float:
    return servers.median_of([what(run) for run in runs])


def stream_table(runs: dict[tuple[str, int], list[Stream]], names: Sequence[str], rounds: int, tokens: int) -> Table:
    """Medians of the rounds, and whether the screen comes in the way."""
    heads = (
        *("streamed completion", "streams", "first ms", "99 %", "to the child", "gap ms", "99 %"),
        *("events/s", "to the child", "CPU µs/event"),
    )
    table = Table(f"Streams of {tokens} events through a relay", heads)
    for count in STREAMS:
        first0 = _middle(runs[names[0], count], lambda run: run.first_ms[0])
        rate0 = _middle(runs[names[0], count], lambda run: run.rate)
        for name in names:
            of_it = runs[name, count]
            first, first99, gap, gap99, rate, cpu = (_middle(of_it, what) for what in FIGURES)
            times = (f"{first:.2f}", f"{first99:.2f}", ratio(first, first0), f"{gap:.2f}", f"{gap99:.2f}")
            used = "-" if name == names[0] else f"{cpu:.1f}"
            table.add(name, str(count), *times, f"{rate:,.0f}", ratio(rate, rate0), used)
        if NAMES[3] in names:
            plain, seen = (_middle(runs[name, count], lambda run: run.gap_ms[1]) for name in NAMES[2:])
            verdict = "kept" if seen - plain < VIEW_MS_MAX else "MISSED"
            table.notes.append(
                f"{count} streams: with the screen 99 % of the gaps are {seen - plain:+.2f} ms longer, "
                f"aim {VIEW_MS_MAX:g}, {verdict}"
            )
    table.notes.append(f"medians of {rounds} rounds, taken in turns; the child's own speed is what it can generate")
    return table


def held_table(folder: Path, most: int) -> Table:
    """Memory of llmtop while streams are open."""
    preset = folder / "silent.ini"
    script = Path(__file__).with_name("silent_child.py")
    preset.write_text(f"[silent]\ncmd = {shlex.join([sys.executable, str(script)])} ${{PORT}}\n")
    table = Table("Memory of llmtop by open streams", ("streams", "MiB", "KiB a stream"))
    (folder / "none").mkdir()
    options = ("--models-preset", str(preset))
    with servers.running(lambda: servers.start_llmtop(folder, folder / "none", 1, options=options)) as (server,):
        body = {"model": "silent", "prompt": "abc", "stream": True}
        held = streams.Held(server.port)
        try:
            held.open(1, "/v1/completions", body)
            base = servers.pss_bytes(server.process.pid)
            table.add("1", f"{base / 2**20:.1f}", "-")
            for count in range(HELD_STEP, most + 1, HELD_STEP):
                held.open(HELD_STEP, "/v1/completions", body)
                size = servers.pss_bytes(server.process.pid)
                table.add(f"{count:,}", f"{size / 2**20:.1f}", f"{(size - base) / 1024 / count:.1f}")
        finally:
            held.close()
    return table


@contextlib.contextmanager
def with_view(folder: Path, models: Path) -> Generator[Relay]:
    """Llmtop with its screen, in a terminal of its own."""
    port = free_port()
    argv = [sys.executable, "-m", "llmtop_tui", "--models-dir", str(models), "--models-max", "1", "--port", str(port)]
    argv += ["--llama-server", servers.real_server(), "--", *CHILD_ARGS]
    env = servers.child_env(folder) | {"LLMTOP_STATE_DIR": str(folder / "state-view"), "TERM": "xterm-256color"}
    terminal = Terminal(argv, env)
    try:
        if terminal.until(b"QUEUE", servers.START_S) is None:
            raise RuntimeError("llmtop's screen did not show")
        yield Relay(NAMES[3], port, terminal.pid)
    finally:
        family = psutil.Process(terminal.pid).children(recursive=True)
        terminal.close()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()


def peer_of(text: str) -> tuple[str, str]:
    """Name and command of a peer.

    Raises:
        ValueError: It is not of the form ``NAME=COMMAND`` with a ``{port}``.
    """
    name, _, command = text.partition("=")
    if not name or "{port}" not in command:
        raise ValueError(f"want NAME='COMMAND with {{port}} and {{models}}', not {text!r}")
    return name, command


def start_peer(folder: Path, models: Path, name: str, command: str) -> servers.Server:
    """Start a peer on a port of its own."""
    port = free_port()
    words = shlex.split(command)
    argv = [word.replace("{port}", str(port)).replace("{models}", str(models)) for word in words]
    return servers.start(name, argv, servers.child_env(folder), port, folder / "peer.log")


def tokenize_script(folder: Path) -> Path:
    """What wrk is to send."""
    script = folder / "tokenize.lua"
    body = json.dumps({"model": MODEL, "content": "hello world"})
    script.write_text(f"wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['Content-Type'] = 'application/json'\n")
    return script


def bench(folder: Path, rounds: int, seconds: int, tokens: int, peers: Sequence[tuple[str, str]]) -> list[Table]:
    """Small requests and streams."""
    models = servers.tiny_models(folder / "models", (MODEL,))
    script = tokenize_script(folder)
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(
            servers.running(
                lambda: servers.start_child(folder, models / f"{MODEL}.gguf", CHILD_ARGS),
                lambda: servers.start_router(folder, models, 1, CHILD_ARGS),
                lambda: servers.start_llmtop(folder, models, 1, CHILD_ARGS),
            )
        )
        others = stack.enter_context(servers.running(*(partial(start_peer, folder, models, *peer) for peer in peers)))
        every = [Relay(server.name, server.port, server.process.pid) for server in started]
        every.append(stack.enter_context(with_view(folder, models)))
        every += [Relay(server.name, server.port, server.process.pid) for server in others]
        for relay in every:
            stream_run(relay, 1, 20)
        names = [relay.name for relay in every]
        tables: list[Table] = []
        if shutil.which("wrk"):
            small: dict[tuple[str, int], list[Small]] = {(n, c): [] for n in names for c in CONNECTIONS}
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    for relay in every:
                        small[relay.name, connections].append(small_requests(relay, connections, seconds, script))
            tables.append(small_table(small, names, rounds))
        else:
            sys.stderr.write("wrk is not installed (apt or brew install wrk): small requests are left out\n")
        long: dict[tuple[str, int], list[Stream]] = {(n, c): [] for n in names for c in STREAMS}
        for _ in range(rounds):
            for count in STREAMS:
                for relay in every:
                    long[relay.name, count].append(stream_run(relay, count, tokens))
        return [*tables, stream_table(long, names, rounds, tokens)]


def main() -> int:
    """Run and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds ({ROUNDS})")
    arguments.add_argument("--seconds", type=int, default=SECONDS, help=f"how long each run of wrk lasts ({SECONDS})")
    arguments.add_argument("--tokens", type=int, default=TOKENS, help=f"events of a stream ({TOKENS})")
    arguments.add_argument("--held", type=int, default=HELD, help=f"streams that stay open ({HELD}; 0: none)")
    arguments.add_argument(
        "--peer",
        metavar="NAME=COMMAND",
        action="append",
        default=[],
        help="another relay: its command with {port} and {models}; may be repeated",
    )
    given = arguments.parse_args()
    where = machine()
    try:
        peers = [peer_of(text) for text in given.peer]
    except ValueError as error:
        arguments.error(str(error))
    with servers.scratch("relay") as name:
        tables = bench(Path(name), given.rounds, given.seconds, given.tokens, peers)
        if given.held and sys.platform == "linux":
            tables.append(held_table(Path(name), given.held))
    publish(tables, given.markdown, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
