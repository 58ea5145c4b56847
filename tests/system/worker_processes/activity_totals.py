"""Compares the notes of the workers with the server's record."""

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
    """Attempts that a worker started."""
    acknowledged: int
    """Completions that the server acknowledged to a worker."""
    refused: int
    """Completions by zombies that the server rejected."""
    lost: int
    """Attempts whose worker was told that it had lost them."""

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
    """`activity_types`: the type of each acknowledged activity, by name.

    `server_died`: the server was restarted, and workers that called before it had its shards had to repeat their
    calls.
    """
    assert sorted(activity_types) == sorted(namespace_client.scheduled)
    await namespace_client.assert_each_completed_once()
    notes = worker_group.notes
    begun = _attempts(notes, Action.STARTED)
    twice = [attempt for attempt, times in Counter(begun).items() if times > 1]
    assert not twice, f"attempts that two workers ran: {twice}"
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
    assert taken <= finished | accepted, f"no worker noted the completion of {taken - finished - accepted}"
    assert accepted <= taken, f"acknowledged but not recorded: {accepted - taken}"
    # A killed worker may not have noted its last completion; no worker notes a completion that did not happen.
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
