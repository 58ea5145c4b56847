"""Requests are parsed and answers are rendered for all messages of the contract."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from google.protobuf import any_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.domain.errors import InvalidRequest
from liveness.http.body_reader import BODY_BYTES_MAX_OF_METHOD
from liveness.http.endpoints import WHOLE_BODY, Endpoint, EndpointTable, Match, MethodNotAllowed, endpoints_of
from liveness.http.fields import FieldPath, is_text_map
from liveness.http.json_output import json_bytes, to_json_value
from liveness.http.openapi import SERVICES, query_parameters
from liveness.http.transcoding import VALUES_MAX, build_request

BINDINGS = list(endpoints_of(SERVICES))
ROUTES = EndpointTable(BINDINGS)
KINDS = sorted({endpoint.method.output_type.full_name for endpoint in BINDINGS})

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, depth: int = 0) -> Any:
    """Draw any message of the given type."""
    message: Any = GetMessageClass(kind)()
    if kind.full_name == "google.protobuf.Duration":
        nanos = st.sampled_from([0, 5_000_000, 5_000, 5])
        message.seconds, message.nanos = draw(st.integers(0, 315_576_000_000)), draw(nanos)
        return message
    if kind.full_name == "google.protobuf.Timestamp":
        message.seconds = draw(st.integers(-62_135_596_800, 253_402_300_799))
        message.nanos = draw(st.sampled_from([0, 120_000_000, 120_000, 12]))
        return message
    if kind.full_name == "google.protobuf.Any":
        message.Pack(draw(messages(BINDINGS[0].method.output_type, depth + 1)))
        return message
    for field in kind.fields:
        if depth > 3 or draw(st.booleans()):
            continue
        _fill(draw, message, field, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        for name in draw(st.lists(texts, max_size=2)):
            getattr(message, field.name)[name] = draw(texts)
        return
    values = messages(inside, depth + 1) if inside is not None else _values(field)
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(values, max_size=2)))
    elif inside is not None:
        getattr(message, field.name).CopyFrom(draw(values))
    else:
        setattr(message, field.name, draw(values))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([*field.enum_type.values_by_number, 99])
    return _SCALARS[field.type]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_answers_have_the_json_form_of_protobuf(name: str, data: st.DataObject) -> None:
    kind = next(each.method.output_type for each in BINDINGS if each.method.output_type.full_name == name)
    message = data.draw(messages(kind))
    by_library = json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    line = json_bytes(to_json_value(message))
    assert json.loads(line) == json.loads(by_library)
    assert b"\n" not in line


def test_an_error_detail_of_an_unknown_type_is_rendered_as_base64() -> None:
    detail = any_pb2.Any(type_url="type.googleapis.com/of.the.Future", value=b"\x01")
    assert to_json_value(detail) == {"@type": "type.googleapis.com/of.the.Future", "value": "AQ=="}


def request_for(endpoint: Endpoint, message: Message) -> tuple[str, str, bytes]:
    """Build path, query and body of a request for the message by the rules of google.api.http."""
    whole: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)

    def take(path: FieldPath) -> Any:
        inside = whole
        for field in path.fields[:-1]:
            inside = inside.get(field.name, {})
        return inside.pop(path.leaf.name, None)

    parts = [
        quote(str(take(part)), safe="") if isinstance(part, FieldPath) else part for part in endpoint.segments
    ]
    body = b""
    if endpoint.body == WHOLE_BODY:
        body = json.dumps(whole).encode()
    elif endpoint.body:
        body = json.dumps(whole.get(endpoint.body, {})).encode()
    pairs: list[tuple[str, str]] = []
    for path in query_parameters(endpoint):
        value = take(path)
        if is_text_map(path.leaf):
            pairs += [(f"{path}[{key}]", each) for key, each in (value or {}).items()]
            continue
        values = value if isinstance(value, list) else [] if value is None else [value]
        pairs += [(str(path), str(each).lower() if isinstance(each, bool) else str(each)) for each in values]
    return "/" + "/".join(parts), urlencode(pairs), body


@pytest.mark.parametrize("endpoint", BINDINGS, ids=lambda endpoint: f"{endpoint.verb} {endpoint.template}")
@settings(max_examples=20)
@given(data=st.data())
def test_a_parsed_request_equals_the_message_it_was_built_from(
    endpoint: Endpoint, data: st.DataObject
) -> None:
    message = data.draw(messages(endpoint.method.input_type))
    for path in endpoint.variables:
        inside = message
        for field in path.fields[:-1]:
            inside = getattr(inside, field.name)
        value = 7 if path.leaf.type == FieldDescriptor.TYPE_UINT64 else data.draw(texts.filter(bool))
        setattr(inside, path.leaf.name, value)
    path_text, query, body = request_for(endpoint, message)
    match = ROUTES.find(endpoint.verb, path_text.encode())
    assert isinstance(match, Match)
    assert match.endpoint.method is endpoint.method
    read = build_request(match, query, body)
    said = json_format.MessageToDict(message)
    assert _without_empty(json_format.MessageToDict(read)) == _without_empty(said)


def _without_empty(value: Any) -> Any:
    """Remove empty nested messages: a query cannot express them, and no handler depends on them."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_empty(part) for name, part in value.items()}
    return {name: part for name, part in kept.items() if part != {}}


