"""Progress of units of work over gRPC and HTTP: each report counts once, and totals survive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from liveness.http.listen_address import bind_address, loopback_address
from liveness.http.server import HttpServer
from liveness.v1 import progress_service_pb2 as pb
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.service_pb2 import ListRecentEventsRequest
from tests.integration.http.http_client import JSON, Client
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal
from tests.integration.store.faulty_store import Fault
from tests.integration.telemetry.exposition import Exposition

UNIT = "orders/größe items"


class ProgressClient:
    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness

    @property
    def stub(self) -> Any:
        return ProgressServiceStub(self.harness.channel)

    async def report(self, unit: str = UNIT, **fields: Any) -> pb.ReportProgressResponse:
        values = {"namespace": NAMESPACE, "worker_instance_key": "w", "unit": unit, **fields}
        answer: pb.ReportProgressResponse = await self.stub.ReportProgress(pb.ReportProgressRequest(**values))
        return answer

    async def get(self, unit: str = UNIT) -> pb.UnitProgress:
        answer = await self.stub.GetProgress(pb.GetProgressRequest(namespace=NAMESPACE, unit=unit))
        found: pb.UnitProgress = answer.progress
        return found

    async def list(self, **fields: Any) -> pb.ListProgressResponse:
        answer: pb.ListProgressResponse = await self.stub.ListProgress(
            pb.ListProgressRequest(namespace=NAMESPACE, **fields)
        )
        return answer

    async def forget(self, unit: str = UNIT, reason: str = "") -> None:
        await self.stub.ForgetProgress(
            pb.ForgetProgressRequest(namespace=NAMESPACE, unit=unit, reason=reason)
        )


@pytest.fixture
def client(harness: ServerHarness) -> ProgressClient:
    return ProgressClient(harness)


async def test_totals_times_and_workers_survive_a_restart(
    harness: ServerHarness, client: ProgressClient
) -> None:
    began_ms = harness.clock.wall_ms()
    await client.report(successes=3)
    await harness.advance(1_000)
    await client.report(successes=1, error="torn", worker_instance_key="v")
    failed_ms = harness.clock.wall_ms()
    await harness.advance(1_000)
    answer = await client.report(successes=2)
    found = answer.progress
    for restarts in (False, True):
        if restarts:
            await harness.server.maintenance.checkpoint()
            await harness.server.maintenance.apply_retention()
            await harness.restart()
        found = await client.get()
        assert (found.namespace, found.unit, found.successes, found.errors) == (NAMESPACE, UNIT, 6, 1)
        assert (found.last_success_worker, found.last_error_worker, found.last_error) == ("w", "v", "torn")
        assert found.create_time.ToMilliseconds() == began_ms
        assert found.last_error_time.ToMilliseconds() == failed_ms
        assert found.update_time == found.last_success_time == answer.progress.update_time
    assert (answer.progress.successes_per_minute, answer.progress.successes_per_hour) == (6, 6)
    assert (found.successes_per_minute, found.successes_per_hour) == (0, 0), "rates are in memory only"


async def test_rates_forget_what_is_older(harness: ServerHarness, client: ProgressClient) -> None:
    await client.report(successes=5)
    await harness.advance(61_000)
    await client.report(successes=2)
    found = await client.get()
    assert (found.successes_per_minute, found.successes_per_hour) == (2, 7)


async def test_a_report_with_an_id_counts_once(harness: ServerHarness, client: ProgressClient) -> None:
    answers = await asyncio.gather(*(client.report(successes=2, report_id="one") for _ in range(5)))
    assert sorted(answer.repeated_report for answer in answers) == [False, True, True, True, True]
    await harness.restart()
    answer = await client.report(successes=2, report_id="one")
    assert (answer.repeated_report, answer.progress.successes) == (True, 2)
    assert not (await client.report(successes=2)).repeated_report
    assert not (await client.report(successes=2)).repeated_report, "without an id each one counts"
    await asyncio.gather(*(client.report(successes=1, report_id=f"later-{n}") for n in range(100)))
    assert not (await client.report(report_id="one")).repeated_report, "a hundred later, it is forgotten"


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
async def test_a_report_whose_commit_failed_is_no_success_and_counts_once_when_sent_again(
    stopped_harness: ServerHarness, fault: Fault
) -> None:
    harness = await stopped_harness.start(faulty=True)
    client = ProgressClient(harness)
    await client.report(successes=1)
    assert harness.store is not None
    harness.store.faults.append(fault)
    refused = await refusal(client.report(successes=5, report_id="one"))
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    for _ in range(2):
        is_answered = False
        while not is_answered:  # the shard is being read again
            with suppress(grpc.aio.AioRpcError):
                await client.report(successes=5, report_id="one")
                is_answered = True
    assert (await client.get()).successes == 6


async def test_lists_are_ordered_paged_and_filtered(harness: ServerHarness, client: ProgressClient) -> None:
    names = [f"table-{n:02}" for n in range(25)]
    for name in reversed(names):
        await client.report(name, successes=1, error="torn" if name.endswith("4") else "")
    await client.report("zebra", successes=1)
    found: list[str] = []
    token = ""
    while True:
        page = await client.list(prefix="table-", page_size=10, page_token=token)
        found += [unit.unit for unit in page.units]
        assert all(unit.successes_per_minute == 1 for unit in page.units)
        token = page.next_page_token
        if not token:
            break
    assert found == names
    failing = await client.list(failing=True)
    assert [unit.unit for unit in failing.units] == ["table-04", "table-14", "table-24"]
    await client.report("table-04", successes=1)
    assert len((await client.list(failing=True)).units) == 2
    other = await client.list(page_size=1)
    refused = await refusal(client.list(failing=True, page_token=other.next_page_token))
    assert refused.reason == "PAGE_TOKEN_INVALID", "a token belongs to its list"


async def test_a_unit_that_is_forgotten_begins_anew(harness: ServerHarness, client: ProgressClient) -> None:
    await client.report(successes=3, report_id="one")
    await client.forget(reason="the table is gone")
    refused = await refusal(client.get())
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNIT_NOT_FOUND")
    assert refused.message == f"Nobody has reported progress of unit {UNIT} in namespace {NAMESPACE}."
    assert (await refusal(client.forget())).reason == "UNIT_NOT_FOUND"
    await harness.restart()
    assert not (await client.list()).units
    assert (await client.report(successes=1, report_id="one")).progress.successes == 1


async def test_a_namespace_has_a_limited_number_of_units(
    harness: ServerHarness, client: ProgressClient
) -> None:
    await harness.configure(max_progress_units=3)
    results = await asyncio.gather(
        *(client.report(f"unit-{n}", successes=1) for n in range(20)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
    assert len(refused) == 17
    assert len((await client.list()).units) == 3
    before = await harness.dump("shards", "audit")
    why = await refusal(client.report("one-more"))
    assert (why.code, why.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "UNIT_QUOTA_EXCEEDED")
    assert why.message == (
        f"Namespace {NAMESPACE} has its 3 units of work; forget those that nobody works on any more, or raise max_progress_units."
    )
    assert await harness.dump("shards", "audit") == before
    [first, *_] = (await client.list()).units
    await client.report(first.unit, successes=1)
    await client.forget(first.unit)
    await client.report("one-more")


async def test_errors_are_cut_to_a_kibibyte_between_characters(
    harness: ServerHarness, client: ProgressClient
) -> None:
    await client.report(error="x" + "ü" * 2_000)
    found = await client.get()
    assert found.last_error == "x" + "ü" * 511
    await client.report(error="nul \0 inside", errors=5)
    await harness.restart()
    found = await client.get()
    assert (found.last_error, found.errors) == ("nul \0 inside", 6)


BAD_REPORTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no namespace": ({"namespace": ""}, "namespace", "must be set"),
    "no worker": ({"worker_instance_key": ""}, "worker_instance_key", "must be set"),
    "no unit": ({"unit": ""}, "unit", "must be set"),
    "long unit": ({"unit": "ü" * 101}, "unit", "must be at most 200 bytes of UTF-8"),
    "control character": ({"unit": "a\nb"}, "unit", "must not contain control characters"),
    "long id": ({"report_id": "x" * 129}, "report_id", "must be at most 128 bytes of UTF-8"),
    "bad id": ({"report_id": "a\0"}, "report_id", "must not contain control characters"),
    "huge count": ({"successes": 2**40 + 1}, "successes", "must be at most 2^40"),
    "huge count of errors": ({"errors": 2**40 + 1, "error": "x"}, "errors", "must be at most 2^40"),
    "errors without one": ({"errors": 1}, "error", "must be set if there are errors"),
}


async def test_a_bad_report_is_refused_with_its_field_and_changes_nothing(
    harness: ServerHarness, client: ProgressClient
) -> None:
    before = await harness.dump("shards", "audit")
    for what, (fields, field, rule) in BAD_REPORTS.items():
        refused = await refusal(client.report(**{"successes": 1, **fields}))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT, what
        assert refused.violations == [(field, rule)], what
    assert await harness.dump("shards", "audit") == before


async def test_a_bad_list_is_refused(harness: ServerHarness, client: ProgressClient) -> None:
    for fields in ({"prefix": "x" * 201}, {"page_size": -1}, {"page_size": 1_001}, {"page_token": "forged"}):
        assert (await refusal(client.list(**fields))).code is grpc.StatusCode.INVALID_ARGUMENT, fields


async def test_reports_are_events_that_are_kept_for_a_day(
    harness: ServerHarness, client: ProgressClient
) -> None:
    await client.report(successes=1)
    await client.forget(reason="gone")
    assert await event_types(harness) == ["ProgressReported", "ProgressForgotten"]
    await harness.server.maintenance.checkpoint()
    harness.clock.move(2 * 86_400_000)
    await harness.server.maintenance.apply_retention()
    assert await event_types(harness) == ["ProgressForgotten"]


async def event_types(harness: ServerHarness) -> list[str]:
    recent = await harness.liveness.ListRecentEvents(ListRecentEventsRequest(namespace=NAMESPACE))
    return [event.type for event in recent.events]


async def test_metrics_count_what_is_durable(harness: ServerHarness, client: ProgressClient) -> None:
    await harness.beat()
    await client.report(successes=3, report_id="one")
    await client.report(successes=3, report_id="one")
    await client.report(error="torn")
    text, _ = harness.server.metrics()
    exposition = Exposition(text)
    for name, value in (
        ("liveness_progress_units", 1),
        ("liveness_progress_successes_total", 3),
        ("liveness_progress_errors_total", 1),
        ("liveness_progress_repeated_total", 1),
    ):
        assert exposition.value(name, namespace=NAMESPACE) == value, name


# -- over HTTP


@pytest.fixture
async def http(harness: ServerHarness) -> AsyncIterator[Client]:
    listen = bind_address("127.0.0.1", 0)
    server = HttpServer(loopback_address(harness.server.address), listen, harness.clock)
    await server.start()
    yield Client(listen.port)
    server.stop_accepting()
    await server.stop()


PATH = f"/v1/namespaces/{NAMESPACE}/progress"
ENCODED = "orders%2Fgr%C3%B6%C3%9Fe%20items"


async def test_http_reports_reads_lists_and_forgets(http: Client) -> None:
    body = {"worker_instance_key": "w", "unit": UNIT, "successes": "3", "report_id": "one"}
    answer = await http.ask("POST", PATH, JSON, json.dumps(body).encode())
    assert answer.code == 200
    assert answer.json()["progress"]["successes"] == "3"
    assert (await http.ask("POST", PATH, JSON, json.dumps(body).encode())).json()["repeated_report"] is True
    found = await http.ask("GET", f"{PATH}/{ENCODED}")
    assert found.json()["progress"]["unit"] == UNIT
    listed = await http.ask("GET", f"{PATH}?prefix=orders&failing=false")
    assert [unit["unit"] for unit in listed.json()["units"]] == [UNIT]
    assert (await http.ask("POST", f"{PATH}/{ENCODED}/forget", JSON, b"{}")).code == 200
    assert (await http.ask("GET", f"{PATH}/{ENCODED}")).code == 404


BAD_CALLS: list[tuple[str, str, bytes, int]] = [
    ("POST", PATH, b"", 400),
    ("POST", PATH, b"{", 400),
    ("POST", PATH, b'{"worker_instance_key":"w"}', 400),
    ("POST", PATH, b'{"worker_instance_key":"w","unit":"u","successes":-1}', 400),
    ("POST", PATH, b'{"worker_instance_key":"w","unit":"u","successes":"many"}', 400),
    ("POST", PATH, b'{"worker_instance_key":"w","unit":"u","surprise":1}', 400),
    ("POST", PATH, b'{"worker_instance_key":"w","unit":"%s"}' % (b"x" * 201), 400),
    ("GET", f"{PATH}?failing=perhaps", b"", 400),
    ("GET", f"{PATH}?surprise=1", b"", 400),
    ("GET", f"{PATH}/{'x' * 201}", b"", 400),
    ("GET", f"{PATH}/unknown", b"", 404),
    ("POST", f"{PATH}/unknown/forget", b"{}", 404),
    ("DELETE", f"{PATH}/unknown", b"", 405),
]


async def test_bad_requests_over_http_are_refused_with_one_sentence_and_change_nothing(
    harness: ServerHarness, http: Client
) -> None:
    before = await harness.dump("shards", "audit")
    for verb, path, body, code in BAD_CALLS:
        answer = await http.ask(verb, path, JSON, body)
        assert answer.code == code, (verb, path, body)
        assert answer.error["message"]
    assert await harness.dump("shards", "audit") == before
