"""Random gRPC calls for every method of both listeners: valid requests, nearly valid ones, and plain nonsense.

    inputs = GrpcInputs(seed=7)
    inputs.draw(1_234)    # always the same call

A call depends on the seed and its number only, so that one call of a long run can be repeated by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from google.protobuf.descriptor import MethodDescriptor

from liveness.app import CLUSTER_SERVICE, SERVICES
from tests.fuzz.credentials import Credentials, Metadata
from tests.fuzz.random_requests import random_request

METHODS = [method for service in (*SERVICES, CLUSTER_SERVICE) for method in service.methods]
FREQUENT = {
    "RecordWorkerHeartbeat": 6,
    "RecordWorkerHeartbeats": 6,
    "ScheduleActivity": 3,
    "PollActivity": 3,
    "Register": 4,
    "ReportComponent": 4,
    "ReportMetrics": 4,
    "ReportProgress": 2,
}
"""How many times as often these methods are called as others: they make the state that the others change."""
DRAWN_METHODS = [method for method in METHODS for _ in range(FREQUENT.get(method.name, 1))]
EXAMPLES_PER_METHOD = 30
STREAMED_MAX = 5
"""Messages per request stream."""
ANSWERS_MAX = 3
"""How many answers of a stream the client reads before it leaves."""

STRINGS = (
    b"", b"orders", b"w", b"a\0b", b"\xed\xa0\x80", b"\xff\xfe", b"\xc0\x80", "é".encode() * 127, b"x" * 256, b"x" * 70_000,
    b"\xe2\x80\xae", b"%s%n", b"../..", b"{}", b"lvt_a_b",
)  # fmt: skip
NUMBERS = (0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
COUNTS = (1, 2, 50, 999, 1_000, 1_001, 2_011, 10_000, 60_000)
METADATA: Metadata = (
    ("liveness-to", "n1"), ("liveness-to", ""), ("liveness-to", "127.0.0.1:1"), ("liveness-alone", "1"),
    ("liveness-principal-bin", b"\xff\0"), ("liveness-principal-bin", b""), ("liveness-principal-bin", b"\x0a\x05admin"),
    ("liveness-item-principals-bin", b"\0" * 40), ("liveness-item-principals-bin", b"["), ("liveness-caller-address", "\t"),
    ("liveness-caller-address", "10.0.0.1"), ("liveness-anything", "x" * 2_000), ("authorization", "Bearer lvt_a_b"),
    ("authorization", "Bearer "), ("authorization", "Basic eDp5"), ("authorization", "Bearer eyJhbGciOiJub25lIn0.e30."),
    ("authorization", "x" * 4_000), ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"), ("traceparent", "zz"),
    ("tracestate", "=,="), ("user-agent", ""), ("x-forwarded-for", "127.0.0.1"), ("grpc-trace-bin", b"\0"),
    ("cookie", "__Host-liveness=lvs_a-b_c"),
)  # fmt: skip
# Wire types of protobuf; 3 and 4 are groups, which proto3 does not have, and 6 and 7 do not exist.
WIRE_TYPES = (0, 0, 1, 2, 2, 2, 5, 3, 4, 6, 7)
THIS_NODE = "(this node)"
"""Stands for the id of the node that gets the call, which is another one in each run."""
FORWARDED_SHARE = 0.8
"""How many of the calls of clients on the cluster's port name the node that gets them, as forwarded calls do."""
UNKNOWN_METHOD_SHARE = 0.01


@dataclass(frozen=True)
class GrpcInput:
    number: int
    method: MethodDescriptor
    on_cluster_port: bool
    requests: tuple[bytes, ...]
    """More than one only for a method that takes a stream."""
    metadata: tuple[tuple[str, str | bytes], ...]
    answers_max: int
    is_known: bool = True
    """Whether there is such a method: a frontend forwards others to nodes, which may be newer."""

    @property
    def path(self) -> str:
        name = self.method.name if self.is_known else f"{self.method.name}OfANewerVersion"
        return f"/{self.method.containing_service.full_name}/{name}"

    def __str__(self) -> str:
        shown = [request[:200] for request in self.requests]
        where = "cluster port" if self.on_cluster_port else "public port"
        return f"input {self.number}: {self.path} on the {where}, {shown}, metadata {self.metadata}"


