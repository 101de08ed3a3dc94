"""``llmtop demo``: everything at work, with nothing needed."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
