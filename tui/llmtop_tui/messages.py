"""What panels and workers tell the app."""

from __future__ import annotations

from textual.message import Message

from llmtop.snapshot import LogLine, Snapshot


class SnapshotArrived(Message):
    """A newer picture of the core; an older one still in the queue is dropped for it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """Drop older pictures that still wait."""
        return isinstance(message, SnapshotArrived)


class ActionAsked(Message):
    """The mouse asks for an action of the registry."""

    def __init__(self, action: str) -> None:
        self.action = action
        super().__init__()


class CursorMoved(Message):
    """The cursor of a panel is on another row: the user moved it, or its row has left."""

    def __init__(self, panel: str, *, by_user: bool) -> None:
        self.panel, self.by_user = panel, by_user
        super().__init__()


class LogFetched(Message):
    """The kept lines of a model's last child."""

    def __init__(self, model: str, lines: tuple[LogLine, ...]) -> None:
        self.model = model
        self.lines = lines
        super().__init__()
