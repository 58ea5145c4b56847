"""The OpenAPI document describes a real server: no request breaks it, and its answers match the document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from liveness.http.endpoints import endpoints_of
from liveness.http.openapi import SERVICES, document
from liveness.http.worker_paths import PATHS
from tests.integration.http.http_client import Client
from tests.system.http.test_process import serving

DOCUMENT = document()
OPERATIONS = {
    operation["operationId"]: operation
    for path_item in DOCUMENT["paths"].values()
    for operation in path_item.values()
}
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
MODES = schemathesis.GenerationMode


def can_be_wrong(operation: Any) -> bool:
    """Return whether a request can violate the schema; in a path, every value is text."""
    return "requestBody" in operation or any(
        each["in"] == "query" for each in operation.get("parameters", ())
    )


OPERATION_PATHS = [
    (path, verb, mode)
    for path, path_item in DOCUMENT["paths"].items()
    for verb, operation in path_item.items()
    for mode in MODES
    if not path.endswith("/events")  # event streams do not end
    and (mode is MODES.POSITIVE or can_be_wrong(operation))
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("openapi")) as (_, client):
        yield f"http://127.0.0.1:{client.port}"


@pytest.mark.parametrize(("path", "verb", "mode"), OPERATION_PATHS)
def test_a_real_server_matches_its_openapi_document(path: str, verb: str, mode: MODES, base_url: str) -> None:
    """For valid and invalid requests."""

    @settings(max_examples=6, suppress_health_check=list(HealthCheck))
    @given(case=SCHEMA[path][verb].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        response = case.call(base_url=base_url)
        case.validate_response(response, checks=CHECKS)

    check()


def test_the_document_has_every_path_with_the_comments_of_the_proto() -> None:
    assert len(OPERATIONS) == len(list(endpoints_of(SERVICES))) + len(PATHS)
    shutdown = OPERATIONS["ShutdownWorker"]
    assert shutdown["description"].startswith("The graceful goodbye")
    body = shutdown["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["reason"]["description"] == "Shown in the worker's history."
    assert set(body["properties"]) == {"session_id", "reason"}, "what the path says is not in the body"


def test_fields_that_answers_always_have_are_required_and_request_fields_are_optional() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert "worker_instance_key" in schemas["Worker"]["required"]
    assert "cleanup_time" not in schemas["Worker"]["required"]
    assert "required" not in schemas["WorkerHeartbeat"]


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    names = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) == names


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


async def test_the_server_serves_its_openapi_document(client: Client) -> None:
    answer = await client.ask("GET", "/openapi.json")
    assert (answer.code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == json.loads(json.dumps(DOCUMENT))
    known = {"If-None-Match": answer.headers["etag"]}
    assert (await client.ask("GET", "/openapi.json", known)).code == 304
