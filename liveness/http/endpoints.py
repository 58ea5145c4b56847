"""Maps HTTP requests to gRPC methods, by the `google.api.http` annotations of the proto files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import google.api.annotations_pb2 as annotations_pb2
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor

from liveness.domain.errors import InvalidField
from liveness.http.fields import FieldPath, field_path

WHOLE_BODY = "*"
"""The body is the whole request message, except for the fields in the path."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A verb and a path template that call a method."""

    method: MethodDescriptor
    verb: str
    template: str
    """As annotated: /v1/namespaces/{namespace}/workers."""
    segments: tuple[str | FieldPath, ...]
    """The segments of the path; a variable is the field that it sets."""
    body: str
    """Empty if there is no body, else `WHOLE_BODY` or the name of a field."""

    @property
    def variables(self) -> tuple[FieldPath, ...]:
        return tuple(segment for segment in self.segments if isinstance(segment, FieldPath))


@dataclass(frozen=True, slots=True)
class Match:
    endpoint: Endpoint
    values: tuple[tuple[FieldPath, str], ...]
    """The texts of the variables in the path."""


@dataclass(frozen=True, slots=True)
class MethodNotAllowed:
    """The path exists, but only for other verbs."""

    verbs: tuple[str, ...]


def endpoints_of(services: Iterable[ServiceDescriptor]) -> Iterator[Endpoint]:
    for service in services:
        for method in service.methods:
            rule: HttpRule = method.GetOptions().Extensions[annotations_pb2.http]  # type: ignore[index]
            for each in (rule, *rule.additional_bindings):
                if each.WhichOneof("pattern") is not None:
                    yield _endpoint(method, each)


def _endpoint(method: MethodDescriptor, rule: HttpRule) -> Endpoint:
    verb = rule.WhichOneof("pattern")
    assert verb in ("get", "put", "post", "delete", "patch"), f"{method.full_name}: {verb}"
    template: str = getattr(rule, verb)
    assert not rule.response_body, f"{method.full_name}: response_body is not supported"
    segments = tuple(_segment(method, text) for text in template.removeprefix("/").split("/"))
    assert rule.body in ("", WHOLE_BODY) or rule.body in method.input_type.fields_by_name, method.full_name
    return Endpoint(method, verb.upper(), template, segments, rule.body)


def _segment(method: MethodDescriptor, text: str) -> str | FieldPath:
    if (variable := re.fullmatch(r"\{([a-z0-9_.]+)\}", text)) is None:
        assert re.fullmatch(r"[a-z0-9-]+", text), f"{method.full_name}: {text} is not supported"
        return text
    path = field_path(method.input_type, variable[1])
    assert path is not None, f"{method.full_name}: there is no field {variable[1]}"
    assert not path.leaf.is_repeated, f"{method.full_name}: {variable[1]} has several values"
    assert path.leaf.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE, f"{method.full_name}: {variable[1]}"
    return path


class EndpointTable:
    """Finds the endpoint of a request. Literal segments take precedence over variables."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._by_segment_count: dict[int, list[Endpoint]] = {}
        for endpoint in self.endpoints:
            self._by_segment_count.setdefault(len(endpoint.segments), []).append(endpoint)
        for same_length in self._by_segment_count.values():
            same_length.sort(
                key=lambda endpoint: [isinstance(segment, FieldPath) for segment in endpoint.segments]
            )

    def find(self, verb: str, raw_path: bytes) -> Match | MethodNotAllowed | None:
        """`raw_path`: still escaped, so that %2F is part of a name and / separates segments."""
        parts = raw_path.removeprefix(b"/").split(b"/")
        matching = [
            endpoint
            for endpoint in self._by_segment_count.get(len(parts), ())
            if _matches(endpoint.segments, parts)
        ]
        for endpoint in matching:
            if endpoint.verb == verb:
                pairs = zip(endpoint.segments, parts, strict=True)
                return Match(
                    endpoint,
                    tuple(
                        (segment, _unquote(segment, part))
                        for segment, part in pairs
                        if isinstance(segment, FieldPath)
                    ),
                )
        return MethodNotAllowed(tuple(sorted({endpoint.verb for endpoint in matching}))) if matching else None


def _matches(segments: Sequence[str | FieldPath], parts: Sequence[bytes]) -> bool:
    return all(
        part != b"" if isinstance(segment, FieldPath) else segment.encode() == part
        for segment, part in zip(segments, parts, strict=True)
    )


def _unquote(path: FieldPath, part: bytes) -> str:
    if re.search(rb"%(?![0-9A-Fa-f]{2})", part):
        raise InvalidField(
            field=str(path), rule="holds a % in the path that does not begin an escape such as %25"
        )
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise InvalidField(field=str(path), rule="must be UTF-8 before it is escaped in the path") from None
