"""The rules that no world may break; a failure report prints the sentence."""

from __future__ import annotations

RULES = {
    "durable ack": "an answer says only what is durable at that moment",
    "no lost reschedule": "the transaction that takes activities from a worker also reschedules them, and every reschedule is done in the end",
    "one effect": "each lost activity is rescheduled once, and no other activity is rescheduled",
    "no early expiry": "a lease ends only after its full duration in which a node listened, and after its worker has stopped trusting it",
    "no early timeout": "a time limit ends only after its full duration in which a node listened, counted from the last heartbeat that was answered",
    "no needless loss": "a worker gives no running work up because its disconnect grace ends while it can tell that the lone server is dead",
    "bounded lateness": "on a healthy server a silent worker is INACTIVE within its lease + 1 s, unless a storm holds it, and an attempt ends within its time limit + 1 s",
    "storm": "a storm postpones the end of a lease by at most one lease and the paced queue, and never for a worker that was heard",
    "legal edges": "workers and activities follow only the edges of their state machines",
    "clean slate": "a worker that comes back holds exactly the activities that it declared",
    "fold": "a shard that is read back equals its folded log",
    "order": "a shard's log has no gap and no repeated row",
    "one owner": "only the node that took a shard last writes to it",
    "time": "a shard's clock never goes back",
    "tenant isolation": "no namespace contains data of another",
    "idempotent heartbeats": "each heartbeat of a session is applied once, in order, and never after the session was replaced",
    "honest failure": "a rejection states a reason that is durably true",
    "hard quotas": "a namespace never has more workers than its quota",
    "exclusive claims": "an activity has one holder at a time, and attempts rise",
    "readiness": "a node that cannot reach the database is not ready and serves no shard, once its lease is over",
    "recovery": "after the last fault all nodes and workers recover, and no work is left undone",
    "no crash": "no unexpected exception occurs",
}
