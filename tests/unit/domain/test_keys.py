"""Shard assignment. The values here must never change: existing stores were laid out by them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.keys import ActivityKey, WorkerKey, namespace_seed, shard_from_seed, shard_of
from tests.unit.domain.strategies import text

GOLDEN = [
    ("", "", 64, 5),
    ("default", "worker-1", 64, 60),
    ("default", "worker-2", 64, 27),
    ("default", "worker-1", 1, 0),
    ("default", "worker-1", 7, 6),
    ("default", "worker-1", 4_096, 3_842),
    ("orders", "order-4711", 64, 31),
    ("a", "bc", 1_000_003, 907_632),
    ("ab", "c", 1_000_003, 907_597),
    ("zürich", "arbeiter-ß-漢-😀", 64, 32),
    ("n" * 255, "w" * 255, 64, 46),
]


@pytest.mark.parametrize(("namespace", "name", "shard_count", "shard"), GOLDEN)
def test_a_name_keeps_its_shard_in_every_release(
    namespace: str, name: str, shard_count: int, shard: int
) -> None:
    assert shard_of(namespace, name, shard_count) == shard


@given(namespace=text, name=text, count=st.integers(1, 65_536))
def test_every_name_has_a_shard(namespace: str, name: str, count: int) -> None:
    assert 0 <= shard_of(namespace, name, count) < count
    assert shard_of(namespace, name, count) == shard_from_seed(namespace_seed(namespace), name, count)


NAMES = {
    "counted": [f"worker-{number}" for number in range(64_000)],
    "padded": [f"pod-{number:08}" for number in range(64_000)],
    "counted at the front": [f"{number}.workers.example.org" for number in range(64_000)],
    "hexadecimal": [f"{number * 2654435761 % 2**32:08x}" for number in range(64_000)],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("shard_count", [16, 64])
def test_names_spread_evenly(names: list[str], shard_count: int) -> None:
    counts = Counter(shard_of("default", name, shard_count) for name in names)
    fair = len(names) / shard_count
    assert len(counts) == shard_count
    assert max(counts.values()) < 1.25 * fair
    assert min(counts.values()) > 0.75 * fair


def test_one_name_in_many_namespaces_spreads_evenly() -> None:
    counts = Counter(shard_of(f"tenant-{number}", "worker-1", 64) for number in range(64_000))
    assert 750 < min(counts.values()) <= max(counts.values()) < 1_250


@given(first=st.tuples(text, text), second=st.tuples(text, text))
def test_keys_are_equal_only_if_all_their_parts_are(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert (WorkerKey(*first) == WorkerKey(*second)) == (first == second)


def test_moving_characters_between_namespace_and_name_changes_the_shard() -> None:
    shards = {
        shard_of(namespace, name, 2**32)
        for namespace, name in [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc")]
    }
    assert len(shards) == 4


def test_an_activity_key_contains_its_id() -> None:
    assert ActivityKey("n", "w", "r", "a").id == ("w", "r", "a")
