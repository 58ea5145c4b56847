"""The notes of the workers against the server's record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.sdk_end_to_end.notes import Deed, Note
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoning:
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


async def reckon(
    crew: Crew, record: Record, activity_types: dict[str, str], *, server_died: bool = False
) -> Reckoning:
    """`activity_types`: of each activity that the server acknowledged, by name. `server_died`: it was started again, and who
    came before it had its shards was told to come again."""
    assert sorted(activity_types) == sorted(record.scheduled)
    await record.assert_each_completed_once()
    notes = crew.notes
    begun = _attempts(notes, Deed.STARTED)
    twice = [attempt for attempt, times in Counter(begun).items() if times > 1]
    assert not twice, f"attempts that two workers had: {twice}"
    reasons = {note.text for note in crew.noted(Deed.REFUSED)}
    assert reasons <= ({"FENCED_OFF", "SHARD_UNAVAILABLE"} if server_died else {"FENCED_OFF"}), reasons
    finished, accepted = _signed(crew.noted(Deed.FINISHED)), _signed(crew.noted(Deed.ACCEPTED))
    taken = set()
    for name, activity_type in activity_types.items():
        done = await record.completion(name, activity_type)
        taken.add((name, done["attempt"], done["worker"]))
    assert taken <= finished | accepted, f"nobody knows of having done {taken - finished - accepted}"
    assert accepted <= taken, f"acknowledged, and not on record: {accepted - taken}"
    # One that was killed may not have noted the last of its completions; nobody notes one that was not.
    counts = [worker.count for worker in crew.members]
    acknowledged = sum(count.completed for count in counts if count is not None)
    assert acknowledged + len(accepted) <= len(record.scheduled)
    return Reckoning(
        scheduled=len(record.scheduled),
        begun=len(begun),
        acknowledged=acknowledged,
        refused=len(crew.noted(Deed.REFUSED)),
        lost=len(crew.noted(Deed.LOST)),
    )


def _signed(notes: list[Note]) -> set[tuple[str, int, str]]:
    return {(note.activity, note.attempt, note.worker) for note in notes}


def _attempts(notes: list[Note], deed: Deed) -> list[tuple[str, int]]:
    return [(note.activity, note.attempt) for note in notes if note.deed is deed]
