"""Temporal's own command, from its wheel, works through the bridge as it does at the server."""

from __future__ import annotations

import json
import subprocess
from typing import Any
from uuid import uuid4

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.system.cli.server_processes import environment
from tests.system.temporal.stage import LIMIT_S, NAMESPACE, Stage, plan, temporal_command


def temporal(address: str, *command: str) -> str:
    done = subprocess.run(
        [temporal_command(), *command, "--address", address, "-o", "json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workflow_id(stage: Stage, flows: str) -> str:
    """A workflow that was run with the command, through the bridge."""
    workflow_id = f"command-{uuid4().hex[:12]}"
    started = ("--workflow-id", workflow_id, "--type", "Run", "--task-queue", flows)
    answer = temporal(stage.address, "workflow", "execute", *started, "--input", json.dumps(plan(flows)))
    assert json.loads(answer)["status"] == "COMPLETED"
    return workflow_id


@pytest.mark.parametrize(
    "command",
    [
        "operator cluster health",
        "operator cluster system",
        f"operator namespace describe {NAMESPACE}",
        "operator search-attribute list",
        "workflow show --workflow-id {workflow_id}",
        "workflow describe --workflow-id {workflow_id}",
        "workflow result --workflow-id {workflow_id}",
        "task-queue describe --task-queue nobody",
    ],
)
def test_the_command_gets_the_same_answer(stage: Stage, workflow_id: str, command: str) -> None:
    words = command.format(workflow_id=workflow_id).split()
    assert in_order(temporal(stage.address, *words)) == in_order(temporal(stage.temporal.address, *words))


def test_reflection_and_health_get_the_same_answers(stage: Stage) -> None:
    """A stream of a service that the bridge knows nothing of, and a unary call."""
    service = "temporal.api.workflowservice.v1.WorkflowService"
    answers = []
    for address in (stage.temporal.address, stage.address):
        with grpc.insecure_channel(address) as channel:
            services = sorted(ProtoReflectionDescriptorDatabase(channel).get_services())
            request = health_pb2.HealthCheckRequest(service=service)
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answers.append((services, stub.Check(request, timeout=LIMIT_S).status))
    directly, through_the_bridge = answers
    assert through_the_bridge == directly
    assert service in directly[0]


def in_order(answer: str) -> Any:
    """The command prints the types of a task queue in any order."""
    value = json.loads(answer)
    if isinstance(value, dict):
        for items in value.values():
            if isinstance(items, list):
                items.sort(key=json.dumps)
    return value
