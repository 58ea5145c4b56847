"""Values become payloads and come back; what cannot is refused with its place in the value."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import Converter, DefaultConverter, NotConvertible, Payload
from liveness.sdk.converter import DEFAULT_CONVERTER, decode, encode, parse_json

CONVERTER = DefaultConverter()

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    max_leaves=20,
)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Photo:
    name: str
    width: int = 200
    taken: datetime | None = None
    thumbnail: bytes = b""
    colours: tuple[Colour, ...] = ()


@dataclass
class Album:
    photos: list[Photo]
    index: dict[int, str] = field(default_factory=dict)


class Point(msgspec.Struct, rename="camel"):
    x_axis: int
    when: date
    album: Album | None = None


class Order(pydantic.BaseModel):
    id: UUID
    total: Decimal = pydantic.Field(alias="grandTotal")
    lines: list[str] = []


@pydantic.dataclasses.dataclass
class Line:
    text: str
    count: int


@dataclass
class Basket:
    order: Order
    owner: str


class Pair(NamedTuple):
    left: int
    right: str


PHOTO = Photo("a", 100, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b"\x00\xff", (Colour.RED,))
ORDER = Order(id=UUID(int=7), grandTotal=Decimal("1.10"), lines=["x"])


@given(json_values)
def test_a_plain_json_value_comes_back_equal(value: object) -> None:
    assert CONVERTER.decode(CONVERTER.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Payload(b"", "binary/null")),
        (b"\xff\x00", Payload(b"\xff\x00", "binary/plain")),
        (b"", Payload(b"", "binary/plain")),
        (bytearray(b"ab"), Payload(b"ab", "binary/plain")),
        ("done", Payload(b"done", "text/plain")),
        ("", Payload(b"", "text/plain")),
        ("17", Payload(b"17", "text/plain")),
        ("half \ud83d", Payload(b'"half \\ud83d"', "json/plain")),
        ({"width": 200}, Payload(b'{"width": 200}', "json/plain")),
        ([1, None], Payload(b"[1, null]", "json/plain")),
        (False, Payload(b"false", "json/plain")),
    ],
)
def test_a_payload_names_its_encoding(value: object, expected: Payload) -> None:
    assert CONVERTER.encode(value) == expected


@given(st.binary())
def test_bytes_stay_bytes_also_if_they_look_like_json(data: bytes) -> None:
    for value in (data, b"1", b"null", b'"text"'):
        assert CONVERTER.decode(CONVERTER.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "type_hint"),
    [
        (PHOTO, Photo),
        (Album([PHOTO, Photo("b")], {7: "seven"}), Album),
        (Point(1, date(2026, 1, 2), Album([PHOTO])), Point),
        (ORDER, Order),
        (Line("a", 2), Line),
        (Basket(ORDER, "me"), Basket),
        ([PHOTO, PHOTO], list[Photo]),
        ({"one": ORDER}, dict[str, Order]),
        ([ORDER], list[Order]),
        (None, Photo | None),
        (PHOTO, Photo | None),
        (ORDER, Order | None),
        (b"raw", bytes | None),
        (Pair(1, "b"), Pair),
        (7, int),
        (7, float),
        ("text", str),
        ("17", str),
        ("", str),
        (Colour.RED.value, str),
        ("text", str | None),
        ([1, 2], list[int]),
        ({"a": 1}, dict[str, int]),
        ({"a": [1, None]}, Any),
        (b"raw", bytes),
    ],
)
def test_a_value_comes_back_as_the_type_that_is_asked_for(value: object, type_hint: Any) -> None:
    found = CONVERTER.decode(CONVERTER.encode(value), type_hint)
    assert found == value
    assert isinstance(found, float if type_hint is float else type(value))


def test_a_text_comes_back_as_a_type_that_is_written_as_text() -> None:
    assert CONVERTER.decode(CONVERTER.encode("red"), Colour) is Colour.RED
    assert CONVERTER.decode(CONVERTER.encode("2026-01-02"), date) == date(2026, 1, 2)
    with pytest.raises(NotConvertible):
        CONVERTER.decode(CONVERTER.encode("17"), int)


def test_a_typed_value_without_a_type_comes_back_as_plain_json() -> None:
    assert CONVERTER.decode(CONVERTER.encode(ORDER)) == {
        "id": str(UUID(int=7)),
        "grandTotal": "1.10",
        "lines": ["x"],
    }
    assert CONVERTER.decode(CONVERTER.encode(Photo("a")))["width"] == 200


@dataclass
class Holder:
    content: Any


class Unknown:
    pass


def loop() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        (Unknown(), "$ ", "Unknown"),
        ({"photos": [1, {"taken": Unknown()}]}, "$.photos[1].taken ", "Unknown"),
        ({"set": {1}}, "$.set ", "set"),
        ([datetime.now(UTC)], "$[0] ", "datetime"),
        ({"thumbnail": b"raw"}, "$.thumbnail ", "bytes"),
        ({(1, 2): 3}, "$ ", "tuple"),
        ([float("nan")], "$[0] ", "nan"),
        ({"deep": Holder(Holder([Unknown()]))}, "$.deep.content.content[0] ", "Unknown"),
        (Holder(float("inf")), "$.content ", "inf"),
        (Holder(Unknown()), "$.content ", "Unknown"),
        (lambda: None, "$ ", "function"),
        (loop(), "$[0].again ", "contains itself"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_with_path_and_type(
    value: object, path: str, type_name: str
) -> None:
    with pytest.raises(NotConvertible) as refused:
        encode(CONVERTER, "the result", value)
    assert str(refused.value).startswith(f"the result cannot be encoded: {path}")
    assert type_name in str(refused.value)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotConvertible, match=r"too deeply|Recursion"):
        encode(CONVERTER, "the result", value)


@pytest.mark.parametrize(
    ("payload", "type_hint", "reason"),
    [
        (Payload(b'{"name": 1}', "json/plain"), Photo, r"Expected `str`, got `int` - at `\$.name`"),
        (Payload(b'{"id": 1, "grandTotal": 2}', "json/plain"), Order, "id"),
        (Payload(b'{"name": 1', "json/plain"), Photo, "it is no .*Photo"),
        (Payload(b"{", "json/plain"), Any, "not JSON"),
        (Payload(b"raw", "binary/plain"), Photo, "holds bytes"),
        (Payload(b"", "binary/null"), Photo, "holds no value"),
        (Payload(b"x", "binary/protobuf"), Any, "'binary/protobuf' is not known"),
        (Payload(b"{}", "json/plain"), Unknown, "Unknown is no type"),
    ],
)
def test_a_payload_that_is_no_value_of_the_type_is_refused(
    payload: Payload, type_hint: Any, reason: str
) -> None:
    with pytest.raises(NotConvertible, match=reason) as refused:
        decode(CONVERTER, "the input", payload, type_hint)
    assert str(refused.value).startswith("the input cannot be decoded: ")


@pytest.mark.parametrize(
    ("data", "type_hint", "expected"),
    [
        (b"", Any, None),
        (b'{"a": 1}', Any, {"a": 1}),
        (b'{"name": "a"}', Photo, Photo("a")),
        (b"done", Any, b"done"),
        (b"done", str, "done"),
        (b'"done"', str, "done"),
        (b"17", str, "17"),
        (b"17", bytes, b"17"),
        (b"\xff", Any, b"\xff"),
    ],
)
def test_payloads_of_clients_that_named_no_encoding_are_still_read(
    data: bytes, type_hint: Any, expected: object
) -> None:
    assert CONVERTER.decode(Payload(data), type_hint) == expected


@given(json_values)
def test_parsing_as_json_gives_the_plain_value(value: object) -> None:
    assert parse_json(CONVERTER.encode(value)) == value
    assert parse_json(Payload(json.dumps(value).encode(), "binary/plain")) == value


class Reversed(DefaultConverter):
    """A program's own converter: texts are stored in reverse, everything else as usual."""

    def encode(self, value: object) -> Payload:
        return (
            Payload(value[::-1].encode(), "text/reversed")
            if isinstance(value, str)
            else super().encode(value)
        )

    def decode(self, payload: Payload, type_hint: Any = Any) -> Any:
        if payload.encoding == "text/reversed":
            return payload.data.decode()[::-1]
        return super().decode(payload, type_hint)


class Broken:
    def encode(self, value: object) -> Payload:
        raise KeyError("schema 7")

    def decode(self, payload: Payload, type_hint: Any) -> Any:
        raise KeyError("schema 7")


def test_a_program_may_bring_its_own_converter() -> None:
    own: Converter = Reversed()
    assert encode(own, "the input", "abc") == Payload(b"cba", "text/reversed")
    assert [decode(own, "it", encode(own, "it", value)) for value in ("abc", {"a": 1})] == ["abc", {"a": 1}]


def test_whatever_a_converter_raises_is_reported_as_not_convertible() -> None:
    with pytest.raises(NotConvertible, match="the result cannot be encoded: KeyError: 'schema 7'"):
        encode(Broken(), "the result", 1)
    with pytest.raises(NotConvertible, match="the input cannot be decoded: KeyError: 'schema 7'"):
        decode(Broken(), "the input", DEFAULT_CONVERTER.encode(1))
