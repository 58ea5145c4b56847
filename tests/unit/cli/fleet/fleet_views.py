"""Sample fleets and their rendering, for tests of the fleet view."""

from __future__ import annotations

from io import StringIO
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console

from liveness.cli.fleet.reader import FleetSnapshot
from liveness.cli.fleet.view import FleetView, Frame
from liveness.cli.fleet.view_state import ViewState
from liveness.v1.fleet_pb2 import FleetSample, GetFleetResponse, NamespaceFleet
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, Worker

NOW_S = 1_750_000_000
AT_MS = 5_000
"""The time of the snapshot on the client's clock."""
SECONDS_APART = 2


def at(seconds: float) -> Timestamp:
    return Timestamp(seconds=NOW_S + int(seconds), nanos=int(seconds % 1 * 1e9))


def worker(key: str, *, left_s: float | None = 20, **fields: Any) -> Worker:
    """An ACTIVE worker with `left_s` seconds left of a 30 s lease."""
    if left_s is not None:
        fields["lease_deadline"] = at(left_s)
    return Worker(
        **{
            "worker_instance_key": key,
            "state": WORKER_STATE_ACTIVE,
            "granted_lease_duration": Duration(seconds=30),
            "last_heartbeat_time": at(-10),
            **fields,
        }
    )


def fleet(samples: list[FleetSample] = [], **fields: Any) -> GetFleetResponse:  # noqa: B006  # not changed
    """A fleet response; `samples` are ordered from oldest to newest."""
    for index, sample in enumerate(reversed(samples)):
        sample.time.CopyFrom(at(-index * SECONDS_APART))
    return GetFleetResponse(
        **{
            "time": at(0),
            "interval": Duration(seconds=SECONDS_APART),
            "samples": samples,
            "namespaces": [NamespaceFleet(namespace="orders", active=3, inactive=1)],
            "nodes": 1,
            "shards": 4,
            "serving_shards": 4,
            **fields,
        }
    )


def frame(
    *workers: Worker,
    total: int | None = -1,
    fleet: GetFleetResponse = fleet(),  # noqa: B008  # not changed
    later_ms: int = 0,
    view_state: ViewState = ViewState(),  # noqa: B008  # frozen
    **fields: Any,
) -> Frame:
    seen = FleetSnapshot(
        fleet=fleet,
        workers=workers,
        total=len(workers) if total == -1 else total,
        address="127.0.0.1:7400",
        at_ms=AT_MS,
        took_ms=10,
    )
    return Frame(
        **{
            "snapshot": seen,
            "view_state": view_state,
            "now_ms": AT_MS + later_ms,
            "namespace": "orders",
            **fields,
        }
    )


def rendered_lines(frame: Frame, width: int = 80, height: int = 24, *, keys: bool = True) -> list[str]:
    """Render the frame and return its lines without colours."""
    console = Console(file=StringIO(), width=width, height=height, color_system=None, force_terminal=True)
    lines = console.render_lines(FleetView(frame, keys), console.options.update(height=height), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]
