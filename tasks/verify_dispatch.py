"""VerifyDispatchTask: did the worker hear of the activity that it was handed?

The binding is durable before the answer leaves, so nothing is forgotten; but an answer can be lost on its way, and then
nobody works on what the worker is bound to. A worker confirms what it received with its next heartbeat. What is not
confirmed in time is taken back and made available again.
"""

from __future__ import annotations

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.reactions import VerifyDispatchTask
from liveness.shard.shard import Shard
from liveness.shard.vigil import Vigil
from tasks.contract import Done, NotYet, TimerOutcome


class VerifyDispatch:
    def __init__(self, vigil: Vigil) -> None:
        self._vigil = vigil

    def validate(self, task: VerifyDispatchTask, activity: Activity) -> bool:
        held = (activity.worker, activity.attempt) == (task.worker, task.attempt)
        return activity.state is ActivityState.STARTED and held

    def execute(self, task: VerifyDispatchTask, shard: Shard) -> TimerOutcome:
        again_ms = self._vigil.verify(task.activity, shard)
        return Done() if again_ms is None else NotYet(again_ms)
