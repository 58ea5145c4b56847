"""What one process has told about its health, and until when that is good."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.component import ProcessExit
from liveness.supervisor.settings import ExitMeaning, GroupSettings, Health

CLOSED_PIPE_MS = 1_000
"""How long a process may live after it closed its health pipe. A process that ends closes it, too, before its end is seen."""
SIGNALS_THAT_FREEZE = frozenset(("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"))


class ProcessWatch(NamedTuple):
    """All times are monotonic."""

    started_ms: int = 0
    ready_ms: int | None = None
    heard_ms: int = 0
    """When a message came that must come again."""
    has_spoken: bool = False
    used_pipe: bool = False
    is_regular: bool = False
    """It has sent such messages, so their end means something."""
    closed_ms: int | None = None

    def heard(self, now_ms: int, *, regular: bool, by_pipe: bool) -> ProcessWatch:
        watch = self._replace(has_spoken=True, used_pipe=self.used_pipe or by_pipe)
        return watch._replace(heard_ms=now_ms, is_regular=True) if regular else watch

    def must_keep_pipe(self, settings: GroupSettings) -> bool:
        return settings.health is Health.PIPE or (settings.health is Health.AUTO and self.used_pipe)

    def ready_by_itself_ms(self, settings: GroupSettings) -> int | None:
        """When a process that does not tell is taken for ready."""
        is_silent = settings.health is Health.PROCESS or (
            settings.health is Health.AUTO and not self.has_spoken
        )
        if is_silent and settings.readiness is None:
            return self.started_ms + settings.ready_after_ms
        return None

    def stale_ms(self, settings: GroupSettings) -> int | None:
        """When it will have been silent for too long, once it is ready."""
        if self.ready_ms is None or not (self.is_regular or settings.health is Health.PIPE):
            return None
        return max(self.ready_ms, self.heard_ms) + settings.health_timeout_ms


def listens(settings: GroupSettings, *, by_pipe: bool) -> bool:
    """Whether the group lets its processes tell their health in this way."""
    return settings.health is Health.AUTO or settings.health is (Health.PIPE if by_pipe else Health.NOTIFY)


def is_clean_end(ended: ProcessExit, settings: GroupSettings, stop_signal_number: int) -> bool:
    """Whether a process that was asked to stop ended well: with a code that means done, or by the signal that asked it.
    Shells and Java tell the latter by an exit code of 128 and the number of the signal."""
    if ended.signal:
        return ended.signal == settings.stop_signal
    return (
        ended.code in (0, 128 + stop_signal_number)
        or ended.code is None
        or settings.meaning_of(ended) is ExitMeaning.DONE
    )