def find(verb: str, path: str) -> Match:
    match = ROUTES.find(verb, path.encode())
    assert isinstance(match, Match)
    return match


HEARTBEAT = find("POST", "/v1/namespaces/n/workers/w/heartbeat")
BATCH = find("POST", "/v1/namespaces/n/heartbeats")
LIST = find("GET", "/v1/namespaces/n/workers")
PAUSE = find("POST", "/v1/namespaces/n/workers/pause")


def test_a_literal_path_segment_takes_precedence_over_a_variable() -> None:
    assert PAUSE.endpoint.method.name == "PauseWorkers"
    assert find("GET", "/v1/namespaces/n/workers/pause").endpoint.method.name == "DescribeWorker"
    assert find("POST", "/v1/namespaces/n/activities/poll").endpoint.method.name == "PollActivity"


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v2/server", "/v1/server/", "//v1/server", "/v1/namespaces//workers", "/V1/server", ""],
)
def test_unknown_paths_have_no_endpoint(path: str) -> None:
    assert ROUTES.find("GET", path.encode()) is None


def test_a_wrong_method_gives_the_allowed_ones() -> None:
    assert ROUTES.find("PUT", b"/v1/namespaces/n/config") == MethodNotAllowed(("GET", "PATCH"))


def test_snake_case_and_camel_case_names_are_accepted() -> None:
    one = build_request(HEARTBEAT, "", b'{"task_queue": "q", "lease_duration": "5s"}')
    other = build_request(HEARTBEAT, "", b'{"taskQueue": "q", "leaseDuration": "5.000s"}')
    assert one == other


def test_short_enum_names_are_accepted_in_bodies() -> None:
    short = build_request(PAUSE, "", b'{"filter": {"states": ["ACTIVE", "WORKER_STATE_INACTIVE", 3]}}')
    assert [*to_json_value(short)["filter"]["states"]] == [
        "WORKER_STATE_ACTIVE", "WORKER_STATE_INACTIVE", "WORKER_STATE_CLEANED_UP",
    ]  # fmt: skip


def test_a_body_may_repeat_a_path_variable_but_not_contradict_it() -> None:
    assert to_json_value(build_request(PAUSE, "", b'{"namespace": "n"}'))["namespace"] == "n"
    with pytest.raises(InvalidRequest, match=r"^namespace has one value in the path and another in the body"):
        build_request(PAUSE, "", b'{"namespace": "m"}')


