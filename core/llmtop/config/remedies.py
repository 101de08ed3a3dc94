"""What to do about a fault in the configuration, for those whose text does not say it."""

from __future__ import annotations

REMEDIES: tuple[tuple[str, str], ...] = (
    ("no model, hf-repo or cmd", "add model = FILE, hf-repo = USER/REPO or cmd = COMMAND, or remove the section"),
    ("Git LFS pointer", "fetch the file itself: git lfs pull"),
    ("is not whole yet", "let the download end, or download it again"),
    ("is not a GGUF file", "download it again, or move it away"),
    ("shards", "download the missing shards"),
    ("not found:", "put the file there, or correct the path"),
    ("cannot be read", "check its permissions"),
    ("is not followed by = value", "write KEY = VALUE, or begin the line with ; to leave it out"),
    ("is empty", "give it a value, or remove the line"),
    ("cannot be split into words", "close its quotes"),
    ("is neither true nor false", "write true or false"),
    ("is neither cancel nor drain", "write cancel or drain"),
    ("is not a whole number", "write a number"),
)
"""Part of a fault's text to what helps, the first that fits."""


def remedy(text: str) -> str:
    """What to do about a fault; empty where its text says so itself, after its last colon."""
    return next((helps for part, helps in REMEDIES if part in text), "")
