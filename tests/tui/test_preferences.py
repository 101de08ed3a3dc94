"""What a user has chosen for good: theme and keys; and what leaves the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmtop.snapshot import LogLine
from llmtop_tui.actions import ACTIONS, shown
from llmtop_tui.outside import clipboard_command, page, pager
from llmtop_tui.preferences import Preferences, folder_of, key_of
from llmtop_tui.scene_parts import GEMMA, LLAMA
from llmtop_tui.scenes import full

pytestmark = pytest.mark.anyio


def _keymap(folder: Path, keys: object) -> Preferences:
    (folder / "keymap.json").write_text(json.dumps(keys))
    return Preferences.load(folder)


def test_files_are_in_the_users_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of({"XDG_CONFIG_HOME": "/etc/mine"}) == Path("/etc/mine/llmtop")
    assert folder_of({"XDG_CONFIG_HOME": "relative"}) == tmp_path / ".config" / "llmtop"
    assert folder_of({}) == tmp_path / ".config" / "llmtop"


def test_nothing_chosen_is_no_problem(tmp_path: Path) -> None:
    read = Preferences.load(tmp_path / "none")
    assert (read.theme, dict(read.keys), read.problems) == ("", {}, ())


def test_a_theme_is_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "llmtop"
    Preferences.load(folder).save_theme("llmtop-light")
    assert Preferences.load(folder).theme == "llmtop-light"
    assert [file.name for file in folder.iterdir()] == ["ui.json"]


def test_a_folder_that_cannot_be_written_costs_only_the_memory_of_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Preferences(tmp_path / "file" / "llmtop").save_theme("llmtop-light")


@pytest.mark.parametrize(
    ("written", "key"), [("?", "question_mark"), ("+", "plus"), ("-", "minus"), ("]", "right_square_bracket"),
                         ("%", "percent_sign"), ("e", "e"), ("ctrl+k", "ctrl+k"), ("F1", "f1"), ("esc", "escape")]
)  # fmt: skip
def test_keys_are_written_as_people_write_them(written: str, key: str) -> None:
    assert key_of(written) == key


def test_only_differences_are_written_down(tmp_path: Path) -> None:
    read = _keymap(tmp_path, {"evict": "v", "kill": "ctrl+k, %"})
    assert dict(read.keys) == {"evict": ("v",), "kill": ("ctrl+k", "percent_sign")}
    keys = {action.id: action.keys for action in shown(readonly=False, keys=read.keys)}
    assert keys["evict"] == ("v",)
    assert keys["pin"] == ("p",)


def test_two_keys_can_be_swapped(tmp_path: Path) -> None:
    read = _keymap(tmp_path, {"evict": "p", "pin": "e"})
    assert dict(read.keys) == {"evict": ("p",), "pin": ("e",)}
    assert read.problems == ()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"evcit": "v"}, "keymap.json: there is no action 'evcit'"),
        ({"evict": ""}, "keymap.json: evict needs a key, like 'e'"),
        ({"evict": 7}, "keymap.json: evict needs a key, like 'e'"),
        ({"evict": "p"}, "keymap.json: p is the key of evict and pin; evict keeps its own"),
        (["evict"], "keymap.json is left out: Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_told_in_a_line_and_left_out(tmp_path: Path, keys: object, problem: str) -> None:
    read = _keymap(tmp_path, keys)
    assert read.problems == (problem,)
    assert dict(read.keys) == {}


def test_a_keymap_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "keymap.json").write_text("evict = v")
    assert Preferences.load(tmp_path).problems[0].startswith("keymap.json is left out: ")


async def test_other_keys_work_and_are_shown(tmp_path: Path, open_screen: Any, rows_of: Any, verbs_done: Any) -> None:
    read = _keymap(tmp_path, {"pin": "e", "evict": "p", "leave": "Q"})
    async with open_screen(preferences=read) as (app, client, pilot):
        assert "p Evict  e Pin" in rows_of(app)[-1]
        assert "Q Quit" in rows_of(app)[-1]
        await pilot.press("e")
        await verbs_done(app, pilot)
        assert client.said == [("pin", GEMMA.id, "9")]
        await pilot.press("j", "p")
        await pilot.pause()
        assert f"Evict {LLAMA.id}" in "\n".join(rows_of(app))


async def test_a_wrong_keymap_is_told_on_the_screen(tmp_path: Path, open_screen: Any, rows_of: Any) -> None:
    async with open_screen(preferences=_keymap(tmp_path, {"evcit": "v"})) as (app, _, pilot):
        await pilot.pause(0.1)
        assert any("there is no action 'evcit'" in row for row in rows_of(app))


async def test_the_theme_of_last_time_is_there_and_a_new_one_is_kept(tmp_path: Path, open_screen: Any) -> None:
    Preferences(tmp_path).save_theme("llmtop-light")
    async with open_screen(preferences=Preferences.load(tmp_path)) as (app, _, pilot):
        assert app.theme == "llmtop-light"
        app.theme = "llmtop-cvd"
        await pilot.pause()
    assert Preferences.load(tmp_path).theme == "llmtop-cvd"
    async with open_screen(preferences=Preferences(theme="gone")) as (app, _, _pilot):
        assert app.theme == "llmtop"


def test_every_action_can_have_another_key(tmp_path: Path) -> None:
    keys = {action.id: f"ctrl+shift+f{n}" for n, action in enumerate(ACTIONS)}
    assert len(_keymap(tmp_path, keys).keys) == len(ACTIONS)


def test_a_pager_gets_clean_lines_in_a_file_that_goes_with_it(tmp_path: Path) -> None:
    script = tmp_path / "pager"
    script.write_text(f'#!/bin/sh\ncat "$1" > {tmp_path}/seen; echo "$1" > {tmp_path}/name\n')
    script.chmod(0o755)
    command = pager({"PAGER": str(script)})
    assert command == [str(script)]
    page(command, [LogLine(1, 0.0, "m", "\x1b]0;PWNED\x07 text")])
    assert (tmp_path / "seen").read_text().rstrip().isprintable()
    assert "PWNED" in (tmp_path / "seen").read_text()
    assert not Path((tmp_path / "name").read_text().strip()).exists()


@pytest.mark.parametrize("named", ["", "no-such-pager-here", "'"])
def test_without_a_pager_of_the_users_own_there_is_less_or_more(named: str) -> None:
    command = pager({"PAGER": named})
    assert command is None or command[0].rsplit("/", 1)[-1] in ("less", "more")


@pytest.mark.parametrize(
    ("program", "env", "taken"),
    [("pbcopy", {}, True), ("xclip", {}, False), ("xclip", {"DISPLAY": ":0"}, True), ("wl-copy", {}, False)],
)
def test_the_clipboards_program_is_taken_where_it_can_work(
    program: str, env: dict[str, str], taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    command = clipboard_command(env)
    assert (command is not None and command[0].endswith(program)) is taken


async def test_copying_sends_the_text_to_the_terminal_too(open_screen: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("5", "y")
        await pilot.pause()
        newest = full().log[-1].text
        assert app.clipboard == newest
        await pilot.press("k", "y")
        assert app.clipboard == full().log[-2].text
