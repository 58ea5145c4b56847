"""Checks each answer of a server, also each rejection, against the data that is durable at that moment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from liveness.sdk.rpc_failures import RpcFailure, failure_of_status
from liveness.v1 import activity_pb2, service_pb2, worker_pb2
from tests.simulation.audit import CLEANED_UP, Audit, Note, Report
from tests.simulation.labels import worker_label
from tests.simulation.network import Delivered
from tests.simulation.sometimes import Sometimes

_ONE = "/liveness.v1.LivenessService/RecordWorkerHeartbeat"
_MANY = "/liveness.v1.LivenessService/RecordWorkerHeartbeats"
_POLL = "/liveness.v1.ActivityService/PollActivity"
_CLAIM = "/liveness.v1.ActivityService/ClaimActivity"
_COMPLETE = "/liveness.v1.ActivityService/CompleteActivity"
_HEARTBEAT = "/liveness.v1.ActivityService/RecordActivityHeartbeat"

REPEATED = worker_pb2.HEARTBEAT_OUTCOME_REPEATED


class ReplyChecks:
    def __init__(self, audit: Audit, report: Report, note: Note, sometimes: Sometimes) -> None:
        self._audit = audit
        self._note = note
        self._report = report
        self._sometimes = sometimes
        self.given: Counter[str] = Counter()

    def arrived(self, path: str, host: str, source: str, body: bytes, now: float) -> None:
        if path not in (_ONE, _MANY):
            return
        request = service_pb2.RecordWorkerHeartbeatsRequest.FromString(body)
        for beat in request.heartbeats:
            key = (request.namespace, beat.worker_instance_key)
            self._audit.arrived.setdefault((key, beat.session_id, beat.sequence, host), now)

    def check(self, given: Delivered) -> None:
        path = given.path
        if path in (_ONE, _MANY):
            self._check_heartbeats(given)
        elif path in (_POLL, _CLAIM) and given.code is grpc.StatusCode.OK:
            self._check_hand_out(given)
        elif path == _COMPLETE:
            self._check_end(given)
        elif path == _HEARTBEAT and given.code is grpc.StatusCode.OK:
            self._check_activity_heartbeat(given)
        if given.code is not grpc.StatusCode.OK:
            self.given[_reason(given).reason or given.code.name] += 1
            if path == _CLAIM and _reason(given).reason == "ACTIVITY_HELD":
                self._sometimes("claim refused, held by another")

    def _check_heartbeats(self, given: Delivered) -> None:
        request = service_pb2.RecordWorkerHeartbeatsRequest.FromString(given.request)
        results: list[worker_pb2.HeartbeatResult | RpcFailure]
        if given.code is not grpc.StatusCode.OK:
            results = [_reason(given)] * len(request.heartbeats)
        elif given.path == _ONE:
            results = [worker_pb2.HeartbeatResult.FromString(given.answer)]
        else:
            items = service_pb2.RecordWorkerHeartbeatsResponse.FromString(given.answer).items
            results = [
                failure_of_status(item.status) if item.HasField("status") else item.result for item in items
            ]
        if len(results) != len(request.heartbeats):
            self._report("durable ack", f"{len(results)} answers to {len(request.heartbeats)} heartbeats", ())
            return
        for beat, result in zip(request.heartbeats, results, strict=True):
            key = (request.namespace, beat.worker_instance_key)
            if isinstance(result, RpcFailure):
                reason = result.reason or result.code.name
                self.given[reason] += 1
                self._note(
                    f"{given.process.host} refuses heartbeat {beat.sequence} of {beat.session_id}: {reason}",
                    worker_label(key),
                )
                self._check_refusal(key, beat, result)
            else:
                self.given[worker_pb2.HeartbeatOutcome.Name(result.outcome)] += 1
                self._note(
                    f"{given.process.host} answers heartbeat {beat.sequence} of {beat.session_id}",
                    worker_label(key),
                    alike=f"heartbeats of {worker_label(key)}",
                )
                self._check_ack(key, beat, result)

    def _check_ack(self, key: tuple[str, str], beat: Any, result: worker_pb2.HeartbeatResult) -> None:
        about = (worker_label(key),)
        if (beat.session_id, beat.sequence) not in self._audit.applied[key]:
            self._report(
                "durable ack",
                f"{worker_label(key)}: heartbeat {beat.sequence} of {beat.session_id} was answered and is not durable",
                about,
            )
            return
        worker = self._audit.workers.get(key)
        if worker is None or result.lease_epoch > worker.epoch:
            self._report(
                "durable ack",
                f"{worker_label(key)} was told epoch {result.lease_epoch}, which is not durable",
                about,
            )
        if result.outcome == REPEATED:
            self._sometimes("repeated heartbeat got the same answer")

    def _check_refusal(self, key: tuple[str, str], beat: Any, refusal: RpcFailure) -> None:
        worker, about = self._audit.workers.get(key), (worker_label(key),)
        match refusal.reason:
            case "STALE_HEARTBEAT":
                # The commit that the answer waited for may have replaced the session, too.
                if not any(
                    session_id == beat.session_id and sequence > beat.sequence
                    for session_id, sequence in self._audit.applied[key]
                ):
                    self._report(
                        "honest failure",
                        f"{worker_label(key)}: {beat.sequence} was refused as stale and is not",
                        about,
                    )
                self._sometimes("copy of a heartbeat arrived late and was refused")
            case "SESSION_SUPERSEDED":
                # A session of a forgotten worker is known by the epoch that it holds.
                if beat.session_id not in self._audit.former_sessions[key] and (
                    worker is None or beat.session_id not in worker.replaced
                ):
                    self._report(
                        "honest failure",
                        f"{worker_label(key)}: {beat.session_id} was not replaced durably",
                        about,
                    )
                self._sometimes("heartbeat of a replaced session refused")
            case "WORKER_CLEANED_UP":
                if worker is None or worker.state != CLEANED_UP:
                    self._report(
                        "honest failure", f"{worker_label(key)} was refused as cleaned up and is not", about
                    )
                self._sometimes("heartbeat of a cleaned-up worker refused")
            case "WORKER_QUOTA_EXCEEDED":
                self._sometimes("quota refused a worker")

    def _check_hand_out(self, given: Delivered) -> None:
        if given.path == _POLL:
            request: Any = activity_pb2.PollActivityRequest.FromString(given.request)
            tasks = list(activity_pb2.PollActivityResponse.FromString(given.answer).activities)
        else:
            request = activity_pb2.ClaimActivityRequest.FromString(given.request)
            tasks = [activity_pb2.ClaimActivityResponse.FromString(given.answer).activity]
        for task in tasks:
            name = (task.id.workflow_id, task.id.run_id, task.id.activity_id)
            course = self._audit.activities.activity_records.get((request.namespace, name))
            if course is None or course.attempt < task.attempt:
                self._report(
                    "durable ack",
                    f"{name} attempt {task.attempt} was handed out and is not durable",
                    (name[0],),
                )

    def _check_activity_heartbeat(self, given: Delivered) -> None:
        request = activity_pb2.RecordActivityHeartbeatRequest.FromString(given.request)
        name = (request.id.workflow_id, request.id.run_id, request.id.activity_id)
        record = self._audit.activities.activity_records[request.namespace, name]
        if request.details not in record.details:
            self._report("durable ack", f"a heartbeat of {name} was answered and is not durable", (name[0],))

    def _check_end(self, given: Delivered) -> None:
        request = activity_pb2.CompleteActivityRequest.FromString(given.request)
        name = (request.id.workflow_id, request.id.run_id, request.id.activity_id)
        end = (request.namespace, name, request.worker_instance_key, request.lease_epoch, request.attempt)
        if given.code is grpc.StatusCode.OK:
            if end not in self._audit.activities.ended:
                self._report("durable ack", f"{end} was answered and is not durable", (name[0],))
        elif _reason(given).reason == "FENCED_OFF":
            self._sometimes("end of a fenced attempt refused")


def _reason(given: Delivered) -> RpcFailure:
    for name, value in given.trailing:
        if name == "grpc-status-details-bin":
            return failure_of_status(Status.FromString(value))
    return RpcFailure(given.code)
