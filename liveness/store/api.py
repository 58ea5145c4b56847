"""The interface between the engine and the database: `Store`, and the values that it exchanges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from string import ascii_uppercase
from types import MappingProxyType
from typing import NamedTuple, Protocol

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.concurrency import ConcurrencyLimit
from liveness.domain.death_certificate import Death
from liveness.domain.errors import SeriesQuotaExceeded
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, namespace_seed, shard_from_seed
from liveness.domain.progress import UnitKey, UnitProgress
from liveness.domain.reactions import ActivityRescheduleTask, RescheduleBatch
from liveness.domain.schedule import Schedule
from liveness.domain.silences import CountedSilence, Silence
from liveness.domain.verdicts import VerdictCounts
from liveness.domain.worker import BoundActivity, Worker, WorkerState
from liveness.store.audit import AuditFilter, AuditRow
from liveness.store.codec import LogEntry, RenewalState
from liveness.store.component_metrics import Point, SampleReport, Series, SeriesFilter, Steps
from liveness.store.database import ConnectionCounts
from liveness.store.deletions import DeletedEvents
from liveness.store.node_registry import ClusterView, NodeRow
from liveness.store.pages import Page
from liveness.store.population import Population, TimedDeath
from liveness.store.size import Storage
from liveness.store.timeline import Timeline
from liveness.store.tokens import TokenRow, TokensMark


class TaskState(IntEnum):
    PENDING = 1
    RETRYING = 2
    DEAD_LETTERED = 3
    DONE = 4
    DISCARDED = 5


OPEN_TASK_STATES = (TaskState.PENDING, TaskState.RETRYING)
FINISHED_TASK_STATES = (TaskState.DONE, TaskState.DISCARDED)


PARKED_MS = 2**62
"""The due time of a parked task: it waits for something other than time, such as a broker."""


class NewTaskBatch(NamedTuple):
    shard_ids: Sequence[int]
    """The shard of each activity, in the order of the activities; not the worker's shard."""
    batch: RescheduleBatch

    @classmethod
    def of(cls, batch: RescheduleBatch, shard_count: int) -> NewTaskBatch:
        seed = namespace_seed(batch.namespace)
        return cls(
            [shard_from_seed(seed, activity.workflow_id, shard_count) for activity in batch.activities], batch
        )

    def with_shard_ids(self) -> Iterator[tuple[int, ActivityRescheduleTask]]:
        return zip(self.shard_ids, self.batch.tasks(), strict=True)


class TaskUpdate(NamedTuple):
    task_id: int
    state: TaskState
    due_ms: int
    attempts: int
    last_error: str


UNREADABLE = BoundActivity("", "", "", 0, "", b"")


class StoredTask(NamedTuple):
    task_id: int
    shard_id: int
    kind: str
    state: TaskState
    due_ms: int
    attempts: int
    last_error: str
    task: ActivityRescheduleTask
    created_wall_ms: int
    finished_wall_ms: int | None
    damage: str = ""
    """Why the row cannot be understood; then the activity of `task` is `UNREADABLE`. The row stays as it is in the table."""


class TaskRange(NamedTuple):
    """Tasks that were never attempted, by their ids."""

    tasks: int = 0
    first_id: int = 0
    last_id: int = 0


class QueueCount(NamedTuple):
    """Tasks of one shard, namespace and state."""

    shard_id: int
    namespace: str
    state: TaskState
    tasks: int
    oldest_wall_ms: int


class ObjectKey(NamedTuple):
    """What has a name of its own in a namespace, beside workers, activities and units: a schedule, a concurrency limit."""

    namespace: str
    kind: str
    """One of the kinds that `store/object_rows.py` lists."""
    name: str


StoredObject = Schedule | ConcurrencyLimit


