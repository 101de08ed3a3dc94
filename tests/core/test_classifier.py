"""What the classifier makes of a whole tail and of an exit status."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.children.classify import Classifier, cause, classify, exit_failure, line_failure, strip_prefix
from llmtop.children.patterns import PATTERNS, needles

OOM = "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
BACKTRACE = [f"{i}   libggml-metal.dylib   0x{i:016x} ggml_metal_graph_compute + {i * 8}" for i in range(60)]


def test_cause_is_the_most_telling_line_and_not_the_last() -> None:
    tail = [
        "srv  load_model: loading",
        "E ggml_metal_synchronize: error: command buffer 0 failed with status 5",
        f"E {OOM}",
        *BACKTRACE,
    ]
    tail += [
        "E srv  llama_server: exiting due to model loading error",
        "libc++abi: terminating due to uncaught exception of type x",
    ]
    found = cause(tail)
    assert found is not None
    assert found.text == OOM
    failure = exit_failure(tail, code=None, signal=signal.SIGABRT, ready=False)
    assert (failure.kind, failure.signal, failure.exit_code) == ("oom", 6, None)
    assert OOM in failure.message
    assert len(failure.lines) == 20
    assert failure.hint


def test_of_equal_lines_the_first_is_the_cause() -> None:
    found = cause(
        [
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1",
            "alloc_tensor_range: failed to allocate CPU buffer of size 2",
        ]
    )
    assert found is not None
    assert "CUDA0" in found.text


def test_a_load_that_runs_out_of_memory_is_no_bad_file() -> None:
    tail = [
        "0.1.2 x",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 99.00 MB)",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        "llama_model_load: error loading model: whatever",
        "cmn  common_init_: failed to load model 'x.gguf'",
    ]
    assert exit_failure(tail, code=1, signal=None, ready=False).kind == "oom"


@pytest.mark.parametrize(
    ("code", "signum", "kind", "words"),
    [
        (None, 9, "killed", "killed by the system"),
        (137, None, "killed", "killed by the system"),
        (None, 6, "crash", "SIGABRT"),
        (134, None, "crash", "SIGABRT"),
        (None, 11, "crash", "SIGSEGV"),
        (None, signal.SIGBUS, "crash", "SIGBUS"),
        (None, 15, "killed", "SIGTERM"),
        (None, 63, "crash", "signal 63"),
        (127, None, "not_found", "could not be run"),
        (1, None, "crash", "status 1"),
        (0, None, "crash", "status 0"),
    ],
)
def test_exit_without_a_line_is_told_by_its_status(code: int | None, signum: int | None, kind: str, words: str) -> None:
    failure = exit_failure([], code=code, signal=signum, ready=True)
    assert (failure.kind, failure.exit_code, failure.signal) == (kind, code, signum)
    assert words in failure.message


def test_an_unknown_failure_shows_its_last_error_line() -> None:
    failure = exit_failure(
        ["0.00.000.001 E srv  x: the moon is wrong", "0.00.000.002 I srv  bye"], code=1, signal=None, ready=False
    )
    assert failure.message == "exited with status 1: srv  x: the moon is wrong"


def test_what_was_said_during_the_load_is_no_cause_of_a_later_crash() -> None:
    tail = ["gguf_init_from_file: failed to open GGUF file 'draft.gguf' (No such file or directory)"]
    assert exit_failure(tail, code=None, signal=11, ready=True).kind == "crash"
    assert exit_failure(tail, code=1, signal=None, ready=False).kind == "bad_file"


def test_a_kill_from_outside_stays_one_unless_memory_had_run_out() -> None:
    assert exit_failure(["GGML_ASSERT(x) failed"], code=None, signal=9, ready=True).kind == "killed"
    assert exit_failure(["CUDA error: out of memory"], code=None, signal=9, ready=True).kind == "oom"


def test_a_failure_in_service_names_the_reason_and_not_the_symptom() -> None:
    symptom = classify("E ggml_metal_synchronize: error: command buffer 0 failed with status 5")
    assert symptom is not None
    assert line_failure([symptom.text, OOM], symptom).message == OOM
    assert line_failure([], symptom).message == symptom.text


def test_an_assert_is_not_hidden_by_a_hint_before_it() -> None:
    found = cause(["W x: failed to allocate memory for prompt cache state", "GGML_ASSERT(buf_src) failed"])
    assert found is not None
    assert found.pattern.name == "assert"


def test_prefix_is_split_off() -> None:
    assert strip_prefix("[34605] 440.59.380.352 E CUDA error: x") == ("E", "CUDA error: x")
    assert strip_prefix("0.00.012.805 I load_tensors: y") == ("I", "load_tensors: y")
    assert strip_prefix("E error") == ("E", "error")
    assert strip_prefix("[METAL] Command") == ("", "[METAL] Command")
    assert strip_prefix("Error: x") == ("", "Error: x")


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("abc def", ("abc def",)),
        (r"^abcd? x(?:one|two)yz", ("abc",)),
        (r"one\.two|th+ree", ("one.two", "ree")),
        (r"a|bcd", ()),
        (r"ab\d+cdef", ("cdef",)),
    ],
)
def test_needles_are_in_every_match(regex: str, found: tuple[str, ...]) -> None:
    assert needles(regex) == found


def test_every_row_of_the_table_can_be_acted_on() -> None:
    for pattern in PATTERNS:
        assert 0 <= pattern.rank <= 100
        assert pattern.kind in ("", "oom", "bad_file", "bad_argument", "port", "killed", "crash", "sick"), pattern
        assert not pattern.acts or pattern.hint or pattern.name == "metal_background"
        assert not (pattern.acts and pattern.severity in ("warning", "recovers"))


@pytest.mark.parametrize("between", [0, 1, 15, 16, 17, 40])
def test_a_request_is_an_echo_to_its_end_however_long_it_is(between: int) -> None:
    reader = Classifier()
    echo = ['I srv  log_server_r: request: {"prompt": "what does this mean?', *["a line of it"] * between]
    assert [reader.feed(line) for line in [*echo, OOM]] == [None] * (between + 2)
    assert reader.feed(f"E {OOM}") is not None, "a line of the server's own ends it"
    assert reader.feed(OOM) is not None


HARMLESS = (
    'I srv  log_server_r: request: {"prompt": "what does this mean?', '{"prompt": "', "a line of it",
    "slot launch_slot_: x",
    "0.00.839.706 I srv        update:    - prompt 0x56: 154 tokens", "D srv  x: y", "",
)  # fmt: skip


@given(st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=40), st.lists(st.sampled_from(HARMLESS), max_size=3))
def test_lines_that_are_skipped_leave_the_reader_as_if_it_had_read_them(before: list[str], after: list[str]) -> None:
    read, skipped = Classifier(), Classifier()
    for line in before:
        read.feed(line)
    skipped.skip("\n".join(before))
    assert [read.feed(line) for line in (*after, OOM)] == [skipped.feed(line) for line in (*after, OOM)]


def test_a_line_of_information_means_something_only_by_the_rows_that_say_so() -> None:
    reader = Classifier()
    assert reader.feed(f"I {OOM}") is None
    assert reader.feed("I srv  llama_server: starting server in router mode") is not None
    assert all(pattern.needles for pattern in PATTERNS if pattern.info), "such a row is looked for by its needles"


@given(st.lists(st.text(max_size=80), max_size=30))
def test_no_text_breaks_it(lines: list[str]) -> None:
    reader = Classifier()
    for line in lines:
        reader.feed(line)
        classify(line)
    cause(lines)
