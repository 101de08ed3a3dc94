"""The limit of open descriptors: raised for llmtop, handed to children as it was."""

from __future__ import annotations

import contextlib
import resource

_WANTED = (1 << 20, 1 << 16, 10240)  # macOS says "unlimited" and then takes no more than a constant


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as the hard one allows, and give the one before [1]; for ``Supervisor(nofile=…)``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _WANTED if hard == resource.RLIM_INFINITY else (hard, *_WANTED):
        if wanted <= soft or (hard != resource.RLIM_INFINITY and wanted > hard):
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return soft
