"""Read a connection's credentials again: certificates when their files change, the token when the server refuses it.

Reading may block, on a disk or in the program's own function, so it has a thread of its own."""

from __future__ import annotations

import logging
from threading import Condition, Thread

from liveness.client_credentials import CredentialsError, LoadedCredentials
from liveness.sdk.scheduler import Action, SchedulerThread

CHECK_INTERVAL_S = 1.0

log = logging.getLogger("liveness.sdk")


class CredentialsWatch:
    def __init__(
        self, credentials: LoadedCredentials, scheduler: SchedulerThread, on_tls_changed: Action
    ) -> None:
        """`on_tls_changed` runs on the scheduler's thread."""
        self._credentials = credentials
        self._scheduler = scheduler
        self._on_tls_changed = on_tls_changed
        self._changed = Condition()
        self._waiting: list[Action] = []
        """What to do when the token has been read again."""
        self._stopping = False
        self._reported = ""
        """The problem that was logged last."""
        self._thread = Thread(target=self._run, name="liveness-credentials", daemon=True)

    def start(self) -> None:
        if self._credentials.has_files or self._credentials.has_token:
            self._thread.start()

    def stop(self) -> None:
        """Does not wait for the thread: the program's function may hang."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def reload_token(self, then: Action) -> bool:
        """Read the token again, and run `then` on the scheduler's thread. Returns False if there is no token."""
        if not self._credentials.has_token:
            return False
        with self._changed:
            self._waiting.append(then)
            self._changed.notify()
        return True

    def _run(self) -> None:
        interval_s = CHECK_INTERVAL_S if self._credentials.has_files else None
        while True:
            with self._changed:
                if not self._waiting and not self._stopping:
                    self._changed.wait(interval_s)
                if self._stopping:
                    return
                waiting, self._waiting = self._waiting, []
            self._reload(token=bool(waiting))
            for action in waiting:
                self._scheduler.call_soon(action)

    def _reload(self, *, token: bool) -> None:
        problem = ""
        try:
            if token:
                self._credentials.reload_token()
            else:
                self._credentials.reload_token_file()
        except CredentialsError as error:
            problem = str(error)
        try:
            if self._credentials.reload_tls():
                log.info("the certificates have changed; connecting again")
                self._scheduler.call_soon(self._on_tls_changed)
        except CredentialsError as error:
            problem = str(error)
        if problem and problem != self._reported:
            log.warning("the credentials cannot be read again, so the last ones are used: %s", problem)
        self._reported = problem
