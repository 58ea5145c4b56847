"""Requeue the tasks of a dead Celery worker within seconds, instead of after the broker's visibility timeout.

    from celery import Celery
    from liveness.contrib.celery import install

    app = Celery("shop", broker="redis://localhost:6379/0")
    app.conf.task_acks_late = True
    install(app)        # LIVENESS_ADDRESS and LIVENESS_NAMESPACE name the server

A Redis-compatible broker cannot tell that a worker died. It keeps what a worker has received and not acknowledged, and gives it out again after the
visibility timeout, an hour by default. With `install`, each Celery worker process is a worker of liveness and binds each message that it
has received until it acknowledges it. When its lease ends, the server hands the bindings to the workers that live, and the
first to poll moves the message back to its queue, with the broker's own operation for it: a message that was acknowledged meanwhile
is not there any more and is not moved.

An operator who drains the worker of liveness shuts the Celery worker down warmly. Nothing else changes. Without a liveness server tasks run as ever, and the visibility timeout counts. A task may run twice, as with every
late acknowledgement: make it idempotent. Tasks that are acknowledged before they run (without `acks_late`) are only bound while they wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import weakref
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

from celery import Celery, signals
from celery.worker.request import Request
from kombu.transport.redis import Channel as RedisChannel

from liveness.sdk import (
    ActivityRef,
    Binding,
    CannotStart,
    LivenessSdkError,
    RetryLater,
    Task,
    Worker,
)

START_RETRY_SECONDS = 5.0
RESTORE_RETRY_SECONDS = 1.0
STOP_SECONDS = 10.0
CONCURRENT_RESTORES = 4
REQUEST_CLASS = "liveness.contrib.celery:LeasedRequest"
BOUND_WITHOUT_TYPE = ""
"""The type of activities that were bound and never scheduled."""

log = logging.getLogger("liveness.contrib.celery")

_lock = Lock()
_leases: weakref.WeakKeyDictionary[Celery, WorkerLease] = weakref.WeakKeyDictionary()


def install(app: Celery, address: str | None = None, **options: Any) -> None:
    """Let the Celery workers of this app be workers of liveness. Call it where the app is made, once.

    `address` and `options` are those of `liveness.sdk.Worker`, such as `namespace`, `lease`, `disconnect_grace` (the seconds after which
    the work of a killed worker is requeued; 5 by default), `labels`, `tls` and `token`."""
    with _lock:
        if app in _leases:
            raise RuntimeError("liveness is installed in this Celery app already.")
        lease = _leases[app] = WorkerLease(app, address, options)
    app.Task.Request = REQUEST_CLASS
    # Celery keeps weak references to receivers.
    signals.worker_ready.connect(lease.on_ready, weak=False)
    signals.worker_shutting_down.connect(lease.on_shutting_down, weak=False)
    signals.worker_shutdown.connect(lease.on_shutdown, weak=False)


class LeasedRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A message that this Celery worker has received, bound until it is acknowledged or rejected."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._end_binding: weakref.finalize[..., LeasedRequest] | None = None
        self._lease = _leases.get(self.app)
        if self._lease is not None:
            self._lease.hold(self)

    def acknowledge(self) -> None:
        super().acknowledge()
        self._unbind()

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue=requeue)
        self._unbind()

    def note_bound(self, binding: Binding) -> None:
        # Celery drops requests without a word when it loses its broker.
        self._end_binding = weakref.finalize(self, _end, binding)

    def _unbind(self) -> None:
        if self._lease is not None:
            self._lease.forget(self)
        if self._end_binding is not None:
            self._end_binding()


def _end(binding: Binding) -> None:
    binding.end()


class WorkerLease:
    """The worker of liveness in the main process of a Celery worker. It never delays or fails a task."""

    def __init__(self, app: Celery, address: str | None, options: Mapping[str, Any]) -> None:
        self._app = app
        self._address = address
        self._options = options
        self._guard = Lock()
        """Celery receives and acknowledges in its own thread."""
        self._worker: Worker | None = None
        self._unbound: weakref.WeakSet[LeasedRequest] = weakref.WeakSet()
        """Messages that were received while there was no lease."""
        self._thread: Thread | None = None
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    # -- Celery's signals

    def on_ready(self, sender: Any, **_: Any) -> None:
        """The pool has its processes: a fork would not take the threads along."""
        if sender.app is not self._app:
            return
        if not _is_redis(self._app):
            log.warning(
                "the broker %s returns the messages of a lost connection by itself; liveness binds none",
                self._app.connection_for_write().as_uri(),
            )
            return
        if not self._app.conf.task_acks_late:
            log.warning(
                "task_acks_late is off: tasks without acks_late of their own are lost if their worker dies"
            )
        self._thread = Thread(target=self._run, args=(sender.hostname,), name="liveness", daemon=True)
        self._thread.start()

    def on_shutting_down(self, **_: Any) -> None:
        """A warm shutdown: running tasks end, and what was not begun goes back to the broker."""
        self._stopping = True

    def on_shutdown(self, **_: Any) -> None:
        self._stopping = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    # -- bindings

    def hold(self, request: LeasedRequest) -> None:
        """Bind a message that was received: now, or as soon as there is a lease. Celery receives its first messages before that."""
        with self._guard:
            if self._worker is not None:
                self._bind(self._worker, request)
            elif not self._stopping:
                self._unbound.add(request)

    def forget(self, request: LeasedRequest) -> None:
        """The message is acknowledged or rejected."""
        with self._guard:
            self._unbound.discard(request)

    def _begin(self, worker: Worker) -> None:
        with self._guard:
            self._worker = worker
            waiting = list(self._unbound)
            self._unbound.clear()
            for request in waiting:
                if not request.acknowledged:
                    self._bind(worker, request)

    def _bind(self, worker: Worker, request: LeasedRequest) -> None:
        if self._stopping:
            return
        tag = request.message.delivery_tag
        token = json.dumps({"tag": tag, "task": request.id, "name": request.name}).encode()
        try:
            # A message that is given out again has the same tag, so that each receipt has a name of its own.
            binding = worker.bind(ActivityRef(request.id, uuid4().hex, request.name, token=token))
        except LivenessSdkError as error:
            log.warning("task %s is not bound: %s", request.id, error)
            return
        task_id = request.id
        binding.start().add_done_callback(lambda done: _note_failure(task_id, done.exception()))
        request.note_bound(binding)

    def restore(self, task: Task) -> str:
        """Move a message of a dead worker back to its queue, unless it was acknowledged."""
        token = json.loads(task.ref.token)
        try:
            with self._app.connection_for_write() as connection:
                # A channel of its own: one that consumes has a loop of its own.
                channel = connection.channel()
                was_there = _restore(channel, token["tag"])
        except connection_errors(self._app) as error:
            raise RetryLater(f"the broker is away: {error}", after=RESTORE_RETRY_SECONDS) from error
        if was_there:
            log.info("requeued task %s[%s] of a dead worker", token["name"], token["task"])
            return "requeued"
        return "it was acknowledged"

    # -- the thread

    def _run(self, hostname: str) -> None:
        try:
            asyncio.run(self._keep(hostname))
        except LivenessSdkError as error:
            log.error("liveness protects no more tasks of %s: %s", hostname, error)
        finally:
            self._worker = None

    async def _keep(self, hostname: str) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        while not self._stopping:
            worker = self._make_worker(hostname)
            try:
                async with worker:
                    self._begin(worker)
                    await self._serve(worker, self._stop)
                return
            except CannotStart as error:
                log.warning(
                    "no lease for %s yet, so that only the visibility timeout counts: %s", hostname, error
                )
                try:
                    await asyncio.wait_for(self._stop.wait(), START_RETRY_SECONDS)
                except TimeoutError:
                    pass
            finally:
                self._worker = None

    async def _serve(self, worker: Worker, stop: asyncio.Event) -> None:
        run = asyncio.create_task(worker.run(handle_signals=False))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((run, stopped), return_when=asyncio.FIRST_COMPLETED)
        worker.stop("its Celery worker ends")
        stopped.cancel()
        await run
        if worker.draining and not self._stopping:
            log.info("the Celery worker is drained: it finishes its tasks and ends")
            os.kill(os.getpid(), signal.SIGTERM)  # a warm shutdown

    def _make_worker(self, hostname: str) -> Worker:
        options = {
            "instance_key": f"{hostname}-{os.getpid()}",
            "max_concurrent": CONCURRENT_RESTORES,
            # Bindings are not activities that this process runs: Celery has ended its tasks before.
            "stop_timeout": 0,
            **self._options,
            "task_queue": rescue_queue(self._app),
        }
        worker = Worker(self._address, **options)
        worker.activity(BOUND_WITHOUT_TYPE)(self.restore)
        return worker


def rescue_queue(app: Celery) -> str:
    """The task queue for the messages of one broker: whoever polls it must reach them."""
    uri = app.connection_for_write().as_uri()  # without the password
    channel = app.conf.broker_transport_options or {}
    names = json.dumps([uri, channel.get("unacked_key"), channel.get("global_keyprefix")])
    return f"celery-{blake2b(names.encode(), digest_size=6).hexdigest()}"


def connection_errors(app: Celery) -> tuple[type[Exception], ...]:
    connection = app.connection_for_write()
    return (*connection.connection_errors, *connection.channel_errors)


def _restore(channel: RedisChannel, tag: str) -> bool:
    """Whether the message was still there."""
    with channel.conn_or_acquire() as client:
        was_there = bool(client.hexists(channel.unacked_key, tag))
    channel.qos.restore_by_tag(tag)
    return was_there


def _is_redis(app: Celery) -> bool:
    return issubclass(app.connection_for_write().get_transport_cls().Channel, RedisChannel)


def _note_failure(task_id: str, error: BaseException | None) -> None:
    if error is not None:
        log.debug("task %s is not bound: %s", task_id, error)
