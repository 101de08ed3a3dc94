"""Themes of our own; Textual's are there too."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="llmtop",
    primary="#6cb0f5",
    secondary="#a99bf0",
    accent="#53c7d4",
    success="#5fc48a",
    warning="#e3b04b",
    error="#f0716b",
    foreground="#d7dde5",
    background="#10141a",
    surface="#171c24",
    panel="#1e2530",
    dark=True,
)
LIGHT = Theme(
    name="llmtop-light",
    primary="#1f66b3",
    secondary="#6350b8",
    accent="#0b7285",
    success="#1d7a45",
    warning="#93630a",
    error="#b3261e",
    foreground="#1d232b",
    background="#fafbfc",
    surface="#f0f2f5",
    panel="#e4e8ed",
    dark=False,
)
COLOR_BLIND = Theme(
    name="llmtop-cvd",
    primary="#7cc6f0",
    secondary="#cc79a7",
    accent="#f0e442",
    success="#2a8fd0",
    warning="#e69f00",
    error="#f0702a",
    foreground="#e2e2e2",
    background="#101010",
    surface="#191919",
    panel="#242424",
    dark=True,
)
"""From the Okabe-Ito set; blues and vermilion are a little lighter, for contrast on the ground and between them."""

THEMES = (DARK, LIGHT, COLOR_BLIND)
