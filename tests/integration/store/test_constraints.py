"""The tables refuse impossible states, whatever code writes them."""

from liveness.store.errors import CommitRejected
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase

LOG = "shard_id, seq, kind, version, namespace, worker_key, wall_ms, observed_ms, payload, checksum"
TASK = (
    "shard_id, kind, state, due_ms, attempts, last_error, namespace, worker_key, lease_epoch, activity, died, "
    "created_wall_ms, finished_wall_ms"
)
WORKER = "namespace, worker_key, shard_id, number, as_of_seq, state, task_queue, build_id, host_name, payload"
ACTIVITY = "namespace, workflow_id, run_id, activity_id, shard_id, state, worker_key, finished_wall_ms, task_queue, payload"


def activity(state: int, worker: str = "", finished: str = "NULL") -> str:
    values = f"'n', 'w', 'r', 'in state {state}', 0, {state}, '{worker}', {finished}, '', ''"
    return f"INSERT INTO activities ({ACTIVITY}) VALUES ({values})"


VALID = {
    "a log row": f"INSERT INTO log ({LOG}) VALUES (0, 1, 'K', 1, 'n', 'w', 0, 0, '', 0)",
    "a task": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 4, 0, 0, '', 'n', 'w', 1, '', 1, 0, 1)",
    "a worker": f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 1, 1, 1, '', '', '', '')",
    "a task whose worker let go of it": (
        f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 1, 0, 0, '', 'n', 'w', 1, '', 0, 0, NULL)"
    ),
    "an activity that is available": activity(3),
    "an activity that is held": activity(4, worker="w"),
    "an activity that waits": activity(5),
    "an activity that completed": activity(6, finished="0"),
    "an activity that failed": activity(7, finished="1"),
    "an activity that was cancelled": activity(8, finished="1"),
    "an activity in quarantine": activity(9),
    "an activity that was handed on": activity(10, finished="1"),
    "a checkpoint": "INSERT INTO checkpoints (shard_id, seq, position, payload) VALUES (0, 0, 0, '')",
}

IMPOSSIBLE = {
    "a log row without a place": f"INSERT INTO log ({LOG}) VALUES (0, 0, 'K', 1, 'n', 'w', 0, 0, '', 0)",
    "a log row of version 0": f"INSERT INTO log ({LOG}) VALUES (0, 1, 'K', 0, 'n', 'w', 0, 0, '', 0)",
    "a worker's event outside any namespace": (
        f"INSERT INTO log ({LOG}) VALUES (0, 1, 'K', 1, NULL, 'w', 0, 0, '', 0)"
    ),
    "two events in one place": (
        f"INSERT INTO log ({LOG}) VALUES (0, 1, 'K', 1, 'n', 'w', 0, 0, '', 0), (0, 1, 'L', 1, 'n', 'w', 0, 0, '', 0)"
    ),
    "a finished task that did not finish": (
        f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 4, 0, 0, '', 'n', 'w', 1, '', 1, 0, NULL)"
    ),
    "an open task that finished": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 1, 0, 0, '', 'n', 'w', 1, '', 1, 0, 1)",
    "a task in an unknown state": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 6, 0, 0, '', 'n', 'w', 1, '', 1, 0, NULL)",
    "a worker in an unknown state": f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 1, 1, 4, '', '', '', '')",
    "a worker that was never registered": (
        f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 0, 1, 1, '', '', '', '')"
    ),
    "a worker's row older than the worker": (
        f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 2, 1, 1, '', '', '', '')"
    ),
    "two workers of one name": (
        f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 1, 1, 1, '', '', '', ''), "
        "('n', 'w', 1, 1, 1, 1, '', '', '', '')"
    ),
    "a task that is neither lost nor let go of": (
        f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 1, 0, 0, '', 'n', 'w', 1, '', 2, 0, NULL)"
    ),
    "an activity before the first state": activity(0),
    "an activity after the last state": activity(11),
    "an activity that is held without a holder": activity(4),
    "an activity that is available and held": activity(3, worker="w"),
    "an activity that completed and is held": activity(6, worker="w", finished="1"),
    "an activity that completed at no time": activity(6),
    "an activity that failed at no time": activity(7),
    "an activity that was cancelled at no time": activity(8),
    "an activity that was handed on at no time": activity(10),
    "an activity in quarantine that finished": activity(9, finished="1"),
    "an activity that is held and finished": activity(4, worker="w", finished="1"),
    "a checkpoint before the beginning": (
        "INSERT INTO checkpoints (shard_id, seq, position, payload) VALUES (0, -1, 0, '')"
    ),
    "a shard with a negative number": (
        "INSERT INTO shards (shard_id, epoch, last_seq, observed_ms, takeovers, owner) VALUES (-1, 0, 0, 0, '', '')"
    ),
    "a clock before its beginning": "UPDATE shards SET observed_ms = -1",
    "an epoch before the first": "UPDATE shards SET epoch = -1",
    "text where a number belongs": "UPDATE shards SET epoch = 'many'",
    "a missing payload": f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 1, 1, 1, '', '', '', NULL)",
}


async def test_valid_rows_are_stored(store_database: StoreDatabase, store: SqlStore) -> None:
    stored = {name: await store_database.execute(statement) for name, statement in VALID.items()}
    assert stored == dict.fromkeys(VALID, 1)


async def test_impossible_rows_are_refused(store_database: StoreDatabase, store: SqlStore) -> None:
    """Each on its own, by whichever table it would be in."""
    before = await store_database.dump()
    refused = []
    for name, statement in IMPOSSIBLE.items():
        try:
            await store_database.execute(statement)
        except CommitRejected:
            refused.append(name)
    assert refused == list(IMPOSSIBLE)
    assert await store_database.dump() == before
