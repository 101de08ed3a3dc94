"""The small parts that children are made of."""

# ruff: noqa: E501 (protocol lines)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.children import binary, owner, protocol
from llmtop.children.binary import (
    ServerHelp,
    find_llama_server,
    parse_build,
    parse_help,
    server_environment,
    server_help,
)
from llmtop.children.command import build_launch, masked, with_descriptor_limit
from llmtop.children.ladder import stop_timeout
from llmtop.children.logfile import ROTATE_BYTES, LogWriter, file_name
from llmtop.children.ports import REST_S, PortPicker
from llmtop.children.ring import Ring
from llmtop.children.sizes import SizeCollector
from llmtop.config.spec import MIB, ModelSpec, Settings
from llmtop.errors import StartError
from llmtop.snapshot import LogLine
from llmtop.testing.fake_model import HELP
from llmtop.testing.models import server_command

LOAD = [
    "0.00.012.350 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
    "0.00.012.805 I load_tensors:   CPU_Mapped model buffer size =     4.00 MiB",
    "0.00.012.805 I load_tensors:   MTL0_Mapped model buffer size =    20.00 MiB",
    "0.00.013.306 I llama_context:        CPU  output buffer size =     1.00 MiB",
    "0.00.013.346 I llama_kv_cache:       MTL0 KV buffer size =     3.00 MiB",
    "0.00.013.346 I llama_kv_cache:       MTL0 KV buffer size =     2.00 MiB",
    "0.00.015.292 I sched_reserve:       MTL0 compute buffer size =     7.00 MiB",
    "0.00.015.292 I sched_reserve:       MTL0 compute buffer size =     8.00 MiB",
]


def collect(*lines: str, file_bytes: int = 0) -> int | None:
    sizes = SizeCollector(file_bytes)
    for line in lines:
        sizes.feed(line)
    return sizes.total


def test_kv_lines_add_up_and_of_other_lines_the_last_holds() -> None:
    assert collect(*LOAD) == (4 + 20 + 1 + 3 + 2 + 8) * MIB


def test_weights_count_for_no_more_than_their_files() -> None:
    assert collect(*LOAD, file_bytes=21 * MIB) == (21 + 1 + 5 + 8) * MIB


def test_a_pass_that_allocates_nothing_is_not_counted_and_a_draft_model_is() -> None:
    fit = ["print_info: no_alloc              = 1", *LOAD]
    real = ["print_info: no_alloc              = 0", *LOAD]
    assert collect(*fit, *real) == 38 * MIB
    assert collect(*fit, *real, *real) == 76 * MIB


def test_an_older_build_that_tells_no_passes_counts_the_last() -> None:
    assert collect(*LOAD, *LOAD) == 38 * MIB


def test_a_reload_starts_afresh_and_a_larger_compute_buffer_wins() -> None:
    reload = "0.00.007.298 I srv    load_model: loading model 'A.gguf'"
    real = ["print_info: no_alloc              = 0", *LOAD]
    assert collect(*real, reload, *real) == 38 * MIB
    late = "W x:       MTL0 compute buffer size of  10.0000 MiB, does not match expectation of   8.0000 MiB"
    assert collect(*real, late) == 40 * MIB


def test_no_size_lines_is_not_zero() -> None:
    assert collect("llama_kv_cache: nothing here") is None


def launch(
    spec: ModelSpec, settings: Settings | None = None, known: str = HELP, cache: int | None = 100
) -> tuple[list[str], dict[str, str]]:
    made = build_launch(
        spec,
        settings or Settings(),
        program="/bin/llama-server",
        known=ServerHelp(parse_help(known)),
        port=4711,
        api_key="k",
        front_port=8080,
        cache_ram_mib=cache,
    )
    return list(made.argv), made.env


