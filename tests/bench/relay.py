"""What a relay adds to a request: llmtop and llama.cpp's own router in front of a llama-server, and one alone.

Run it as ``python tests/bench/relay.py [--rounds N] [--seconds S] [--markdown FILE]``; it needs a real llama-server,
and `wrk` for the small requests. All three run all the time, and each round takes them in turn.

* Small requests: ``POST /tokenize`` from one and from sixteen connections.
* Streams: a completion whose events are large (the likeliest tokens come with each), so that bytes count too: time to
  the first byte of the answer's body, bytes a second, and processor time of the relay itself for each MB.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench import servers
    from tests.bench.table import Table, machine, parser, publish, ratio
else:
    import servers
    from table import Table, machine, parser, publish, ratio

MODEL = "ash"
ROUNDS, SECONDS, TOKENS = 5, 3, 600
CONNECTIONS = (1, 16)
STREAMS = (1, 4)
LIKELIEST = 40
_LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)\s*$", re.MULTILINE)
_COUNT = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
_RATE = re.compile(r"^Requests/sec:\s+([\d.]+)", re.MULTILINE)
_BAD = re.compile(r"^\s*Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)$", re.MULTILINE)
_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


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
        first_ms: Time to the first byte of a body, the median of them [ms].
        bytes_per_s: All of them together.
        cpu_ms_per_mb: Processor time of the relay [ms/MB].
    """

    first_ms: float
    bytes_per_s: float
    cpu_ms_per_mb: float


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


def small_requests(server: servers.Server, connections: int, seconds: int, script: Path) -> Small:
    """Run wrk."""
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script)]
    cpu = servers.cpu_s(server.process.pid)
    done = subprocess.run(
        [*argv, f"http://127.0.0.1:{server.port}/tokenize"], capture_output=True, text=True, check=True
    )
    return parse_wrk(done.stdout, servers.cpu_s(server.process.pid) - cpu)


def one_stream(server: servers.Server, tokens: int, seed: int) -> tuple[float, int]:
    """Read a stream to its end; gives the time to the first byte of the body [s], and the bytes."""
    body = {"model": MODEL, "prompt": "abc", "n_predict": tokens, "stream": True, "ignore_eos": True, "seed": seed}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.connect()
        began = time.perf_counter()
        content = json.dumps({**body, "n_probs": LIKELIEST, "cache_prompt": False})
        connection.request("POST", "/completion", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{server.name} answered {answer.status}: {answer.read(300)!r}")
        size, first_s = 0, 0.0
        while data := answer.read1(65536):
            first_s = first_s or time.perf_counter() - began
            size += len(data)
        return first_s, size
    finally:
        connection.close()


def streams(server: servers.Server, count: int, tokens: int) -> Stream:
    """Some streams side by side."""
    results: list[tuple[float, int]] = []

    def read(seed: int) -> None:
        results.append(one_stream(server, tokens, seed))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(count)]
    relay = server.process.pid
    cpu, began = servers.cpu_s(relay), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, cpu = time.perf_counter() - began, servers.cpu_s(relay) - cpu
    if len(results) != count:
        raise RuntimeError(f"{server.name}: {count - len(results)} of {count} streams failed")
    size = sum(result[1] for result in results)
    first = servers.median_of([result[0] for result in results])
    return Stream(first * 1e3, size / took, cpu * 1e3 / (size / 1e6))


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


def stream_table(runs: dict[tuple[str, int], list[Stream]], names: Sequence[str], rounds: int, tokens: int) -> Table:
    """Medians of the rounds."""
    heads = (
        "streamed completion",
        "streams",
        "first byte ms",
        "to the child",
        "MB/s",
        "to the child",
        "relay's CPU ms/MB",
    )
    table = Table(f"Streams of {tokens} events through a relay", heads)
    for count in STREAMS:
        base = runs[names[0], count]
        first0, speed0 = (servers.median_of([getattr(run, key) for run in base]) for key in ("first_ms", "bytes_per_s"))
        for name in names:
            of_it = runs[name, count]
            first = servers.median_of([run.first_ms for run in of_it])
            speed = servers.median_of([run.bytes_per_s for run in of_it])
            cpu = "-" if name == names[0] else f"{servers.median_of([run.cpu_ms_per_mb for run in of_it]):.1f}"
            table.add(
                name, str(count), f"{first:.2f}", ratio(first, first0), f"{speed / 1e6:.2f}", ratio(speed, speed0), cpu
            )
    table.notes.append(f"medians of {rounds} rounds, taken in turns; the child's own speed is what it can generate")
    return table


def bench(folder: Path, rounds: int, seconds: int, tokens: int) -> list[Table]:
    """All of it."""
    models = servers.tiny_models(folder / "models", (MODEL,))
    script = folder / "tokenize.lua"
    body = json.dumps({"model": MODEL, "content": "hello world"})
    script.write_text(f"wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['Content-Type'] = 'application/json'\n")
    with servers.running(
        lambda: servers.start_child(folder, models / f"{MODEL}.gguf"),
        lambda: servers.start_router(folder, models, 1),
        lambda: servers.start_llmtop(folder, models, 1),
    ) as every:
        for server in every:
            server.asked("/tokenize", {"model": MODEL, "content": "x"})
            streams(server, 1, 20)
        names = [server.name for server in every]
        tables: list[Table] = []
        if shutil.which("wrk"):
            small: dict[tuple[str, int], list[Small]] = {(n, c): [] for n in names for c in CONNECTIONS}
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    for server in every:
                        small[server.name, connections].append(small_requests(server, connections, seconds, script))
            tables.append(small_table(small, names, rounds))
        else:
            sys.stderr.write("wrk is not installed (apt or brew install wrk): small requests are left out\n")
        long: dict[tuple[str, int], list[Stream]] = {(n, c): [] for n in names for c in STREAMS}
        for _ in range(rounds):
            for count in STREAMS:
                for server in every:
                    long[server.name, count].append(streams(server, count, tokens))
        return [*tables, stream_table(long, names, rounds, tokens)]


def main() -> int:
    """Run and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds ({ROUNDS})")
    arguments.add_argument("--seconds", type=int, default=SECONDS, help=f"how long each run of wrk lasts ({SECONDS})")
    arguments.add_argument("--tokens", type=int, default=TOKENS, help=f"events of a stream ({TOKENS})")
    given = arguments.parse_args()
    where = machine()
    with servers.scratch("relay") as name:
        tables = bench(Path(name), given.rounds, given.seconds, given.tokens)
    publish(tables, given.markdown, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
