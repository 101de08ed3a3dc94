"""Tells when preset file or models folder have changed, once they have come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from llmtop.config.resolve import Configuration

SETTLED_S = 0.5
"""What has not changed for that long has come to rest [s]: editors write in several steps, copies take a while."""

LOOK_S = 2.0
"""Without news the files are looked at that often [s]: network drives tell of none, and a watch takes time to begin."""

RETRY_S = 2.0
"""A folder that cannot be watched (it is gone, or watches have run out) is looked at that often instead [s]."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, size [bytes], time of change [ns] and inode of each file."""


class Places:
    """What is watched.

    Args:
        preset: Preset file; empty for none.
        folder: Models folder; empty for none.
    """

    def __init__(self, preset: str, folder: str) -> None:
        self.preset = preset
        self.folder = folder

    def folders(self) -> tuple[str, ...]:
        """The folders whose entries matter, as they are now. An editor may replace a file, so its folder is watched."""
        found = [os.path.dirname(self.preset)] if self.preset else []
        found += [self.folder, *_inner(self.folder)] if self.folder else []
        return tuple(dict.fromkeys(folder for folder in found if os.path.isdir(folder)))

    def concerns(self, path: str) -> bool:
        """A change of this path may matter; logs and the like that are written beside the models do not.

        By its name alone: a system may tell of a folder by another way to it than the user does.
        """
        name = os.path.basename(path)
        if self.preset and name == os.path.basename(self.preset):
            return True
        models = name.lower().endswith(".gguf") or not Path(name).suffix or name == os.path.basename(self.folder)
        return bool(self.folder) and models

    def stamps(self) -> tuple[Stamp, Stamp]:
        """How the preset file and the models are now."""
        models = [self.folder, *_inner(self.folder)] if self.folder else []
        files = (entry for folder in models for entry in _entries(folder) if entry.lower().endswith(".gguf"))
        return _stamp([self.preset] if self.preset else []), _stamp(files)


def places(configuration: Configuration) -> Places:
    """What a configuration wants watched: ``--watch`` both, nothing said the preset file, ``--no-watch`` neither."""
    settings = configuration.settings
    both = settings.watch is True
    return Places(
        os.path.abspath(settings.models_preset) if settings.models_preset and settings.watch is not False else "",
        os.path.abspath(settings.models_dir) if settings.models_dir and both else "",
    )


async def changes(configuration: Configuration) -> AsyncGenerator[None, None]:
    """Yield whenever preset file or models folder have changed and come to rest.

    A copy that is still being written to the models folder does not keep a changed preset file waiting. Ends at once
    where nothing is to be watched; otherwise it goes on until it is closed or its task is cancelled.

    Args:
        configuration: Says what to watch; see ``places``.

    Yields:
        Nothing but the fact; several changes within half a second are one.
    """
    watched = places(configuration)
    if not watched.preset and not watched.folder:
        return
    told = await asyncio.to_thread(watched.stamps)
    while True:
        folders = await asyncio.to_thread(watched.folders)
        async with contextlib.aclosing(_stirs(watched, folders)) as stirs:
            async for _ in stirs:
                async with contextlib.aclosing(_at_rest(watched, told)) as rests:
                    async for news in rests:
                        told = news
                        yield None
                if await asyncio.to_thread(watched.folders) != folders:
                    break


async def _at_rest(watched: Places, told: tuple[Stamp, Stamp]) -> AsyncGenerator[tuple[Stamp, Stamp], None]:
    """Yield what is to be told next, for preset file and models each as soon as they rest; ends when both do."""
    last = await asyncio.to_thread(watched.stamps)
    while last != told:
        await asyncio.sleep(SETTLED_S)
        now = await asyncio.to_thread(watched.stamps)
        news = tuple(
            new if new == before else old for new, before, old in zip(now, last, told, strict=True)
        )  # what still moves is told later
        if news != told:
            told = (news[0], news[1])
            yield told
        if now == last:
            return
        last = now


async def _stirs(watched: Places, folders: tuple[str, ...]) -> AsyncGenerator[None, None]:
    """Yield at once, then each time something moves in the folders: what happened before the watch began counts too."""
    from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every batch
    yield None
    try:
        if folders:
            async for _ in awatch(
                *folders,
                watch_filter=lambda _, path: watched.concerns(path),
                debounce=int(1000 * SETTLED_S),
                rust_timeout=int(1000 * LOOK_S),
                yield_on_timeout=True,
                recursive=False,
                ignore_permission_denied=True,
            ):
                yield None
            return
    except (OSError, RuntimeError):  # no watches left, or a folder that went in between
        pass
    await asyncio.sleep(RETRY_S)


def _inner(folder: str) -> list[str]:
    return [path for path in _entries(folder) if os.path.isdir(path)]


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _stamp(paths: Iterable[str]) -> Stamp:
    found: list[tuple[str, int, int, int]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            state = os.stat(path)
            found.append((path, state.st_size, state.st_mtime_ns, state.st_ino))
    return tuple(found)