@dataclass(slots=True)
class ShardCommit:
    """Everything that one shard adds in one transaction. All of it becomes durable, or none."""

    shard_id: int
    epoch: int
    after_seq: int
    """The head that this commit builds on. The commit fails if the stored head or epoch differs."""
    last_seq: int
    observed_ms: int
    wall_ms: int
    entries: list[LogEntry] = field(default_factory=list)
    workers: dict[WorkerKey, tuple[Worker, int] | None] = field(default_factory=dict)
    """Rows to write, each with the sequence of the last event in it; None to delete."""
    activities: dict[ActivityKey, Activity] = field(default_factory=dict)
    new_tasks: list[NewTaskBatch] = field(default_factory=list)
    task_updates: dict[int, TaskUpdate] = field(default_factory=dict)
    progress: dict[UnitKey, UnitProgress | None] = field(default_factory=dict)
    """Rows to write; None to delete."""
    objects: dict[ObjectKey, StoredObject | None] = field(default_factory=dict)
    """The same."""
    config: dict[str, Mapping[str, float]] = field(default_factory=dict)
    verdicts: dict[str, VerdictCounts] = field(default_factory=dict)
    """Increments of the counts of each namespace."""
    silences: dict[tuple[str, Silence], int] = field(default_factory=dict)
    """Increments of the counts of each namespace; only with a checkpoint."""
    epoch_floor: int | None = None
    """The shard's new epoch floor (`store/timeline.py`); None if it stays as it is."""
    checkpoint: tuple[int, list[RenewalState]] | None = None
    is_hand_over: bool = False
    """The owner releases the shard with this commit, its last one."""


class ShardSnapshot(NamedTuple):
    """A shard as read back by a take-over: its rows and its checkpoint, and the log after it."""

    shard_id: int
    epoch: int
    last_seq: int
    observed_ms: int
    taken_wall_ms: int
    """When this take-over took the shard; `observed_ms` is the same moment."""
    takeovers: tuple[int, ...]
    """Observed times of the last take-overs, this one included, oldest first."""
    checkpoint_seq: int
    workers: dict[WorkerKey, Worker]
    """As of the checkpoint, apart from changes that are in `tail`; or as of their row, if that is newer."""
    row_seqs: dict[WorkerKey, int]
    """Of the workers whose row is newer than the checkpoint: how much of the log it contains."""
    tail: list[LogEntry]
    """Log entries after the checkpoint that are not yet contained in the row of their worker."""
    activities: dict[ActivityKey, Activity]
    """Unfinished activities only."""
    slots: Mapping[str, int] = MappingProxyType({})
    """How many workers of each namespace the shard may hold; see `Store.grant_slots`."""
    epoch_floor: int = 1
    """The lowest lease epoch of a worker that registers; see `store/timeline.py`."""
    progress: Mapping[UnitKey, UnitProgress] = MappingProxyType({})
    objects: Mapping[ObjectKey, StoredObject] = MappingProxyType({})


class WorkerRow(NamedTuple):
    key: WorkerKey
    shard_id: int
    worker: Worker


class FilterWord(NamedTuple):
    """A part of a text that people filter by. It holds if one of the fields contains it, or the worker is in one of the states."""

    text: str
    """In lower case, as `ascii_lower` makes it."""
    fields: tuple[str, ...]
    """Of worker_key, host_name, build_id and task_queue."""
    states: tuple[WorkerState, ...] = ()


def ascii_lower(text: str) -> str:
    """Lower case as every database does it, also one that knows no letters but those of ASCII."""
    return text.translate(_LOWER)


_LOWER = {ord(letter): letter.lower() for letter in ascii_uppercase}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFilter:
    """All conditions hold together; an empty one always holds."""

    states: tuple[WorkerState, ...] = ()
    task_queue: str = ""
    build_id: str = ""
    host_name: str = ""
    key_prefix: str = ""
    words: tuple[FilterWord, ...] = ()


class ActivityRow(NamedTuple):
    key: ActivityKey
    activity: Activity
    shard_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFilter:
    """All conditions hold together; an empty one always holds."""

    states: tuple[ActivityState, ...] = ()
    task_queue: str = ""
    worker: str = ""
    type: str = ""
    workflow_prefix: str = ""


class ProgressRow(NamedTuple):
    key: UnitKey
    shard_id: int
    progress: UnitProgress


class ObjectRow(NamedTuple):
    key: ObjectKey
    shard_id: int
    value: StoredObject


class FeedPage(NamedTuple):
    entries: Page[LogEntry]
    deleted: DeletedEvents
    """Deleted events of the shard, in the selected namespace, when the entries were read."""