class GrpcInputs:
    def __init__(self, seed: int, *, has_credentials: bool = False) -> None:
        """`has_credentials`: for servers that ask who calls."""
        self.seed = seed
        self._credentials = Credentials(seed) if has_credentials else None
        random = Random(seed)
        self._examples = {
            method.full_name: [
                random_request(method.input_type, random).SerializeToString()
                for _ in range(EXAMPLES_PER_METHOD)
            ]
            for method in METHODS
        }

    def draw(self, number: int) -> GrpcInput:
        random = Random(self.seed << 32 | number)
        method = random.choice(DRAWN_METHODS)
        is_between_nodes = method.containing_service.name == "ClusterService"
        count = random.randint(1, STREAMED_MAX) if method.client_streaming else 1
        on_cluster_port = is_between_nodes or random.random() < 0.2
        requests = tuple(self._request(method, random) for _ in range(count))
        odd: Metadata = tuple(random.sample(METADATA, random.randint(1, 4))) if random.random() < 0.15 else ()
        answers_max = random.randint(1, ANSWERS_MAX)
        # Drawn last, so that the same number is the same request with and without credentials.
        caller = () if is_between_nodes else self._caller(random, on_cluster_port=on_cluster_port)
        return GrpcInput(
            number,
            method,
            on_cluster_port,
            requests,
            (*odd, *caller),
            answers_max,
            random.random() >= UNKNOWN_METHOD_SHARE,
        )

    def _caller(self, random: Random, *, on_cluster_port: bool) -> Metadata:
        """What the call says about where it belongs and who makes it."""
        credentials = self._credentials
        if not on_cluster_port:
            return () if credentials is None else credentials.headers(random)
        target: Metadata = (("liveness-to", THIS_NODE),) if random.random() < FORWARDED_SHARE else ()
        return target if credentials is None else (*target, *credentials.forwarded(random))

    def _request(self, method: MethodDescriptor, random: Random) -> bytes:
        kind = random.random()
        if kind < 0.3:
            return random_request(method.input_type, random).SerializeToString()
        if kind < 0.45:
            return self._example(method, random)
        if kind < 0.75:
            return self._changed(self._example(method, random), random)
        if kind < 0.85:
            return b"".join(_field(method, random) for _ in range(random.randint(1, 12)))
        if kind < 0.9:
            return self._example(method, random) + b"".join(_field(method, random) for _ in range(2))
        if kind < 0.93:
            return self._example(random.choice(METHODS), random)
        if kind < 0.96:
            # Many elements of one list, most of them empty.
            field = random.choice(method.input_type.fields or [None])
            tag = (field.number if field is not None else 1) << 3 | 2
            return self._example(method, random) + (_varint(tag) + b"\x00") * random.choice(COUNTS)
        return random.randbytes(random.choice((0, 1, 2, 10, 100, 1_000)))

    def _example(self, method: MethodDescriptor, random: Random) -> bytes:
        return random.choice(self._examples[method.full_name])

    def _changed(self, example: bytes, random: Random) -> bytes:
        """The example with some bytes changed, left out, repeated or inserted."""
        data = bytearray(example or b"\x0a\x01w")
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(data) + 1)
            match random.randrange(6):
                case 0:
                    data[at : at + 1] = bytes([random.randrange(256)])
                case 1:
                    data[at : at + 1] = bytes(
                        [(data[at] if at < len(data) else 0) ^ 1 << random.randrange(8)]
                    )
                case 2:
                    del data[at : at + random.randint(1, 20)]
                case 3:
                    data[at:at] = data[at : at + random.randint(1, 200)]
                case 4:
                    data[at:at] = random.choice(STRINGS)
                case _:
                    data[at:at] = _varint(random.choice(NUMBERS))
        return bytes(data)


def _field(method: MethodDescriptor, random: Random) -> bytes:
    """A field with the number of a real one, mostly, and any wire type."""
    fields = method.input_type.fields
    if fields and random.random() < 0.9:
        number = random.choice(fields).number
    else:
        number = random.choice((0, 1, 15, 16, 2**29 - 1))
    wire_type = random.choice(WIRE_TYPES)
    tag = _varint(number << 3 | wire_type)
    if wire_type == 0:
        return tag + _varint(random.choice(NUMBERS))
    if wire_type == 1:
        return tag + random.randbytes(8)
    if wire_type == 5:
        return tag + random.randbytes(4)
    if wire_type == 2:
        content = random.choice(STRINGS)
        if random.random() < 0.4:
            content = b"".join(
                _varint(random.randint(1, 20) << 3 | 2) + _varint(len(part)) + part
                for part in random.choices(STRINGS[:9], k=3)
            )
        size = len(content) if random.random() < 0.95 else random.choice(NUMBERS)
        return tag + _varint(size) + content
    return tag


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
