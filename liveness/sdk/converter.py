"""Convert values to payloads and back.

A payload is bytes with the name of their encoding, which the server keeps beside them:

json/plain     JSON values other than texts, dataclasses, msgspec Structs, pydantic models
text/plain     texts in UTF-8; without quotes, as versions that named no encoding wrote and read them
binary/plain   bytes, as they are
binary/null    None
(empty)        from a client that named no encoding: JSON if it is JSON, otherwise bytes

A program with other needs gives its workers and clients another `Converter`. It may subclass `DefaultConverter` and leave
everything that is not special to it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, Protocol, get_args, get_origin

import msgspec

from liveness.sdk.errors import InvalidArgument, NotConvertible

JSON = "json/plain"
TEXT = "text/plain"
BINARY = "binary/plain"
NULL = "binary/null"
NOT_NAMED = ""

_ANYTHING = (Any, object)
_JSON_SCALARS = (str, int, bool, type(None))
_BYTES = (bytes, bytearray, memoryview)
_DEPTH_MAX = 200
_KNOWN_TYPES = "use JSON values, dataclasses, msgspec Structs, pydantic models, or bytes alone, or a converter that knows the type"
ROOT_PATH = "$"
"""The value itself, in messages about a part of it: `$.photos[2].width`."""


class Payload(NamedTuple):
    data: bytes
    encoding: str = NOT_NAMED


class Converter(Protocol):
    """Whatever it raises about an input or a result fails the activity at once, because each further attempt would fail
    alike. It is called on the event loop of the worker or the client."""

    def encode(self, value: object) -> Payload: ...

    def decode(self, payload: Payload, type_hint: Any) -> Any:
        """Decode to a value of the type that an annotation names; `Any` stands for whatever the payload holds."""
        ...


class DefaultConverter:
    def encode(self, value: object) -> Payload:
        """Encode a value so that it can come back equal. A dataclass, Struct or model comes back with its type given."""
        if value is None:
            return Payload(b"", NULL)
        if isinstance(value, _BYTES):
            return Payload(bytes(value), BINARY)
        try:
            if isinstance(value, str) and _is_unicode(value):
                return Payload(value.encode(), TEXT)
            return Payload(json.dumps(value, allow_nan=False, default=_to_json_value).encode(), JSON)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotConvertible(detail=_explain(value, error)) from error

    def decode(self, payload: Payload, type_hint: Any = Any) -> Any:
        data, encoding = payload
        if encoding not in (JSON, TEXT, BINARY, NULL, NOT_NAMED):
            raise NotConvertible(
                detail=f"its encoding {encoding!r} is not known here; give this program the converter that wrote it"
            )
        if type_hint is bytes:
            return data
        if encoding == NULL or (encoding == NOT_NAMED and not data):
            return self._check_none(type_hint)
        if encoding == BINARY:
            if type_hint in _ANYTHING or bytes in get_args(type_hint):
                return data
            raise NotConvertible(detail=f"it holds bytes, and {_type_name(type_hint)} is asked for")
        if encoding == TEXT:
            text = data.decode()
            return (
                text if type_hint in (*_ANYTHING, str) else _from_json(json.dumps(text).encode(), type_hint)
            )
        if encoding == NOT_NAMED and type_hint in (*_ANYTHING, str):
            return _decode_unnamed(data, type_hint)
        return _decode_json(data, type_hint)

    def _check_none(self, type_hint: Any) -> None:
        if type_hint in _ANYTHING:
            return
        try:
            _from_json(b"null", type_hint)
        except NotConvertible:
            detail = f"it holds no value, and {_type_name(type_hint)} is asked for"
            raise NotConvertible(detail=detail) from None


DEFAULT_CONVERTER = DefaultConverter()


def encode(converter: Converter, what: str, value: object) -> Payload:
    """Encode with the program's converter. Whatever it raises becomes NotConvertible, with `what` as the subject."""
    payload: Payload = _convert(lambda: converter.encode(value), f"{what} cannot be encoded")
    return payload


def decode(converter: Converter, what: str, payload: Payload, type_hint: Any = Any) -> Any:
    return _convert(lambda: converter.decode(payload, type_hint), f"{what} cannot be decoded")


def _convert(conversion: Callable[[], Any], problem: str) -> Any:
    try:
        return conversion()
    except NotConvertible as error:
        raise NotConvertible(detail=f"{problem}: {error.detail}") from error
    except Exception as error:  # a converter is the program's own code
        raise NotConvertible(detail=f"{problem}: {type(error).__name__}: {error}") from error


def parse_json(payload: Payload) -> Any:
    """The JSON value that the payload holds: the text, None if it holds none, otherwise the data parsed as JSON."""
    if payload.encoding == NULL or (payload.encoding == NOT_NAMED and not payload.data):
        return None
    if payload.encoding == TEXT:
        return payload.data.decode()
    return json.loads(payload.data)


# -- encoding