@pytest.mark.parametrize(
    ("match", "query", "body", "problem"),
    [
        (LIST, "filter.staets=ACTIVE", b"", "There is no query parameter filter.staets for ListWorkers"),
        (LIST, "namespace=m", b"", "There is no query parameter namespace"),
        (LIST, "filter=x", b"", "There is no query parameter filter "),
        (LIST, "page_size=5&page_size=6", b"", "page_size occurs twice"),
        (LIST, "page_size=5&pageSize=5", b"", "page_size occurs twice"),
        (LIST, "page_size=many", b"", "page_size cannot be 'many'"),
        (LIST, "page_size=99999999999", b"", "page_size cannot be '99999999999'"),
        (LIST, "filter.states=DEAD", b"", "filter.states cannot be "),
        (LIST, "filter.key_prefix=%FF", b"", "the query must be UTF-8"),
        (LIST, "filter.key_prefix=100%", b"", "the query holds a % that does not begin an escape"),
        (LIST, "&".join(["filter.states=1"] * 1_001), b"", "at most 1000 parameters"),
        (HEARTBEAT, "heartbeat.task_queue=q", b"{}", "There is no query parameter heartbeat.task_queue"),
        (
            HEARTBEAT,
            "",
            b'{"task_quue": "q"}',
            "There is no field heartbeat.task_quue in the body; WorkerHeartbeat has",
        ),
        (
            HEARTBEAT,
            "",
            b'{"bound_activities": [{"wokflow": 1}]}',
            "no field heartbeat.bound_activities.wokflow",
        ),
        (HEARTBEAT, "", b"{", "The body is not valid JSON"),
        (HEARTBEAT, "", b"\xff", "The body is not valid JSON"),
        (HEARTBEAT, "", b'{"a": NaN}', "NaN is not JSON"),
        (HEARTBEAT, "", b'{"sequence": 1, "sequence": 2}', "'sequence' occurs twice"),
        (HEARTBEAT, "", b'{"sequence": -1}', "The body does not fit"),
        (HEARTBEAT, "", b'{"sequence": 1.5}', "The body does not fit"),
        (HEARTBEAT, "", b'{"lease_duration": "soon"}', "The body does not fit"),
        (HEARTBEAT, "", b'"text"', "The body does not fit"),
        (HEARTBEAT, "", b'{"task_queue": "\\ud800"}', "The body does not fit"),
        (HEARTBEAT, "", b"[]", "heartbeat must be one value, not a list"),
        (HEARTBEAT, "", b'{"status": []}', "heartbeat.status must be one value, not a list"),
        (HEARTBEAT, "", b'{"lease_duration": []}', "heartbeat.lease_duration must be one value"),
        (HEARTBEAT, "", b'{"labels": []}', "The body does not fit"),
        (HEARTBEAT, "", b'{"bound_activities": [[]]}', "heartbeat.bound_activities must not hold lists"),
        (
            HEARTBEAT,
            "",
            b'{"task_queue": "q", "taskQueue": "r"}',
            "heartbeat.task_queue occurs twice, as task_queue",
        ),
        (
            HEARTBEAT,
            "",
            b'{"bound_activities": [{"run_id": "", "runId": ""}]}',
            "bound_activities.run_id occurs twice",
        ),
        (HEARTBEAT, "", b'{"labels": {"a": "1", "a": "2"}}', "'a' occurs twice"),
        (HEARTBEAT, "", b'{"\\ud800": 1}', "There is no field heartbeat.? in the body"),
        (HEARTBEAT, "", b'{"status": "\\ud800"}', "The body does not fit"),
        (PAUSE, "", b"[]", "The body does not fit"),
        (PAUSE, "", b"5", "The body does not fit"),
        (PAUSE, "reason=x", b"{}", "There is no query parameter reason for PauseWorkers"),
    ],
)
def test_the_refusal_of_a_bad_request_names_the_problem(
    match: Match, query: str, body: bytes, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        build_request(match, query, body)
    assert problem in str(raised.value)


def test_a_duplicate_name_among_very_many_is_found_quickly() -> None:
    """A quadratic search took a minute for half a megabyte of names."""
    names = ",".join(f'"n{n}":1' for n in range(90_000))
    with pytest.raises(InvalidRequest, match="'n89999' occurs twice"):
        build_request(HEARTBEAT, "", f'{{{names},"n89999":2}}'.encode())


def test_a_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^worker_instance_key must be UTF-8"):
        ROUTES.find("GET", b"/v1/namespaces/n/workers/%FF")
    with pytest.raises(InvalidRequest, match=r"^worker_instance_key holds a % in the path"):
        ROUTES.find("GET", b"/v1/namespaces/n/workers/100%")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(
        st.sampled_from(["session_id", "labels", "lease_duration", "bound_activities", "startTime", "status", "token"]),
        inside, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(json_values | st.text(max_size=20), st.sampled_from(BINDINGS))
def test_any_json_body_is_parsed_or_refused(value: Any, endpoint: Endpoint) -> None:
    path = "/" + "/".join("1" if isinstance(part, FieldPath) else part for part in endpoint.segments)
    try:
        build_request(find(endpoint.verb, path), "", json.dumps(value).encode())
    except InvalidRequest as refused:
        assert len(str(refused)) < 2_000  # noqa: PT017 - most values are refused, but not all


@pytest.mark.parametrize("depth", [2, 300, 900, 90_000])
@pytest.mark.parametrize("field", [b"labels", b"bound_activities", b"capabilities", b"start_time", b"status"])
def test_a_deeply_nested_body_is_refused(field: bytes, depth: int) -> None:
    for left, right in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(InvalidRequest):
            build_request(HEARTBEAT, "", b'{"' + field + b'": ' + left * depth + b"1" + right * depth + b"}")


def test_a_body_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    """16 MiB of empty heartbeats took 49 s and 3.4 GiB."""
    with pytest.raises(InvalidRequest, match="more than 100000 values") as raised:
        build_request(BATCH, "", b'{"heartbeats": [' + b"{}," * VALUES_MAX + b"{}]}")
    assert raised.value.reason == "TOO_MANY_VALUES"


@pytest.mark.parametrize("text", [",[{" * 110_000, '\\",\\' * 60_000, "\\" * 110_000 + "," * 110_000])
def test_characters_in_texts_do_not_count_as_values(text: str) -> None:
    read: Any = build_request(HEARTBEAT, "", json.dumps({"last_error": text}).encode())
    assert read.heartbeat.last_error == text


@pytest.mark.parametrize(
    ("match", "value", "problem"),
    [
        ("BATCH", {"heartbeats": [{}] * 1_001}, "heartbeats must be at most 1000 per call"),
        ("HEARTBEAT", {"bound_activities": [{}] * 1_001}, "heartbeat.bound_activities must be at most 1000"),
        ("HEARTBEAT", {"capabilities": [""] * 10_001}, "heartbeat.capabilities must be at most 10000"),
        (
            "HEARTBEAT",
            {"labels": {str(n): "" for n in range(10_001)}},
            "heartbeat.labels must be at most 10000",
        ),
        ("HEARTBEAT", {"labels": {"a": "x" * 400_000}}, "heartbeat.labels must be at most 358400 characters"),
        (
            "HEARTBEAT",
            {"last_error": "x" * 400_000},
            "heartbeat.last_error must be at most 358400 characters",
        ),
    ],
)
def test_long_lists_and_texts_are_refused_before_messages_are_built(
    match: str, value: Any, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        build_request({"BATCH": BATCH, "HEARTBEAT": HEARTBEAT}[match], "", json.dumps(value).encode())
    assert problem in str(raised.value)


def test_a_batch_may_hold_a_thousand_heartbeats() -> None:
    read: Any = build_request(BATCH, "", json.dumps({"heartbeats": [{}] * 1_000}).encode())
    assert len(read.heartbeats) == 1_000


def test_a_payload_of_the_largest_size_is_accepted() -> None:
    schedule = find("POST", "/v1/namespaces/n/activities")
    payload = bytes(256 * 1024)
    read: Any = build_request(schedule, "", json.dumps({"input": b64encode(payload).decode()}).encode())
    assert read.input == payload


def test_the_body_limits_name_methods_that_have_a_body() -> None:
    assert set(BODY_BYTES_MAX_OF_METHOD) <= {each.method.name for each in BINDINGS if each.body}
