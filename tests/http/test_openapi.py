"""The OpenAPI document describes what a real server does: nothing breaks, and answers are as described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from liveness.http.openapi import SERVICES, document
from tests.http.client import Client
from tests.http.test_process import serving

DOCUMENT = document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="/events$")  # streams do not end
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("openapi")) as (_, client):
        yield f"http://127.0.0.1:{client.port}"


@SCHEMA.parametrize()
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_a_real_server_keeps_to_its_document(case: schemathesis.Case, base_url: str) -> None:
    case.call_and_validate(base_url=base_url, checks=CHECKS)
