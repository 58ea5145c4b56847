"""The same as `test_access_matrix`, through a frontend before two nodes, over gRPC and over the frontend's HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from liveness.cli.http_listener import bind_http, start_http
from liveness.clock import SystemClock
from tests.databases import PostgresServer
from tests.integration.http.http_client import Client as HttpClient
from tests.integration.security.secured_cluster import SecuredCluster, secured_cluster
from tests.integration.security.test_access_matrix import (
    METHODS,
    OTHER,
    OWN,
    ROLES,
    call,
    is_allowed,
    request_about,
)
from tests.integration.security.test_access_matrix_http import check_role, check_without_credential

GRANTED = [(role, granted) for role in ROLES for granted in (OWN, "*")]


class Matrix(NamedTuple):
    cluster: SecuredCluster
    tokens: dict[str, str]
    http: HttpClient


@pytest.fixture(scope="module")
async def matrix(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Matrix]:
    name = postgres.create_database()
    async with secured_cluster(postgres.url(name), tmp_path_factory.mktemp("cluster")) as cluster:
        tokens = await cluster.create_tokens(
            {f"{role}-{granted.replace('*', 'all')}": (f"{role}:{granted}",) for role, granted in GRANTED}
        )
        listen_address = bind_http("127.0.0.1:0")
        assert listen_address is not None
        frontend = cluster.frontend
        http = await start_http(
            frontend,
            listen_address,
            SystemClock(),
            http="127.0.0.1:0",
            hosts=(),
            metrics=frontend.metrics,
            asks_callers=True,
        )
        try:
            yield Matrix(cluster, tokens, HttpClient(listen_address.port))
        finally:
            await http.stop()
    postgres.drop_database(name)


@pytest.mark.parametrize(("role", "granted"), GRANTED)
async def test_each_role_may_do_through_a_frontend_what_the_options_say(
    matrix: Matrix, role: str, granted: str
) -> None:
    token = matrix.tokens[f"{role}-{granted.replace('*', 'all')}"]

    async def check(method: Any, namespace: str) -> tuple[str, str, str, bool] | None:
        reason = await call(matrix.cluster, method, request_about(method, namespace), token)
        allowed = is_allowed(method, role, granted, namespace)
        if (reason != "PERMISSION_DENIED") != allowed or reason == "UNAUTHENTICATED":
            return method.full_name, namespace, reason, allowed
        return None

    checks = [check(method, namespace) for method in METHODS for namespace in (OWN, OTHER, "")]
    assert [wrong for wrong in await asyncio.gather(*checks) if wrong] == []


@pytest.mark.parametrize("token", [None, "", "nonsense", "lvt_aaaaaaaaaaaa_" + "A" * 43, "a.b.c"])
async def test_nobody_passes_a_frontend_without_a_valid_credential(matrix: Matrix, token: str | None) -> None:
    for method in METHODS:
        reason = await call(matrix.cluster, method, request_about(method, OWN), token)
        assert reason == "UNAUTHENTICATED", method.full_name


@pytest.mark.parametrize(("role", "granted"), GRANTED)
async def test_each_role_may_do_over_a_frontends_http_what_the_options_say(
    matrix: Matrix, role: str, granted: str
) -> None:
    await check_role(matrix.http, matrix.tokens[f"{role}-{granted.replace('*', 'all')}"], role, granted)


async def test_nobody_passes_a_frontends_http_without_a_valid_credential(matrix: Matrix) -> None:
    await check_without_credential(matrix.http)
