"""The parser of health frames gives the same answer however the bytes are cut, and keeps no more than a line."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.component import ComponentStatus
from liveness.supervisor.health_pipe import (
    BAD_ACTIVITIES,
    BAD_JOB,
    LINE_BYTES_MAX,
    NO_PREFIX,
    NOT_AN_OBJECT,
    NOT_JSON,
    OTHER_COMPONENT,
    TOO_LONG,
    TOO_MANY_DETAILS,
    UNKNOWN_STATUS,
    BoundActivity,
    HealthParser,
)

ID = "worker:g:0"


def line(**fields: object) -> bytes:
    return b"HEALTH|" + json.dumps({"component_id": ID, "status": "healthy", **fields}).encode()


LINES = st.sampled_from(
    [
        line(current_job="a"),
        line(current_job=2, telemetry="x" * 500),
        b"",
        b"\x80\x04\x95pickled",
        b"health|{}",
        b"x" * LINE_BYTES_MAX,
        b"y" * (LINE_BYTES_MAX + 1),
        b"HEALTH|" + b"z" * 200_000,
    ]
)


@given(lines=st.lists(LINES, max_size=6), cuts=st.lists(st.integers(0, 400_000), max_size=8))
def test_how_the_bytes_are_cut_changes_nothing(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(each + b"\n" for each in lines)
    parser, job, count, malformed = HealthParser(ID), None, 0, Counter[str]()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(edges):
        parsed = parser.feed(data[start:end])
        job = parsed.frame.current_job if parsed.frame else job
        count += parsed.lines
        malformed += parsed.malformed
        assert len(parser._partial) <= LINE_BYTES_MAX
    jobs = [json.loads(each[7:])["current_job"] for each in lines if each.startswith(b"HEALTH|{")]
    assert job == (jobs[-1] if jobs else None)
    assert count == len(lines)
    assert malformed[TOO_LONG] == sum(len(each) > LINE_BYTES_MAX for each in lines)
    short = [each for each in lines if len(each) <= LINE_BYTES_MAX]
    assert malformed[NO_PREFIX] == sum(not each.startswith(b"HEALTH|") for each in short)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"HEALTH|{", NOT_JSON),
        (b"HEALTH|" + b"[" * 60_000, NOT_JSON),
        (b"HEALTH|[]", NOT_AN_OBJECT),
        (line(component_id="worker:g:1"), OTHER_COMPONENT),
        (line(status="failed"), UNKNOWN_STATUS),
        (line(status=["healthy"]), UNKNOWN_STATUS),
        (line(current_job="x" * 1_001), BAD_JOB),
        (line(current_job=True), BAD_JOB),
        (line(current_job=2**63), BAD_JOB),
        (line(activities=[{"activity_id": "a", "attempt": 2**31}]), BAD_ACTIVITIES),
        (line(activities=[{"activity_id": "a\n"}]), BAD_ACTIVITIES),
        (line(activities=[{"workflow_id": "w" * 256, "activity_id": "a"}]), BAD_ACTIVITIES),
        (line(activities=[{"workflow_id": "w"}]), BAD_ACTIVITIES),
    ],
)
def test_what_is_no_frame_is_counted_by_its_reason(text: bytes, reason: str) -> None:
    parsed = HealthParser(ID).feed(text + b"\n")
    assert (parsed.frame, dict(parsed.malformed)) == (None, {reason: 1})


def test_a_frame_says_status_job_activities_and_more() -> None:
    fields = {"activities": [{"activity_id": "a", "attempt": 3}], "files": 7, "sdk": True, "status": "paused"}
    frame = HealthParser(ID).feed(line(current_job="j", **fields) + b"\n").frame
    assert frame is not None
    assert (frame.status, frame.current_job) == (ComponentStatus.PAUSED, "j")
    assert frame.activities == (BoundActivity("", "", "a", 3, ""),)
    assert (frame.telemetry, frame.sends_heartbeats) == ('{"files":7}', True)


def test_too_much_telemetry_is_left_out_but_the_process_is_alive() -> None:
    parsed = HealthParser(ID).feed(line(files="x" * 5_000) + b"\n")
    assert parsed.frame is not None
    assert parsed.frame.telemetry == "{}"
    assert parsed.malformed == {TOO_MANY_DETAILS: 1}
