"""A sentence of the core in few cells: what it says outlives the names in it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from llmtop.scheduler import reasons
from llmtop.snapshot import Snapshot
from llmtop_tui import view as view_module
from llmtop_tui.format import width_of
from llmtop_tui.scene_parts import LLAMA, PHI, QWEN
from llmtop_tui.scenes import full
from llmtop_tui.view import View
from llmtop_tui.widgets.words import squeeze

WHY = f"needs 4.0 GiB, 2.1 free: draining {LLAMA.id} (1 request)"
ViewOf = Callable[[Snapshot], View]


def test_the_view_knows_how_the_core_ends_a_sentence_of_a_held_queue() -> None:
    assert view_module.HELD == reasons.HELD


def test_what_fits_is_left_as_it_is(view_of: ViewOf) -> None:
    assert squeeze(WHY, view_of(full()), 80) == WHY


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (68, "needs 4.0 GiB, 2.1 free: draining llama-3.1-8…uct-q4_k_m (1 request)"),
        (60, "needs 4.0 GiB, 2.1 free: draining llama-3…q4_k_m (1 request)"),
        (48, "needs 4.0 GiB, 2.1 free: draining B (1 request)"),
        (32, "draining B (1 request)"),
        (15, "draining B (1 …"),
    ],
)
def test_names_get_shorter_then_figures_go_then_the_end(view_of: ViewOf, cells: int, shown: str) -> None:
    assert squeeze(WHY, view_of(full()), cells) == shown


@pytest.mark.parametrize("cells", range(0, 90, 3))
def test_it_is_never_wider_than_its_place(view_of: ViewOf, cells: int) -> None:
    assert width_of(squeeze(WHY, view_of(full()), cells)) <= cells


def test_what_is_past_has_no_letters(view_of: ViewOf) -> None:
    said = f"{LLAMA.id} for {PHI.id} (max-wait)"
    assert squeeze(said, view_of(full()), 24) == "B for phi-4-m…t-q8_0 (m…"
    assert squeeze(said, view_of(full()), 24, past=True).startswith("llama-3…q4_k_m for")


def test_a_name_is_never_found_within_another_word(view_of: ViewOf) -> None:
    short = msgspec.structs.replace(QWEN, id="a")
    view = view_of(msgspec.structs.replace(full(), models=(short,)))
    assert squeeze("a waits as a busy cat-a stays loaded for a very long time", view, 40).startswith(
        "A waits as A busy cat-a"
    )
