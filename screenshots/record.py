"""Records a real run for the pictures: ``python screenshots/record.py [FILE]``, in about two minutes.

A real ``llmtop serve --record`` runs real llama-servers on models that are written here: tiny random ones, padded to
the size that a model of that name has, so that they say letters and are loaded, served and evicted like the real ones.
What is asked of them is real traffic. It takes 5 GiB of disk for that time, and 3.5 GiB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import msgspec

from llmtop.children.binary import find_llama_server
from llmtop.demo.stage import free_port
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.record import Header, read_recording
from llmtop.snapshot import Snapshot

RUN = Path(__file__).resolve().parent / "run.jsonl.gz"
QWEN, GEMMA, LLAMA = "qwen3-1.7b-q6_k", "gemma-3-1b-it-q8_0", "llama-3.2-1b-instruct-q4_k_m"
CODER, SMOL = "qwen2.5-coder-1.5b-instruct-q4_k_m", "smollm2-360m-instruct-q8_0"
SIZES_MIB = {QWEN: 1350, GEMMA: 1000, LLAMA: 770, CODER: 1050, SMOL: 370}
LAYERS, WIDTH, REST = 8, 512, 40
"""Shape of the models, and what they take besides their padding [MiB]."""
OPTIONS = {"--models-max": "3", "--memory-budget": "3.5GiB", "--max-wait": "8", "--cache-ram": "0"}
CHILD = ("-c", "4096", "-np", "2", "--no-mmap", "--sleep-idle-seconds", "20")
"""Without a memory map a load is read into memory, and takes its time."""
EVERY_S = 0.9
"""The pictures need no more than this many seconds between two snapshots [s]."""
PATIENCE_S = 90.0


@contextmanager
def models() -> Iterator[Path]:
    """A folder with the models, for as long as it is needed."""
    folder = Path(tempfile.mkdtemp(prefix="llmtop-run-"))
    try:
        (folder / "models").mkdir()
        for seed, (name, size) in enumerate(SIZES_MIB.items()):
            file = folder / "models" / f"{name}.gguf"
            write_tiny(file, seed=seed, layers=LAYERS, width=WIDTH, pad_mib=size - REST)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def serving(folder: Path, raw: Path) -> Iterator[str]:
    """A real llmtop, its llama-servers from here; gives its address."""
    (folder / "llama-server").symlink_to(find_llama_server(""))  # the pictures show no folder of this machine
    port = free_port()
    options = OPTIONS | {
        "--models-dir": folder / "models",
        "--state-dir": folder / "state",
        "--llama-server": folder / "llama-server",
        "--port": port,
        "--record": raw,
    }
    flags = [str(part) for option in options.items() for part in option]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LLMTOP_", "LLAMA_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "llmtop", "serve", *flags, "--", *CHILD], env=env, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


class House:
    """The front door, as a client and an operator see it.

    Args:
        http: A client for it.
        folder: Where the models are.
    """

    def __init__(self, http: httpx.AsyncClient, folder: Path) -> None:
        self._http, self._folder = http, folder
        self._asked: set[asyncio.Task[None]] = set()

    def ask(self, model: str, tokens: int) -> asyncio.Task[None]:
        """A client wants an answer; it waits for it by itself."""
        self._forget(model)
        task = asyncio.create_task(self._answer(model, tokens))
        self._asked.add(task)
        return task

    async def _answer(self, model: str, tokens: int) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "Tell me a story about a queue."}]}
        with suppress(httpx.HTTPError):
            async with self._http.stream(
                "POST", "/v1/chat/completions", json=body | {"max_tokens": tokens, "stream": True, "ignore_eos": True}
            ) as answer:
                async for _ in answer.aiter_raw():
                    pass

    def _forget(self, model: str) -> None:
        """Take the file out of the page cache: it is read from the disk then, as on a machine that was full."""
        if hasattr(os, "posix_fadvise"):
            with (self._folder / "models" / f"{model}.gguf").open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def verb(self, path: str) -> None:
        """What a key of the screen would send."""
        (await self._http.post(f"/api/{path}", json={})).raise_for_status()

    async def until(self, seen: Callable[[Snapshot], bool], what: str) -> None:
        """Wait for the core to come to something."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            answer = await self._http.get("/api/state")
            if answer.status_code == httpx.codes.OK and seen(msgspec.json.decode(answer.content, type=Snapshot)):
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"{what}: not seen within {PATIENCE_S:g} s")

    async def up(self, model: str) -> None:
        """Wait for a model to serve."""
        await self.until(lambda s: any(m.id == model and m.state == "loaded" for m in s.models), f"{model} loaded")

    async def end(self) -> None:
        """Nobody wants anything any more."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)


@asynccontextmanager
async def visitor(url: str, folder: Path) -> AsyncIterator[House]:
    """Somebody at the front door, once it is open."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        house = House(http, folder)
        for _ in range(100):
            with suppress(httpx.TransportError):
                if (await http.get("/health")).status_code == httpx.codes.OK:
                    break
            await asyncio.sleep(0.2)
        try:
            yield house
        finally:
            await house.end()


