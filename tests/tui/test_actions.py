"""Every action of the registry, by its key, on the running screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input

from llmtop.client import Reply
from llmtop.errors import Refusal
from llmtop.snapshot import LogLine, Snapshot
from llmtop_tui import actions
from llmtop_tui.app import Leave
from llmtop_tui.commands import MainCommands
from llmtop_tui.format import clean
from llmtop_tui.scene_parts import AT, GEMMA, LLAMA, MISTRAL, NOMIC, PHI, QWEN
from llmtop_tui.scenes import full, held, oom
from llmtop_tui.screens import confirm
from llmtop_tui.screens.confirm import ConfirmScreen
from llmtop_tui.screens.pager import PagerScreen
from llmtop_tui.screens.timeline import TimelineScreen

pytestmark = pytest.mark.anyio

# A case is a scene, the keys, and what must be so afterwards (app, client).
Check = Callable[[Any, Any], bool]
Case = tuple[Callable[[], Snapshot], str, Check]


def _many_lines() -> Snapshot:
    lines = tuple(LogLine(n, AT, GEMMA.id if n % 2 else QWEN.id, f"line {n}") for n in range(200))
    return msgspec.structs.replace(full(), log=lines)


def _said(*words: str) -> Check:
    return lambda app, client: client.said == [words]


def _asks(*parts: str) -> Check:
    def check(app: Any, client: Any) -> bool:
        if not isinstance(app.screen, ConfirmScreen) or client.said:
            return False
        text = " ".join(str(w.render()) for w in app.screen.query("Static, Button"))
        return all(part in text for part in parts)

    return check


def _cursor(model: str) -> Check:
    return lambda app, client: app.main.selected_model() == model


def _uses(panel: str) -> Check:
    return lambda app, client: app.main.active.id == panel and app.main.active.has_focus


CASES: dict[str, Case] = {
    "help": (full, "question_mark", lambda app, c: isinstance(app.screen, PagerScreen)),
    "detail": (full, "enter", lambda app, c: isinstance(app.screen, PagerScreen)),
    "evict": (full, "j j e", _said("evict", NOMIC.id, "5")),
    "pin": (full, "p", _said("pin", GEMMA.id, "9")),
    "load": (full, "G k L", lambda app, c: c.said == [("load", PHI.id, "")]),
    "kill": (
        full,
        "j K",
        _asks("Force-kill", "pid 48955", "1 request ends with an error", "reload ~6s", "Type its name"),
    ),
    "evict_all": (full, "E", _asks("Evict 1 idle model?", NOMIC.id, "0.6 GiB")),
    "cancel": (full, "2 j x", _said("cancel", "r-95")),
    "hold": (full, "d", _said("hold")),
    "step": (held, "full_stop", _said("step")),
    "filter": (full, "slash p h i enter", lambda app, c: [m.id for m in app.main.models.items] == [PHI.id]),
    "next": (full, "n", _cursor(LLAMA.id)),
    "previous": (full, "n N", _cursor(GEMMA.id)),
    "sort": (full, "s", lambda app, c: app.main.models.sort == "name"),
    "reverse": (full, "S", lambda app, c: app.main.models.items[-1].id == GEMMA.id),
    "logs": (full, "l", lambda app, c: app.main.log_panel.model == GEMMA.id and app.main.log_panel.has_focus),
    "follow": (_many_lines, "f", lambda app, c: not app.main.log_panel.follow),
    "wrap": (full, "w", lambda app, c: app.main.log_panel.wrap),
    "alarm": (oom, "exclamation_mark", lambda app, c: app.main.log_panel.model == MISTRAL.id),
    "zoom": (full, "5 z", lambda app, c: not app.main.models.display and app.main.log_panel.size.height > 30),
    "pause": (full, "space", lambda app, c: app.view.paused_s is not None),
    "refresh": (full, "r", lambda app, c: c.asked == 1),
    "faster": (full, "minus minus plus", lambda app, c: app.watch_core.pace.every_s == 1.0),
    "slower": (full, "minus", lambda app, c: app.watch_core.pace.every_s == 1.0),
    "next_swap": (full, "right_square_bracket", lambda app, c: app.screen is app.main and not c.said),
    "next_oom": (full, "left_square_bracket", lambda app, c: app.screen is app.main and not c.said),
    "timeline": (full, "T", lambda app, c: isinstance(app.screen, TimelineScreen)),
    "open_log": (full, "o", lambda app, c: any("no pager can be shown here" in n.message for n in app._notifications)),
    "screenshot": (
        full,
        "ctrl+s",
        lambda app, c: [f.read_text()[:4] for f in Path.cwd().glob("llmtop-*.svg")] == ["<svg"],
    ),
    "mouse": (full, "m", lambda app, c: not app.mouse),
    "copy": (full, "y", lambda app, c: "curl http://127.0.0.1:8080/v1/chat/completions" in app.clipboard),
    "copy_json": (full, "Y", lambda app, c: msgspec.json.decode(app.clipboard)["id"] == GEMMA.id),
    "down": (full, "j down", _cursor(NOMIC.id)),
    "up": (full, "j j k up", _cursor(GEMMA.id)),
    "first": (full, "j j g", _cursor(GEMMA.id)),
    "last": (full, "G", _cursor(MISTRAL.id)),
    "page_down": (full, "pagedown", lambda app, c: app.main.models.cursor > 1),
    "page_up": (full, "G pageup", lambda app, c: app.main.models.cursor < 4),
    "next_panel": (full, "tab", _uses("queue")),
    "previous_panel": (full, "shift+tab", _uses("log")),
    "panel_models": (full, "5 1", _uses("models")),
    "panel_queue": (full, "2", _uses("queue")),
    "panel_memory": (full, "3", _uses("memory")),
    "panel_events": (full, "4", _uses("events")),
    "panel_log": (full, "5", _uses("log")),
    "escape": (full, "slash p h i enter escape", lambda app, c: len(app.main.models.items) == 6),
    "palette": (full, "colon", lambda app, c: isinstance(app.screen, CommandPalette)),
    "leave": (
        full,
        "q",
        _asks("Leave llmtop?", "4 models up", "2 requests in flight, 4 waiting", "k Keep serving", "y Stop all"),
    ),
}


async def settled(pilot: Any, so: Callable[[], bool]) -> None:
    """Wait a while for what a thread of the terminal library still does."""
    for _ in range(100):
        if so():
            return
        await pilot.pause(0.02)


def test_every_action_has_a_case() -> None:
    assert set(CASES) == set(actions.BY_ID)


@pytest.mark.parametrize("name", CASES)
async def test_each_action_does_what_it_says(
    name: str, open_screen: Any, verbs_done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene, keys, check = CASES[name]
    async with open_screen(scene()) as (app, client, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        await verbs_done(app, pilot)
        await settled(pilot, lambda: check(app, client))
        assert check(app, client), f"{client.said} {app.screen} {app.main.active.id}"


def test_no_key_has_two_meanings() -> None:
    keys = [key for action in actions.ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))


def test_the_key_table_lists_every_action() -> None:
    assert len(actions.markdown().splitlines()) == len(actions.ACTIONS) + 2


@pytest.mark.parametrize("name", [a.id for a in actions.ACTIONS if a.danger])
async def test_a_read_only_view_has_no_destructive_keys(name: str, open_screen: Any, rows_of: Any) -> None:
    scene, keys, _ = CASES[name]
    async with open_screen(scene(), readonly=True) as (app, client, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert client.said == []
        assert app.screen is app.main
        assert actions.BY_ID[name].label + " " not in rows_of(app)[-1] + " "


@pytest.mark.parametrize("readonly", [False, True])
async def test_the_palette_of_a_read_only_view_has_no_destructive_actions(readonly: bool, open_screen: Any) -> None:
    async with open_screen(readonly=readonly) as (app, _, _pilot):
        offered = {name for name, _, _ in MainCommands(app.screen).commands()}
        dangerous = {f"{a.label} ({actions.key_name(a.keys[0])})" for a in actions.ACTIONS if a.danger}
        assert offered & dangerous == (set() if readonly else dangerous)


@pytest.fixture
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "GUARD_S", 0.0)


Ask = Callable[..., Awaitable[None]]


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("j j K y", [("kill", NOMIC.id, "5")]),
        ("j j K n", []),
        ("j j K escape", []),
        ("j j K enter", []),
        ("j j K tab enter", [("kill", NOMIC.id, "5")]),
        ("j j K k", []),
        ("j e y", [("evict", LLAMA.id, "8")]),
        ("E y", [("evict", NOMIC.id, "5")]),
        ("2 x y", [("cancel", "r-92"), ("cancel", "r-93"), ("cancel", "r-94")]),
        ("2 x enter", []),
    ],
)
async def test_only_a_yes_does_it(keys: str, said: list[tuple[str, ...]], open_screen: Any, verbs_done: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        await verbs_done(app, pilot)
        assert client.said == said


@pytest.mark.usefixtures("no_guard")
async def test_a_held_key_does_not_confirm(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "j", *["K"] * 30)
        assert isinstance(app.screen, ConfirmScreen)
        assert not app.screen.query(Input)
        assert client.said == []


async def test_a_yes_in_the_first_quarter_of_a_second_is_not_heard(
    open_screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "GUARD_S", 3600.0)
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "j", "K", "y", "tab", "enter")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        assert app.screen is app.main
        await pilot.press("k", "K", *["K"] * 9, "y")
        assert app.screen.query_one(Input).value == ""
        await pilot.press("escape")
        assert app.screen is app.main
        assert client.said == []


PINNED = msgspec.structs.replace(NOMIC, pinned=True, aliases=("embed", "Größe 一"))
KILLED = [("kill", LLAMA.id, "8")]


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize(
    ("keys", "said", "open_still"),
    [
        (LLAMA.id + "\n", KILLED, False),
        (f" {LLAMA.id} \n", KILLED, False),
        (LLAMA.id + "\ty", KILLED, False),  # past the name y is a yes again
        (LLAMA.id + "\t\t\n", KILLED, False),
        ("y", [], True),
        ("nkq", [], True),
        ("wrong\n", [], True),
        ("wrong\ty", [], True),
        ("wrong\ty\n", [], False),  # Enter on Cancel
        (LLAMA.id[:-1] + "\n", [], True),
        (LLAMA.id.upper() + "\n", [], True),
        (LLAMA.id + "\x1b", [], False),
        (LLAMA.id + "\x03", [], False),
        ("\n", [], False),
        ("K" * 30 + "\n", [], True),
    ],
)
async def test_whom_somebody_waits_for_is_killed_by_its_name_alone(
    keys: str, said: list[tuple[str, ...]], open_still: bool, open_screen: Any, verbs_done: Any
) -> None:
    named = {"\n": "enter", "\t": "tab", "\x1b": "escape", "\x03": "ctrl+c"}
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "K", *(named.get(key, key) for key in keys))
        await verbs_done(app, pilot)
        assert client.said == said
        assert isinstance(app.screen, ConfirmScreen) is open_still


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize("name", [NOMIC.id, "embed", "Größe 一", "Gro\u0308ße 一", "embed\nmore"])
async def test_a_pinned_model_has_its_name_or_alias_pasted(name: str, open_screen: Any, verbs_done: Any) -> None:
    snapshot = msgspec.structs.replace(full(), models=(PINNED,))
    async with open_screen(snapshot) as (app, client, pilot):
        await pilot.press("K")
        yes = app.screen.query_one("#yes")
        assert yes.disabled
        app.screen.query_one(Input).post_message(events.Paste(name))
        await pilot.pause()
        assert not yes.disabled
        await pilot.press("x")
        assert yes.disabled
        await pilot.press("backspace")
        await pilot.click("#yes")
        await verbs_done(app, pilot)
        assert client.said == [("kill", NOMIC.id, "5")]


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.parametrize("name", ["q" * 90 + "-" + "5" * 90, "大" * 60, "a\x1b[31m" + "-long" * 20])
async def test_a_name_that_has_to_be_typed_can_be_read_whole(
    name: str, size: tuple[int, int], open_screen: Any, verbs_done: Any
) -> None:
    models = (msgspec.structs.replace(PINNED, id=name, aliases=()),)
    async with open_screen(msgspec.structs.replace(full(), models=models), size) as (app, client, pilot):
        await pilot.press("K")
        ask, field = app.screen.query_one("#ask"), app.screen.query_one(Input)
        shown = "".join(strip.text.strip() for strip in ask.render_lines(ask.size.region))
        assert clean(name) in shown
        for widget in (ask, field, app.screen.query_one("#yes")):
            assert app.screen.region.contains_region(widget.region)
            assert widget.region.height
        field.value = clean(name)
        await pilot.press("enter")
        await verbs_done(app, pilot)
        assert client.said == [("kill", name, "5")]


@pytest.mark.usefixtures("no_guard")
async def test_nothing_is_done_to_another_child_of_the_same_name(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "K", *LLAMA.id)
        other = msgspec.structs.replace(LLAMA, instance=99, pid=999)
        models = tuple(other if m.id == other.id else m for m in full().models)
        client.publish(msgspec.structs.replace(full(), models=models))
        while app.newest.models != models:
            await pilot.pause(0.02)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is app.main
        assert client.said == []


async def test_a_refusal_is_told(open_screen: Any, verbs_done: Any, rows_of: Any) -> None:
    async with open_screen() as (app, client, pilot):
        client.reply = Reply(False, False, Refusal("all_slots_pinned", "2 of 2 slots hold pinned models"))
        await pilot.press("p")
        await verbs_done(app, pilot)
        await pilot.pause()
        assert any("2 of 2 slots hold pinned models" in row for row in rows_of(app))


async def test_a_core_that_does_not_answer_is_told_and_survived(open_screen: Any, rows_of: Any) -> None:
    async def broken(*_: object) -> Reply:
        raise ConnectionError("connection [/refused]")

    async with open_screen() as (app, client, pilot):
        client.model = broken
        await pilot.press("p")
        await pilot.pause(0.1)
        assert any("connection [/refused]" in row for row in rows_of(app))


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize(
    ("scene", "keys", "embedded", "left"),
    [
        ("full", "q y", True, Leave.STOP_ALL),
        ("full", "q k", True, Leave.KEEP_SERVING),
        ("full", "ctrl+c y", True, Leave.STOP_ALL),
        ("full", "q n", True, None),
        ("full", "q escape", True, None),
        ("full", "q enter", True, None),
        ("cold", "q", True, Leave.STOP_ALL),
        ("full", "q", False, Leave.DETACH),
        ("full", "ctrl+q", False, Leave.DETACH),
    ],
)
async def test_leaving(scene: str, keys: str, embedded: bool, left: Leave | None, open_screen: Any) -> None:
    async with open_screen(scene, embedded=embedded) as (app, _, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert app.return_value is left
        assert (app._exit is True) == (left is not None)


@pytest.mark.usefixtures("no_guard")
async def test_a_core_that_cannot_be_left_running_offers_only_to_stop(open_screen: Any) -> None:
    async with open_screen(detach_allowed=False) as (app, _, pilot):
        await pilot.press("q")
        assert not app.screen.query("#keep")
        await pilot.press("k")
        assert isinstance(app.screen, ConfirmScreen)


async def test_load_on_a_running_model_lets_pick_another(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("L")
        await pilot.pause(0.1)
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"phi")
        await pilot.pause(0.3)
        await pilot.press("enter")
        await pilot.pause(0.1)
        await pilot.press("enter")
        await pilot.pause(0.1)
        assert client.said == [("load", PHI.id, "")]


async def test_x_outside_of_the_queue_clears_the_oom_line(open_screen: Any, verbs_done: Any) -> None:
    async with open_screen("oom") as (app, client, pilot):
        assert app.main.alert.display
        await pilot.press("x")
        await verbs_done(app, pilot)
        assert client.said == [("acknowledge",)]


async def test_a_running_request_is_cancelled_after_a_question(open_screen: Any) -> None:
    async with open_screen(size=(180, 50)) as (app, client, pilot):
        await pilot.press("tab", "tab", "x")
        await pilot.pause()
        assert app.main.active.id == "flight"
        assert _asks("Cancel 1 running request?", "cut off")(app, client)


async def test_a_screenshot_that_cannot_be_saved_is_told_and_a_path_with_brackets_is_shown_as_it_is(
    open_screen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "[b]here[x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    async with open_screen() as (app, _, pilot):
        await pilot.press("ctrl+s")
        await settled(pilot, lambda: bool(app._notifications))
        assert any("[b]here[x/llmtop-" in note.message for note in app._notifications)


async def test_a_click_on_a_columns_head_sorts_and_again_turns_it_round(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        panel = app.main.models
        head = next(row for row in rows_of(app) if "STATE" in row and "MODEL" in row)
        cursor = app.main.selected_model()
        at = (head.index("WAIT") + 1, 1)
        await pilot.click("#models", offset=at)
        assert (panel.sort, panel.reversed, app.main.selected_model()) == ("wait", False, cursor)
        assert panel.items[0].waiting == max(model.waiting for model in panel.items)
        await pilot.click("#models", offset=at)
        assert panel.reversed
        await pilot.click("#models", offset=(head.index("MODEL") + 1, 1))
        assert (panel.sort, panel.reversed) == ("name", False)


async def test_the_cursor_stays_in_sight_while_another_window_has_the_focus(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("2", "j")
        app.post_message(events.AppBlur())
        await pilot.pause()
        assert not app.app_focus
        assert sum(row.startswith(">") for row in rows_of(app)) == 2  # the models', and the queue's
        app.post_message(events.AppFocus())
        await pilot.pause()
        assert app.main.queue.has_focus


async def test_the_footer_and_the_mouse_do_the_same(open_screen: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.click("#footer", offset=(2, 0))
        await pilot.pause()
        assert isinstance(app.screen, PagerScreen)


@pytest.mark.parametrize(
    ("key", "said"), [("p", [("pin", GEMMA.id, "9"), ("unpin", GEMMA.id, "9")]), ("d", [("hold",), ("resume",)])]
)
async def test_a_key_pressed_again_undoes_also_before_the_screen_shows_what_it_did(
    key: str, said: list[tuple[str, ...]], open_screen: Any, verbs_done: Any
) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press(key, key)
        await verbs_done(app, pilot)
        assert client.said == said


async def test_a_refused_pin_is_asked_for_again(open_screen: Any, verbs_done: Any) -> None:
    async with open_screen() as (app, client, pilot):
        client.reply = Reply(False, False, Refusal("conflict", "no"))
        for _ in range(2):
            await pilot.press("p")
            await verbs_done(app, pilot)
        assert [words[0] for words in client.said] == ["pin", "pin"]
