"""Being told that a process has ended, without reaping it, on any thread's loop and without signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable


def watch_exit(pid: int, on_exit: Callable[[], None]) -> Callable[[], None]:
    """Call ``on_exit`` once on the running loop when the child ``pid`` has ended; reaping it is the caller's part.

    Args:
        pid: A child of this process that nobody has reaped yet.
        on_exit: Called on the loop.

    Returns:
        A function that ends the watch (a waiting thread, where one is used, ends with the process).
    """
    loop = asyncio.get_running_loop()
    if sys.platform == "linux":
        try:
            return _watch_pidfd(loop, pid, on_exit)
        except OSError:  # no pidfd (old kernel, sandbox) or no descriptor left
            pass
    over = False

    def report() -> None:
        if not over:
            on_exit()

    def wait() -> None:
        _wait_for_exit(pid)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(report)

    def cancel() -> None:
        nonlocal over
        over = True

    threading.Thread(target=wait, name=f"exit-of-{pid}", daemon=True).start()
    return cancel


if sys.platform == "linux":

    def _watch_pidfd(loop: asyncio.AbstractEventLoop, pid: int, on_exit: Callable[[], None]) -> Callable[[], None]:
        fd = os.pidfd_open(pid)

        def cancel() -> None:
            nonlocal fd
            if fd >= 0:
                loop.remove_reader(fd)
                os.close(fd)
                fd = -1

        def readable() -> None:
            cancel()
            on_exit()

        try:
            loop.add_reader(fd, readable)
        except BaseException:
            os.close(fd)
            raise
        return cancel

    def _wait_for_exit(pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

else:

    def _wait_for_exit(pid: int) -> None:
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)
        queue = select.kqueue()
        try:
            queue.control([event], 1, None)
        except ProcessLookupError:  # it had ended before we asked
            pass
        finally:
            queue.close()