def test_command_line_of_a_llama_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "LLAMA_API_KEY",
        "LLAMA_ARG_MODELS_DIR",
        "LLAMA_ARG_API_KEY_FILE",
        "LLAMA_ARG_SSL_KEY_FILE",
        "LLAMA_ARG_HOST",
        "LLMTOP_URL",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    argv, env = launch(ModelSpec(id="A", source_args=("-m", "a.gguf"), args=("-c", "99"), env=(("X", "1"),)))
    assert argv == [
        "/bin/llama-server",
        *[
            "--host",
            "127.0.0.1",
            "--port",
            "4711",
            "--alias",
            "A",
            "-m",
            "a.gguf",
            "-lv",
            "4",
            "--cache-ram",
            "100",
            "-c",
            "99",
        ],
    ]
    assert (env["LLAMA_API_KEY"], env["LLAMA_SERVER_ROUTER_PORT"], env["X"], env["LLAMA_ARG_THREADS"]) == (
        "k",
        "8080",
        "1",
        "3",
    )
    assert "secret" not in env.values()


@pytest.mark.parametrize("args", [("-lv", "1"), ("-v",), ("--log-verbosity=2",)])
def test_the_users_verbosity_stays(args: tuple[str, ...]) -> None:
    argv, _ = launch(ModelSpec(id="A", args=args))
    assert "4" not in argv


def test_options_a_build_does_not_know_are_left_out() -> None:
    argv, _ = launch(ModelSpec(id="A", sleep_idle_s=5), known="-m,    --model FNAME   path\n")
    assert not {"-lv", "--cache-ram", "--sleep-idle-seconds"} & set(argv)


def test_a_model_pinned_in_the_preset_never_sleeps() -> None:
    assert "--sleep-idle-seconds" in launch(ModelSpec(id="A"), Settings(sleep_idle_s=60))[0]
    assert "--sleep-idle-seconds" not in launch(ModelSpec(id="A", pin=True), Settings(sleep_idle_s=60))[0]
    assert (
        launch(ModelSpec(id="A", args=("--sleep-idle-seconds", "7")), Settings(sleep_idle_s=60))[0].count(
            "--sleep-idle-seconds"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (ModelSpec("A", args=("-c", "512")), False),
        (ModelSpec("A", source_args=("-m", "b.gguf")), False),
        (ModelSpec("A", cmd="serve ${PORT}"), False),
        (ModelSpec("A", env=(("X", "1"),)), False),
        (ModelSpec("A", sleep_idle_s=5), False),
        (ModelSpec("A", cache_ram_mib=512), False),
        (ModelSpec("A", pin=True), True),
        (ModelSpec("A", memory=1 << 30), True),
        (ModelSpec("A", aliases=("b",)), True),
        (ModelSpec("A", idle_unload_s=5), True),
        (ModelSpec("A", load_on_startup=True), True),
    ],
)
def test_a_running_child_is_as_configured_unless_it_would_be_started_otherwise(other: ModelSpec, alike: bool) -> None:
    assert ModelSpec("A").starts_like(other) is alike
    if not other.cache_ram_mib:  # its share of the whole is worked out by whoever starts it
        assert (launch(ModelSpec("A")) == launch(other)) is alike


def test_a_cmd_server_gets_its_port_and_no_key() -> None:
    argv, env = launch(ModelSpec(id="A", cmd="mlx_lm.server --model 'a b' --port ${PORT}"))
    assert argv == ["mlx_lm.server", "--model", "a b", "--port", "4711"]
    assert not {"LLAMA_API_KEY", "LLAMA_SERVER_ROUTER_PORT"} & set(env)


def test_secrets_are_masked_in_every_view_of_a_command_line() -> None:
    assert masked(["x", "--api-key", "s", "-hft", "t", "--hf-token=u", "-c", "1"]) == (
        "x",
        "--api-key",
        "***",
        "-hft",
        "***",
        "--hf-token=***",
        "-c",
        "1",
    )


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("env HF_TOKEN=hf_x vllm serve m", "env HF_TOKEN=*** vllm serve m"),
        ("python -m llama_cpp.server --api_key sk", "python -m llama_cpp.server --api_key ***"),
        ("x --API-KEY=sk --hf_token=t --api-keys a,b", "x --API-KEY=*** --hf_token=*** --api-keys ***"),
        ("x --ctx-size 8192 --max-tokens 5 key token", "x --ctx-size 8192 --max-tokens 5 key token"),
    ],
)
def test_other_spellings_of_secrets_are_masked(argv: str, shown: str) -> None:
    assert masked(argv.split()) == tuple(shown.split())


