"""Bad input to every route of the registry, of progress and of metrics: one sentence, the code of a client's mistake, and nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.http.http_client import JSON, Client

ORDERS = "/v1/namespaces/orders"
REGISTER, HEARTBEAT, DEREGISTER = (
    f"{ORDERS}/registry/{verb}" for verb in ("register", "heartbeat", "deregister")
)
ENTRIES, PROGRESS, METRICS = f"{ORDERS}/registry", f"{ORDERS}/progress", f"{ORDERS}/metrics"
KEY = {"worker_instance_key": "broker:a"}
UNIT = {"worker_instance_key": "w", "unit": "items"}
LONG = "x" * 5_000
DEEP = b"[" * 3_000 + b"]" * 3_000
INVALID = 400, "INVALID_FIELD"
UNFIT = 400, "UNFIT_BODY"
UNKNOWN = 400, "UNKNOWN_PARAMETER"


def sample(**fields: Any) -> dict[str, Any]:
    return {"worker_instance_key": "w", "samples": [{"name": "depth", "value": 1, **fields}]}


WRITERS = (REGISTER, HEARTBEAT, DEREGISTER, PROGRESS, f"{PROGRESS}/items/forget", METRICS)
BODIES: dict[str, bytes] = {
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"7",
    "not UTF-8": b'{"worker_instance_key": "\xff"}',
    "half a character": b'{"worker_instance_key": "\\ud800"}',
    "deep": b'{"worker_instance_key": ' + DEEP + b"}",
    "a field of another kind": b'{"worker_instance_key": {"a": 1}, "reason": {"a": 1}}',
    "an unknown field": b'{"nothing": 1}',
    "a field twice": b'{"worker_instance_key": "broker:a", "worker_instance_key": "broker:b"}',
    "NaN": b'{"successes": NaN, "sequence": NaN, "capacity": NaN}',
}
POSTS: list[tuple[str, dict[str, Any], tuple[int, str]]] = [
    (REGISTER, {}, INVALID),
    (REGISTER, {"worker_instance_key": "nats"}, INVALID),
    (REGISTER, {"worker_instance_key": "worker:a"}, INVALID),
    (REGISTER, {"worker_instance_key": "broker:" + LONG}, INVALID),
    (REGISTER, {**KEY, "uri": LONG}, INVALID),
    (REGISTER, {**KEY, "status": "offline"}, INVALID),
    (REGISTER, {**KEY, "capacity": -1}, INVALID),
    (REGISTER, {**KEY, "capacity": 2**31}, UNFIT),
    (REGISTER, {**KEY, "capacity": "many"}, UNFIT),
    (REGISTER, {**KEY, "runtime_json": "[]"}, INVALID),
    (REGISTER, {**KEY, "labels": ["a"]}, UNFIT),
    (REGISTER, {**KEY, "labels": {"a": 1}}, UNFIT),
    (REGISTER, {**KEY, "expected_interval": "15"}, UNFIT),
    (REGISTER, {**KEY, "expected_interval": "-1s"}, INVALID),
    (REGISTER, {**KEY, "lease_duration": "0s"}, INVALID),
    (REGISTER, {**KEY, "on_replica": "REPLICA_POLICY_FIGHT"}, UNFIT),
    (REGISTER, {**KEY, "session_id": "b", "on_replica": "REPLICA_POLICY_REFUSE"}, (400, "WORKER_KEY_HELD")),
    (REGISTER, {**KEY, "namespace": "other"}, INVALID),
    (HEARTBEAT, {}, INVALID),
    (HEARTBEAT, {"worker_instance_key": "broker:nobody"}, (404, "REGISTRY_ENTRY_NOT_FOUND")),
    (HEARTBEAT, {**KEY, "session_id": "stranger"}, (400, "SESSION_NOT_CURRENT")),
    (HEARTBEAT, {**KEY, "sequence": -1}, UNFIT),
    (HEARTBEAT, {**KEY, "sequence": 2**63}, INVALID),
    (HEARTBEAT, {**KEY, "successes": 1.5}, UNFIT),
    (HEARTBEAT, {**KEY, "successes": 2**41}, INVALID),
    (HEARTBEAT, {**KEY, "status": "a\nb"}, INVALID),
    (HEARTBEAT, {**KEY, "last_error": LONG}, INVALID),
    (DEREGISTER, {}, INVALID),
    (DEREGISTER, {"worker_instance_key": "broker:nobody"}, (404, "REGISTRY_ENTRY_NOT_FOUND")),
    (DEREGISTER, {**KEY, "session_id": "stranger"}, (400, "SESSION_NOT_CURRENT")),
    (DEREGISTER, {**KEY, "reason": LONG}, INVALID),
    (PROGRESS, {"unit": "items", "successes": 1}, INVALID),
    (PROGRESS, {"worker_instance_key": "w", "successes": 1}, INVALID),
    (PROGRESS, {**UNIT, "unit": "x" * 201}, INVALID),
    (PROGRESS, {**UNIT, "unit": "a\0b"}, INVALID),
    (PROGRESS, {**UNIT, "successes": -1}, UNFIT),
    (PROGRESS, {**UNIT, "successes": 2**41}, INVALID),
    (PROGRESS, {**UNIT, "errors": 1}, INVALID),
    (PROGRESS, {**UNIT, "error": "e", "errors": 2**41}, INVALID),
    (PROGRESS, {**UNIT, "report_id": "x" * 129}, INVALID),
    (f"{PROGRESS}/nobody/forget", {}, (404, "UNIT_NOT_FOUND")),
    (f"{PROGRESS}/items/forget", {"reason": LONG}, INVALID),
    (METRICS, {}, INVALID),
    (METRICS, {"worker_instance_key": "w"}, INVALID),
    (METRICS, {"worker_instance_key": "w", "samples": [{}]}, INVALID),
    (METRICS, {"worker_instance_key": "w", "samples": {"name": "depth"}}, UNFIT),
    (METRICS, {"worker_instance_key": "w", "samples": [{"name": "depth", "value": 1}] * 1_001}, INVALID),
    (METRICS, sample(name="9"), INVALID),
    (METRICS, sample(name="x" * 201), INVALID),
    (METRICS, sample(value="many"), UNFIT),
    (METRICS, sample(labels={"a b": "c"}), INVALID),
    (METRICS, sample(labels={f"l{number}": "" for number in range(17)}), INVALID),
    (METRICS, sample(labels={"a": "x" * 256}), INVALID),
    (METRICS, sample(time="2020-01-01T00:00:00Z"), INVALID),
    (METRICS, sample(time="soon"), UNFIT),
    (METRICS, sample(type="METRIC_TYPE_HISTOGRAM"), UNFIT),
    (METRICS, sample(unit="x" * 64), INVALID),
]  # fmt: skip
GETS: list[tuple[str, tuple[int, str]]] = [
    (f"{ENTRIES}/nats", INVALID),
    (f"{ENTRIES}/broker:nobody", (404, "REGISTRY_ENTRY_NOT_FOUND")),
    (f"{ENTRIES}/broker:%ff", INVALID),
    (f"{ENTRIES}?kind=A%20B", INVALID),
    (f"{ENTRIES}?status=" + "x" * 65, INVALID),
    (f"{ENTRIES}?stale=perhaps", INVALID),
    (f"{ENTRIES}?page_size=1001", INVALID),
    (f"{ENTRIES}?page_size=many", INVALID),
    (f"{ENTRIES}?page_token=abc", (400, "PAGE_TOKEN_INVALID")),
    (f"{ENTRIES}?labels=a", UNKNOWN),
    (f"{ENTRIES}?nothing=1", UNKNOWN),
    (f"{PROGRESS}/nobody", (404, "UNIT_NOT_FOUND")),
    (f"{PROGRESS}/" + "x" * 201, INVALID),
    (f"{PROGRESS}?prefix=" + "x" * 201, INVALID),
    (f"{PROGRESS}?failing=perhaps", INVALID),
    (f"{PROGRESS}?page_size=-1", INVALID),
    (f"{PROGRESS}?page_token=abc", (400, "PAGE_TOKEN_INVALID")),
    (f"{PROGRESS}?nothing=1", UNKNOWN),
    (f"{METRICS}?name=%00", INVALID),
    (f"{METRICS}?step=0s", INVALID),
    (f"{METRICS}?step=1", INVALID),
    (f"{METRICS}?start_time=soon", INVALID),
    (f"{METRICS}?start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z", INVALID),
    (f"{METRICS}?page_size=1001", INVALID),
    (f"{METRICS}?page_token=abc", (400, "PAGE_TOKEN_INVALID")),
    (f"{METRICS}?nothing=1", UNKNOWN),
]
VERBS = [("DELETE", REGISTER), ("PUT", DEREGISTER), ("DELETE", PROGRESS), ("PUT", METRICS), ("POST", ENTRIES)]


@pytest.fixture
async def known(client: Client) -> Client:
    """A component, a unit of work and a series that must stay as they are."""
    await client.post(REGISTER, {**KEY, "session_id": "a", "uri": "nats://a", "lease_duration": "60s"})
    await client.post(PROGRESS, {**UNIT, "successes": 3})
    await client.post(METRICS, sample())
    return client


async def everything(client: Client) -> list[Any]:
    return [
        (await client.get(ENTRIES))["entries"],
        (await client.get(PROGRESS))["units"],
        [
            (one["name"], [point["value"] for point in one["points"]])
            for one in (await client.get(METRICS))["series"]
        ],
    ]


async def refusal_of(client: Client, verb: str, path: str, body: bytes = b"") -> tuple[int, str]:
    answer = await client.ask(verb, path, JSON if verb != "GET" else None, body)
    assert answer.code >= 400, (path[:80], body[:200], answer.body[:300])
    assert answer.error["message"], path
    return answer.code, answer.error["reason"]


async def test_a_body_that_cannot_be_read_is_refused_by_every_route(known: Client) -> None:
    before = await everything(known)
    for path in WRITERS:
        for name, body in BODIES.items():
            code, _ = await refusal_of(known, "POST", path, body)
            assert code == 400, (path, name)
        answer = await known.ask("POST", path, {"Content-Type": "text/plain"}, b"{}")
        assert (answer.code, answer.error["reason"]) == (415, "CONTENT_TYPE_NOT_JSON")
    assert await everything(known) == before


async def test_a_field_that_is_wrong_is_refused_by_the_route_that_has_it(known: Client) -> None:
    before = await everything(known)
    for path, body, expected in POSTS:
        assert await refusal_of(known, "POST", path, json.dumps(body).encode()) == expected, (
            path,
            str(body)[:200],
        )
    assert await everything(known) == before


async def test_a_query_that_is_wrong_is_refused(known: Client) -> None:
    for path, expected in GETS:
        assert await refusal_of(known, "GET", path) == expected, path[:100]


async def test_a_verb_that_a_route_does_not_have_is_refused(known: Client) -> None:
    for verb, path in VERBS:
        answer = await known.ask(verb, path, JSON, b"{}")
        assert (answer.code, bool(answer.headers["allow"])) == (405, True), (verb, path)
