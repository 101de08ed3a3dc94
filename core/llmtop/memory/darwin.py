"""The calls into macOS, raw: one thin layer, so that all above it runs anywhere against recorded values."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

LIBRARY = "/usr/lib/libSystem.B.dylib"
HOST_VM_INFO64 = 4
VM_WORDS = 38
"""Words of 32 bits in ``vm_statistics64`` as of xnu-11417. Source: osfmk/mach/{host_info,vm_statistics}.h."""
RUSAGE_INFO_V4 = 4
RUSAGE_WORDS = 64
"""Room for version 6 (464 bytes), the largest so far. Source: bsd/sys/resource.h."""
TOOL_TIMEOUT_S = 1.5
TOOL_BYTES = 4 * 2**20

Run = Callable[[Sequence[str]], str]


def run_tool(argv: Sequence[str]) -> str:
    """Output of a system tool in the C locale.

    Raises:
        OSError: It is not there, fails, or takes longer than 1.5 s.
    """
    environment = os.environ | {"LC_ALL": "C", "LANG": "C"}
    try:
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{argv[0]} did not answer within {TOOL_TIMEOUT_S:g} s") from error
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0][:120]
        raise OSError(f"{argv[0]} failed ({done.returncode}) {told}".strip())
    return done.stdout[:TOOL_BYTES].decode("utf-8", "replace")


class Darwin:
    """libSystem and the tools.

    Args:
        load: Opens the library.
        run: Runs a tool and gives its output.
        errno: Error number of the last call.
    """

    def __init__(
        self,
        load: Callable[..., Any] = ctypes.CDLL,
        run: Run = run_tool,
        errno: Callable[[], int] = ctypes.get_errno,
    ) -> None:
        lib = load(LIBRARY, use_errno=True)
        lib.mach_host_self.restype = ctypes.c_uint32
        lib.host_statistics64.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        lib.sysctlbyname.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
        ]
        lib.proc_pid_rusage.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._lib, self._run, self._errno = lib, run, errno
        self._host = lib.mach_host_self()  # each call adds a reference to the port: once is enough

    def vm_statistics(self) -> bytes:
        """``vm_statistics64``, as many bytes of it as this kernel fills.

        Raises:
            OSError: The kernel refused.
        """
        words = (ctypes.c_uint32 * VM_WORDS)()
        count = (ctypes.c_uint32 * 1)(VM_WORDS)
        result = self._lib.host_statistics64(self._host, HOST_VM_INFO64, words, count)
        if result:
            raise OSError(f"host_statistics64 gave {result}")
        return bytes(words)[: 4 * count[0]]

    def sysctl(self, name: str) -> bytes:
        """Raw value of a sysctl.

        Raises:
            OSError: There is no such name here, or it may not be read.
        """
        value = (ctypes.c_ubyte * 256)()
        size = (ctypes.c_size_t * 1)(256)
        if self._lib.sysctlbyname(name.encode(), value, size, None, 0):
            raise OSError(f"sysctl {name}: {os.strerror(self._errno())}")
        return bytes(value)[: size[0]]

    def rusage(self, pid: int) -> tuple[int, ...]:
        """``rusage_info_v4`` of a process of the same user as words of 64 bits.

        Raises:
            OSError: It is gone, or it is another user's.
        """
        words = (ctypes.c_uint64 * RUSAGE_WORDS)()
        if self._lib.proc_pid_rusage(pid, RUSAGE_INFO_V4, words):
            raise OSError(f"proc_pid_rusage: {os.strerror(self._errno())}")
        return tuple(words)

    def ioreg(self) -> str:
        """Properties of the GPU's accelerator entry.

        Raises:
            OSError: The tool is not there, fails or hangs.
        """
        return self._run(["/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator"])

    def vm_stat(self) -> str:
        """Output of ``vm_stat``, which serves when the call does not.

        Raises:
            OSError: The tool is not there, fails or hangs.
        """
        return self._run(["/usr/bin/vm_stat"])
