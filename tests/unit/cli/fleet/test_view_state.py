"""The effect of keys on the state of the fleet view."""

from __future__ import annotations

import pytest

from liveness.cli.fleet.view_state import BadFilter, Sort, Viewport, ViewState, handle_key, parse_filter
from liveness.v1.service_pb2 import WorkerFilter
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_CLEANED_UP, WORKER_STATE_INACTIVE

ROOM = Viewport(rows=10, row_count=95)
ACTIVE_OR_INACTIVE = [WORKER_STATE_ACTIVE, WORKER_STATE_INACTIVE]


def after(*keys: str, of: ViewState = ViewState(), viewport: Viewport = ROOM) -> ViewState:  # noqa: B008  # frozen
    view_state = of
    for key in keys:
        pressed = handle_key(view_state, key, viewport)
        assert pressed is not None
        view_state = pressed
    return view_state


def typed(text: str) -> tuple[str, ...]:
    return ("/", *text)


def test_q_quits_unless_a_filter_is_being_typed() -> None:
    assert handle_key(ViewState(), "q", ROOM) is None
    assert handle_key(ViewState(help=True), "q", ROOM) is None
    assert after("/", "q").filter_input == "q"


def test_s_and_arrow_keys_cycle_through_the_sort_orders() -> None:
    assert [after(*["s"] * presses).sort for presses in range(5)] == [
        Sort.KEY,
        Sort.STATE,
        Sort.LEASE,
        Sort.ACTIVITIES,
        Sort.KEY,
    ]
    assert after("right", "right", "left").sort is Sort.STATE
    assert after("left").sort is Sort.ACTIVITIES


def test_changing_the_sort_order_scrolls_to_the_top() -> None:
    assert after("page down", "s").first == 0
    assert after("s", "r").reverse
    assert not after("s", "r", "s").reverse


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        (("down", "down", "up"), 1),
        (("up",), 0),
        (("page down",), 10),
        (("page down", "page up", "page up"), 0),
        (("end",), 85),
        (("end", "down", "page down"), 85),
        (("end", "home"), 0),
    ],
)
def test_scrolling_stays_within_the_rows(keys: tuple[str, ...], first: int) -> None:
    assert after(*keys).first == first


def test_a_list_that_fits_does_not_scroll() -> None:
    assert after("down", "end", viewport=Viewport(rows=10, row_count=3)).first == 0


def test_p_pauses_and_resumes_the_view() -> None:
    assert after("p").paused
    assert not after("p", "p").paused


def test_any_key_closes_the_help_and_has_no_other_effect() -> None:
    assert after("?").help
    assert after("?", "s") == ViewState()


def test_a_filter_applies_while_typed_and_enter_keeps_it() -> None:
    half = after(*typed("wo"))
    assert half.where.key_prefix == "wo"
    kept = after("enter", of=half)
    assert (kept.filter, kept.filter_input) == ("wo", None)
    assert after("/", "x", of=kept).filter_input == "wox"
    assert after(*typed("wo"), "backspace").filter_input == "w"
    assert after(*typed("wo"), "clear").filter_input == ""


def test_escape_drops_the_input_first_and_then_the_filter() -> None:
    kept = after(*typed("wo"), "enter")
    assert after("/", "x", "escape", of=kept).filter == "wo"
    assert after("escape", of=kept).filter == ""


def test_an_invalid_filter_stays_in_the_input_and_is_not_applied() -> None:
    bad = after(*typed("color=red"), "enter")
    assert bad.filter_input == "color=red"
    assert bad.where == parse_filter("")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", WorkerFilter(states=ACTIVE_OR_INACTIVE)),
        ("  worker-1 ", WorkerFilter(states=ACTIVE_OR_INACTIVE, key_prefix="worker-1")),
        ("host=h build=b queue=q", WorkerFilter(states=ACTIVE_OR_INACTIVE, host_name="h", build_id="b", task_queue="q")),
        ("state=cleaned-up", WorkerFilter(states=[WORKER_STATE_CLEANED_UP])),
        ("state=active w host=a=b", WorkerFilter(states=[WORKER_STATE_ACTIVE], key_prefix="w", host_name="a=b")),
    ],
)  # fmt: skip
def test_a_filter_text_parses_to_a_worker_filter(text: str, where: WorkerFilter) -> None:
    assert parse_filter(text) == where


@pytest.mark.parametrize("text", ["a b", "state=dead", "color=red", "=x"])
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilter):
        parse_filter(text)
