"""`liveness doctor`: is everything in order here? Looks, and changes nothing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import click
import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from liveness.cli.client import address_option, json_option, open_channel
from liveness.cli.doctor_checks import CheckResult, CheckStatus, failed, ok, warning
from liveness.cli.errors import UsageError
from liveness.cli.output import print_json, print_table
from liveness.cli.serve import settings_from_flags
from liveness.config.settings import Settings, SettingsError, load_client_settings

PACKAGES = ("liveness", "grpcio", "protobuf", "SQLAlchemy", "asyncpg")
ANSWER_TIMEOUT_S = 3.0


@click.command()
@click.option("--db", metavar="URL", help="The database to look at.  [default: as `liveness serve` would]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@address_option
@json_option
def doctor(*, db: str | None, config: str | None, address: str | None, as_json: bool) -> None:
    """Check this installation, the database and the disk under it. Never changes the database.

    Exits with 1 if something failed; warnings do not count.

    \b
    Examples:
      liveness doctor
      liveness doctor --db sqlite:////var/lib/liveness/liveness.db
      liveness doctor --config liveness.toml --json
    """
    settings = settings_from_flags({"db": db}, config)
    try:
        client = load_client_settings({"address": address}, os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    findings = [*_check_versions(), *_check_database(settings), *map(_check_server, client.addresses)]
    if as_json:
        print_json([_to_json(finding) for finding in findings])
    else:
        print_table(
            ("check", "", "found", "what to do"),
            [(each.check, each.verdict.value, each.saw, each.advice) for each in findings],
        )
    sys.exit(1 if any(finding.verdict is CheckStatus.FAILED for finding in findings) else 0)


def _to_json(finding: CheckResult) -> dict[str, Any]:
    return {**finding._asdict(), "verdict": finding.verdict.value.lower()}


def _check_versions() -> Iterator[CheckResult]:
    yield ok("Python", platform.python_version())
    for package in PACKAGES:
        try:
            yield ok(package, version(package))
        except PackageNotFoundError:
            yield failed(
                package, "not installed", "Install liveness anew: pip install --force-reinstall liveness"
            )


def _check_database(settings: Settings) -> Iterator[CheckResult]:
    # Loaded when needed: each brings its driver with it.
    if (path := settings.sqlite_path) is not None:
        from liveness.cli import doctor_sqlite

        return doctor_sqlite.run_checks(path, settings.shards)
    from liveness.cli import doctor_postgres

    return doctor_postgres.run_checks(settings.db, settings.shards)


def _check_server(address: str) -> CheckResult:
    with open_channel(address) as channel:
        try:
            check = HealthStub(channel).Check  # type: ignore[attr-defined]  # missing from its published types
            status = check(HealthCheckRequest(), timeout=ANSWER_TIMEOUT_S).status
        except grpc.RpcError as error:
            code = cast(grpc.Call, error).code()  # what a stub raises is both
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return warning("server", f"none answers at {address}", "Start one with `liveness serve`.")
            return warning(
                "server", f"{address} answers {code.name}", "It does not seem to be a liveness server."
            )
    if status != HealthCheckResponse.SERVING:
        return warning(
            "server", f"{address} answers, but does not serve", "It is starting, stopping, or in trouble."
        )
    return ok("server", f"{address} serves")
