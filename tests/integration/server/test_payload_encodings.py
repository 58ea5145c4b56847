"""The server keeps how inputs and results are encoded, and never reads it."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.v1 import activity_pb2 as pb
from tests.integration.server.activity_client import ActivityClient, activity_id
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal


@pytest.fixture
async def activity_client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


async def describe(client: ActivityClient, name: str) -> pb.Activity:
    request = pb.DescribeActivityRequest(namespace=NAMESPACE, id=activity_id(name))
    answer: pb.DescribeActivityResponse = await client.harness.activities.DescribeActivity(request)
    return answer.activity


async def complete(client: ActivityClient, task: pb.ActivityTask, **fields: Any) -> None:
    token: dict[str, Any] = {
        "worker_instance_key": "w",
        "lease_epoch": task.lease_epoch,
        "attempt": task.attempt,
    }
    request = pb.CompleteActivityRequest(namespace=NAMESPACE, id=task.id, **token, **fields)
    await client.harness.activities.CompleteActivity(request)


async def test_encodings_are_kept_across_a_restart(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    await activity_client.schedule("a", input=b"1", input_encoding="json/plain")
    await activity_client.harness.restart()
    task = await activity_client.take()
    assert task.input_encoding == "json/plain"
    await complete(activity_client, task, result=b"\x00", result_encoding="own/größe")
    await activity_client.harness.restart()
    found = await describe(activity_client, "a")
    assert (found.input_encoding, found.result_encoding) == ("json/plain", "own/größe")


async def test_a_claimed_activity_has_the_encoding_of_its_claim(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    task = await activity_client.claim("a", input=b"x", input_encoding="text/plain")
    assert task.input_encoding == "text/plain"


@pytest.mark.parametrize(
    ("first", "again", "is_same"),
    [
        ("json/plain", "json/plain", True),
        ("json/plain", "text/plain", False),
        ("", "text/plain", True),
        ("text/plain", "", True),
    ],
)
async def test_the_same_input_in_another_encoding_is_another_input(
    activity_client: ActivityClient, first: str, again: str, is_same: bool
) -> None:
    """A client that names no encoding, as older ones do, may repeat what another client scheduled."""
    await activity_client.schedule("a", input=b"17", input_encoding=first)
    repeated = activity_client.schedule("a", input=b"17", input_encoding=again)
    if is_same:
        assert not (await repeated).created
    else:
        refused = await refusal(repeated)
        assert (refused.reason, "input encoding" in refused.message) == ("ACTIVITY_DIFFERS", True)
    assert (await describe(activity_client, "a")).input_encoding == first


@pytest.mark.parametrize("encoding", ["x" * 65, "ü" * 33, "a\nb"])
async def test_an_encoding_must_be_a_short_name(activity_client: ActivityClient, encoding: str) -> None:
    refused = await refusal(activity_client.schedule("a", input_encoding=encoding))
    assert (refused.reason, "input_encoding" in refused.message) == ("INVALID_FIELD", True)
    await activity_client.beat()
    task = await activity_client.claim("b")
    refused = await refusal(complete(activity_client, task, result_encoding=encoding))
    assert (refused.reason, "result_encoding" in refused.message) == ("INVALID_FIELD", True)


@pytest.mark.parametrize("types", [["x" * 256], ["a\x00"], [str(number) for number in range(1_001)]])
async def test_the_types_of_a_poll_are_limited(activity_client: ActivityClient, types: list[str]) -> None:
    await activity_client.beat()
    refused = await refusal(activity_client.poll(activity_types=types))
    assert (refused.reason, "activity_types" in refused.message) == ("INVALID_FIELD", True)
    await activity_client.schedule("a", activity_type="999")
    [task] = await activity_client.poll(activity_types=[str(number) for number in range(1_000)])
    assert task.id.activity_id == "a"
