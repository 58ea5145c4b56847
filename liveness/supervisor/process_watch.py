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
    way: Health | None = None
    """PIPE or NOTIFY: the first way that it used."""
    is_regular: bool = False
    """It has sent such messages, so their end means something."""
    closed_ms: int | None = None
    ending_ms: int | None = None
    """When it said that it ends by itself."""

    def listens(self, settings: GroupSettings, way: Health) -> bool:
        """Whether a message that came this way says something about the health. The first way that a process uses counts, unless
        the group names one."""
        if settings.health is Health.AUTO:
            return self.way in (None, way)
        return settings.health is way

    def heard(self, now_ms: int, *, regular: bool, way: Health) -> ProcessWatch:
        watch = self._replace(way=way)
        return watch._replace(heard_ms=now_ms, is_regular=True) if regular else watch

    def must_keep_pipe(self, settings: GroupSettings) -> bool:
        return settings.health is Health.PIPE or (settings.health is Health.AUTO and self.way is Health.PIPE)

    def ready_by_itself_ms(self, settings: GroupSettings) -> int | None:
        """When a process that does not tell is taken for ready."""
        is_silent = settings.health is Health.PROCESS or (settings.health is Health.AUTO and self.way is None)
        if is_silent and settings.readiness is None:
            return self.started_ms + settings.ready_after_ms
        return None

    def stale_ms(self, settings: GroupSettings) -> int | None:
        """When it will have been silent for too long, once it is ready."""
        if (
            self.ready_ms is None
            or self.ending_ms is not None
            or not (self.is_regular or settings.health is Health.PIPE)
        ):
            return None
        return max(self.ready_ms, self.heard_ms) + settings.health_timeout_ms


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
