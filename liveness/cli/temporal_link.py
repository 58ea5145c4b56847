"""Links from an activity of a Temporal worker to Temporal's web page."""

from __future__ import annotations

from urllib.parse import quote

from liveness.v1.activity_pb2 import ActivityId
from liveness.v1.worker_pb2 import ActivityRef, Worker

UI_LABEL = "temporal-ui"
"""The label with the address of Temporal's web page, which a bridge gives its workers."""
RESCUE_QUEUE = "temporal-rescue"
"""The task queue of attempts that Temporal workers have lost."""


def temporal_link(worker: Worker, activity: ActivityRef | ActivityId) -> str:
    """Where its workflow is shown. Empty if the worker is none of Temporal's, or its bridge does not know the page."""
    page = worker.labels.get(UI_LABEL, "")
    if not page.startswith(("http://", "https://")):
        return ""
    # A standalone activity stands in the workflow's place, and nothing before the number of its attempt.
    kind = "activities" if activity.activity_id.startswith("@") else "workflows"
    names = (worker.namespace, kind, activity.workflow_id, activity.run_id)
    return "/".join([page.rstrip("/"), "namespaces", *(quote(name, safe="") for name in names)])
