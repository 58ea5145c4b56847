"""python -m bench.report: write docs/benchmarks.md and its images from the result file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.formatting import Row, bar_of, details, number, spread_of, verdict
from bench.results import FILE, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"

INTRODUCTION = """\
# Benchmarks

`make bench` measures all figures of this page. Every figure has another side that is measured in turn with ours in the same
run: a peer, a limit, or our server under other conditions. The ratio is taken round by round, so that conditions that slow
both sides down cancel out; tables show the median and, in parentheses, the lowest and the highest round. Absolute figures
hold for the machine below, on which servers, databases and load share the same few cores.

h2load sends the load where one message is repeated, so that a Python client is not what is measured; a grpc.aio client sends
it where many different workers are needed. Every call is checked: by the status that the client sees, by the size of the
answers, or by the server's own counters, read afterwards.

`python -m bench.report` writes this page and its images from [results/benchmarks.json](results/benchmarks.json).
"""
TRIAL = """\
> **A trial run, not a measurement:** these figures were taken at a fraction of the real sizes. They show what is measured,
> not how fast it is.
"""
REST = """
The causes of missed bars, from profiles of the same rows:

- **Batches of 100.** Parsing and answering take a third of a heartbeat's processor time. The rest is the decision, half of which
  is lookups (worker, fingerprint, heartbeat history, pending renewal), and the commit's thread, which shares the interpreter
  with the event loop. This bar is the closest one: on the same machine the ratio varies between 0.22 and 0.39 from hour to hour.
- **100 activities per worker.** A changed binding costs 8 µs: 2 to check, decide and apply it, the rest to receive it and to
  write it to the log and to disk. With 8 calls under way the p50 is twice that without activities; with 64 calls it equals the
  ratio of processor times.
- **p99 at half the load.** Half the rate is not half the work: a commit costs about a millisecond of processor time, for two
  heartbeats as for fifty. At 500 heartbeats/s one heartbeat costs 1.2 ms, at 2,500/s 0.4 ms. So at half the maximum the server
  is nearly as busy as at the maximum, and other load on the machine shows. On a file system in memory, where commits stayed
  below 9 ms (p99), the p99 of answers was no better; committing more or less often, or switching threads sooner, changed it by
  less than the difference between rounds.
- **Mass expiry.** A lease with ten activities costs 150 µs when nothing else runs: 45 to decide (certificate, event, worker,
  ten queue entries), 60 to build the rows, 45 for SQLite to write twelve of them. In parallel, the two threads take half as long
  again. etcd deletes keys, a thousand leases a second.
- **A million workers.** Every heartbeat reads a worker that is in no processor cache; this costs about 10 µs per heartbeat on
  this machine, which shows in a batch and not in a single call. Full garbage collections cost as much again and are rare now.
- **Recovery.** A worker's row is read (2 µs), its checksum verified (2), decoded (4) and folded (3), and the log since the last
  checkpoint is read (4), all on one thread. The sum was 27 µs before rows were read in their raw form and log payloads were left
  undecoded. The interpreter, imports and an empty start take just under 2 s.
"""

PEERS = """\
Rates alone do not compare these systems: an answer means different things.

| | when the answer comes, the heartbeat is | when heartbeats stop |
|---|---|---|
| liveness | on disk (SQLite or PostgreSQL, synced) | the lease ends within a second, the worker's activities are rescheduled in the same transaction, and all watchers are told |
| no-op gRPC server | nowhere | nothing |
| etcd, keep-alive | in the leader's memory | the lease is revoked and its keys are deleted, at most 1,000 leases a second; watchers are told; rescheduling is up to you |
| etcd, lease grant | in its log, synced | |
| Temporal, RecordWorkerHeartbeat | in the memory of one process | the worker vanishes from the list |
| Valkey on disk | in the append-only file, synced | the key vanishes |
| Valkey in memory | in memory | the key vanishes |
| PostgreSQL, one UPDATE | in its log, synced | nothing until a program queries for overdue rows |
"""
AUTHENTICATION = """\
The same heartbeats with a token at a server that asks who calls (`--auth on`), against heartbeats without one at a server that does
not ask: what identity, the limits of a principal and the watch for suspicious calls cost. 1 would be nothing, and 0.95 means
that a server answers 5 % fewer heartbeats.

The difference is smaller than that between two processes of the same program, whose memory is laid out differently (up to 4 %), and
much smaller than what other programs on the machine change from one second to the next. So both servers, and a frontend before
each, run in one process, and a second process starts them in the opposite order. The load comes by turns in windows of some 60 ms. Each window is compared with its neighbour, and the
ratio of a round is the median of these: a burst of other load hits a few windows, which the median ignores. "heartbeats per CPU
second" is the same ratio by the processor time of the process, which does not count the time that others had the processor. The
load is a bare HTTP/2 client (`bench/http2_load.py`), which needs a tenth of what the server needs for a call.

