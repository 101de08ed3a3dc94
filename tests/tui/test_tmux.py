"""A real llmtop with simulated children in a real terminal: keys in, screen out."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from llmtop.children.ports import free_port
from llmtop.testing.models import server_command, write_model
from llmtop.testing.rig import Rig

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

PATIENCE_S = 30.0
GUARD_S = 0.4
"""A question hears no yes so soon after it came up [s]."""

BROKEN = """
from pathlib import Path
import llmtop_tui.embed
from llmtop_tui.app import LlmtopApp

class Broken(LlmtopApp):
    CSS_PATH = Path(llmtop_tui.__file__).parent / "app.tcss"

    def open_timeline(self):
        raise RuntimeError("a panel broke on purpose")

llmtop_tui.embed.LlmtopApp = Broken
from llmtop_tui.__main__ import main
raise SystemExit(main())
"""


class Terminal:
    """A terminal of tmux with a llmtop in it.

    Args:
        folder: For its models, its state and the terminal's socket.
        program: What runs in it.
        port: Its front door; a free one if None. 0 where it has none: it gets no options then.
    """

    def __init__(self, folder: Path, program: list[str], port: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._socket = str(folder / "tmux")
        self.port = free_port() if port is None else port
        for name in ("amber", "birch", "cedar"):
            write_model(folder / "models", name, load_ms=300)
        options = {
            "--models-dir": folder / "models",
            "--llama-server": server_command(folder / "bin"),
            "--state-dir": folder / "state",
            "--port": self.port,
            "--models-max": 2,
            "--memory-budget": "off",
        }
        self._code = folder / "exit-code"  # tmux itself sometimes forgets the status of what has ended
        words = [str(part) for option in options.items() for part in option] if self.port else []
        command = shlex.join([*program, *words])
        command = f"trap : INT; {command}; echo $? > {shlex.quote(str(self._code))}"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("LLMTOP_", "LLAMA_", "TMUX"))
        }
        environment |= {"LC_ALL": "C.UTF-8", "XDG_CONFIG_HOME": str(folder / "config"), "SHELL": "/bin/sh"}
        self._run("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", command, env=environment)
        self._run("set-option", "-g", "remain-on-exit", "on")

    def _run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, timeout=20, check=True, env=env
        )
        return done.stdout

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def over(self) -> str:
        """Exit code of the program, empty while it runs."""
        return self._code.read_text().strip() if self._code.exists() else ""

    def until(self, seen: Callable[[str], object], what: str) -> str:
        """Wait until the screen shows it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            screen = self.screen()
            if seen(screen):
                return screen
            assert time.monotonic() < end, f"{what} was never seen:\n{screen}"
            time.sleep(0.1)

    def until_state(self, model: str, state: str) -> str:
        def shows(screen: str) -> bool:
            return any({model, state} <= set(row.split()) for row in screen.splitlines())

        return self.until(shows, f"{model} {state}")

    def until_text(self, text: str) -> str:
        return self.until(lambda screen: text in screen, text)

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, timeout=20, check=False)


