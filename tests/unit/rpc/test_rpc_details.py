"""One parser reads the google.rpc details of a failed call, and ignores what it cannot trust."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from liveness.domain.errors import RateLimited, ShuttingDown, WorkerNotFound
from liveness.rpc.status import status_of
from liveness.rpc_details import (
    DETAILS_KEY,
    RpcDetails,
    details_from_trailer,
    has_details,
    parse_details,
    status_code,
    status_from_trailer,
)

NOT_FOUND = status_of(WorkerNotFound(worker="w", namespace="n"))


def test_reason_and_fields_are_read() -> None:
    assert parse_details(NOT_FOUND) == RpcDetails("WORKER_NOT_FOUND", {"worker": "w", "namespace": "n"}, 0)
    assert status_code(NOT_FOUND) is grpc.StatusCode.NOT_FOUND


def test_the_retry_delay_is_read() -> None:
    assert parse_details(status_of(RateLimited(whose="w", retry_after_ms=1_250))).retry_after_ms == 1_250
    assert parse_details(status_of(ShuttingDown())).retry_after_ms == 200


def test_error_infos_of_other_domains_are_ignored() -> None:
    status = Status(code=14)
    status.details.add().Pack(ErrorInfo(reason="PROXY_SAYS_NO", domain="proxy.example"))
    assert parse_details(status) == RpcDetails()
    status.details.add().Pack(ErrorInfo(reason="SHUTTING_DOWN", domain="liveness"))
    assert parse_details(status).reason == "SHUTTING_DOWN"


def test_the_first_error_info_counts() -> None:
    status = Status(code=14)
    for reason in ("SHARD_MOVED", "SHUTTING_DOWN"):
        status.details.add().Pack(ErrorInfo(reason=reason, domain="liveness"))
    assert parse_details(status).reason == "SHARD_MOVED"


def test_details_of_unknown_types_are_ignored() -> None:
    status = Status(code=14)
    status.details.add().Pack(Status(message="not a detail"))
    status.details.add().Pack(RetryInfo())
    assert parse_details(status) == RpcDetails()


def test_an_unknown_code_is_unknown() -> None:
    assert status_code(Status(code=99)) is grpc.StatusCode.UNKNOWN


def test_the_status_is_read_from_the_trailer() -> None:
    trailer = (("date", "today"), (DETAILS_KEY, NOT_FOUND.SerializeToString()))
    assert has_details(trailer)
    assert status_from_trailer(grpc.StatusCode.NOT_FOUND, trailer) == NOT_FOUND
    assert details_from_trailer(grpc.StatusCode.NOT_FOUND, trailer).reason == "WORKER_NOT_FOUND"


def test_a_trailer_that_contradicts_the_code_is_ignored() -> None:
    trailer = ((DETAILS_KEY, NOT_FOUND.SerializeToString()),)
    assert status_from_trailer(grpc.StatusCode.UNAVAILABLE, trailer) is None
    assert details_from_trailer(grpc.StatusCode.UNAVAILABLE, trailer) == RpcDetails()


def test_a_trailer_that_cannot_be_decoded_is_ignored() -> None:
    for value in (b"\xff\xff", "text"):
        assert has_details(((DETAILS_KEY, value),))
        assert status_from_trailer(grpc.StatusCode.NOT_FOUND, ((DETAILS_KEY, value),)) is None


def test_a_call_without_trailer_has_no_details() -> None:
    for trailer in (None, (), (("date", "today"),)):
        assert details_from_trailer(grpc.StatusCode.UNAVAILABLE, trailer) == RpcDetails()
        assert not has_details(trailer or ())