def test_headers_on_a_command_line_are_masked() -> None:
    assert masked(["x", "-H", "Authorization: Bearer sk", "-H", "X-Api-Key:sk"]) == (
        "x",
        "-H",
        "Authorization: ***",
        "-H",
        "X-Api-Key: ***",
    )


def test_the_descriptor_limit_is_set_and_the_command_kept_whole() -> None:
    argv = with_descriptor_limit(
        [sys.executable, "-c", "import resource,sys; print(resource.getrlimit(7)[0], sys.argv[1:])", "a b", "$c"], 123
    )
    if sys.platform == "linux":
        assert subprocess.check_output(argv, text=True).strip() == "123 ['a b', '$c']"
    assert with_descriptor_limit(["x"], None) == ["x"]


def test_stop_timeout_grows_with_the_footprint() -> None:
    assert stop_timeout(ModelSpec(id="A"), Settings(), None) == 10
    assert stop_timeout(ModelSpec(id="A"), Settings(), 100 * 10**9) == 15
    assert stop_timeout(ModelSpec(id="A"), Settings(), 10**13) == 60
    assert stop_timeout(ModelSpec(id="A"), Settings(stop_timeout_s=3), 10**13) == 3
    assert stop_timeout(ModelSpec(id="A", stop_timeout_s=1), Settings(stop_timeout_s=3), None) == 1


def test_a_port_rests_for_a_minute() -> None:
    now = [0.0]
    picker = PortPicker(lambda: now[0])
    given = [picker.pick() for _ in range(200)]
    assert len(set(given)) == 200
    now[0] = REST_S
    picker.pick()
    assert len(picker._given) == 1  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (b'cmd_child_to_router:state:{"state":"loading","payload":{"stages":["text_model"],"current":"text_model","value":0.5}}', protocol.ChildState("loading", protocol.Payload("text_model", 0.5))),
        (b'cmd_child_to_router:state:{"state": "sleeping", "payload": null}', protocol.ChildState("sleeping")),
        (b'cmd_child_to_router:state:{"state":"ready","payload":{"id":"A","value":[1]}}', protocol.ChildState("ready")),
        (b'cmd_child_to_router:state:{"state":"later","payload":"odd"}', protocol.ChildState("later")),
        (b"cmd_child_to_router:state:{", None),
        (b'cmd_child_to_router:state:["ready"]', None),
        (b"ready", None),
        (b"\xff\xfe", None),
    ],
)  # fmt: skip
def test_child_protocol(line: bytes, state: protocol.ChildState | None) -> None:
    assert protocol.parse(line) == state


def test_ring_keeps_the_first_and_the_newest() -> None:
    ring = Ring(first=3, last=4)
    for start, end in ((0, 1), (1, 5), (5, 5), (5, 20)):
        ring.extend([LogLine(i, 0.0, "A", str(i)) for i in range(start, end)])
    assert ring.texts() == ["0", "1", "2", "16", "17", "18", "19"]


def test_log_files_are_private_rotated_and_named_without_surprise(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "logs")
    writer.write("a/../b", "x" * ROTATE_BYTES + "\n")
    writer.write("a/../b", "second\n")
    writer.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert [f.name for f in files] == ["a%2F..%2Fb.log", "a%2F..%2Fb.log.1"]
    assert files[0].read_text() == "second\n"
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert len(file_name("x" * 5000).encode()) < 255
    assert file_name("x" * 5000) != file_name("x" * 5001)


def test_a_log_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    writer = LogWriter(tmp_path / "logs")
    writer.write("A", "x\n")
    writer.close()


