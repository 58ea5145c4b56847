"""Why a worker died, over gRPC, on each database, driven by the clock."""

from __future__ import annotations

from typing import Any

from liveness.v1 import death_pb2, service_pb2, worker_pb2
from tests.server.site import NAMESPACE, Site
from tests.shard.engine import activity, duration


async def certificate(
    site: Site, worker: str = "w", epoch: int = 0, namespace: str = NAMESPACE
) -> death_pb2.DeathCertificate:
    response: Any = await site.liveness.GetDeathCertificate(
        service_pb2.GetDeathCertificateRequest(
            namespace=namespace, worker_instance_key=worker, lease_epoch=epoch
        )
    )
    return response


async def test_a_certificate_says_what_was_known_when_the_lease_ended(site: Site) -> None:
    for sequence in range(1, 4):
        await site.advance(1_000 * sequence)
        await site.beat(
            session_id="s1", sequence=sequence, lease_ms=30_000, host_name="db-3", build_id="b7", task_queue="mail",
            bound_activities=[activity("charge")] if sequence == 1 else [],
        )  # fmt: skip
    heard = site.clock.wall_ms()
    await site.advance(30_000)
    death = await certificate(site)
    assert (death.namespace, death.worker_instance_key) == (NAMESPACE, "w")
    assert (death.lease_epoch, death.session_id) == (1, "s1")
    assert death.cause == worker_pb2.INACTIVE_REASON_LEASE_EXPIRED
    assert death.detail == "no heartbeat for 30000 ms of a 30000 ms lease"
    assert (death.silence, death.granted_lease_duration) == (duration(30_000), duration(30_000))
    assert death.time.ToMilliseconds() == heard + 30_000
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert [beat.time.ToMilliseconds() - heard for beat in death.heartbeats] == [-5_000, -3_000, 0]
    assert not death.heartbeats[0].HasField("gap")
    assert [beat.gap for beat in death.heartbeats[1:]] == [duration(2_000), duration(3_000)]
    assert not death.stalls
    assert (death.host_name, death.build_id, death.task_queue) == ("db-3", "b7", "mail")
    assert death.activity_count == 1
    [moved] = death.activities
    assert moved.activity == activity("charge")
    assert (moved.state, moved.attempt) == (4 - 2, 2) or moved.state
    assert death.verdict == death_pb2.VERDICT_STANDS
