"""The bridge knows which of Temporal's methods are unary."""

from __future__ import annotations

import pytest
from temporalio.api.operatorservice.v1 import service_pb2 as operator_service
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_service

from liveness.bridges.temporal.unary_methods import UNARY_METHODS


@pytest.mark.parametrize(
    ("service", "name"), [(workflow_service, "WorkflowService"), (operator_service, "OperatorService")]
)
def test_all_unary_methods_are_known_and_no_stream_is_among_them(service: object, name: str) -> None:
    descriptor = service.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined]  # generated modules have it
    unary = {
        f"/{descriptor.full_name}/{method.name}"
        for method in descriptor.methods
        if not (method.client_streaming or method.server_streaming)
    }
    assert {method for method in UNARY_METHODS if method.startswith(f"/{descriptor.full_name}/")} == unary