Open = Callable[..., Terminal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    terminals: list[Terminal] = []

    def open_terminal(program: list[str], port: int | None = None) -> Terminal:
        terminals.append(Terminal(tmp_path / f"terminal{len(terminals)}", program, port))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def test_keys_load_pin_evict_kill_hold_and_step_real_processes_through_resizes(
    opened: Open,
) -> None:
    terminal = opened([sys.executable, "-m", "llmtop_tui"])
    terminal.until(lambda screen: all(name in screen for name in ("amber", "birch", "cedar")), "three models")
    terminal.press("L")
    terminal.until_state("amber", "LOADED")
    terminal.press("p")
    terminal.until(lambda screen: any(row.startswith(">P") for row in screen.splitlines()), "the pin")
    terminal.press("K")
    terminal.until_text("Type its name to kill it:")
    time.sleep(GUARD_S)
    terminal.press("ynk")
    terminal.until(lambda screen: any("ynk" in row.split() for row in screen.splitlines()), "letters in the field")
    terminal.press("Enter", "Escape")
    terminal.until(lambda screen: "Force-kill" not in screen, "the question gone")
    terminal.until_state("amber", "LOADED")
    terminal.resize(80, 24)
    terminal.until(lambda screen: len(screen.splitlines()) <= 24 and "QUEUE" in screen, "the small screen")
    terminal.press("p")
    terminal.until(lambda screen: not any(row.startswith(">P") for row in screen.splitlines()), "no pin")
    terminal.press("e")
    terminal.until_state("amber", "UNLOADED")
    terminal.resize(200, 60)
    terminal.until_text("DETAIL")
    terminal.press("g")
    terminal.press("L")
    terminal.until_state("amber", "LOADED")
    for key in ("n", "Enter"):
        terminal.press("K")
        terminal.until_text("Force-kill amber?")
        time.sleep(GUARD_S)
        terminal.press(key)
        terminal.until(lambda screen: "Force-kill" not in screen, "the question gone")
        terminal.until_state("amber", "LOADED")
    terminal.press("K")
    terminal.until_text("Force-kill amber?")
    time.sleep(GUARD_S)
    terminal.press("y")
    terminal.until(
        lambda screen: not any({"amber", "LOADED"} <= set(row.split()) for row in screen.splitlines()), "amber's end"
    )
    terminal.press("d")
    terminal.until_text("HELD")
    terminal.resize(120, 40)
    terminal.press("G")
    terminal.press("L")
    terminal.until_text("would load")
    terminal.press(".")
    terminal.until_state("cedar", "LOADED")
    terminal.until_text("HELD")
    terminal.press("T")
    terminal.until_text("memory back")
    terminal.press("q")
    terminal.until(lambda screen: "memory back" not in screen, "the main screen")
    terminal.press("d")
    terminal.until_text("SERVING")
    assert httpx.get(f"http://127.0.0.1:{terminal.port}/health", trust_env=False).status_code == 200
    terminal.press("q")
    terminal.until_text("Leave llmtop?")
    time.sleep(GUARD_S)
    terminal.press("y")
    terminal.until(lambda screen: terminal.over(), "the end")
    assert terminal.over() == "0"


def test_a_view_that_breaks_leaves_the_front_door_answering(opened: Open) -> None:
    terminal = opened([sys.executable, "-c", BROKEN])
    terminal.until_text("amber")
    terminal.press("L")
    terminal.until_state("amber", "LOADED")
    terminal.press("T")
    screen = terminal.until_text("still serving at")
    assert "llmtop: the view broke: RuntimeError: a panel broke on purpose; still serving at" in screen.replace(
        "\n", ""
    )
    assert "Traceback" not in screen
    body = {"model": "amber", "prompt": "hello", "max_tokens": 4}
    answer = httpx.post(f"http://127.0.0.1:{terminal.port}/v1/completions", json=body, timeout=20, trust_env=False)
    assert answer.status_code == 200
    terminal.press("C-c")
    terminal.until(lambda screen: terminal.over(), "the end")
    assert terminal.over() == "0"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Rig]:
    """A ``llmtop serve`` with one model."""
    one = Rig(tmp_path / "core", {"maple": {"load_ms": 100}})
    one.launch("--memory-budget", "off")
    try:
        asyncio.run(one.healthy())
        yield one
    finally:
        assert one.stop() == 0


def test_an_attached_view_is_stale_while_its_core_is_gone_and_lives_with_the_next_one_on_its_port(
    opened: Open, core: Rig
) -> None:
    terminal = opened([sys.executable, "-m", "llmtop_tui", "attach", f"http://127.0.0.1:{core.port}"], 0)
    terminal.until_text("SERVING")
    terminal.press("L")
    terminal.until_state("maple", "LOADED")
    terminal.press("Space")
    terminal.until_text("PAUSED")
    terminal.press("Space")
    terminal.until(lambda screen: "PAUSED" not in screen, "the present again")
    core.process.kill()
    core.process.wait()
    terminal.until_text("STALE")
    terminal.until_text("refuses connections")
    terminal.until_state("maple", "LOADED")
    core.launch("--memory-budget", "off", port=core.port)
    asyncio.run(core.healthy())
    terminal.until_text("SERVING")
    terminal.until_state("maple", "UNLOADED")
    terminal.press("L")
    terminal.until_state("maple", "LOADED")
    before = asyncio.run(core.state())
    terminal.press("q")
    terminal.until(lambda screen: terminal.over(), "the end")
    assert terminal.over() == "0"
    after = asyncio.run(core.state())
    assert [(m["id"], m["state"], m["instance"]) for m in before["models"]] == [
        (m["id"], m["state"], m["instance"]) for m in after["models"]
    ]
    assert not after["hold"]


def test_a_llmtop_where_one_serves_offers_to_attach_and_starts_nothing(opened: Open, core: Rig) -> None:
    asked = f"llmtop (pid {core.process.pid}) already serves on http://127.0.0.1:{core.port}: attach to it? [Y/n]"

    def start() -> Terminal:
        terminal = opened([sys.executable, "-m", "llmtop_tui"], core.port)
        terminal.until(lambda screen: asked in screen.replace("\n", ""), "the offer")
        return terminal

    terminal = start()
    terminal.press("Enter")
    screen = terminal.until_text("SERVING")
    assert "maple" in screen
    assert "amber" not in screen
    terminal.press("q")
    terminal.until(lambda screen: terminal.over(), "the end")
    assert terminal.over() == "0"
    terminal = start()
    terminal.press("n", "Enter")
    screen = terminal.until(lambda screen: terminal.over(), "the end") and terminal.screen()
    assert terminal.over() == "1"
    line = f"is taken by llmtop, pid {core.process.pid}; try `llmtop attach http://127.0.0.1:{core.port}`"
    assert line in screen.replace("\n", "")
    assert asyncio.run(core.state())["pid"] == core.process.pid
    assert core.children() == []
