"""ProgressService: the mapping between messages and values."""

from __future__ import annotations

from liveness.domain.errors import InvalidField
from liveness.domain.progress import (
    REPORT_ID_BYTES_MAX,
    UNIT_BYTES_MAX,
    ProgressReport,
    UnitKey,
    UnitProgress,
)
from liveness.server.validation import COUNTER_MAX, optional_identifier, require_identifier
from liveness.server.wire import timestamp
from liveness.v1 import progress_service_pb2 as pb


def unit_key(namespace: str, unit: str) -> UnitKey:
    return UnitKey(
        require_identifier("namespace", namespace),
        _at_most("unit", require_identifier("unit", unit), UNIT_BYTES_MAX),
    )


def unit_prefix(prefix: str) -> str:
    return _at_most("prefix", optional_identifier("prefix", prefix), UNIT_BYTES_MAX)


def progress_report(request: pb.ReportProgressRequest) -> ProgressReport:
    worker = require_identifier("worker_instance_key", request.worker_instance_key)
    if request.successes > COUNTER_MAX:
        raise InvalidField(field="successes", rule="must be at most 2^40")
    if request.errors > COUNTER_MAX:
        raise InvalidField(field="errors", rule="must be at most 2^40")
    if request.errors and not request.error:
        raise InvalidField(field="error", rule="must be set if there are errors")
    report_id = optional_identifier("report_id", request.report_id)
    return ProgressReport(
        worker,
        request.successes,
        request.error,
        _at_most("report_id", report_id, REPORT_ID_BYTES_MAX),
        request.errors if request.errors > 1 else 0,
    )


def _at_most(field: str, value: str, bytes_max: int) -> str:
    if len(value.encode()) > bytes_max:
        raise InvalidField(field=field, rule=f"must be at most {bytes_max} bytes of UTF-8")
    return value


def progress_message(
    key: UnitKey, progress: UnitProgress, rates: tuple[int, int] = (0, 0)
) -> pb.UnitProgress:
    """`rates`: successes in the last minute and in the last hour."""
    message = pb.UnitProgress(
        namespace=key.namespace,
        unit=key.unit,
        successes=progress.successes,
        errors=progress.errors,
        last_success_worker=progress.last_success_worker,
        last_error=progress.last_error,
        last_error_worker=progress.last_error_worker,
        create_time=timestamp(progress.created_wall_ms),
        update_time=timestamp(progress.updated_wall_ms),
        successes_per_minute=rates[0],
        successes_per_hour=rates[1],
    )
    if progress.last_success_wall_ms:
        message.last_success_time.CopyFrom(timestamp(progress.last_success_wall_ms))
    if progress.last_error_wall_ms:
        message.last_error_time.CopyFrom(timestamp(progress.last_error_wall_ms))
    return message
