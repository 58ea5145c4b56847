"""`liveness workers why`: show the death certificate of a worker."""

from __future__ import annotations

import click

from liveness.cli.activity_output import state_name
from liveness.cli.client import Client, client_command
from liveness.cli.durations import format_ms, to_ms
from liveness.cli.errors import escape_control
from liveness.cli.incidents import cause_text
from liveness.cli.output import enum_name, format_timestamp, print_fields, print_json, print_table, to_json
from liveness.v1.component_pb2 import ProcessExit
from liveness.v1.death_pb2 import VERDICT_FALSE, DeathCertificate, Verdict
from liveness.v1.service_pb2 import GetDeathCertificateRequest
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_PROCESS_EXITED,
    InactiveReason,
)

TIME_OF_DAY = "%H:%M:%S"


@click.command()
@click.argument("key")
@click.option(
    "--epoch",
    type=click.IntRange(min=1, max=2**63 - 1),
    metavar="N",
    help="The lease epoch.  [default: the last one that ended with a death]",
)
@client_command()
def why(client: Client, *, key: str, epoch: int | None, as_json: bool) -> None:
    """Show why a worker was declared dead.

    The certificate shows its last heartbeats, the stalls of the server, other deaths at the same time, where its
    activities are now, and whether the worker was alive after all.

    \b
    Examples:
      liveness workers why worker-7
      liveness workers why worker-7 --epoch 3
    """
    request = GetDeathCertificateRequest(
        namespace=client.namespace, worker_instance_key=key, lease_epoch=epoch or 0
    )
    death = client.call(client.liveness.GetDeathCertificate, request)
    if as_json:
        print_json(to_json(death))
        return
    click.echo(escape_control(summarize(death)))
    click.echo()
    print_fields(_fields(death))
    _print_last_lines(death)
    _print_heartbeats(death)
    _print_stalls(death)
    _print_activities(death)


def summarize(death: DeathCertificate) -> str:
    """The certificate in one sentence."""
    parts = [f"{death.worker_instance_key} {_cause_text(death)}"]
    if others := _related_deaths_text(death):
        parts.append(f"{others} died with it")
    if death.HasField("incident"):
        parts.append(
            f"part of incident {death.incident.incident_id}, likely cause: {cause_text(death.incident)}"
        )
    parts.append(f"verdict: {_verdict_text(death)}")
    return "; ".join(parts)


def _cause_text(death: DeathCertificate) -> str:
    if death.cause == INACTIVE_REASON_LEASE_EXPIRED and death.HasField("silence"):
        lease = format_ms(to_ms(death.granted_lease_duration))
        return (
            f"fell silent at {format_timestamp(death.last_heartbeat_time, TIME_OF_DAY)}: "
            f"no heartbeat for {_format_seconds(to_ms(death.silence))} of a {lease} lease"
        ) + _held_text(death)
    if death.cause == INACTIVE_REASON_PROCESS_EXITED:
        exit_part = f" ({exit_text(death.exit)})" if death.HasField("exit") else ""
        return f"lost its process at {format_timestamp(death.time, TIME_OF_DAY)}{exit_part}: {death.detail}"
    return f"was declared dead at {format_timestamp(death.time, TIME_OF_DAY)}: {death.detail}" + _held_text(
        death
    )


def exit_text(ended: ProcessExit) -> str:
    """How a process ended, in words."""
    if ended.signal:
        return f"killed by {ended.signal}"
    return f"exit code {ended.code}" if ended.HasField("code") else "nobody saw how it ended"


def _held_text(death: DeathCertificate) -> str:
    return f", {_format_seconds(to_ms(death.held))} of it held by a storm" if death.HasField("held") else ""


def _related_deaths_text(death: DeathCertificate) -> str:
    """The number of other deaths in the closest group: host, build or namespace."""
    company = death.company
    for count, group in (
        (company.same_host, f"of host {death.host_name}"),
        (company.same_build, f"of build {death.build_id}"),
        (company.same_namespace, f"in namespace {death.namespace}"),
    ):
        if count:
            return f"{count} {'other' if count == 1 else 'others'} {group}"
    return ""


