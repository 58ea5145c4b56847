"""The number of disconnected workers per namespace is maintained without counting them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.keys import WorkerKey
from liveness.expiry.disconnects import DisconnectedWorkers

KEYS = [WorkerKey(namespace, worker) for namespace in ("a", "b") for worker in ("v", "w")]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS)), max_size=50))
def test_the_counts_equal_those_of_a_plain_dictionary(steps: list[tuple[bool, WorkerKey]]) -> None:
    disconnected, plain = DisconnectedWorkers(), dict[WorkerKey, int]()
    for at_ms, (disconnects, key) in enumerate(steps):
        if disconnects:
            disconnected[key] = plain[key] = at_ms
        else:
            assert disconnected.pop(key, None) == plain.pop(key, None)
        assert disconnected == plain
        assert +disconnected.counts == Counter(key.namespace for key in plain)
