"""Rare situations that a simulation must have met, or it has proved little. Each has a name and is counted."""

from __future__ import annotations

from collections import Counter

SITUATIONS = (
    # owners
    "zombie owner refused",
    "two nodes show the same shard",
    "owner stood still and was robbed",
    "owner cut off from the database was robbed",
    "owner killed, shard taken by another",
    "shard handed over in order",
    "take-over during fan-out",
    "take-over after a checkpoint",
    "lost answer of a take-over",
    "take-over tried in vain, another was first",
    # commits
    "unknown commit had been applied",
    "unknown commit had not been applied",
    "commit rolled back, shards read again",
    "crash before commit",
    "crash between commit and answer",
    "commit of a process that was killed meanwhile",
    "commit of a process that stood still",
    "disk failed, process ended",
    # heartbeats
    "repeated heartbeat answered alike",
    "copy of a heartbeat arrived late and was refused",
    "heartbeat of a replaced session refused",
    "heartbeat of a cleaned-up worker refused",
    "heartbeat carried to its owner by another node",
    "answer came after its deadline",
    "heartbeat sent again was applied only once",
    "worker asked for its whole set",
    # leases
    "heartbeat in the last moment",
    "heartbeat just too late",
    "resurrection within the same pulse",
    "lease saved by the grace after a take-over",
    "worker fenced itself off before the server did",
    "false death, worker came back with its session",
    "session replaced while a heartbeat of the old one was under way",
    "session replaced with work bound",
    "shutdown with work bound",
    "wall clock jumped while leases ran",
    # storms
    "storm held leases",
    "storm known through another node",
    "held worker came back with its lease",
    "held worker stood in line",
    "storm drained after its hold",
    "storm released by an operator",
    "take-over during a storm",
    # work
    "work of a dead worker done by another",
    "end of an attempt refused, fenced off",
    "hand-out never confirmed and taken back",
    "claim refused, held by another",
    "reschedule found stale",
    "reschedule interrupted, and tried again",
    "work quarantined",
    "quota refused a worker",
    "same key alive in two namespaces",
)


class Sometimes:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, situation: str) -> None:
        assert situation in _KNOWN, situation
        self.counts[situation] += 1


_KNOWN = frozenset(SITUATIONS)