def _to_json_value(value: object) -> object:
    """Called by `json` for what it does not know. Only values whose type says how to read them again are accepted: a set
    or a date by itself would come back as a list or a text."""
    if _is_pydantic(type(value)):
        return _dump_pydantic(value)
    if _is_typed_record(value):
        return msgspec.to_builtins(value, enc_hook=_to_json_value, str_keys=True)
    raise TypeError(f"{_type_name(type(value))} is not a JSON value")


def _is_unicode(text: str) -> bool:
    """Python's texts may contain halves of surrogate pairs, which UTF-8 cannot express and JSON can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_typed_record(value: object) -> bool:
    return isinstance(value, msgspec.Struct) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _is_pydantic(kind: type) -> bool:
    """Models and pydantic's dataclasses. The SDK does not import pydantic, and works without it."""
    return "__pydantic_validator__" in dir(kind)


def _dump_pydantic(value: Any) -> object:
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)


def _explain(value: object, error: Exception) -> str:
    """Name the part of the value that cannot be encoded. `json` itself says only its type."""
    for path, reason in _problems(value, ROOT_PATH, ()):
        return f"{path} {reason}"
    return f"{type(error).__name__}: {error}"


def _problems(value: object, path: str, parents: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, _JSON_SCALARS):
        return
    if isinstance(value, float):
        if not isfinite(value):
            yield path, f"is {value}, which JSON cannot express"
        return
    if id(value) in parents:
        yield path, "contains itself"
        return
    if len(parents) > _DEPTH_MAX:
        yield path, "is nested too deeply"
        return
    parents = (*parents, id(value))
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str | int | float | None):
                yield path, f"has a key of type {_type_name(type(key))}; JSON has texts only"
            yield from _problems(part, f"{path}.{key}", parents)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _problems(part, f"{path}[{index}]", parents)
    elif _is_pydantic(type(value)):
        yield from _problem_of(value, path)
    elif isinstance(value, msgspec.Struct):
        yield from _field_problems(value, value.__struct_fields__, path, parents)
    elif _is_typed_record(value):
        yield from _field_problems(value, [f.name for f in dataclasses.fields(value)], path, parents)  # type: ignore[arg-type]
    else:
        yield path, f"is of type {_type_name(type(value))}; {_KNOWN_TYPES}"


def _field_problems(
    record: object, names: Any, path: str, parents: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    for name in names:
        part = getattr(record, name, None)
        if (
            isinstance(part, dict | list | tuple | float)
            or _is_pydantic(type(part))
            or _is_typed_record(part)
        ):
            yield from _problems(part, f"{path}.{name}", parents)
        else:
            yield from _problem_of(part, f"{path}.{name}")


def _problem_of(value: object, path: str) -> Iterator[tuple[str, str]]:
    try:
        json.dumps(msgspec.to_builtins(value, enc_hook=_to_json_value, str_keys=True), allow_nan=False)
    except Exception as error:  # noqa: BLE001  # the converters of a model are the program's own code
        yield path, f"is of type {_type_name(type(value))}: {error}"


# -- decoding


def _decode_json(data: bytes, type_hint: Any) -> Any:
    if type_hint in _ANYTHING:
        try:
            return json.loads(data)
        except ValueError as error:
            raise NotConvertible(detail=f"it is not JSON: {error}") from error
    return _from_json(data, type_hint)


def _decode_unnamed(data: bytes, type_hint: Any) -> Any:
    """A client of an older version sent text as it is, and bytes of any form."""
    try:
        value = json.loads(data)
    except ValueError:
        return data.decode(errors="replace") if type_hint is str else data
    return data.decode() if type_hint is str and not isinstance(value, str) else value


def _from_json(data: bytes, type_hint: Any) -> Any:
    try:
        return _json_decoder(type_hint)(data)
    except InvalidArgument:
        raise
    except Exception as error:  # the validators of a model are the program's own code
        raise NotConvertible(detail=f"it is no {_type_name(type_hint)}: {error}") from error


@lru_cache(maxsize=1_000)
def _json_decoder(type_hint: Any) -> Callable[[bytes], Any]:
    if isinstance(type_hint, type) and _is_pydantic(type_hint):
        return type_hint.__pydantic_validator__.validate_json  # type: ignore[no-any-return, attr-defined]
    return msgspec.json.Decoder(type_hint, dec_hook=_from_json_value).decode


def _from_json_value(type_hint: Any, value: object) -> object:
    """Called by msgspec for types that it does not know."""
    if _is_pydantic(type_hint):
        return type_hint.__pydantic_validator__.validate_json(json.dumps(value))
    raise NotConvertible(
        detail=f"{_type_name(type_hint)} is no type that this converter knows; {_KNOWN_TYPES}"
    )


def _type_name(type_hint: Any) -> str:
    if get_origin(type_hint) is not None or not isinstance(type_hint, type):
        return str(type_hint)
    name = type_hint.__qualname__
    return name if type_hint.__module__ == "builtins" else f"{type_hint.__module__}.{name}"
