"""Values reach the handler and its result the client as they were; what cannot is reported once, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pydantic
import pytest

from liveness.sdk import (
    ActivityInfo,
    ActivityRef,
    ActivityState,
    Client,
    DefaultConverter,
    NotConvertible,
    Payload,
    RetryPolicy,
    Task,
    Worker,
)
from liveness.v1 import activity_pb2
from tests.system.sdk.running_worker import running, wait_finished
from tests.system.sdk.server_process import LivenessServer, call_proxy, until

Make = Callable[..., Worker]
SOON = RetryPolicy(initial_interval=0.01, maximum_interval=0.01)
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "done",
    "",
    "17",
    "null",
    [],
    [1, "a", None],
    {"a": {"b": []}},
    b"",
    b"1",
    b"\xff\x00",
]


@dataclass
class Photo:
    name: str
    taken: date


class Resized(msgspec.Struct):
    photo: Photo
    width: int


class Order(pydantic.BaseModel):
    id: int
    lines: list[Resized] = []

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)


PHOTO = Photo("cat", date(2026, 1, 2))


@dataclass
class Basket:
    order: Order


async def outcome(client: Client, activity_type: str, value: object = None, id: str = "a") -> ActivityInfo:
    await client.schedule(activity_type, id=id, input=value, task_queue="queue", retry=SOON)
    return await wait_finished(client, activity_type, id)


async def test_plain_values_and_bytes_round_trip(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("echo")
        async def echo(task: Task, value: Any) -> Any:
            return value

        @worker.activity("echo in a thread")
        def echo_in_a_thread(task: Task) -> Any:
            return task.value()

        async with running(worker):
            for number, value in enumerate(VALUES):
                for activity_type in ("echo", "echo in a thread"):
                    done = await outcome(client, activity_type, value, str(number))
                    assert (done.state, done.last_failure) == (ActivityState.COMPLETED, "")
                    assert (done.value(), done.input_value()) == (value, value)
                    assert type(done.value()) is type(value)
                    if not isinstance(value, bytes):
                        assert done.json() == value


async def test_handlers_get_and_return_values_of_their_types(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("resize")
        async def resize(task: Task, photo: Photo) -> Resized:
            assert isinstance(photo, Photo)
            return Resized(photo, 200)

        @worker.activity("crop")
        def crop(task: Task, resized: Resized) -> Photo:
            return resized.photo

        @worker.activity("order")
        async def order(task: Task, basket: Basket) -> Order:
            return Order(id=basket.order.id + 1)

        async with running(worker):
            resized = (await outcome(client, "resize", PHOTO)).value(Resized)
            assert resized == Resized(PHOTO, 200)
            assert (await outcome(client, "crop", resized)).value(Photo) == PHOTO
            assert (await outcome(client, "order", Basket(Order(id=1)))).value(Order) == Order(id=2)


async def test_a_result_that_cannot_be_encoded_fails_the_activity_once(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("strange")
        async def strange(task: Task) -> object:
            return {"photos": [1, {2}]}

        @worker.activity("strange in a thread")
        def strange_in_a_thread(task: Task) -> object:
            return {"photos": [1, {2}]}

        async with running(worker):
            for activity_type in ("strange", "strange in a thread"):
                failed = await outcome(client, activity_type)
                assert (failed.state, failed.failures) == (ActivityState.FAILED, 1)
                assert failed.last_failure.startswith(
                    "the result cannot be encoded: $.photos[1] is of type set;"
                )
        assert worker.stats.failed == 2


async def test_an_input_that_is_no_value_of_the_handlers_type_fails_the_activity_once(
    make: Make, client: Client
) -> None:
    async with make() as worker:

        @worker.activity("resize")
        async def resize(task: Task, photo: Photo) -> None:
            raise AssertionError("it is not called")

        async with running(worker):
            failed = await outcome(client, "resize", {"name": 7})
    assert (failed.state, failed.failures) == (ActivityState.FAILED, 1)
    assert "Expected `str`, got `int` - at `$.name`" in failed.last_failure


async def test_a_claim_whose_result_cannot_be_encoded_fails_the_activity_once(
    make: Make, client: Client
) -> None:
    async with make() as worker:
        with pytest.raises(NotConvertible, match=r"the result cannot be encoded: \$ is of type set"):
            async with worker.claim("a", type="t", retry=SOON) as task:
                task.result = {1}
        failed = await client.describe("a", type="t")
        assert (failed.state, failed.failures) == (ActivityState.FAILED, 1)
        assert failed.last_failure.startswith("the result cannot be encoded: $ is of type set")
        assert worker.stats.failed == 1


async def test_an_input_that_cannot_be_encoded_is_refused_before_it_is_sent(client: Client) -> None:
    with pytest.raises(
        NotConvertible, match=r"the input of activity a/t \(attempt 1\) cannot be encoded: \$\.when"
    ):
        await client.schedule("t", id="a", input={"when": date(2026, 1, 2)}, task_queue="queue")
    assert await client.list() == []


async def test_a_payload_without_an_encoding_is_read_as_before(
    make: Make, client: Client, server: LivenessServer, namespace: str
) -> None:
    """It was scheduled by an older client, or over HTTP."""
    async with make() as worker:

        @worker.activity("resize")
        async def resize(task: Task, photo: Photo) -> bytes:
            assert (task.input_encoding, task.json()["name"]) == ("", "cat")
            return photo.name.encode()

        async with running(worker), Client(server.address, namespace=namespace) as older:
            request = activity_pb2.ScheduleActivityRequest(
                namespace=namespace,
                id=activity_pb2.ActivityId(workflow_id="a", run_id="-", activity_id="resize"),
                activity_type="resize",
                task_queue="queue",
                input=b'{"name": "cat", "taken": "2026-01-02"}',
            )
            await older._activity_call("ScheduleActivity", request, ActivityRef("a"))
            assert (await wait_finished(client, "resize", "a")).value() == b"cat"


class TextAsShouting(DefaultConverter):
    def encode(self, value: object) -> Payload:
        return (
            Payload(value.upper().encode(), "own/loud") if isinstance(value, str) else super().encode(value)
        )

    def decode(self, payload: Payload, type_hint: Any = Any) -> Any:
        if payload.encoding == "own/loud":
            return payload.data.decode() + "!"
        return super().decode(payload, type_hint)


async def test_workers_and_clients_use_the_converter_of_their_program(
    make: Make, client: Client, server: LivenessServer, namespace: str
) -> None:
    own = TextAsShouting()
    async with (
        make(converter=own) as worker,
        Client(server.address, namespace=namespace, converter=own) as caller,
    ):

        @worker.activity("echo")
        async def echo(task: Task, value: str) -> str:
            return value

        async with running(worker):
            done = await outcome(caller, "echo", "hello")
            assert (done.input_value(), done.value()) == ("HELLO!", "HELLO!!")
            plain = await client.describe("a", type="echo")
            with pytest.raises(NotConvertible, match="'own/loud' is not known"):
                plain.value()


# -- activity types


async def test_a_mixed_queue_costs_nobody_an_attempt(make: Make, client: Client) -> None:
    async with make() as resizer, make() as mailer:

        @resizer.activity("resize")
        async def resize(task: Task) -> str:
            return "resized"

        @mailer.activity("mail")
        async def mail(task: Task) -> str:
            return "mailed"

        for number in range(20):
            for activity_type in ("resize", "mail", "nobody's"):
                await client.schedule(activity_type, id=str(number), task_queue="queue", retry=SOON)
        async with running(resizer), running(mailer):
            for number in range(20):
                for activity_type, result in (("resize", "resized"), ("mail", "mailed")):
                    done = await wait_finished(client, activity_type, str(number))
                    assert (done.value(), done.ref.attempt, done.failures) == (result, 1, 0)
        waiting = await client.list(states=[ActivityState.AVAILABLE])
        assert {(info.type, info.ref.attempt, info.failures) for info in waiting} == {("nobody's", 1, 0)}
        assert resizer.stats.completed == mailer.stats.completed == 20


async def test_a_handler_that_is_added_while_the_worker_runs_is_polled_for(
    make: Make, client: Client
) -> None:
    async with make() as worker, running(worker):
        await client.schedule("first", id="a", task_queue="queue")
        worker.activity("first")(lambda task: "1")
        assert (await wait_finished(client, "first", "a")).value() == "1"
        await client.schedule("second", id="a", task_queue="queue")
        worker.activity("second")(lambda task: "2")
        assert (await wait_finished(client, "second", "a")).value() == "2"


async def test_an_activity_of_an_unknown_type_fails_once(
    client: Client, server: LivenessServer, namespace: str
) -> None:
    """A server of an older version ignores the types in a poll."""

    def without_types(request: bytes) -> bytes:
        message = activity_pb2.PollActivityRequest.FromString(request)
        message.ClearField("activity_types")
        return message.SerializeToString()

    with call_proxy(server.address) as proxy:
        proxy.rewrite["PollActivity"] = without_types
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker:
            worker.activity("known")(lambda task: None)
            async with running(worker):
                failed = await outcome(client, "unheard of")
    assert (failed.state, failed.failures) == (ActivityState.FAILED, 1)
    assert failed.last_failure == "this worker knows no activity type 'unheard of', only ['known']"


async def test_a_worker_polls_only_once_it_has_a_type_to_name(
    client: Client, server: LivenessServer, namespace: str
) -> None:
    """A poll without types would be handed activities of every type."""
    with call_proxy(server.address) as proxy:
        async with (
            Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker,
            running(worker),
        ):
            await client.schedule("t", id="a", task_queue="queue")
            worker.activity("other")(lambda task: None)
            await asyncio.to_thread(until, lambda: proxy.calls["PollActivity"])
            assert (await client.describe("a", type="t")).state is ActivityState.AVAILABLE
        polls = [request for name, request in proxy.requests if name == "PollActivity"]
        named = [activity_pb2.PollActivityRequest.FromString(request).activity_types for request in polls]
        assert [list(types) for types in named] == [["other"]] * len(polls)
