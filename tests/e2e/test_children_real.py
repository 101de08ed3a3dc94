"""The same with a real llama-server, where one is installed."""

# ruff: noqa: T201 (figures are printed)

from __future__ import annotations

import statistics
from pathlib import Path

import httpx
import pytest

from llmtop.children import news
from llmtop.children.binary import server_help, wheel_binary
from llmtop.config.spec import ModelSpec
from llmtop.testing.nursery import nursery, spec_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


ARGS = ("-c", "512", "--no-warmup")


@pytest.fixture(scope="module")
def real() -> str:
    path = wheel_binary()
    if path is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    gguf = pytest.importorskip("llmtop.demo.tiny_gguf", reason="needs a model that a real llama-server loads")
    path = tmp_path / "tiny.gguf"
    gguf.write_tiny(path)
    return path


async def test_load_ready_answer_and_stop(tmp_path: Path, real: str, tiny: Path) -> None:
    async with nursery(tmp_path / "state", real) as home:
        one = home.spawn(spec_of(tiny, args=ARGS), cache_ram_mib=64)
        await home.until(news.Ready, one)
        started = home.of(news.Started, one)[0]
        assert (await home.until(news.Slots, one)).total == 4
        assert (await home.until(news.Sized, one)).total > 2**20
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{started.port}") as client:
            body = {"prompt": "hi", "max_tokens": 4}
            assert (await client.post("/v1/completions", json=body)).status_code == 401
            client.headers["Authorization"] = f"Bearer {started.api_key}"
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert (gone.exit_code, gone.failure, gone.sigkilled) == (0, None, False)


async def test_a_real_child_stops_in_milliseconds(tmp_path: Path, real: str, tiny: Path) -> None:
    """A connection of ours that stayed open would cost 100 ms here."""
    took: list[float] = []
    async with nursery(tmp_path / "state", real) as home:
        for _ in range(5):
            one = home.spawn(spec_of(tiny, args=ARGS))
            await home.until(news.Slots, one)
            home.stop(one)
            await home.until(news.Exited, one)
            took.append(home.at(news.Exited, one) - home.at(news.Stopping, one))
    print(f"\nstop to exit of a real child: {statistics.median(took) * 1000:.1f} ms")
    assert statistics.median(took) < 0.08


async def test_a_bad_file_and_a_bad_argument_are_named(tmp_path: Path, real: str, tiny: Path) -> None:
    junk, cut = tmp_path / "junk.gguf", tmp_path / "cut.gguf"
    junk.write_text("version https://git-lfs")
    cut.write_bytes(tiny.read_bytes()[:200_000])  # noqa: ASYNC240
    async with nursery(tmp_path / "state", real) as home:
        for spec, kind, words in (
            # The child's own words, or ours of the file where its log was lost at the exit.
            (spec_of(junk), "bad_file", ("invalid magic", "junk.gguf: not a GGUF file")),
            (spec_of(cut), "bad_file", ("not within the file bounds", "cut.gguf: cut short")),
            (spec_of(tmp_path / "missing.gguf"), "bad_file", ("failed to open GGUF", "missing.gguf: No such file")),
            (spec_of(tiny, args=("--nonsense",)), "bad_argument", ("--nonsense",)),
        ):
            one = home.spawn(spec)
            gone = await home.until(news.Exited, one)
            assert gone.failure is not None
            assert gone.failure.kind == kind, gone.failure
            assert any(word in gone.failure.message for word in words), gone.failure


async def test_a_taken_port_is_named(tmp_path: Path, real: str, tiny: Path) -> None:
    async with nursery(tmp_path / "state", real) as home:
        one = home.spawn(spec_of(tiny, args=ARGS))
        await home.until(news.Ready, one)
        taken = home.of(news.Started, one)[0].port
        ports = home.supervisor._world.ports  # pyright: ignore[reportPrivateUsage]
        ports.pick = lambda: taken  # type: ignore[method-assign]
        two = home.spawn(spec_of(tiny, args=ARGS))
        gone = await home.until(news.Exited, two)
        assert gone.failure is not None
        assert gone.failure.kind == "port"


async def test_a_child_without_a_model_is_found_to_be_a_router(tmp_path: Path, real: str) -> None:
    async with nursery(tmp_path / "state", real) as home:
        one = home.spawn(ModelSpec(id="A"))
        failed = await home.until(news.LoadFailed, one)
        assert failed.failure.kind == "bad_argument"
        home.stop(one, loading=True)
        await home.until(news.Exited, one)


def test_help_of_a_real_one_is_understood(real: str) -> None:
    known = server_help(real)
    assert known.options["-c"].names == ("-c", "--ctx-size")
    assert (known.options["--ctx-size"].takes_value, known.options["-c"].env) == (True, "LLAMA_ARG_CTX_SIZE")
    assert known.options["--no-mmap"].names == ("--mmap", "--no-mmap")
    assert not known.options["--mmap"].takes_value
    assert known.options["-ngl"].names == ("-ngl", "--gpu-layers", "--n-gpu-layers")
    assert known.options["--fit"].takes_value
    assert known.options["-hfd"].takes_value
    assert not known.options["--no-direct-io"].takes_value
    assert known.options["--sleep-idle-seconds"].takes_value
    assert len({option.names for option in known.options.values()}) > 150