class UnpublishedRetention(NamedTuple):
    """Keeps events that a relay has not published yet beyond their retention."""

    relay: str
    keep_since_wall_ms: int
    """Older events are deleted even if they were not published."""


class RelayBacklog(NamedTuple):
    parked_tasks: int
    cursor: int
    """0 if the relay has no cursor for the shard."""
    events: int
    """Events after the cursor."""


TAKEOVERS_KEPT = 4


class Store(Protocol):
    timeline: Timeline
    """Valid once the store is open."""

    async def open(self, shard_count: int, created_by: str, *, is_restore: bool = False) -> None:
        """Create or migrate the tables; refuse a database that this version must not use, or, unless `is_restore`, one that
        was restored and is not ready to be served."""

    async def registered_nodes(self) -> tuple[NodeRow, ...]:
        """Also for a store that is not open: of a database without tables there are none."""

    async def begin_restore(self, silent: Mapping[str, int]) -> None:
        """Let no server use the database before `finish_restore`. `silent`: the beats of nodes whose leases are over;
        raises `NodeServes` and changes nothing if any other node is registered."""

    async def begin_timeline(self, timeline: Timeline) -> None:
        """Start a new timeline: the database was restored and lacks everything after the backup."""

    async def finish_restore(self) -> None: ...

    async def accept_move(self, silent: Mapping[str, int]) -> None:
        """Serve the database where it is now: it was moved, and lacks nothing. `silent`: as in `begin_restore`."""

    def connection_counts(self) -> ConnectionCounts: ...

    async def close(self) -> None: ...

    async def take_over(
        self,
        shard_ids: Collection[int],
        owner: str,
        wall_ms: int,
        expected_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardSnapshot]:
        """Raise the shards' epochs, which fences every earlier owner, and read them back.

        `expected_epochs`: take only shards that still have this epoch, so that exactly one of several candidates wins.
        """

    async def disown_shards(self, owner: str, expected_epochs: Mapping[int, int]) -> None:
        """Release shards that this owner took at these epochs but does not serve."""

    async def end_sessions_of(self, owners: Collection[str]) -> int:
        """End the database sessions of lost owners, which may hold row locks that others need. Return their number."""

    async def renew_node(self, own_row: NodeRow) -> ClusterView:
        """Renew this node's row in the registry; return all nodes and the owners of all shards."""

    async def tokens_mark(self) -> TokensMark: ...

    async def read_tokens(self) -> tuple[TokensMark, list[TokenRow]]: ...

    async def insert_token(self, row: TokenRow, stamp: int) -> None:
        """Raises `TooManyTokens`."""

    async def revoke_token(self, token_id: str, wall_ms: int, stamp: int) -> TokenRow | None:
        """None if there is no such token."""

    async def insert_session(self, row: TokenRow, stamp: int) -> None: ...

    async def end_sessions(self, principal: str, token_id: str) -> int:
        """End one session, or all sessions of the principal if `token_id` is empty. Return how many there were."""

    async def insert_audit(self, rows: Sequence[AuditRow]) -> None: ...

    async def read_audit(
        self, where: AuditFilter, before: tuple[int, int] | None, limit: int
    ) -> list[AuditRow]:
        """Newest first. `before`: the time and the id of the last row of the page before."""

    async def prune_audit(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
        """`owned`: shard → epoch, of a shard whose owner does this for all nodes."""

    async def insert_samples(self, reports: Sequence[SampleReport]) -> list[SeriesQuotaExceeded | None]:
        """Store each report as a whole, or refuse it, all in one transaction."""

    async def find_series(
        self, where: SeriesFilter, steps: Steps, after: tuple[str, str, int] | None, limit: int
    ) -> list[Series]: ...

    async def read_points(self, series_ids: Collection[int], steps: Steps) -> dict[int, list[Point]]: ...

    async def prune_samples(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
        """Delete older samples, and then series without samples. `owned`: as in `prune_audit`."""

    async def delete_oldest_samples(self, owned: Mapping[int, int], bytes_to_free: int) -> int:
        """Delete samples before their time. Returns how many bytes are free now. `owned`: as in `prune_audit`."""

    async def read_cluster(self) -> ClusterView: ...

    async def remove_nodes(self, node_ids: Collection[str]) -> None: ...

    async def commit(self, commits: Sequence[ShardCommit]) -> None:
        """Commit for several shards in one durable transaction.

        Raises `ShardsLost`, `CommitRejected`, `CommitUnknown` or `StoreBroken`.
        """

    async def grant_slots(
        self, shard_id: int, epoch: int, namespace: str, want: int, limit: int, extra_max: int = 1_000
    ) -> int:
        """Grant a shard more slots of a namespace, as long as all shards together stay within `limit`. `namespace`: with a
        suffix for other slots than those of workers. `extra_max`: how many more than wanted it may be granted.

        Returns how many slots the shard has now.
        """

    async def return_slots(self, owned: Mapping[int, int], namespace: str, kept: Mapping[int, int]) -> None:
        """Reduce the slots of the shards to `kept`; the others become free for other shards."""

    async def load_config(self) -> dict[str, dict[str, float]]: ...

    async def list_workers(
        self, namespace: str, where: WorkerFilter, after_key: str | None, limit: int
    ) -> Page[WorkerRow]: ...

    async def count_workers(self, namespace: str, where: WorkerFilter) -> dict[WorkerState, int]: ...

    async def worker_history(
        self,
        key: WorkerKey,
        shard_id: int,
        *,
        newest_first: bool,
        beyond_seq: int | None,
        limit: int,
        kinds: Collection[str] = (),
    ) -> Page[LogEntry]:
        """`kinds`: only events of these kinds; empty for all."""

    async def activity_history(
        self, key: ActivityKey, shard_id: int, *, limit: int, without: Collection[str] = ()
    ) -> Page[LogEntry]:
        """The newest events about an activity, newest first. `without`: kinds that are left out."""

    async def deaths_between(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> list[Death]:
        """The deaths in a namespace from one wall time to another, both included; at most about 100,000."""

    async def timed_deaths(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> list[TimedDeath]:
        """Return who died when, newest first."""

    async def population(self, namespace: str, names: Collection[str]) -> Population:
        """Count the ACTIVE workers of a namespace by what they have in common, and describe the workers with these keys."""

    async def silences_between(
        self, namespace: str, from_wall_ms: int, to_wall_ms: int
    ) -> list[CountedSilence]:
        """Return how long workers that lived were not heard, newest first."""

    async def lease_events(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> Page[LogEntry]:
        """Return the beginnings and ends of leases of the workers that died in this time, worker by worker, each in its order.
        If there are too many, those that died last, and the page is cut."""

    async def verdicts(self) -> dict[str, VerdictCounts]:
        """Per namespace: how many workers were declared dead, and how many of them proved to be alive."""

    async def read_log(
        self,
        shard_id: int,
        after_seq: int,
        through_seq: int,
        limit: int,
        *,
        namespace: str | None = None,
        worker: str | None = None,
    ) -> list[LogEntry]:
        """Read events other than plain renewals, in order."""

    async def read_feed(
        self,
        shard_id: int,
        after_seq: int,
        through_seq: int,
        limit: int,
        *,
        namespace: str | None = None,
        worker: str | None = None,
        bytes_max: int | None = None,
    ) -> FeedPage:
        """The same, with what retention has deleted: for a reader that must know whether it misses an event. `bytes_max`: the
        page is cut after the event that exceeds it."""

    async def read_deletions(
        self, shard_ids: Collection[int], namespace: str | None
    ) -> dict[int, DeletedEvents]:
        """What retention has deleted of these shards' events, in one namespace or in all."""

    async def recent_events(self, namespace: str | None, limit: int) -> list[tuple[int, LogEntry]]:
        """The newest events of all shards other than plain renewals, each with its shard, newest last. Of a namespace, only
        those among the newest events of each shard."""

    async def due_tasks(
        self, shard_id: int, now_ms: int, limit: int, *, include_parked: bool = True
    ) -> list[StoredTask]:
        """Return due tasks, those with damaged rows included. `include_parked`: followed by parked ones."""

    async def new_task_range(self, shard_ids: Collection[int]) -> TaskRange:
        """The open tasks of these shards that are due whatever the time, which are those that were never attempted."""

    async def new_tasks(self, shard_ids: Collection[int], first_id: int, last_id: int) -> list[StoredTask]:
        """Those of them with ids from `first_id` to `last_id`, in this order, which is about that in which the activities are
        stored."""

    async def shards_with_new_tasks(self, shard_ids: Collection[int]) -> list[int]:
        """The shards whose queues contain tasks that were never attempted."""

    async def next_due_ms(self, shard_id: int, after_ms: int = -1) -> int | None:
        """The earliest due time after `after_ms` among open tasks that are not parked."""

    async def count_tasks(self, shard_ids: Collection[int]) -> list[QueueCount]:
        """Count unfinished tasks, dead letters included."""

    async def finished_tasks(
        self, shard_ids: Collection[int], since_wall_ms: int, namespace: str | None, after_id: int, limit: int
    ) -> list[StoredTask]:
        """Tasks that became DONE since then."""

    async def list_tasks(
        self, namespace: str | None, states: Collection[TaskState], after_id: int, limit: int
    ) -> list[StoredTask]: ...

    async def get_task(self, task_id: int) -> StoredTask | None: ...

    async def find_activities(self, keys: Collection[ActivityKey]) -> dict[ActivityKey, Activity]:
        """Return the activities that exist."""

    async def list_activities(
        self, namespace: str, where: ActivityFilter, after: ActivityId | None, limit: int
    ) -> Page[ActivityRow]: ...

    async def list_objects(
        self, namespace: str, kind: str, prefix: str, after: str | None, limit: int
    ) -> Page[ObjectRow]:
        """Ordered by name. Fewer if the rows are large."""

    async def list_progress(
        self, namespace: str, prefix: str, failing: bool, after_unit: str | None, limit: int
    ) -> Page[ProgressRow]:
        """`failing`: only units whose last report was an error."""

    async def prune_activities(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        """Delete activities that finished before their namespace's cutoff (wall ms; 0 keeps all)."""

    async def compact_renewals(self, owned: Mapping[int, int]) -> int:
        """Delete renewals that checkpoints of the owned shards contain. `owned`: shard → epoch."""

    async def prune_events(
        self,
        owned: Mapping[int, int],
        cutoffs: Mapping[str, int],
        default_cutoff: int,
        unpublished: UnpublishedRetention | None = None,
        *,
        kinds: Collection[str] = (),
    ) -> int:
        """Delete checkpointed events older than their namespace's cutoff (wall ms; 0 keeps all).

        `unpublished` may keep events that are not published yet. `kinds`: only events of these kinds; empty for all.
        """

    async def prune_silences(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        """Delete silences of the owned shards that are older than their namespace's cutoff (wall ms)."""

    async def prune_deaths(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        """Delete deaths of the owned shards that are older than their namespace's cutoff (wall ms)."""

    async def delete_oldest_events(
        self,
        owned: Mapping[int, int],
        bytes_to_free: int,
        unpublished: UnpublishedRetention | None = None,
        *,
        kinds: Collection[str] = (),
    ) -> int:
        """Delete checkpointed events, oldest first, whatever their age, until they have freed so many bytes.

        Returns about how many bytes were freed. The other arguments are those of `prune_events`.
        """

    async def read_storage(self, wall_ms: int) -> Storage:
        """The size of the database, the room that is left, and its growth."""

    async def record_size(self, owned: Mapping[int, int], wall_ms: int) -> None:
        """Record the size, for its growth. `owned`: shard → epoch, of a shard whose owner keeps the record."""

    async def prune_tasks(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int: ...

    async def relay_cursors(self, relay: str, shard_ids: Collection[int]) -> dict[int, int]:
        """How far each shard's log was published, for the shards that the relay has a cursor for."""

    async def advance_relay_cursors(
        self, relay: str, owned: Mapping[int, int], cursors: Mapping[int, int]
    ) -> None:
        """Record that the broker acknowledged everything up to these sequences. A cursor never moves back.

        `owned`: shard → epoch, at least for the shards in `cursors`. Raises `ShardsLost`.
        """

    async def relay_backlogs(self, relay: str, shard_ids: Collection[int]) -> dict[int, RelayBacklog]: ...

    async def first_seq_since(self, shard_id: int, wall_ms: int) -> int | None:
        """The sequence of the first event since then, plain renewals excepted."""
