"""python -m bench.unit_costs: the costs of single operations on PostgreSQL, for the model in docs/scaling.md.

These are bytes per heartbeat, memory per worker, registry reads by shards and nodes, recovery by shards and workers,
and the cost of an idle cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench import load
from bench.cluster_processes import PostgresProcesses, cluster
from bench.messages import batch_request_of
from bench.servers import resident_bytes
from liveness.clock import SystemClock
from liveness.cluster.membership import ACQUIRE_BATCH_SIZE
from liveness.engine.node import Node
from liveness.store.node_registry import SERVER_KIND, NodeRow, NodeState
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.tasks.timer_heap import TimerHeaps
from tests.databases import PostgresServer

BATCH = 500
AT_ONCE = 8
LOOKED_AT = ((16, 3), (64, 3), (256, 3), (1_024, 3), (4_096, 3), (64, 30), (1_024, 30), (4_096, 100))
"""Shards and nodes."""
LOOKS = 30
IDLE_SHARDS = (64, 256, 1_024)
IDLE_SECONDS = 5


def log_rows(postgres, url):
    """Return the number of renewal rows, and their bytes without indexes."""
    query = "SELECT count(*), coalesce(sum(pg_column_size(log.*)), 0) FROM log WHERE kind = 'LeasesRenewed'"
    rows, size = postgres.execute(query, database_of(url)).split("|")
    return int(rows), int(size)


def database_of(url):
    return url.rpartition("/")[2]


# -- workers: memory and bytes


def workers(postgres, count, shards=64):
    """Register workers, send heartbeats of all, stop, and read everything back."""
    with cluster("workers", postgres, 1, shards) as made:
        processes, node = PostgresProcesses(postgres), made.nodes[0]
        bodies = [batch_request_of(range(first, first + BATCH)) for first in range(0, count, BATCH)]
        before, wal = resident_bytes(node.process.pid), processes.wal_bytes()
        beat_once(node, bodies)
        memory = (resident_bytes(node.process.pid) - before) / count
        registered = (processes.wal_bytes() - wal) / count
        rows, size = log_rows(postgres, made.url)
        wal, cpu, db = processes.wal_bytes(), node.cpu_s(), processes.cpu_s()
        times = 5
        took = sum(beat_once(node, bodies) for _ in range(times))
        beats = times * count
        after_rows, after_size = log_rows(postgres, made.url)
        found = {
            "workers": count,
            "memory_bytes_per_worker": round(memory),
            "wal_bytes_per_registration": round(registered),
            "heartbeats_per_s": round(beats / took),
            "wal_bytes_per_heartbeat": round((processes.wal_bytes() - wal) / beats, 1),
            "log_bytes_per_heartbeat": round((after_size - size) / beats, 1),
            "heartbeats_per_log_row": round(beats / max(1, after_rows - rows), 1),
            "node_cpu_us_per_heartbeat": round((node.cpu_s() - cpu) / beats * 1e6, 1),
            "postgres_cpu_us_per_heartbeat": round((processes.cpu_s() - db) / beats * 1e6, 1),
        }
        url = made.url
    # In its own process, whose memory holds nothing else.
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        took, memory = fresh.submit(run_read_back, url, shards).result()
    found["read_back_s"] = round(took, 3)
    found["memory_read_back"] = round(memory / count)
    return found


def beat_once(node, bodies):
    """Send a few calls at a time, because more would only queue up. Returns the seconds."""
    groups = [bodies[first : first + AT_ONCE] for first in range(0, len(bodies), AT_ONCE)]
    return sum(load.run(node.address, "RecordWorkerHeartbeats", group, 1, 1) for group in groups)


def run_read_back(url, shards):
    return asyncio.run(read_back(url, shards))


async def read_back(url, shards):
    """Take all shards as a node of a cluster does, a few in each transaction.

    Returns the seconds and the bytes of memory.
    """
    store = SqlStore(PostgresDatabase(url))
    await store.open(shards, "bench")
    node = Node(
        store, SystemClock(), shard_count=shards, owner="bench", grace_ms=0, timers=TimerHeaps().new_heap,
        commit_interval_ms=0,
    )  # fmt: skip
    heads = (await store.read_cluster()).shards
    start, before = time.perf_counter(), resident_bytes(os.getpid())
    for first in range(0, shards, ACQUIRE_BATCH_SIZE):
        await node.open({head.shard_id: head.epoch for head in heads[first : first + ACQUIRE_BATCH_SIZE]})
    took, memory = time.perf_counter() - start, resident_bytes(os.getpid()) - before
    await store.close()
    return took, memory


# -- registry reads


async def look(postgres, shards, nodes):
    url = postgres.url(postgres.create_database())
    store = SqlStore(PostgresDatabase(url))
    await store.open(shards, "bench")
    registry = [
        NodeRow(
            node_id=f"host-{number}:1:00000000", kind=SERVER_KIND, address=f"10.0.0.{number}:7400", host=f"host-{number}",
            process_id=1, version="0", state=NodeState.SERVING, lease_ms=4_000, beat=1, started_wall_ms=0,
            renewed_wall_ms=0,
        )
        for number in range(nodes)
    ]  # fmt: skip
    for row in registry:
        await store.renew_node(row)
    processes = PostgresProcesses(postgres)
    took = []
    own, theirs = time.process_time(), processes.cpu_s()
    for beat in range(LOOKS):
        start = time.perf_counter()
        await store.renew_node(registry[0]._replace(beat=beat + 2))
        took.append((time.perf_counter() - start) * 1_000)
    found = {
        "shards": shards,
        "nodes": nodes,
        "ms": round(statistics.median(took), 2),
        "node_cpu_ms": round((time.process_time() - own) / LOOKS * 1_000, 2),
        "postgres_cpu_ms": round((processes.cpu_s() - theirs) / LOOKS * 1_000, 2),
    }
    await store.close()
    return found


# -- idle cluster


def idle(postgres, shards):
    with cluster("idle", postgres, 1, shards) as made:
        processes, node = PostgresProcesses(postgres), made.nodes[0]
        time.sleep(1)  # work that the start left
        wal, cpu, db = processes.wal_bytes(), node.cpu_s(), processes.cpu_s()
        time.sleep(IDLE_SECONDS)
        return {
            "shards": shards,
            "wal_bytes_per_s": round((processes.wal_bytes() - wal) / IDLE_SECONDS),
            "node_cpu_ms_per_s": round((node.cpu_s() - cpu) / IDLE_SECONDS * 1_000, 1),
            "postgres_cpu_ms_per_s": round((processes.cpu_s() - db) / IDLE_SECONDS * 1_000, 1),
        }


def table(title, rows):
    print(f"\n{title}\n")
    names = list(rows[0])
    widths = [max(8, len(name)) + 2 for name in names]
    print("".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True)))
    for row in rows:
        print("".join(f"{value:>{width},}" for value, width in zip(row.values(), widths, strict=True)))


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.unit_costs", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="workers, relative (default 1)")
    args = parser.parse_args()
    with PostgresServer(fsync=True) as postgres:
        counts = [max(BATCH, int(count * args.scale) // BATCH * BATCH) for count in (500, 20_000, 60_000)]
        found = []
        for count in dict.fromkeys(counts):
            found.append(workers(postgres, count))
            print(f"  {count} workers", file=sys.stderr, flush=True)
        table("workers on one node, 64 shards, batches of 500, eight at a time", found)
        few, many = found[0], found[-1]
        if many["workers"] > few["workers"]:
            slope = (many["read_back_s"] - few["read_back_s"]) / (many["workers"] - few["workers"])
            shard = (few["read_back_s"] - slope * few["workers"]) / 64
            print(f"\nreading back: {shard * 1e3:.2f} ms per shard and {slope * 1e6:.1f} us per worker")
        table(
            "one look at the registry",
            [asyncio.run(look(postgres, shards, nodes)) for shards, nodes in LOOKED_AT],
        )
        table("a node without calls", [idle(postgres, shards) for shards in IDLE_SHARDS])


if __name__ == "__main__":
    main()
