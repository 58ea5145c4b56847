"""docs/benchmarks.md and its pictures are generated from the result file and match it."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import plot
from bench.flames import format_frame, module_name, prune
from bench.report import IMAGES, PAGE, render
from bench.results import FILE, ROOT
from bench.rounds import AT_LEAST, Bar, row

PICTURE_BYTES_MAX = 300_000


def results(*rows: dict[str, Any]) -> dict[str, Any]:
    machine = {
        "cores": 2, "processor": "one", "memory_gib": 4, "kernel": "Linux", "python": "CPython", "sqlite": "3",
        "h2load": "h2load", "packages": {},
    }  # fmt: skip
    common = {"commit": "abc", "scale": 1.0, "at": "2026-11-17 05:00 UTC", "took_s": 1.0}
    return {"machine": machine, "rows": [{**common, **row} for row in rows]}


def against_noop(bar: Bar | None = None) -> dict[str, Any]:
    found = {"liveness": [2_000.0, 2_100.0], "no-op": [2_500.0, 2_600.0]}
    return {**row("unary", "heartbeats/s", found, "liveness", "no-op", bar), "family": "no-op"}


def test_the_committed_page_matches_the_result_file() -> None:
    for file, text in render(json.loads(FILE.read_text(encoding="utf-8"))).items():
        assert file.read_text(encoding="utf-8") == text, (
            f"run `python -m bench.report`: {file.name} is out of date"
        )


def test_the_page_marks_a_missed_bar() -> None:
    page = render(results(against_noop(Bar(sense=AT_LEAST, value=0.9))))[PAGE]
    assert "**missed**" in page
    assert "**missed**" not in render(results(against_noop(Bar(sense=AT_LEAST, value=0.5))))[PAGE]


def test_the_table_lists_a_peer_that_did_not_start_as_skipped() -> None:
    gone = {"row": "etcd, unary", "family": "etcd", "skipped": "etcd does not answer"}
    assert "| etcd, unary | skipped: etcd does not answer |" in render(results(gone))[PAGE]


def test_the_page_labels_a_smaller_run_as_a_trial() -> None:
    assert "A trial run" in render(results({**against_noop(), "scale": 0.1}))[PAGE]
    assert "A trial run" not in render(results({**against_noop(), "scale": 1.0}))[PAGE]


def test_pictures_are_valid_xml_and_need_only_some_rows() -> None:
    files = render(results(against_noop()))
    assert IMAGES / "bench-peers.svg" in files
    for file, text in files.items():
        if file.suffix == ".svg":
            ElementTree.fromstring(text)


def test_names_in_pictures_are_escaped() -> None:
    ElementTree.fromstring(plot.bars("a < b & c", "u", [plot.Bar('"<x>"', 1.0, 1.0, 1.0)], ["&"]))


@pytest.mark.parametrize("value", [1.0, 3.0, 10.0])
def test_higher_values_reach_further_on_a_logarithmic_scale(value: float) -> None:
    scale = plot.Scale([1.0, 100.0], 0, 200)
    assert scale(value) < scale(value * 2)
    assert scale(1.0) == 0
    assert scale(100.0) == 200


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (f"{ROOT}/liveness/engine/shard.py", "liveness.engine.shard"),
        ("/anywhere/lib/python3.11/site-packages/grpc/aio/__init__.py", "grpc.aio"),
        ("/usr/lib/python3.11/asyncio/base_events.py", "asyncio.base_events"),
        ("/somewhere/else/tool.py", "tool"),
    ],
)
def test_flame_graph_frames_name_modules_instead_of_folders(file: str, named: str) -> None:
    assert module_name(file) == named
    assert format_frame(f"record ({file}:12)") == f"{named}:record"


def test_frames_too_small_to_see_are_added_to_their_caller() -> None:
    stacks: dict[tuple[str, ...], int] = {("a", "b"): 9_990, ("a", "c"): 10}
    assert prune(stacks) == {("a", "b"): 9_990, ("a",): 10}


def test_committed_pictures_are_small_and_contain_no_local_paths() -> None:
    pictures = list(IMAGES.glob("bench-*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text(encoding="utf-8")
        assert len(text) < PICTURE_BYTES_MAX
        assert not [folder for folder in ("/home/", "/root/", "/usr/", "/tmp/", str(ROOT)) if folder in text]
