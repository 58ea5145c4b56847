"""VerifyDispatchTask: did the worker hear of the activity that it was handed?

The binding is durable before the answer leaves, so nothing is forgotten; but an answer can be lost on its way, and then
nobody works on what the worker is bound to. A worker confirms what it received with its next heartbeat. What is not
confirmed in time is taken back and made available again.
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
