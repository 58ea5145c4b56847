"""The rules that no world may break, in the words in which a broken one is told."""

from __future__ import annotations

RULES = {
    "durable ack": "an answer says only what is durable at that moment",
    "no lost reschedule": "what a worker loses is rescheduled in the same transaction, and done in the end",
    "one effect": "a loss is rescheduled once, and nothing is that was not lost",
    "no early expiry": "a lease ends after its full time in which somebody listened, and its worker knows it first",
    "bounded lateness": "on a healthy server a silent worker is INACTIVE within its lease + 1 s, unless a storm holds it",
    "storm": "a storm puts off the end of a lease by one lease and the worker's place in line, and not if it was heard",
    "legal edges": "a worker or an activity goes only where its state machine leads",
    "clean slate": "who comes back holds what it declared, and nothing else",
    "fold": "a shard that is read back is what its log says",
    "order": "a shard's log has no gap and no row twice",
    "one owner": "only the node that took a shard last writes to it",
    "time": "a shard's clock never goes back",
    "tenant isolation": "nothing of one namespace is found in another",
    "idempotent heartbeats": "a heartbeat of a session is applied once, in order, and never after the session was replaced",
    "honest failure": "who is refused for a reason is refused for what is so durably",
    "hard quotas": "a namespace never has more workers than it may",
    "exclusive claims": "an activity has one holder at a time, and attempts rise",
    "recovery": "after the last fault everything works again, and nothing is left undone",
    "no crash": "nothing fails in a way that nobody foresaw",
}
