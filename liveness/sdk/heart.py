"""The heart of a process: the heartbeats of all its workers on one channel, in as few calls as possible.

Per namespace one call is under way at a time. When a heartbeat is due, all that would be due a little later travel with
it. Everything here runs on the ticker's thread.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any, Protocol, TypeAlias

import grpc

from liveness.sdk import refusals, traces
from liveness.sdk.failover import Route, Routes
from liveness.sdk.pulse import Heard, Pulse
from liveness.sdk.refusals import Refusal
from liveness.sdk.ticker import Ticker, Timer
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse

HEARTBEATS_MAX = 1_000
BYTES_MAX = 3 * 1024 * 1024

log = logging.getLogger("liveness.sdk")

Answer: TypeAlias = Refusal | RecordWorkerHeartbeatsResponse.Item


class Beating(Protocol):
    """A worker, as far as the heart is concerned."""

    namespace: str
    pulse: Pulse

    def heard(self, heard: Heard) -> None: ...


class _Ward:
    """The workers of one namespace."""

    def __init__(self) -> None:
        self.lives: dict[int, Beating] = {}
        self.call: Any | None = None
        self.route: Route | None = None
        """Where that call went."""
        self.failures = 0
        """Calls in a row of which nothing was heard."""
        self.timer: Timer | None = None


class Heart:
    def __init__(self, ticker: Ticker, routes: Routes, random: Random) -> None:
        self._ticker = ticker
        self._routes = routes
        self._random = random
        self._wards: dict[str, _Ward] = {}

    def join(self, life: Beating) -> None:
        self._wards.setdefault(life.namespace, _Ward()).lives[id(life)] = life
        self.stir(life.namespace)

    def leave(self, life: Beating) -> None:
        ward = self._wards.get(life.namespace)
        if ward is not None:
            ward.lives.pop(id(life), None)

    def moved(self) -> None:
        """Another node is talked to now. If the old one is gone, the grace of all who stood on its stream may have
        begun, so all heartbeats are due; and what it was sent is sent anew, as it may never answer."""
        now_ms = self._ticker.now_ms()
        for namespace, ward in self._wards.items():
            for life in ward.lives.values():
                life.pulse.hasten(now_ms)
            if ward.call is not None and ward.route is not self._routes.current:
                ward.call.cancel()
            self.stir(namespace)

    def stir(self, namespace: str) -> None:
        """Something may be due earlier than it was."""
        ward = self._wards.get(namespace)
        if ward is None or ward.call is not None:
            return  # looked at again when the call has ended
        now_ms = self._ticker.now_ms()
        due_ms = min(
            (due for life in ward.lives.values() if (due := life.pulse.due_ms) is not None), default=None
        )
        if due_ms is None:
            return
        if due_ms <= now_ms:
            self._send(namespace, ward, now_ms)
        elif ward.timer is None or not ward.timer.pending or ward.timer.at_ms > due_ms:
            if ward.timer is not None:
                ward.timer.cancel()
            ward.timer = self._ticker.at(due_ms, lambda: self.stir(namespace))

    def _send(self, namespace: str, ward: _Ward, now_ms: int) -> None:
        ready = [
            (early_ms, life)
            for life in ward.lives.values()
            if (early_ms := life.pulse.early_ms) is not None and early_ms <= now_ms
        ]
        ready.sort(key=lambda pair: pair[0])
        request = RecordWorkerHeartbeatsRequest(namespace=namespace)
        aboard: list[Beating] = []
        size = 0
        for _, life in ready[:HEARTBEATS_MAX]:
            if size > BYTES_MAX:
                break  # each is far smaller than what is left of the server's limit
            message = life.pulse.send(now_ms)
            size += message.ByteSize()
            request.heartbeats.append(message)
            aboard.append(life)
        timeout_ms = min(life.pulse.deadline_ms for life in aboard)
        pulses = [life.pulse for life in aboard]
        sent = traces.begin(request, namespace=namespace, heartbeats=len(aboard))

        def start(route: Route) -> Any:
            return route.liveness.RecordWorkerHeartbeats.future(
                request, timeout=timeout_ms / 1_000, metadata=None if sent is None else sent.metadata
            )

        ward.route, call = self._routes.begin(start)
        ward.call = call
        if sent is not None:
            call.add_done_callback(sent.ended)
        call.add_done_callback(
            lambda done: self._ticker.post(lambda: self._arrived(namespace, aboard, pulses, done))
        )

    def _arrived(self, namespace: str, aboard: list[Beating], pulses: list[Pulse], call: Any) -> None:
        ward = self._wards[namespace]
        ward.call = None
        answers = _answers(call, len(aboard))
        at_once = self._is_turned_away(ward, answers)
        for life, pulse, answer in zip(aboard, pulses, answers, strict=True):
            now_ms = self._ticker.now_ms()
            if isinstance(answer, Refusal):
                if not answer.passing:
                    log.debug("heartbeat of %s refused: %s", pulse.key, answer)
                heard = pulse.refused(answer, now_ms, self._random.random(), at_once=at_once)
            else:
                heard = pulse.answered(answer.result, now_ms)
            if pulse is life.pulse:
                life.heard(heard)
        self.stir(namespace)

    def _is_turned_away(self, ward: _Ward, answers: list[Answer]) -> bool:
        """Whether the same is to be sent again at once, to another node."""
        refused = [answer for answer in answers if isinstance(answer, Refusal) and answer.passing]
        assert ward.route is not None
        if len(refused) < len(answers):
            ward.failures = 0
            self._routes.worked(ward.route)
            return False
        ward.failures += 1
        return self._routes.failed(
            ward.route, next((refusal for refusal in refused if refusal.elsewhere), refused[0]), ward.failures
        )


def _answers(call: Any, expected: int) -> list[Answer]:
    """One per heartbeat, whatever became of the call."""
    if call.code() is not grpc.StatusCode.OK:
        return [refusals.of_call(call)] * expected
    response: RecordWorkerHeartbeatsResponse = call.result()
    if len(response.items) != expected:
        strange = f"{len(response.items)} answers to {expected} heartbeats"
        return [Refusal(grpc.StatusCode.INTERNAL, message=strange)] * expected
    return [refusals.of_status(item.status) if item.HasField("status") else item for item in response.items]
