"""Rare situations that a run must reach to prove much. Each has a name and is counted."""

from __future__ import annotations

from collections import Counter

SITUATIONS = (
    # owners
    "zombie owner refused",
    "two nodes claim the same shard",
    "stopped owner lost its shards",
    "owner cut off from the database lost its shards",
    "owner killed, shard taken by another",
    "shard handed over gracefully",
    "take-over during fan-out",
    "take-over after a checkpoint",
    "lost answer of a take-over",
    "take-over failed, another node was first",
    # commits
    "unknown commit had been applied",
    "unknown commit had not been applied",
    "commit rolled back, shards read again",
    "crash before commit",
    "crash between commit and answer",
    "commit took effect after its process was killed",
    "commit took effect while its process was stopped",
    "disk failed, process ended",
    # heartbeats
    "repeated heartbeat got the same answer",
    "copy of a heartbeat arrived late and was refused",
    "heartbeat of a replaced session refused",
    "heartbeat of a cleaned-up worker refused",
    "cleaned-up key began a new incarnation",
    "worker forgotten by an operator",
    "forgotten key registered again",
    "heartbeat forwarded to its owner by another node",
    "answer came after its deadline",
    "heartbeat sent again was applied only once",
    "server asked a worker for all its bindings",
    # leases
    "heartbeat at the last moment",
    "heartbeat just too late",
    "lease was over while its heartbeat waited to be heard",
    "worker resurrected by its next heartbeat",
    "lease saved by the grace after a take-over",
    "worker fenced itself before the server expired it",
    "live worker expired and came back with its session",
    "session replaced while a heartbeat of the old one was under way",
    "session replaced with work bound",
    "shutdown with work bound",
    "wall clock jumped while leases ran",
    # streams
    "stream broke, and the lease ended after its grace",
    "worker gave its work up when its disconnect grace ended",
    "running work outlived a lone server that was dead for longer than the grace",
    # storms
    "storm held leases",
    "storm learned from another node",
    "held worker came back with its lease",
    "held worker waited in the paced queue",
    "storm drained after its hold",
    "storm released by an operator",
    "take-over during a storm",
    # work
    "activity of a dead worker completed by another",
    "end of a fenced attempt refused",
    "hand-out never confirmed and taken back",
    "claim refused, held by another",
    "stuck attempt taken from a live worker",
    "heartbeats kept an attempt beyond its heartbeat limit",
    "activity that no worker took in time failed",
    "reschedule found stale",
    "reschedule interrupted and retried",
    "work quarantined",
    "quota refused a worker",
    "same key alive in two namespaces",
)

COINCIDENCES = {"reschedule found stale": 3}
"""Situations that nodes prevent wherever they can, so that few worlds reach them, with how often many worlds must."""


class Sometimes:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, situation: str) -> None:
        assert situation in _KNOWN, situation
        self.counts[situation] += 1


_KNOWN = frozenset(SITUATIONS)
