"""Reported metrics over HTTP: labels of a query are parameters like labels[queue]=gpu."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.http.http_client import JSON, Answer, Client

PATH = "/v1/namespaces/shop/metrics"


async def report(client: Client, *samples: dict[str, Any]) -> Answer:
    body = json.dumps({"worker_instance_key": "w", "samples": samples}).encode()
    return await client.ask("POST", PATH, JSON, body)


async def test_metrics_are_reported_and_queried_over_http(client: Client) -> None:
    labels = {"queue": "gpu ü&=[]", "zone": ""}
    answer = await report(
        client, {"name": "depth", "value": 2.5, "labels": labels}, {"name": "age", "value": 1}
    )
    assert (answer.code, answer.json()) == (200, {"stored_samples": 2})
    chosen = "labels[queue]=gpu%20%C3%BC%26%3D%5B%5D&labels%5Bzone%5D=&name=depth&step=60s"
    [series] = (await client.ask("GET", f"{PATH}?{chosen}")).json()["series"]
    assert (series["worker_instance_key"], series["type"], series["labels"]) == (
        "w",
        "METRIC_TYPE_GAUGE",
        labels,
    )
    assert [point["value"] for point in series["points"]] == [2.5]
    assert (await client.ask("GET", f"{PATH}?labels[queue]=cpu")).json()["series"] == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("labels[a]=1&labels[a]=2", "labels[a] occurs twice in the query."),
        ("labels=a", "There is no query parameter labels for QueryMetrics."),
        ("name[a]=b", "There is no query parameter name[a] for QueryMetrics."),
        ("labels[]=b", "a name in labels must be set."),
        ("page_size[a]=1", "There is no query parameter page_size[a] for QueryMetrics."),
    ],
)
async def test_a_bad_label_is_refused(client: Client, query: str, message: str) -> None:
    answer = await client.ask("GET", f"{PATH}?{query}")
    assert (answer.code, answer.error["message"]) == (400, message)


@pytest.mark.parametrize("value", ['"NaN"', '"Infinity"', '"-Infinity"', "1e201"])
async def test_a_value_that_is_no_number_is_refused(client: Client, value: str) -> None:
    body = f'{{"worker_instance_key": "w", "samples": [{{"name": "a", "value": {value}}}]}}'.encode()
    answer = await client.ask("POST", PATH, JSON, body)
    assert answer.code == 400
    assert answer.error["message"] == "samples[0].value must be a number between -1e+200 and 1e+200."
