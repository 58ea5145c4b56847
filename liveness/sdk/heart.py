"""The heart of a process: the heartbeats of all its workers on one channel, in as few calls as possible.

Per namespace one call is under way at a time. When a heartbeat is due, all that would be due a little later travel with
it. Everything here runs on the ticker's thread.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any, Protocol

import grpc

from liveness.sdk import refusals
from liveness.sdk.pulse import Heard, Pulse
from liveness.sdk.refusals import Refusal
from liveness.sdk.ticker import Ticker, Timer
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse
from liveness.v1.service_pb2_grpc import LivenessServiceStub

HEARTBEATS_MAX = 1_000
BYTES_MAX = 3 * 1024 * 1024

log = logging.getLogger("liveness.sdk")


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
        self.timer: Timer | None = None


class Heart:
    def __init__(self, ticker: Ticker, stub: LivenessServiceStub, random: Random) -> None:
        self._ticker = ticker
        self._stub = stub
        self._random = random
        self._wards: dict[str, _Ward] = {}

    def join(self, life: Beating) -> None:
        self._wards.setdefault(life.namespace, _Ward()).lives[id(life)] = life
        self.stir(life.namespace)

    def leave(self, life: Beating) -> None:
        ward = self._wards.get(life.namespace)
        if ward is not None:
            ward.lives.pop(id(life), None)

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
        call = self._stub.RecordWorkerHeartbeats.future(request, timeout=timeout_ms / 1_000)
        ward.call = call
        call.add_done_callback(
            lambda done: self._ticker.post(lambda: self._arrived(namespace, aboard, pulses, done))
        )

    def _arrived(self, namespace: str, aboard: list[Beating], pulses: list[Pulse], call: Any) -> None:
        ward = self._wards[namespace]
        ward.call = None
        answers = _answers(call, len(aboard))
        for life, pulse, answer in zip(aboard, pulses, answers, strict=True):
            now_ms = self._ticker.now_ms()
            if isinstance(answer, Refusal):
                if not answer.passing:
                    log.debug("heartbeat of %s refused: %s", pulse.key, answer)
                heard = pulse.refused(answer, now_ms, self._random.random())
            else:
                heard = pulse.answered(answer.result, now_ms)
            if pulse is life.pulse:
                life.heard(heard)
        self.stir(namespace)


def _answers(call: Any, expected: int) -> list[Refusal | RecordWorkerHeartbeatsResponse.Item]:
    """One per heartbeat, whatever became of the call."""
    if call.code() is not grpc.StatusCode.OK:
        return [refusals.of_call(call)] * expected
    response: RecordWorkerHeartbeatsResponse = call.result()
    if len(response.items) != expected:
        strange = f"{len(response.items)} answers to {expected} heartbeats"
        return [Refusal(grpc.StatusCode.INTERNAL, message=strange)] * expected
    return [refusals.of_status(item.status) if item.HasField("status") else item for item in response.items]