In the handler alone, a heartbeat with a known token costs about 3 µs more than one without: a lookup by the header's text, the
count against the principal's limits, and a lookup of its roles in the namespace. Of a batch, that is once for all its heartbeats.
"""
FLAMES = (
    ("batches", "The server under batches of a hundred heartbeats"),
    ("expiry", "The server while leases with ten activities each lapse at once"),
)


class Report:
    def __init__(self, results: Mapping[str, Any]) -> None:
        self.machine: Mapping[str, Any] = results["machine"]
        self.rows: dict[str, Row] = {row["row"]: row for row in results["rows"]}

    def of(self, *families: str) -> list[Row]:
        return [row for row in self.rows.values() if row["family"] in families]

    # -- the page

    def page(self) -> str:
        pictures = self.pictures()
        parts = [INTRODUCTION]
        if any(row["scale"] < 1 for row in self.rows.values()):
            parts.append(TRIAL)
        parts += [self._machine(), "## Targets", self._bars()]
        parts += ["## Authentication", AUTHENTICATION, _table(self.of("authentication"))]
        parts += ["## Comparison with other systems", PEERS, *_shown(pictures, "peers")]
        parts.append(_table(self.of("no-op", "etcd", "temporal", "valkey", "postgresql")))
        parts += ["## Growth", "### Workers", *_shown(pictures, "workers")]
        parts.append(_grown([row for row in self.of("workers") if "workers" in row.get("more", {})]))
        parts += ["### Activities per worker", *_shown(pictures, "activities")]
        parts.append(_grown(self.of("growth of activities")))
        parts += ["### Nodes", *_shown(pictures, "nodes"), _table(self.of("cluster"))]
        parts += ["## Loss of a node", _table(self.of("take-over"))]
        parts += ["## Detection and hand-out", _table(self.of("moving on"))]
        parts += ["## Supervised processes", _table(self.of("idle supervisor", "killed process"))]
        parts += ["## Temporal through the bridge", _table(self.of("temporal bridge"))]
        parts += ["## Where the time goes", REST, self._flames()]
        parts += ["## Notes", self._notes(), "## How it was measured", self._how()]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def _machine(self) -> str:
        known = self.machine
        packages = ", ".join(f"{name} {version}" for name, version in known["packages"].items())
        return (
            f"The machine: {known['cores']} cores ({known['processor']}), {known['memory_gib']} GiB, {known['kernel']}, "
            f"{known['python']}, SQLite {known['sqlite']}; {known['h2load']}; {packages}."
        )

    def _bars(self) -> str:
        judged = [row for row in self.rows.values() if "bar" in row]
        if not judged:
            return "Nothing has been measured yet."
        lines = ["| what | ours | other side | ratio | bar | |", "|---|---|---|---|---|---|"]
        for row in judged:
            ours, theirs = (
                f"{name}: {spread_of(row['sides'][name])} {row['unit']}"
                for name in (row["ours"], row["theirs"])
            )
            met = "met" if row["bar"]["met"] else "**missed**"
            lines.append(
                f"| {row['row']} | {ours} | {theirs} | {spread_of(row['ratio'])} | {bar_of(row)} | {met} |"
            )
        lines += ["", *(f"- {row['row']}: {'; '.join(details(row))}" for row in judged if details(row))]
        return "\n".join(lines)

    def _flames(self) -> str:
        lines = [
            (
                "Taken with py-spy while the server works (`python -m bench.flames`). Callers are below; a box is as wide as its "
                "part of the time. Open a picture by itself to read the names of narrow boxes by hovering."
            ),
        ]
        for name, title in FLAMES:
            if (IMAGES / f"bench-flame-{name}.svg").exists():
                lines += ["", f"![{title}](images/bench-flame-{name}.svg)"]
        return "\n".join(lines)

    def _notes(self) -> str:
        notes: dict[str, list[str]] = {}
        for row in self.rows.values():
            for note in row.get("notes", ()):
                notes.setdefault(note, []).append(row["row"])
        return "\n".join(f"- *{_joined(names)}:* {note}" for note, names in notes.items())

    def _how(self) -> str:
        runs: dict[tuple[str, float], list[Row]] = {}
        for row in self.rows.values():
            runs.setdefault((row["commit"], row["scale"]), []).append(row)
        lines = []
        for (commit, scale), rows in runs.items():
            times = sorted(row["at"] for row in rows)
            took = sum(row["took_s"] for row in rows)
            lines.append(
                f"- commit `{commit}`, scale {scale:g}: {len(rows)} rows, {times[0]} to {times[-1]}, {took:,.0f} s"
            )
        return "\n".join(lines)

    # -- pictures

    def pictures(self) -> dict[str, str]:
        made = {
            "peers": self._peers(),
            "workers": self._line(
                "workers",
                "Heartbeats per second against tracked workers",
                "tracked workers",
                "workers",
                "heartbeats/s, batches of 100",
            ),
            "activities": self._line(
                "growth of activities",
                "Heartbeats per second against activities per worker",
                "activities per worker, half of which change with each heartbeat",
                "activities",
                "heartbeats/s, single calls",
            ),
            "nodes": self._nodes(),
        }
        return {name: drawn for name, drawn in made.items() if drawn}

    def _peers(self) -> str:
        bars: list[plot.Bar] = []
        groups = ("unary", "batches of 100")
        for group, kind in enumerate(groups):
            limit = self.rows.get(kind, {})
            for name, values in limit.get("sides", {}).items():
                label = "no-op grpc.aio (the limit)" if name == "no-op" else name
                bars.append(plot.Bar(label, values["median"], values["min"], values["max"], group))
            for row in self.of("etcd", "temporal", "valkey", "postgresql"):
                if "ratio" in row and row["row"].endswith(f", {kind}"):
                    values = row["sides"][row["theirs"]]
                    bars.append(
                        plot.Bar(row["theirs"], values["median"], values["min"], values["max"], group)
                    )
        names = [f"{kind} (one heartbeat per call)" if kind == "unary" else kind for kind in groups]
        return plot.bars("Heartbeats per second", "heartbeats/s", bars, names) if bars else ""

    def _line(self, family: str, title: str, across: str, by: str, unit: str) -> str:
        points = []
        for row in self.of(family):
            if "ratio" in row and row["unit"] == "heartbeats/s" and by in row["more"]:
                values = row["sides"][row["ours"]]
                points.append((row["more"][by], values["median"], values["min"], values["max"]))
        return plot.lines(title, across, unit, [plot.Line("liveness", points)]) if len(points) > 1 else ""

    def _nodes(self) -> str:
        bars = []
        groups = ("unary", "batches of 100")
        for row in self.of("cluster"):
            if "ratio" in row:
                _, _, rest = row["row"].partition(": ")
                kind = next(kind for kind in groups if rest.startswith(kind))
                values = row["sides"][row["ours"]]
                label = rest.removeprefix(f"{kind}, ")
                bars.append(
                    plot.Bar(label, values["median"], values["min"], values["max"], groups.index(kind))
                )
        title = "Heartbeats per second of one to three nodes on one machine and one PostgreSQL"
        return plot.bars(title, "heartbeats/s", bars, groups) if bars else ""


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def _shown(pictures: Mapping[str, str], name: str) -> list[str]:
    if name not in pictures:
        return []
    title = pictures[name].partition("<title>")[2].partition("</title>")[0]
    return [f"![{title}](images/bench-{name}.svg)"]


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "Not measured yet."
    lines = ["| row | ours | other side | ratio | besides |", "|---|---|---|---|---|"]
    for row in rows:
        if "ratio" not in row:
            said = row.get("skipped") or row.get("failed")
            lines.append(f"| {row['row']} | {verdict(row)}: {said} | | | |")
            continue
        ours, theirs = (f"{name}: {spread_of(row['sides'][name])}" for name in (row["ours"], row["theirs"]))
        lines.append(
            f"| {row['row']} | {ours} {row['unit']} | {theirs} | {spread_of(row['ratio'])} | {'; '.join(details(row))} |"
        )
    return "\n".join(lines)


def _grown(rows: Sequence[Row]) -> str:
    """Return a table with the additional figures as columns."""
    rows = [row for row in rows if row.get("unit") == "heartbeats/s"]
    if not rows:
        return "Not measured yet."
    names = [name for name in rows[-1]["more"] if name not in ("workers", "activities")]
    lines = [f"| | heartbeats/s | ratio | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        found = " | ".join(number(row["more"][name]) if name in row["more"] else "–" for name in names)
        lines.append(
            f"| {row['row']} | {spread_of(row['sides'][row['ours']])} | {spread_of(row['ratio'])} | {found} |"
        )
    return "\n".join(lines)


def render(results: Mapping[str, Any]) -> dict[Path, str]:
    """Return every file that is generated from the result file."""
    report = Report(results)
    files = {IMAGES / f"bench-{name}.svg": drawn for name, drawn in report.pictures().items()}
    return {PAGE: report.page(), **files}


def write(path: Path = FILE) -> None:
    for file, text in render(json.loads(path.read_text(encoding="utf-8"))).items():
        file.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    options = parser.parse_args()
    if not options.check:
        write()
        return 0
    made = render(json.loads(FILE.read_text(encoding="utf-8")))
    stale = [
        file for file, text in made.items() if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in stale:
        print(f"{file.relative_to(ROOT)} is not what `python -m bench.report` writes", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
