"""Every error class renders its template, and survives pickling and copying."""

from __future__ import annotations

import copy
import pickle
import string
from collections.abc import Callable

import pytest

from liveness.domain.errors import WorkerNotFound
from liveness.sdk import GiveUp, RetryLater
from liveness.store.errors import ShardsLost
from liveness.templated_error import TemplatedError
from tests.unit.errors.error_trees import all_errors, qualified_name, sample

ERRORS = {qualified_name(kind): kind for kind in all_errors()}
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def broken(check: Callable[[type[TemplatedError]], None]) -> dict[str, str]:
    """The error classes for which `check` fails, with the reason."""
    found = {}
    for name, kind in ERRORS.items():
        try:
            check(kind)
        except Exception as error:  # noqa: BLE001  whatever a class does wrong, the others are checked too
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_the_template_uses_only_fields_of_the_error() -> None:
    def check(kind: type[TemplatedError]) -> None:
        used = {name for _, name, _, _ in string.Formatter().parse(kind.template) if name}
        assert used <= set(kind.field_names)
        assert "{" not in str(sample(kind))

    assert len(ERRORS) > 100
    assert broken(check) == {}


def test_every_class_has_a_template_of_its_own() -> None:
    assert [name for name, kind in ERRORS.items() if "template" not in vars(kind)] == []


def test_an_error_survives_pickling() -> None:
    def check(kind: type[TemplatedError]) -> None:
        error = sample(kind)
        error.add_note("seen by the test")
        for protocol in PROTOCOLS:
            check_copy(error, pickle.loads(pickle.dumps(error, protocol)))

    assert broken(check) == {}


def test_an_error_can_be_copied() -> None:
    def check(kind: type[TemplatedError]) -> None:
        error = sample(kind)
        error.add_note("seen by the test")
        check_copy(error, copy.copy(error))
        check_copy(error, copy.deepcopy(error))

    assert broken(check) == {}


def check_copy(error: TemplatedError, other: TemplatedError) -> None:
    assert other is not error
    assert type(other) is type(error)
    assert (str(other), other.fields, other.args) == (str(error), error.fields, error.args)
    assert other.__notes__ == error.__notes__


def test_fields_are_attributes_and_keyword_arguments() -> None:
    error = WorkerNotFound(worker="w-1", namespace="orders")
    assert (error.worker, error.namespace) == ("w-1", "orders")
    assert error.fields == {"worker": "w-1", "namespace": "orders"}
    assert str(error) == "There is no worker w-1 in namespace orders."
    assert repr(error) == "WorkerNotFound(worker='w-1', namespace='orders')"


def test_a_missing_or_misspelt_field_is_an_error() -> None:
    with pytest.raises(TypeError):
        WorkerNotFound(worker="w-1")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        WorkerNotFound(worker="w-1", namspace="orders")  # type: ignore[call-arg]


def test_braces_in_a_field_are_not_expanded() -> None:
    assert (
        str(WorkerNotFound(worker="{namespace}", namespace="n"))
        == "There is no worker {namespace} in namespace n."
    )


def test_errors_are_compared_by_identity() -> None:
    assert GiveUp("why") != GiveUp("why")
    assert len({GiveUp("why"), GiveUp("why")}) == 2


def test_lost_shards_are_listed_in_order() -> None:
    assert str(ShardsLost(shard_ids=frozenset({9, 3, 12}))) == "Another owner took over shards [3, 9, 12]."


def test_a_users_subclass_with_its_own_constructor_survives_pickling() -> None:
    error = DiskFull(free_bytes=12)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.after, again.free_bytes) == ("12 bytes are free", 30, 12)


class DiskFull(RetryLater):
    def __init__(self, free_bytes: int) -> None:
        super().__init__(f"{free_bytes} bytes are free", after=30)
        self.free_bytes = free_bytes