async def mornings(house: House) -> None:
    """Three models come up, one is pinned."""
    await house.ask(GEMMA, 12)
    await house.verb(f"models/{GEMMA}/pin")
    await house.ask(SMOL, 40)
    await house.ask(QWEN, 12)


async def rush(house: House) -> None:
    """More is wanted than fits: an idle model goes, then one is drained."""
    for tokens in (130, 110):
        house.ask(QWEN, tokens)
    house.ask(GEMMA, 120)
    await asyncio.sleep(3)
    for _ in range(3):
        house.ask(LLAMA, 50)
    await asyncio.sleep(1)
    house.ask(CODER, 120)
    house.ask(CODER, 100)
    await house.up(CODER)


async def held(house: House) -> None:
    """The operator looks before anything goes, lets one swap through, and releases the queue."""
    await house.until(lambda s: not s.queue, "an empty queue")
    await house.verb("queue/hold")
    house.ask(SMOL, 60)
    await asyncio.sleep(1)
    house.ask(QWEN, 60)
    await asyncio.sleep(5)
    await house.verb("queue/step")
    await house.up(SMOL)
    await asyncio.sleep(2)
    await house.verb("queue/resume")
    await house.up(QWEN)


async def killed(house: House) -> None:
    """A busy model is killed, and comes back for those who ask again."""
    for _ in range(2):
        house.ask(QWEN, 120)
    house.ask(GEMMA, 60)
    await asyncio.sleep(5)
    await house.verb(f"models/{QWEN}/kill")
    house.ask(LLAMA, 40)
    house.ask(QWEN, 30)
    await house.up(QWEN)
    await asyncio.sleep(3)


STORY: tuple[Callable[[House], Awaitable[None]], ...] = (mornings, rush, held, killed)


async def play(url: str, folder: Path) -> None:
    """The whole story."""
    async with visitor(url, folder) as house:
        for act in STORY:
            await act(house)
            print(act.__name__, "is over")


def compact(raw: Path, out: Path) -> Snapshot:
    """Keep of a recording what a view needs, a snapshot a second; gives the last one."""
    with raw.open("rb") as file:
        first = msgspec.json.decode(file.readline(), type=Header)
    seen, last = Snapshot("", 0, 0.0, ""), -EVERY_S
    with out.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(msgspec.json.encode(first) + b"\n")
        for line in read_recording(raw):
            if line.snapshot is not None and line.t - last >= EVERY_S:
                packed.write(msgspec.json.encode({"t": line.t, "snapshot": line.snapshot}) + b"\n")
                seen, last = line.snapshot, line.t
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description="Record a real run for the pictures.")
    parser.add_argument("file", nargs="?", type=Path, default=RUN, metavar="FILE", help=f"default: {RUN.name}")
    told = parser.parse_args()
    with models() as folder:
        raw = folder / "raw.jsonl"
        with serving(folder, raw) as url:
            asyncio.run(play(url, folder))
        last = compact(raw, told.file)
    print(f"{told.file.name}: {last.uptime_s:.0f} s, {last.swaps.count} swaps, {told.file.stat().st_size // 1024} KiB")
    for fault in last.faults:
        print(f"the machine was too busy, and the pictures show it; record again: {fault}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
