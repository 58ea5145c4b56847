"""The limit on the process's open files, each connection being one."""

from __future__ import annotations

import resource

DESCRIPTORS_MAX = 1_048_576


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one. The soft limit is often 1,024 for the sake of old programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # macOS has a lower limit than it reports; the old one goes on
