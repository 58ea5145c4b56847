"""The message that tells another engine about a reschedule; the webhook and the relay send the same."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask


def delivery_id(task: ActivityRescheduleTask) -> str:
    """The id of one lost attempt, the same for every delivery of it. JSON keeps the parts apart, whatever they contain."""
    lost = task.activity
    parts = [task.namespace, *lost.id, lost.attempt, task.worker, task.epoch]
    return sha256(json.dumps(parts).encode()).hexdigest()


def payload(key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> bytes:
    fields = {
        "delivery": delivery_id(task),
        "namespace": key.namespace,
        "workflow_id": key.workflow_id,
        "run_id": key.run_id,
        "activity_id": key.activity_id,
        "attempt": activity.attempt,
        "task_queue": activity.task_queue,
        "activity_type": activity.type,
        "input": b64encode(activity.input).decode(),
        "input_encoding": activity.input_encoding,
        "token": b64encode(activity.token).decode(),
        "lost_from": {
            "worker_instance_key": task.worker,
            "lease_epoch": task.epoch,
            "attempt": task.activity.attempt,
            "died": task.died,
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode()
