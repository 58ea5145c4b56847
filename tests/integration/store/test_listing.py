"""Listing workers and reading the log, with equal results on both databases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.events import ConfigChanged
from liveness.domain.worker import WorkerState
from liveness.store.api import FilterWord, WorkerFilter
from liveness.store.prefixes import prefix_upper_bound
from liveness.store.sql import SqlStore
from tests.unit.store.samples import WORKER, About, Owner, described, key, profile, renewals, take, take_one

ACTIVE, INACTIVE, CLEANED_UP = WorkerState

# Prefixes of each other, other scripts, the ends of the Unicode planes, keys that a locale would sort
# differently, and keys that look like patterns.
KEYS = [
    "A", "B", "Z", "_", "a", "a%", "a-b", "a_b", "aa", "ab", "b", "z", "~", "é", "éa", "ß", "ﬀ", "漢", "漢字",
    "\ud7ff", "\ud7ffz", "\ue000", "\uffff", "\U00010000", "😀", "\U0010ffff", "\U0010ffff\U0010ffff", "a\U0010ffff",
    "a\U0010ffffz",
]  # fmt: skip


def in_byte_order(keys: list[str]) -> list[str]:
    return sorted(keys, key=str.encode)


async def listed(store: SqlStore, namespace: str = "orders", **where: object) -> list[str]:
    rows = await store.list_workers(namespace, WorkerFilter(**where), None, 1_000)  # type: ignore[arg-type]
    return [row.key.instance_key for row in rows]


async def with_keys(store: SqlStore, keys: list[str]) -> Owner:
    owner = await take_one(store)
    await owner.commit([About(described(), key())], workers={key(name): WORKER for name in keys})
    return owner


async def test_workers_are_listed_in_byte_order(store: SqlStore) -> None:
    await with_keys(store, KEYS)
    assert await listed(store) == in_byte_order(KEYS)


async def test_pages_of_any_size_contain_each_worker_once(store: SqlStore) -> None:
    await with_keys(store, KEYS)
    for size in (1, 2, 7):
        seen: list[str] = []
        after: str | None = None
        while page := await store.list_workers("orders", WorkerFilter(), after, size):
            assert len(page) <= size
            seen += [row.key.instance_key for row in page]
            after = seen[-1]
        assert seen == in_byte_order(KEYS)


async def test_a_prefix_filter_matches_exactly_the_keys_that_start_with_it(store: SqlStore) -> None:
    await with_keys(store, KEYS)
    for prefix in [*KEYS, "a\U0010ffff\U0010ffff", "nothing starts so"]:
        expected = in_byte_order([name for name in KEYS if name.startswith(prefix)])
        assert await listed(store, key_prefix=prefix) == expected, prefix


async def test_a_prefix_filter_works_with_pages(store: SqlStore) -> None:
    await with_keys(store, KEYS)
    page = await store.list_workers("orders", WorkerFilter(key_prefix="a"), "a-b", 2)
    assert [row.key.instance_key for row in page] == ["a_b", "aa"]


@pytest.mark.parametrize(
    ("prefix", "after"),
    [
        ("a", "b"),
        ("az", "a{"),
        ("\ud7ff", "\ue000"),  # the code points between are surrogates
        ("a\U0010ffff", "b"),
        ("\U0010ffff", None),
        ("\U0010ffff\U0010ffff", None),
    ],
)
def test_the_upper_bound_of_a_prefix(prefix: str, after: str | None) -> None:
    assert prefix_upper_bound(prefix) == after


TEXT = st.text(st.characters(codec="utf-8"))


@given(prefix=TEXT.filter(bool), rest=TEXT, other=TEXT)
def test_the_upper_bound_separates_the_keys_with_the_prefix_from_later_ones(
    prefix: str, rest: str, other: str
) -> None:
    end = prefix_upper_bound(prefix)

    def in_range(name: str) -> bool:
        return prefix.encode() <= name.encode() and (end is None or name.encode() < end.encode())

    assert in_range(prefix + rest)
    assert in_range(other) == other.startswith(prefix)


async def test_filters_are_combined(store: SqlStore) -> None:
    owner = await take_one(store)
    inactive = WORKER._replace(state=INACTIVE)
    await owner.commit(
        [About(described(), key())],
        workers={
            key("a-1"): WORKER._replace(profile=profile(task_queue="q", build_id="b", host_name="h")),
            key("a-2"): inactive._replace(profile=profile(task_queue="q", build_id="b", host_name="other")),
            key("b-3"): inactive._replace(profile=profile(task_queue="q", build_id="other", host_name="h")),
            key("b-4"): WORKER._replace(state=CLEANED_UP),
        },
    )
    assert await listed(store) == ["a-1", "a-2", "b-3", "b-4"]
    assert await listed(store, states=(INACTIVE,)) == ["a-2", "b-3"]
    assert await listed(store, states=(ACTIVE, CLEANED_UP)) == ["a-1", "b-4"]
    assert await listed(store, task_queue="q") == ["a-1", "a-2", "b-3"]
    assert await listed(store, task_queue="q", build_id="b") == ["a-1", "a-2"]
    assert await listed(store, task_queue="q", host_name="h", states=(INACTIVE,)) == ["b-3"]
    assert await listed(store, task_queue="q", key_prefix="b") == ["b-3"]
    assert await listed(store, task_queue="q", build_id="b", host_name="h", states=(INACTIVE,)) == []


async def test_filters_compare_whole_values_byte_for_byte(store: SqlStore) -> None:
    owner = await take_one(store)
    queues = ["queue", "Queue", "queue ", "que%", "é"]
    workers = {key(name): WORKER._replace(profile=profile(task_queue=name)) for name in queues}
    await owner.commit([About(described(), key())], workers=workers)
    for name in queues:
        assert await listed(store, task_queue=name) == [name]


async def test_a_listed_worker_has_all_its_fields(store: SqlStore) -> None:
    owner = await take_one(store, 2)
    worker = WORKER._replace(last_error="x", profile=profile(labels=(("zone", "a"),)))
    await owner.commit([About(described(), key())], workers={key(): worker})
    [row] = await store.list_workers("orders", WorkerFilter(), None, 10)
    assert row == (key(), 2, worker)


async def test_lists_and_logs_contain_only_their_namespace(store: SqlStore) -> None:
    owner = await take_one(store)
    spaces = ["orders", "orders2", "Orders", "order"]
    await owner.commit(
        [About(described(space), key("same", space)) for space in spaces],
        workers={key("same", space): WORKER for space in spaces},
    )
    for space in spaces:
        [row] = await store.list_workers(space, WorkerFilter(), None, 10)
        assert row.key == key("same", space)
        history = await store.worker_history(
            key("same", space), 0, newest_first=False, beyond_seq=None, limit=10
        )
        assert [entry.event for entry in history] == [described(space)]
        log = await store.read_log(0, 0, owner.head, 10, namespace=space)
        assert [entry.event for entry in log] == [described(space)]
        assert await store.count_workers(space, WorkerFilter()) == {ACTIVE: 1}
    assert await listed(store, "") == []


async def test_workers_are_counted_by_state(store: SqlStore) -> None:
    owner = await take_one(store)
    states = [ACTIVE] * 3 + [INACTIVE] * 2
    workers = {key(f"w{index}"): WORKER._replace(state=state) for index, state in enumerate(states)}
    await owner.commit([About(described(), key())], workers=workers)
    assert await store.count_workers("orders", WorkerFilter()) == {ACTIVE: 3, INACTIVE: 2}
    assert await store.count_workers("orders", WorkerFilter(states=(INACTIVE,), key_prefix="w4")) == {
        INACTIVE: 1
    }
    assert await store.count_workers("unknown", WorkerFilter()) == {}


async def test_a_history_is_paged_in_both_directions(store: SqlStore) -> None:
    owner = await take_one(store)
    for index in range(5):
        events = [
            About(described(str(index)), key()),
            About(renewals(1)),
            About(described("other"), key("other")),
        ]
        await owner.commit(events)

    async def pages(*, newest_first: bool) -> list[list[str]]:
        found, beyond = [], None
        while page := await store.worker_history(
            key(), 0, newest_first=newest_first, beyond_seq=beyond, limit=2
        ):
            found.append([entry.event.last_error for entry in page])  # type: ignore[union-attr]
            beyond = page[-1].seq
        return found

    assert await pages(newest_first=False) == [["0", "1"], ["2", "3"], ["4"]]
    assert await pages(newest_first=True) == [["4", "3"], ["2", "1"], ["0"]]


async def test_the_log_is_read_in_order_without_renewals_up_to_a_sequence(store: SqlStore) -> None:
    mine, other = await take(store, 0, 1)
    await other.commit([About(described("other shard"), key())])
    await mine.commit(
        [About(described("2"), key()), About(renewals(1)), About(described("4"), key("another"))]
    )
    await mine.commit([About(described("5"), key()), About(described("6"), key())])

    async def read(after: int, through: int, limit: int = 10, **selection: str) -> list[int]:
        return [entry.seq for entry in await store.read_log(0, after, through, limit, **selection)]

    assert await read(0, 6) == [1, 2, 4, 5, 6]
    assert await read(2, 5) == [4, 5]
    assert await read(0, 6, limit=2) == [1, 2]
    assert await read(0, 6, namespace="orders") == [2, 4, 5, 6]
    assert await read(0, 6, namespace="orders", worker="another") == [4]
    assert await read(6, 6) == []


async def test_an_event_without_a_worker_is_found_by_its_namespace(store: SqlStore) -> None:
    owner = await take_one(store)
    change = ConfigChanged(set={}, unset=())
    await owner.commit([About(change, namespace="orders"), About(change, namespace="")])
    assert [entry.seq for entry in await store.read_log(0, 0, 9, 9, namespace="")] == [3]


async def test_words_are_found_in_the_named_fields_without_regard_to_case(store: SqlStore) -> None:
    owner = await take_one(store)
    workers = {
        key("Photo-1"): WORKER._replace(profile=profile(host_name="db-3", task_queue="resize")),
        key("w_2"): WORKER._replace(state=INACTIVE, profile=profile(host_name="DB-4", build_id="photo%")),
        key("éÉ"): WORKER._replace(profile=profile(task_queue="mail")),
    }
    await owner.commit([About(described(), key())], workers=workers)
    anywhere = ("worker_key", "host_name", "build_id", "task_queue")
    for words, expected in (
        ((FilterWord("photo", anywhere),), ["Photo-1", "w_2"]),
        ((FilterWord("photo", ("build_id",)),), ["w_2"]),
        ((FilterWord("db-", ("host_name",)), FilterWord("photo-", anywhere)), ["Photo-1"]),
        ((FilterWord("%", anywhere),), ["w_2"]),
        ((FilterWord("_", anywhere),), ["w_2"]),
        ((FilterWord("in", (), (INACTIVE,)),), ["w_2"]),
        ((FilterWord("mail", ("task_queue",), (INACTIVE,)),), ["w_2", "éÉ"]),
        ((FilterWord("É", anywhere),), ["éÉ"]),
    ):
        assert await listed(store, words=words) == expected, words
