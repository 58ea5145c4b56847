"""The notes of the workers against the server's record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.worker_notes import Action, Note
from tests.system.worker_processes.worker_processes import WorkerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTotals:
    scheduled: int
    begun: int
    """Attempts that some worker took up."""
    acknowledged: int
    """Completions that workers know were taken."""
    refused: int
    """Zombies' completions that were turned away."""
    lost: int
    """Attempts that their worker was told it had lost."""

    def __str__(self) -> str:
        return (
            f"{self.scheduled} activities, {self.begun} attempts, {self.acknowledged} acknowledged, "
            f"{self.lost} lost on the way, {self.refused} zombies refused"
        )


async def check_totals(
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    activity_types: dict[str, str],
    *,
    server_died: bool = False,
) -> ActivityTotals:
    """`activity_types`: of each activity that the server acknowledged, by name. `server_died`: it was started again, and who
    came before it had its shards was told to come again."""
    assert sorted(activity_types) == sorted(namespace_client.scheduled)
    await namespace_client.assert_each_completed_once()
    notes = worker_group.notes
    begun = _attempts(notes, Action.STARTED)
    twice = [attempt for attempt, times in Counter(begun).items() if times > 1]
    assert not twice, f"attempts that two workers had: {twice}"
    reasons = {note.text for note in worker_group.noted(Action.REFUSED)}
    assert reasons <= ({"FENCED_OFF", "SHARD_UNAVAILABLE"} if server_died else {"FENCED_OFF"}), reasons
    finished, accepted = (
        _signed(worker_group.noted(Action.FINISHED)),
        _signed(worker_group.noted(Action.ACCEPTED)),
    )
    taken = set()
    for name, activity_type in activity_types.items():
        done = await namespace_client.completion(name, activity_type)
        taken.add((name, done["attempt"], done["worker"]))
    assert taken <= finished | accepted, f"nobody knows of having done {taken - finished - accepted}"
    assert accepted <= taken, f"acknowledged, and not on record: {accepted - taken}"
    # One that was killed may not have noted the last of its completions; nobody notes one that was not.
    counts = [worker.count for worker in worker_group.members]
    acknowledged = sum(count.completed for count in counts if count is not None)
    assert acknowledged + len(accepted) <= len(namespace_client.scheduled)
    return ActivityTotals(
        scheduled=len(namespace_client.scheduled),
        begun=len(begun),
        acknowledged=acknowledged,
        refused=len(worker_group.noted(Action.REFUSED)),
        lost=len(worker_group.noted(Action.LOST)),
    )


def _signed(notes: list[Note]) -> set[tuple[str, int, str]]:
    return {(note.activity, note.attempt, note.worker) for note in notes}


def _attempts(notes: list[Note], action: Action) -> list[tuple[str, int]]:
    return [(note.activity, note.attempt) for note in notes if note.action is action]
