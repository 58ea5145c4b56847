"""`liveness watch`: what happens, as it happens, a sentence each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

import click
from rich.console import Console
from rich.text import Text

from liveness.cli.client import Client, client_command
from liveness.cli.event_words import TELLINGS, Sentence, Tone, sentence_of
from liveness.cli.failure import Misuse, inert
from liveness.cli.output import note, point_in_time, to_json
from liveness.cli.tailing import follow, until_nobody_reads
from liveness.settings import suggestion
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2 import WatchEventsRequest

INTERRUPTED = 130
STYLES = {
    Tone.COMES: "green",
    Tone.WORKS: "cyan",
    Tone.QUIET: "dim",
    Tone.ORDER: "magenta",
    Tone.LEAVES: "yellow",
    Tone.DIES: "bold red",
    Tone.TROUBLE: "red",
}


@click.command()
@click.option("--worker", metavar="KEY", default="", help="Only what happens to this worker.")
@click.option(
    "--type",
    "types",
    metavar="EVENT",
    multiple=True,
    help="Only events of this type; may be repeated, and 'Activity*' names all that begin so.",
)
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest event still kept.")
@click.option("--resume", metavar="TOKEN", default="", help="Go on after a line of an earlier --json.")
@click.option("--all-namespaces", "-A", is_flag=True, help="Whatever namespace it is in.")
@client_command()
def watch(
    client: Client,
    *,
    worker: str,
    types: tuple[str, ...],
    from_beginning: bool,
    resume: str,
    all_namespaces: bool,
    as_json: bool,
) -> None:
    """Tell what happens, as it happens.

    Goes on over restarts of the server and at other nodes, without a gap and without a repetition, until Ctrl-C. Plain
    renewals of leases are no events.

    With --json, each line is an event. A line's resume_token is where to go on after it; a line without one belongs
    together with the next that has one. The first line only tells where the watch begins.

    \b
    Examples:
      liveness watch
      liveness watch --worker worker-7 --from-beginning
      liveness watch --all-namespaces --type WorkerDeactivated --type ActivityQuarantined
      liveness watch --json | jq -r 'select(.type == "WorkerDeactivated") | .text'
    """
    if resume and from_beginning:
        raise Misuse("--resume and --from-beginning are two beginnings; give one of them")
    if worker and all_namespaces:
        raise Misuse("a worker is of one namespace: --worker cannot be combined with --all-namespaces")
    _check_types(types)
    request = WatchEventsRequest(
        namespace="" if all_namespaces else client.namespace,
        worker_instance_key=worker,
        resume_token=resume,
        from_beginning=from_beginning,
    )
    show = JsonLines() if as_json else Lines(all_namespaces)
    try:
        with until_nobody_reads(_stdout_descriptor()):
            for answer in follow(client, request, note):
                events = [event for event in answer.events if _is_one_of(event.type, types)]
                show(events, answer.resume_token)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _check_types(types: Sequence[str]) -> None:
    for pattern in types:
        if not any(fnmatchcase(known, pattern) for known in TELLINGS):
            raise Misuse(f"there is no event {pattern}; {suggestion(pattern, TELLINGS)}")


def _is_one_of(kind: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(kind, pattern) for pattern in patterns)


def _stdout_descriptor() -> int | None:
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None


class JsonLines:
    """One object per line, ASCII, for programs."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, events: Sequence[Event], resume_token: str) -> None:
        lines = [{**to_json(event), "text": str(sentence_of(event)), "resume_token": ""} for event in events]
        if not self._begun and not lines:
            lines = [{}]
        self._begun = True
        if lines:
            # All of an answer in one go: what follows it in the log is known for its last event alone.
            lines[-1]["resume_token"] = resume_token
            click.echo("\n".join(map(json.dumps, lines)))


class Lines:
    """A sentence per line; on a terminal in colour, and with the date only when it changes."""

    def __init__(self, with_namespace: bool) -> None:
        self._with_namespace = with_namespace
        self._console = Console(highlight=False) if sys.stdout.isatty() else None
        self._date = ""

    def __call__(self, events: Sequence[Event], resume_token: str) -> None:
        if self._console is None:
            lines = [
                f"{point_in_time(event, 'time')}  {self._where(event)}{inert(str(sentence_of(event)))}"
                for event in events
            ]
            if lines:
                click.echo("\n".join(lines))
            return
        for event in events:
            date, _, time = point_in_time(event, "time").partition(" ")
            if date != self._date:
                self._date = date
                self._console.print(Text(date, "bold"))
            self._console.print(self._line(time, event, sentence_of(event)), soft_wrap=True)

    def _line(self, time: str, event: Event, sentence: Sentence) -> Text:
        return Text.assemble(
            (f"{time}  ", "dim"),
            (self._where(event), "blue"),
            (inert(sentence.subject), "bold"),
            (f" {inert(sentence.text)}", STYLES[sentence.tone]),
        )

    def _where(self, event: Event) -> str:
        return f"{inert(event.namespace)}  " if self._with_namespace and event.namespace else ""
