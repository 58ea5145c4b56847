"""States that cannot be are not storable, whoever writes them."""

import pytest

from liveness.store.errors import CommitRejected
from liveness.store.sql import SqlStore
from tests.databases import StoreHome

LOG = "shard_id, seq, kind, version, namespace, worker_key, wall_ms, observed_ms, payload, checksum"
TASK = (
    "shard_id, kind, state, due_ms, attempts, last_error, namespace, worker_key, lease_epoch, activity, "
    "created_wall_ms, finished_wall_ms"
)
WORKER = "namespace, worker_key, shard_id, number, as_of_seq, state, task_queue, build_id, host_name, payload"
ACTIVITY = "namespace, workflow_id, run_id, activity_id, shard_id, state, task_queue, payload"

FINE = {
    "a log row": f"INSERT INTO log ({LOG}) VALUES (0, 1, 'K', 1, 'n', 'w', 0, 0, '', 0)",
    "a task": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 4, 0, 0, '', 'n', 'w', 1, '', 0, 1)",
    "a worker": f"INSERT INTO workers ({WORKER}) VALUES ('n', 'w', 0, 1, 1, 1, '', '', '', '')",
    "an activity": f"INSERT INTO activities ({ACTIVITY}) VALUES ('n', 'w', 'r', 'a', 0, 1, '', '')",
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
        f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 4, 0, 0, '', 'n', 'w', 1, '', 0, NULL)"
    ),
    "an open task that finished": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 1, 0, 0, '', 'n', 'w', 1, '', 0, 1)",
    "a task in an unknown state": f"INSERT INTO tasks ({TASK}) VALUES (0, 'K', 6, 0, 0, '', 'n', 'w', 1, '', 0, NULL)",
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
    "an activity in an unknown state": f"INSERT INTO activities ({ACTIVITY}) VALUES ('n', 'w', 'r', 'a', 0, 0, '', '')",
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


@pytest.mark.parametrize("statement", FINE.values(), ids=FINE)
async def test_what_can_be_is_stored(home: StoreHome, store: SqlStore, statement: str) -> None:
    assert await home.execute(statement) == 1


@pytest.mark.parametrize("statement", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_what_cannot_be_is_refused(home: StoreHome, store: SqlStore, statement: str) -> None:
    before = await home.dump()
    with pytest.raises(CommitRejected):
        await home.execute(statement)
    assert await home.dump() == before
