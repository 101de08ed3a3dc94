"""What holds for the whole repository: its layers, the size of its parts, and words that have no place in it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "core" / "llmtop", ROOT / "tui" / "llmtop_tui")
SCHEDULER = PACKAGES[0] / "scheduler"
FILE_LINES = 400
FUNCTION_LINES = 70
TOP_LEVEL = {
    *(".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md"),
    *("core", "pyproject.toml", "screenshots", "tests", "tui"),
}

PURE = {
    *(
        "__future__",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
    ),
    *("math", "operator", "typing", "msgspec"),
    *("llmtop", "llmtop.errors", "llmtop.snapshot"),
}
"""All that the scheduler may import besides itself: nothing here reads a clock, sleeps, draws lots or does I/O."""

IMPURE = {
    *("anyio", "asyncio", "httptools", "httpx", "logging", "psutil", "random", "selectors", "socket", "ssl"),
    *("starlette", "subprocess", "textual", "uvicorn", "uvloop"),
}
"""Modules whose presence after an import of the scheduler shows that something below it reaches out."""

# Written in two halves, so that this file can be searched as well.
BANNED = [
    *("/wo" + "rk/", "/fa" + "rm/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/"),
    *(
        "py" + "pi.org",
        "python" + "hosted.org",
        "npm" + "js.",
        "crates" + ".io",
        "proxy.golang" + ".org",
        "anaconda" + ".org",
    ),
    *("accept" + "/checks", "chat" + "gpt", "co" + "pilot", "cla" + "ude"),
]
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
TEXT = {".py", ".md", ".toml", ".txt", ".tcss", ".ini", ".json", ".yml", ".svg", ""}
MARKUP = re.compile(r"\[/?[a-z#@$][\w#$. -]*\]|\[/\]")


def python_files(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


def modules(package: Path) -> list[str]:
    """Dotted names of all modules under a package of ``core/llmtop``."""
    names = (file.relative_to(ROOT / "core").with_suffix("").parts for file in python_files(package))
    return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names)


def loaded_after(names: list[str]) -> set[str]:
    """Top-level names in ``sys.modules`` of a fresh interpreter that has imported ``names``."""
    code = "import importlib, sys; [importlib.import_module(n) for n in sys.argv[1:]]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


def imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node.lineno, node.module or ""


def test_core_runs_without_the_terminal_interface() -> None:
    loaded = loaded_after([name for name in modules(PACKAGES[0]) if not name.endswith("__main__")])
    assert "llmtop" in loaded
    assert not loaded & {"textual", "llmtop_tui"}


def test_scheduler_imports_nothing_that_reaches_out() -> None:
    files = python_files(SCHEDULER)
    assert files
    for file in files:
        for line, name in imports(tree(file)):
            own = name == "llmtop.scheduler" or name.startswith("llmtop.scheduler.")
            assert own or name in PURE, f"{named(file)}:{line} imports {name}"


def test_scheduler_pulls_in_nothing_that_reaches_out() -> None:
    assert not loaded_after(modules(SCHEDULER)) & IMPURE


def test_files_stay_short() -> None:
    long = {named(f): n for f in python_files(*PACKAGES) if (n := len(f.read_text("utf-8").splitlines())) > FILE_LINES}
    assert long == {}


def test_functions_stay_short() -> None:
    long: dict[str, int] = {}
    for file in python_files(*PACKAGES):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{named(file)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_text_on_the_screen_is_never_built_as_markup() -> None:
    """A bracket in a model's name or a log line would be read as a tag, and an unknown tag raises."""
    found: list[str] = []
    for file in python_files(PACKAGES[1]):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.JoinedStr):
                fixed = "\0".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values)
                if MARKUP.search(fixed):
                    found.append(f"{named(file)}:{node.lineno}")
            elif isinstance(node, ast.Attribute) and node.attr == "from_markup":
                found.append(f"{named(file)}:{node.lineno}")
    assert found == []


def test_markup_pattern_tells_tags_from_brackets() -> None:
    for tag in ("[bold]", "[/bold]", "[/]", "[red on blue]", "[#ff0000]", "[$accent]"):
        assert MARKUP.search(f"x {tag} y"), tag
    for other in ("[]", "[ ]", "[OPTIONS]", "[0]", "[\0]", "[hold|resume]"):
        assert not MARKUP.search(other), other


def test_no_machine_host_or_marker_of_unfinished_work_is_named() -> None:
    found: list[str] = []
    here = [ROOT / name for name in TOP_LEVEL]
    for file in [f for top in here for f in (top.rglob("*") if top.is_dir() else [top])]:
        if file.is_file() and file.suffix in TEXT and "__pycache__" not in file.parts:
            text = file.read_text("utf-8")
            found += [f"{named(file)}: {word}" for word in BANNED if word.lower() in text.lower()]
            found += [f"{named(file)}: {word}" for word in UNFINISHED.findall(text)]
    assert found == []


def test_top_level_holds_only_what_belongs_there() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what is tracked cannot be told")
    done = subprocess.run(
        [git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, timeout=60, check=True
    )
    entries = {path.split("/", 1)[0] for path in done.stdout.split("\0") if path}
    if not entries:
        pytest.skip("nothing is committed yet")
    assert entries <= TOP_LEVEL


def test_readme_names_every_option_and_every_key() -> None:
    from llmtop.cli.flags import SCREEN
    from llmtop.config.rows import ROWS
    from llmtop_tui.actions import markdown

    readme = (ROOT / "README.md").read_text("utf-8")
    names = [*(row.name for row in ROWS), *(name for name, _, _ in SCREEN)]
    missing = [name for name in names if f"--{name}" not in readme and f"--no-{name}" not in readme]
    assert missing == []
    assert markdown() in readme, "the key table is not what `python -m llmtop_tui.actions` prints"


def test_pictures_that_the_readme_shows_are_there() -> None:
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert shown
    assert [path for path in shown if "://" not in path and not (ROOT / path).is_file()] == []
