"""VerifyDispatchTask: check that the worker received the activity that was handed to it.

The binding is durable before the reply leaves, so the service forgets nothing. But the reply can be lost, and then the
worker does not know of the activity it is bound to. A worker confirms what it received with its next heartbeat. The
service takes back an activity that is not confirmed in time and makes it available again.
"""

from __future__ import annotations

from liveness.dispatch.reconciler import BindingReconciler
from liveness.domain.reactions import VerifyDispatchTask
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome


class VerifyDispatch:
    def __init__(self, reconciler: BindingReconciler) -> None:
        self._reconciler = reconciler

    def execute(self, task: VerifyDispatchTask, shard: Shard) -> TimerOutcome:
        retry_ms = self._reconciler.verify(task.activity, shard)
        return Done() if retry_ms is None else NotYet(retry_ms)
