"""`liveness watch`: show events as they happen, one sentence each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

import click
from rich.console import Console
from rich.text import Text

from liveness.cli.client import Client, client_command
from liveness.cli.errors import UsageError, escape_control
from liveness.cli.event_stream import exit_when_unread, follow_events
from liveness.cli.event_text import FORMATTERS, EventText, EventTone, describe_event
from liveness.cli.output import format_time, print_note, to_json
from liveness.config.settings import suggestion
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2 import WatchEventsRequest

INTERRUPTED = 130
STYLES = {
    EventTone.ARRIVAL: "green",
    EventTone.PROGRESS: "cyan",
    EventTone.MINOR: "dim",
    EventTone.OPERATOR: "magenta",
    EventTone.DEPARTURE: "yellow",
    EventTone.DEATH: "bold red",
    EventTone.PROBLEM: "red",
}


@click.command()
@click.option("--worker", metavar="KEY", default="", help="Only events of this worker.")
@click.option(
    "--type",
    "types",
    metavar="EVENT",
    multiple=True,
    help="Only events of this type; may be repeated. 'Activity*' matches all types that begin with Activity.",
)
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest event that is kept.")
@click.option("--resume", metavar="TOKEN", default="", help="Continue after a line of an earlier --json.")
@client_command(all_namespaces="Show events of all namespaces.")
def watch(
    client: Client,
    *,
    worker: str,
    types: tuple[str, ...],
    from_beginning: bool,
    resume: str,
    as_json: bool,
) -> None:
    """Show events as they happen.

    The command runs until Ctrl-C. It continues after restarts of the server and on other nodes, without gaps and without
    repetitions. Plain renewals of leases are no events. If retention deletes events before they can be shown, the command ends
    with an error that says so.

    With --json, each line is an event. A line's resume_token continues the watch after that line; a line without one
    belongs to the next line that has one. The first line only shows where the watch begins.

    \b
    Examples:
      liveness watch
      liveness watch --worker worker-7 --from-beginning
      liveness watch --all-namespaces --type WorkerDeactivated --type ActivityQuarantined
      liveness watch --json | jq -r 'select(.type == "WorkerDeactivated") | .text'
    """
    if resume and from_beginning:
        raise UsageError("--resume and --from-beginning contradict each other; give one of them")
    if worker and client.all_namespaces:
        raise UsageError(
            "a worker belongs to one namespace: --worker cannot be combined with --all-namespaces"
        )
    _check_types(types)
    request = WatchEventsRequest(
        namespace="" if client.all_namespaces else client.namespace,
        worker_instance_key=worker,
        resume_token=resume,
        from_beginning=from_beginning,
    )
    show = JsonLines() if as_json else TextLines(client.all_namespaces)
    try:
        with exit_when_unread(_stdout_descriptor()):
            for answer in follow_events(client, request, print_note):
                events = [event for event in answer.events if _matches_type(event.type, types)]
                show(events, answer.resume_token)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _check_types(types: Sequence[str]) -> None:
    for pattern in types:
        if not any(fnmatchcase(known, pattern) for known in FORMATTERS):
            raise UsageError(f"there is no event {pattern}; {suggestion(pattern, FORMATTERS)}")


def _matches_type(kind: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(kind, pattern) for pattern in patterns)


def _stdout_descriptor() -> int | None:
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None


class JsonLines:
    """Prints one JSON object per line, in ASCII."""

    def __init__(self) -> None:
        self._has_started = False

    def __call__(self, events: Sequence[Event], resume_token: str) -> None:
        lines = [
            {**to_json(event), "text": str(describe_event(event)), "resume_token": ""} for event in events
        ]
        if not self._has_started and not lines:
            lines = [{}]
        self._has_started = True
        if lines:
            # One write per answer: only its last event has a position in the log from which the watch can continue.
            lines[-1]["resume_token"] = resume_token
            click.echo("\n".join(map(json.dumps, lines)))


class TextLines:
    """Prints one sentence per line; on a terminal in colour, and with the date only when it changes."""

    def __init__(self, with_namespace: bool) -> None:
        self._with_namespace = with_namespace
        self._console = Console(highlight=False) if sys.stdout.isatty() else None
        self._date = ""

    def __call__(self, events: Sequence[Event], resume_token: str) -> None:
        if self._console is None:
            lines = [
                f"{format_time(event, 'time')}  {self._namespace_prefix(event)}{escape_control(str(describe_event(event)))}"
                for event in events
            ]
            if lines:
                click.echo("\n".join(lines))
            return
        for event in events:
            date, _, time = format_time(event, "time").partition(" ")
            if date != self._date:
                self._date = date
                self._console.print(Text(date, "bold"))
            self._console.print(self._line(time, event, describe_event(event)), soft_wrap=True)

    def _line(self, time: str, event: Event, description: EventText) -> Text:
        return Text.assemble(
            (f"{time}  ", "dim"),
            (self._namespace_prefix(event), "blue"),
            (escape_control(description.subject), "bold"),
            (f" {escape_control(description.text)}", STYLES[description.tone]),
        )

    def _namespace_prefix(self, event: Event) -> str:
        return f"{escape_control(event.namespace)}  " if self._with_namespace and event.namespace else ""
