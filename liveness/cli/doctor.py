"""`liveness doctor`: check this installation without changing anything."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import click
import grpc

from liveness.cli.client import CHANNEL_OPTIONS, credentials_of, load_credentials
from liveness.cli.doctor_checks import CheckResult, CheckStatus, failed, ok, warning
from liveness.cli.errors import UsageError
from liveness.cli.output import print_json, print_table
from liveness.cli.serve import settings_from_flags
from liveness.cli.shared_options import connection_options, json_option
from liveness.client_credentials import LoadedCredentials, connect_failure_hint
from liveness.config.extras import INSTALL_SERVER_PARTS, server_parts_installed, server_parts_needed
from liveness.config.settings import Settings, SettingsError, load_client_settings

PACKAGES = ("liveness", "grpcio", "protobuf")
SERVER_PACKAGES = ("SQLAlchemy", "asyncpg")
ANSWER_TIMEOUT_S = 3.0

# The standard health check by its bytes: the package with its messages belongs to the server parts. The request is the
# empty message, for the server as a whole; this answer is `status: SERVING`.
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = b""
HEALTH_SERVING = b"\x08\x01"


@click.command()
@click.option(
    "--db", metavar="URL", help="The database to check.  [default: the one `liveness serve` would use]"
)
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@connection_options
@json_option
def doctor(*, db: str | None, config: str | None, as_json: bool, **connection: Any) -> None:
    """Check this installation, the database and the disk under it. Never changes the database.

    Exits with 1 if a check failed; warnings do not count.

    \b
    Examples:
      liveness doctor
      liveness doctor --db sqlite:////var/lib/liveness/liveness.db
      liveness doctor --config liveness.toml --json
    """
    settings = settings_from_flags({"db": db}, config)
    with_database = server_parts_installed()
    if db is not None and not with_database:
        raise UsageError(server_parts_needed("liveness doctor --db"))
    try:
        client = load_client_settings(connection, os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    credentials = load_credentials(credentials_of(client))
    results = [
        ok("Python", platform.python_version()),
        *_check_versions(PACKAGES),
        *(_check_server_parts(settings) if with_database else [_server_parts_missing()]),
        *(_check_server(address, credentials) for address in client.addresses),
    ]
    if as_json:
        print_json([_to_json(result) for result in results])
    else:
        print_table(
            ("check", "", "found", "what to do"),
            [(result.check, result.verdict.value, result.saw, result.advice) for result in results],
        )
    sys.exit(1 if any(result.verdict is CheckStatus.FAILED for result in results) else 0)


def _to_json(result: CheckResult) -> dict[str, Any]:
    return {**result._asdict(), "verdict": result.verdict.value.lower()}


def _check_versions(packages: Iterable[str]) -> Iterator[CheckResult]:
    for package in packages:
        try:
            yield ok(package, version(package))
        except PackageNotFoundError:
            yield failed(
                package, "not installed", "Reinstall liveness: pip install --force-reinstall liveness"
            )


def _check_server_parts(settings: Settings) -> Iterator[CheckResult]:
    yield from _check_versions(SERVER_PACKAGES)
    yield from _check_database(settings)


def _server_parts_missing() -> CheckResult:
    return warning(
        "server parts",
        "not installed, so the database was not checked",
        f"Workers and client commands do not need them. To run a server: {INSTALL_SERVER_PARTS}",
    )


def _check_database(settings: Settings) -> Iterator[CheckResult]:
    # Imported when needed: each module imports its database driver.
    if (path := settings.sqlite_path) is not None:
        from liveness.cli import doctor_sqlite

        return doctor_sqlite.run_checks(path, settings.shards)
    from liveness.cli import doctor_postgres

    return doctor_postgres.run_checks(settings.db, settings.shards)


def _check_server(address: str, credentials: LoadedCredentials) -> CheckResult:
    with credentials.open_channel(address, CHANNEL_OPTIONS) as channel:
        try:
            check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_CHECK)
            answer = check(HEALTH_REQUEST, timeout=ANSWER_TIMEOUT_S)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)  # an RpcError of a call is also a Call
            code = call.code()
            hint = connect_failure_hint(call.details() or "", uses_tls=credentials.uses_tls)
            if hint:
                return warning("server", f"cannot connect to {address}", f"{hint[0].upper()}{hint[1:]}.")
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return warning("server", f"none answers at {address}", "Start one with `liveness serve`.")
            return warning(
                "server", f"{address} answers {code.name}", "It does not seem to be a liveness server."
            )
        if answer != HEALTH_SERVING:
            return warning(
                "server", f"{address} answers, but does not serve", "It is starting, stopping, or in trouble."
            )
        return ok("server", f"{address} serves{_describe_listener(channel)}")


def _describe_listener(channel: grpc.Channel) -> str:
    """What takes calls in there; empty if the server does not say so, or not to a caller without a credential."""
    from liveness.v1.service_pb2 import GetServerInfoRequest
    from liveness.v1.service_pb2_grpc import LivenessServiceStub

    try:
        info = LivenessServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=ANSWER_TIMEOUT_S)
    except grpc.RpcError:
        return ""
    return f"; listener: {info.listener}" if info.listener else ""