def _verdict_text(death: DeathCertificate) -> str:
    if death.verdict != VERDICT_FALSE:
        return enum_name(Verdict, death.verdict).lower() or "not known"
    after_ms = death.refuted_time.ToMilliseconds() - death.time.ToMilliseconds()
    return f"FALSE, the same session came back {_format_seconds(after_ms)} later"


def _fields(death: DeathCertificate) -> list[tuple[str, object]]:
    company, has_silence = death.company, death.HasField("silence")
    return [
        ("worker", death.worker_instance_key),
        ("namespace", death.namespace),
        ("died", format_timestamp(death.time)),
        ("because", f"{enum_name(InactiveReason, death.cause)}: {death.detail}"),
        ("process", exit_text(death.exit) if death.HasField("exit") else ""),
        ("last heartbeat", format_timestamp(death.last_heartbeat_time) if has_silence else ""),
        ("silence", _format_seconds(to_ms(death.silence)) if has_silence else ""),
        ("lease", f"{format_ms(to_ms(death.granted_lease_duration))}, epoch {death.lease_epoch}"),
        ("held by a storm", _format_seconds(to_ms(death.held)) if death.HasField("held") else ""),
        ("session", death.session_id),
        ("host", death.host_name),
        ("build", death.build_id),
        ("task queue", death.task_queue),
        ("died within a minute", f"{company.same_namespace} others in the namespace"),
        ("  of the same host", company.same_host if death.host_name else ""),
        ("  of the same build", company.same_build if death.build_id else ""),
        ("incident", death.incident.message if death.HasField("incident") else ""),
        ("activities", death.activity_count),
        ("verdict", _verdict_text(death)),
        ("came back", format_timestamp(death.refuted_time) if death.HasField("refuted_time") else ""),
    ]


def _print_last_lines(death: DeathCertificate) -> None:
    if death.exit.last_lines:
        click.echo("\nwhat its process wrote last:")
        for line in death.exit.last_lines:
            click.echo(escape_control(f"  {line}"))


def _print_heartbeats(death: DeathCertificate) -> None:
    if death.heartbeats:
        click.echo("\nlast heartbeats:")
        print_table(
            ("time", "gap"),
            (
                (
                    format_timestamp(heartbeat.time),
                    _format_seconds(to_ms(heartbeat.gap)) if heartbeat.HasField("gap") else "",
                )
                for heartbeat in death.heartbeats
            ),
        )


def _print_stalls(death: DeathCertificate) -> None:
    if death.stalls:
        click.echo(
            "\nstalls of the server, in which it may have missed heartbeats (they do not count as silence):"
        )
        print_table(
            ("since", "for", "why"),
            (
                (
                    format_timestamp(stall.time),
                    _format_seconds(to_ms(stall.duration)) if stall.HasField("duration") else "",
                    "the shard was taken over"
                    if stall.take_over
                    else "the server stood still, heard calls late, or a commit hung",
                )
                for stall in death.stalls
            ),
        )


def _print_activities(death: DeathCertificate) -> None:
    if not death.activities:
        return
    more = death.activity_count - len(death.activities)
    click.echo(f"\nheld activities, and where they are now{f' ({more} more are not shown)' if more else ''}:")
    print_table(
        ("workflow", "run", "activity", "attempt", "now", "attempt", "worker"),
        (
            (
                moved.activity.workflow_id,
                moved.activity.run_id,
                moved.activity.activity_id,
                moved.activity.attempt,
                state_name(moved.state) or "not kept",
                moved.attempt or "",
                moved.worker_instance_key,
            )
            for moved in death.activities
        ),
    )


def _format_seconds(ms: int) -> str:
    """Seconds with one decimal; times below a second in milliseconds."""
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1_000:.1f} s" if ms < 600_000 else format_ms(ms - ms % 1_000)
