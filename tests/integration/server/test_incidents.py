"""Workers that die together: one incident with its likely cause, in lists, alerts and certificates, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.v1 import fleet_pb2, service_pb2
from liveness.v1 import insight_pb2 as pb
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, heartbeat, refusal

LEASE_MS = 10_000


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    harness = await stopped_harness.start(takeover_grace_ms=0)
    harness.lift_rate_limits()
    return harness


async def beat(
    harness: ServerHarness, first: int, last: int, sequence: int, lease_ms: int = LEASE_MS, **profile: Any
) -> None:
    beats = [
        heartbeat(f"w{n:02}", lease_ms=lease_ms, session_id="s", sequence=sequence, **profile)
        for n in range(first, last)
    ]
    await harness.batch(*beats)


async def incidents(harness: ServerHarness, namespace: str = NAMESPACE, **fields: Any) -> list[pb.Incident]:
    answer = await harness.admin.ListIncidents(pb.ListIncidentsRequest(namespace=namespace, **fields))
    return list(answer.incidents)


async def alerts(harness: ServerHarness) -> list[str]:
    answer = await harness.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace=NAMESPACE))
    return [alert.message for alert in answer.alerts if alert.kind == fleet_pb2.ALERT_KIND_INCIDENT]


async def let_a_host_die(harness: ServerHarness) -> None:
    """Five workers of db-3 die, one of another host too; eleven live."""
    await beat(harness, 0, 5, 1, host_name="db-3", build_id="b7", labels={"zone": "a"})
    await beat(harness, 5, 17, 1, host_name="db-4", build_id="b7", labels={"zone": "a"})
    await harness.advance(6_000)
    await beat(harness, 6, 17, 2, 1_800_000, host_name="db-4", build_id="b7", labels={"zone": "a"})
    await harness.advance(4_250)


async def test_workers_of_one_host_that_die_together_are_one_incident(harness: ServerHarness) -> None:
    await let_a_host_die(harness)
    [found] = await incidents(harness)
    assert (found.cause, found.value) == (pb.INCIDENT_CAUSE_HOST, "db-3")
    assert (found.dead, found.dead_with, found.living, found.living_with) == (6, 5, 11, 0)
    assert list(found.worker_instance_keys) == [f"w{n:02}" for n in range(6)]
    assert found.message == (
        "6 workers of orders died within 1 s. Probably it is the host db-3: 5 of them had it, and 0 of the 11 that lived on."
    )
    assert [each.incident_id for each in await incidents(harness, incident_id=found.incident_id)] == [
        found.incident_id
    ]
    assert await incidents(harness, incident_id="1") == []
    assert await incidents(harness, "billing") == []
    [alert] = await alerts(harness)
    assert alert.startswith(found.message)
    request = service_pb2.GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key="w00")
    certificate = await harness.liveness.GetDeathCertificate(request)
    assert (certificate.incident.incident_id, certificate.incident.value) == (found.incident_id, "db-3")
    assert not certificate.incident.worker_instance_keys, "who may see a worker may not see all"


async def test_workers_that_came_back_are_counted_and_do_not_speak_against_the_cause(
    harness: ServerHarness,
) -> None:
    await let_a_host_die(harness)
    await beat(harness, 0, 5, 2, host_name="db-3", build_id="b7", labels={"zone": "a"})
    [found] = await incidents(harness)
    assert (found.value, found.returned, found.living, found.living_with) == ("db-3", 5, 11, 0)


async def test_a_label_is_named(harness: ServerHarness) -> None:
    for number in range(16):
        labels = {"zone": "a" if number < 6 else "b"}
        await beat(harness, number, number + 1, 1, host_name=f"h{number}", labels=labels)
    await harness.advance(6_000)
    for number in range(6, 16):
        await beat(harness, number, number + 1, 2, host_name=f"h{number}", labels={"zone": "b"})
    await harness.advance(4_250)
    [found] = await incidents(harness)
    assert (found.cause, found.label, found.value) == (pb.INCIDENT_CAUSE_LABEL, "zone", "a")


async def test_single_deaths_are_no_incident(harness: ServerHarness) -> None:
    for number in range(4):
        await beat(harness, number, number + 1, 1, host_name=f"h{number}")
    await beat(harness, 10, 30, 1, host_name="alive")
    await harness.advance(6_000)
    await beat(harness, 10, 30, 2, host_name="alive")
    await harness.advance(4_250)
    assert await incidents(harness) == []
    assert await alerts(harness) == []
    certificate = await harness.liveness.GetDeathCertificate(
        service_pb2.GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key="w00")
    )
    assert not certificate.HasField("incident")


async def test_an_incident_is_an_alert_for_some_minutes(harness: ServerHarness) -> None:
    await let_a_host_die(harness)
    assert len(await alerts(harness)) == 1
    for step in range(8):
        await harness.advance(40_000)
        assert len(await incidents(harness, range=duration(3_600_000))) == 1, step
    assert await alerts(harness) == []
    for number in range(6, 17):
        await harness.shut_down(f"w{number:02}")
    [found] = await incidents(harness)
    assert (found.living, found.living_with) == (11, 0), "that they left later is no evidence"


async def test_a_wrong_id_is_refused(harness: ServerHarness) -> None:
    answer = await refusal(incidents(harness, incident_id="yesterday"))
    assert [field for field, _ in answer.violations] == ["incident_id"]
