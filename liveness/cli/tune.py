"""`liveness tune`: what other leases, disconnect graces and storm settings would have meant for a namespace."""

from __future__ import annotations

import click

from liveness.cli.client import Client, Milliseconds, client_command
from liveness.cli.durations import format_ms, from_ms, humanize_ms, to_ms
from liveness.cli.errors import UsageError
from liveness.cli.output import format_timestamp, print_json, print_note, print_table, to_json
from liveness.v1.insight_pb2 import TuneNamespaceRequest, TuneNamespaceResponse, TuneOutcome

COLUMNS = (
    "", "setting", "found after", "p99", "false deaths", "run twice", "work waited", "storms", "longest silence",
)  # fmt: skip


class Share(click.FloatRange):
    name = "SHARE"


@click.command()
@click.argument("of_namespace", metavar="[NAMESPACE]", required=False)
@click.option(
    "--range", "range_ms", type=Milliseconds(), default="7d", show_default=True, help="How far to look back."
)
@click.option(
    "--lease", "leases", type=Milliseconds(), multiple=True, help="A lease to try; may be repeated."
)
@click.option(
    "--grace",
    "graces",
    type=Milliseconds(),
    multiple=True,
    help="A disconnect grace to try; may be repeated.",
)
@click.option(
    "--storm-hold",
    "holds",
    type=Milliseconds(),
    multiple=True,
    help="A storm_hold to try, 0 for none; may be repeated.",
)
@click.option(
    "--storm-share", "shares", type=Share(0, 1), multiple=True, help="A storm_share to try; may be repeated."
)
@click.option(
    "--interval",
    "interval_ms",
    type=Milliseconds(),
    help="How often the workers send heartbeats, whatever their lease.  [default: every third of the lease, as the SDK does]",
)
@client_command(timeout="60s")
def tune(
    client: Client,
    *,
    of_namespace: str | None,
    range_ms: int,
    leases: tuple[int, ...],
    graces: tuple[int, ...],
    holds: tuple[int, ...],
    shares: tuple[float, ...],
    interval_ms: int | None,
    as_json: bool,
) -> None:
    """Replay the history of NAMESPACE with other settings, and recommend one.

    Shows for each setting how soon deaths would have been found, counted from the last heartbeat; how many workers would have been
    declared dead while they were alive, and how many activities would have run twice for that; and for how long the work of
    dead workers would have waited. Nothing is changed. Without options, settings near today's are tried one by one; with
    options, every combination of them.

    \b
    Examples:
      liveness tune orders
      liveness tune orders --range 30d --lease 10s --lease 20s --grace 5s
      liveness tune orders --json | jq -r .reason
    """
    source = click.get_current_context().get_parameter_source("namespace")
    if of_namespace and source is click.core.ParameterSource.COMMANDLINE and of_namespace != client.namespace:
        raise UsageError(
            f"NAMESPACE is {of_namespace} and --namespace is {client.namespace}; give one of them"
        )
    request = TuneNamespaceRequest(
        namespace=of_namespace or client.namespace,
        range=from_ms(range_ms),
        leases=map(from_ms, leases),
        disconnect_graces=map(from_ms, graces),
        storm_holds=map(from_ms, holds),
        storm_shares=shares,
    )
    if interval_ms is not None:
        request.heartbeat_interval.CopyFrom(from_ms(interval_ms))
    answer = client.call(client.admin.TuneNamespace, request)
    if as_json:
        print_json(to_json(answer))
        return
    click.echo(_summary(answer))
    click.echo()
    print_table(
        COLUMNS,
        [_row(outcome, is_best=index == answer.recommended) for index, outcome in enumerate(answer.outcomes)],
    )
    print_note(answer.reason)
    if answer.truncated:
        print_note("More workers died than are replayed: these are the last ones.")


def _summary(answer: TuneNamespaceResponse) -> str:
    return (
        f"Since {format_timestamp(answer.start_time)}, {answer.deaths} leases of {answer.namespace} ended because nothing was heard, "
        f"{answer.false_deaths} of them of workers that were alive; deaths were found "
        f"{humanize_ms(to_ms(answer.detection_median))} after the last heartbeat (median; p99 {humanize_ms(to_ms(answer.detection_p99))}). "
        f"Workers went on after {answer.survived_silences} long silences in "
        f"{humanize_ms(to_ms(answer.watched))} of worker time. {answer.active_workers} are active."
    )


def setting_text(outcome: TuneOutcome) -> str:
    parts = [
        f"{name} {format_ms(to_ms(getattr(outcome, field)))}"
        for field, name in (("lease", "lease"), ("disconnect_grace", "grace"), ("storm_hold", "storm_hold"))
        if outcome.HasField(field)  # type: ignore[arg-type]  # names of fields
    ]
    if outcome.HasField("storm_share"):
        parts.append(f"storm_share {outcome.storm_share:g}")
    return ", ".join(parts) or f"today: lease {format_ms(to_ms(outcome.usual_lease))}"


def _row(outcome: TuneOutcome, *, is_best: bool) -> tuple[object, ...]:
    return (
        "→" if is_best else "",
        setting_text(outcome),
        humanize_ms(to_ms(outcome.detection_median)),
        humanize_ms(to_ms(outcome.detection_p99)),
        outcome.false_deaths,
        outcome.repeated_activities,
        humanize_ms(to_ms(outcome.waited)),
        outcome.storms,
        f"{outcome.longest_silence_share:.0%}",
    )
