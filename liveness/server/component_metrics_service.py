"""ComponentMetricsService: what components report about themselves, and queries over it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple
from typing import Annotated, Protocol

import msgspec

from liveness.domain.decider import check_owner
from liveness.domain.errors import Denied, Exhausted, InvalidRequest, PageTokenInvalid
from liveness.domain.keys import WorkerKey
from liveness.engine.node import Node
from liveness.security.principal import caller_name
from liveness.server import component_metrics_wire as wire
from liveness.server import tokens
from liveness.server.component_metrics_wire import SeriesWithPoints
from liveness.server.metrics_writer import REFUSED, MetricsWriter
from liveness.server.validation import page_size, require_identifier
from liveness.slices import build_in_slices
from liveness.store.component_metrics import Point, SampleReport, Series, SeriesFilter, Steps
from liveness.v1 import component_metrics_service_pb2 as pb

POINTS_PER_PAGE_MAX = 50_000
SAMPLES_PER_PAGE_MAX = 300_000
"""A page ends when so many samples were merged for it."""
SERIES_PER_READ_MAX = 50


class Position(msgspec.Struct, array_like=True):
    """The last series of a page, and the steps of the first page."""

    worker_key: tokens.Key
    name: tokens.Key
    series_id: tokens.Sequence
    start_wall_ms: tokens.Sequence
    end_wall_ms: tokens.Sequence
    step_ms: Annotated[int, msgspec.Meta(gt=0)]


class MetricsReader(Protocol):
    async def find_series(
        self, where: SeriesFilter, steps: Steps, after: tuple[str, str, int] | None, limit: int
    ) -> list[Series]: ...

    async def read_points(self, series_ids: Collection[int], steps: Steps) -> dict[int, list[Point]]: ...


class ComponentMetricsService:
    def __init__(self, node: Node, reader: MetricsReader, writer: MetricsWriter) -> None:
        self._node = node
        self._reader = reader
        self._writer = writer

    async def report_metrics(self, request: pb.ReportMetricsRequest) -> pb.ReportMetricsResponse:
        try:
            return await self._report(request)
        except (InvalidRequest, Exhausted, Denied):
            self._writer.outcomes[REFUSED] += len(request.samples)
            raise

    async def _report(self, request: pb.ReportMetricsRequest) -> pb.ReportMetricsResponse:
        key = WorkerKey(
            require_identifier("namespace", request.namespace),
            require_identifier("worker_instance_key", request.worker_instance_key),
        )
        samples = await wire.samples(request.samples, self._node.clock.wall_ms())
        if (worker := self._node.shard(*key).workers.get(key)) is not None:
            check_owner(key, worker, caller_name())
        policy = self._node.policies.of(key.namespace)
        await self._writer.store(
            SampleReport(
                key=key,
                samples=samples,
                series_max=policy.max_metric_series,
                series_per_worker_max=policy.max_metric_series_per_worker,
            )
        )
        return pb.ReportMetricsResponse(stored_samples=len(samples))

    async def query_metrics(self, request: pb.QueryMetricsRequest) -> pb.QueryMetricsResponse:
        namespace = require_identifier("namespace", request.namespace)
        where = wire.series_filter(namespace, request)
        size = page_size(request.page_size)
        steps = wire.steps(request, self._node.clock.wall_ms())
        given = (request.start_time, request.end_time, request.step)
        listing = ("metrics", *astuple(where), *(part.SerializeToString().hex() for part in given))
        after = None
        if request.page_token:
            at = tokens.redeem(request.page_token, Position, PageTokenInvalid, *listing)
            after = at.worker_key, at.name, at.series_id
            steps = Steps(at.start_wall_ms, at.end_wall_ms, at.step_ms)
            if not 0 < steps.step_count <= wire.POINTS_MAX:
                raise PageTokenInvalid
        found = await self._reader.find_series(where, steps, after, size + 1)
        page = await self._read_page(found[:size], steps)
        response = pb.QueryMetricsResponse(series=await build_in_slices(page, wire.series_message))
        if len(found) > len(page):
            last_series = page[-1].series
            position = Position(last_series.worker_key, last_series.name, last_series.series_id, *steps)
            response.next_page_token = tokens.issue(position, *listing)
        return response

    async def _read_page(self, found: list[Series], steps: Steps) -> list[SeriesWithPoints]:
        """Read the points of the first of these series, as many as one page may have."""
        page: list[SeriesWithPoints] = []
        points_left, samples_left = POINTS_PER_PAGE_MAX, SAMPLES_PER_PAGE_MAX
        most_samples = 1
        chunk = 1  # how many samples a series has is not known before one was read
        while len(page) < len(found) and points_left > 0 and samples_left > 0:
            series = found[len(page) : len(page) + chunk]
            points = await self._reader.read_points([each.series_id for each in series], steps)
            for each in series:
                of_series = points[each.series_id]
                page.append(SeriesWithPoints(each, of_series))
                samples = sum(point.samples for point in of_series)
                most_samples = max(most_samples, samples)
                points_left -= len(of_series)
                samples_left -= samples
            fitting = min(points_left // steps.step_count, samples_left // most_samples)
            chunk = min(max(fitting, 1), 4 * chunk, SERIES_PER_READ_MAX)
        return page