def test_llama_server_is_found_by_name_path_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = server_command(tmp_path)
    monkeypatch.delenv("LLMTOP_LLAMA_SERVER", raising=False)
    monkeypatch.setattr(binary, "HOMEBREW", ())
    monkeypatch.setattr(binary, "wheel_binary", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartError, match=r"brew install llama\.cpp.*--llama-server PATH"):
        find_llama_server()
    with pytest.raises(StartError, match="does not exist"):
        find_llama_server(str(tmp_path / "none"))
    (tmp_path / "plain").write_text("")
    with pytest.raises(StartError, match="not executable"):
        find_llama_server(str(tmp_path / "plain"))
    assert find_llama_server(str(path)) == str(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_llama_server() == find_llama_server("llama-server") == str(path)
    monkeypatch.setenv("LLMTOP_LLAMA_SERVER", str(path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_llama_server() == str(path)


def test_help_is_read_into_a_table() -> None:
    options = parse_help(HELP)
    assert options["-ngl"].names == ("-ngl", "--gpu-layers", "--n-gpu-layers")
    assert options["-hf"].takes_value
    assert options["-fa"].takes_value
    assert options["--cache-ram"].env == "LLAMA_ARG_CACHE_RAM"
    assert not options["--no-mmap"].takes_value
    assert not options["--metrics"].takes_value
    assert options["--sleep-idle-seconds"].env == ""
    assert parse_build("version: 11434 (abc)\nbuilt with x") == 11434
    assert parse_build("version: 0.1.0-dev (build 10434, commit 7e4c0a9)") == 10434
    assert parse_build("nothing") is None


@pytest.mark.slow
def test_help_is_asked_once_for_each_state_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = server_command(tmp_path)
    assert server_help(str(path)).build == 11434
    monkeypatch.setattr(binary, "_ask", lambda path, question: pytest.fail("asked again"))
    assert server_help(str(path)).knows("-lv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [("sleep 60", "did not answer"), ("echo broken >&2; exit 3", "broken"), ("kill -9 $$", "cannot be run")],
)
def test_a_binary_that_cannot_be_asked_is_a_plain_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(binary, "ASK_TIMEOUT_S", 0.3)
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\n{'exec ' if script.startswith('sleep') else ''}{script}\n")
    path.chmod(0o755)
    with pytest.raises(StartError, match=words):
        server_help(str(path))


def test_the_demo_extras_binary_gets_its_libraries() -> None:
    path = binary.wheel_binary()
    if path is None:
        pytest.skip("the demo extra is not installed")
    assert str(Path(path).parent) in server_environment(path, {})["LD_LIBRARY_PATH"]
    assert server_environment("/bin/sh", {"A": "1"}) == {"A": "1"}


def test_a_state_folder_has_one_owner(tmp_path: Path) -> None:
    folder = tmp_path / "a/state"
    hold = owner.claim(folder, "http://127.0.0.1:8080")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / owner.FILE).stat().st_mode & 0o777 == 0o600
    with pytest.raises(
        StartError,
        match=r"already runs here: pid \d+ at http://127.0.0.1:8080; try `llmtop attach http://127.0.0.1:8080`",
    ):
        owner.claim(folder)
    found = owner.read_owner(folder)
    assert found is not None
    assert found.url == "http://127.0.0.1:8080"
    hold.announce("http://[::1]:9")
    found = owner.read_owner(folder)
    assert found is not None
    assert found.url == "http://[::1]:9"
    hold.release()
    hold.release()
    assert owner.read_owner(folder) is None
    owner.claim(folder).release()


def test_what_a_dead_owner_left_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / owner.FILE).write_text('{"pid": 1, "url": "http://x"}')
    assert owner.read_owner(tmp_path) is None
    assert owner.read_owner(tmp_path / "none") is None
    owner.claim(tmp_path).release()


def test_a_state_folder_that_cannot_be_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="--state-dir"):
        owner.claim(tmp_path / "file/state")


def test_who_listens_on_a_port_is_named() -> None:
    import os
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert f"pid {os.getpid()}" in owner.port_owner(port)
        assert f"pid {os.getpid()}" in str(owner.taken_port("127.0.0.1", port))
    assert "another program" in owner.port_owner(port)
