"""What is done to real processes, kind by kind, and which tests do it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of fault. Tests may divide it into several rows."""

    name: str
    what: str
    """What is done, and what must be true all the same."""
    invariants: tuple[int, ...]
    """Those that it attacks, by their number in `INVARIANTS`."""
    nodes: tuple[str, ...]
    """Tests, as pytest names them."""


INVARIANTS = {
    1: "Durable ack",
    2: "No lost reschedule",
    3: "One effect",
    4: "No early expiry",
    5: "Bounded lateness",
    6: "Legal edges only",
    7: "Clean slate",
    8: "fold(events) == state",
    9: "Order",
    10: "One owner",
    11: "Tenant isolation",
    12: "Idempotent heartbeats",
    13: "Honest failure",
    14: "Hard quotas",
    15: "Exclusive claims",
}

_KILL = "tests/system/server/test_kill.py"
_DISK = "tests/system/server/test_disk_faults.py"
_BROKERS = "tests/system/integrations/relay/test_broker_cluster.py"
_NODES = "tests/system/cluster/test_node_loss.py"

FAULTS = (
    Fault(
        "kill -9, SQLite",
        "The server is killed at a random moment under load, again and again on the same file; every other run "
        "checkpoints and compacts all the time. Every sixth outage is longer than a lease.",
        (1, 2, 3, 4, 9, 12),
        (f"{_KILL}::test_sqlite_long",),
    ),
    Fault(
        "kill -9, PostgreSQL",
        "The same with a PostgreSQL that syncs.",
        (1, 2, 3, 4, 9, 12),
        (f"{_KILL}::test_postgres_long",),
    ),
    Fault(
        "failpoint",
        "At a chosen place, before or after it, the process is killed, the step fails, or it takes longer than the "
        "shortest lease.",
        (1, 2, 3, 4, 9, 12, 13),
        ("tests/crash/test_failpoints.py",),
    ),
    Fault(
        "power loss",
        "The process is killed and what it wrote but had not synced is taken back: all of it, or any part in any "
        "order, some writes by half.",
        (1, 2, 9),
        ("tests/crash/test_power_loss.py",),
    ),
    Fault(
        "disk: EIO, ENOSPC, hanging sync",
        "Syncs fail, take longer than leases, or hang until the process is killed; the disk is full; the file may "
        "not grow.",
        (1, 4, 13),
        (_DISK,),
    ),
    Fault(
        "bit flips",
        "A bit of a row, of the file or of its write-ahead log is flipped while nobody has it open. The server does not "
        "start, refuses to tell, or tells what it acknowledged. It runs in the test's own process, since hundreds of "
        "starts would take long otherwise. Three things no checksum of a row finds: damage to the last commit in the log "
        "of a server that was killed, which looks like a commit that was torn off; how it stands with a task (its state, "
        "attempts, last error), which is written beside its payload, so that a list may lack it; and an entry of SQLite's own index that leads "
        "nowhere, so that a history tells less.",
        (1, 8, 13),
        ("tests/crash/test_bit_flips.py",),
    ),
    Fault(
        "PostgreSQL: restarts and lost sessions",
        "The database is restarted, crashes, or ends every session under load; nobody helps the server.",
        (1, 2, 4, 13),
        ("tests/system/postgres_failures/test_restarts.py", f"{_KILL}::test_postgres_itself_crashes"),
    ),
    Fault(
        "PostgreSQL: lost answers",
        "The answer to a COMMIT never arrives.",
        (1, 3, 13),
        ("tests/system/postgres_failures/test_lost_answers.py",),
    ),
    Fault(
        "PostgreSQL: fail-over, no room",
        "The primary is killed and its synchronous standby promoted; no connection is left.",
        (1, 13),
        (
            "tests/system/postgres_failures/test_failover.py",
            "tests/system/postgres_failures/test_connection_limit.py",
        ),
    ),
    Fault(
        "owner stopped between check and commit",
        "A node stops itself inside its transaction, after the epoch check and before COMMIT. Others take its shards; "
        "then it goes on.",
        (1, 9, 10),
        ("tests/crash/test_stopped_owner.py",),
    ),
    Fault(
        "nodes killed, stopped, cut off",
        "One of three nodes is killed, stands still and goes on, or loses its way to the database.",
        (1, 2, 4, 9, 10),
        (
            f"{_NODES}::test_killed_long",
            f"{_NODES}::test_stood_still_long",
            f"{_NODES}::test_a_node_without_its_database_is_replaced_and_comes_back",
            f"{_NODES}::test_cut_off_long",
        ),
    ),
    Fault(
        "nodes: rolling restarts, watchers, claims",
        "Nodes are restarted one by one and killed while clients watch events and complete activities.",
        (2, 3, 9, 10, 15),
        (
            "tests/system/cluster/test_hand_over.py::test_rolling_restart_long",
            "tests/system/cluster/test_watch.py::test_watch_long",
            "tests/system/cluster/test_activities.py::test_many_deaths_long",
        ),
    ),
    Fault(
        "wall clock ± 1 h",
        "The wall clock of the whole process jumps an hour ahead and back while it serves; and three nodes whose "
        "clocks are minutes apart.",
        (4, 5),
        ("tests/crash/test_wall_clock.py", "tests/system/cluster/test_clock_skew.py::test_clocks_long"),
    ),
    Fault(
        "storm of 20,000 workers",
        "20,000 workers fall silent at once. Who is held and comes back keeps its lease; who never comes is found within "
        "two leases, a second and its place in the line, and what it held is rescheduled once. Those whose leases end "
        "before so many have fallen due that it is a storm, up to 30 %, die as ever.",
        (2, 3, 4, 5),
        ("tests/crash/test_storm.py",),
    ),
    Fault(
        "SIGTERM, SIGINT, SIGSTOP",
        "The server is ended in good order under load, or stands still for longer than leases.",
        (1, 4),
        ("tests/system/server/test_signals.py",),
    ),
    Fault(
        "broker killed and wiped",
        "Of three NATS servers the stream's leader is killed and loses its disk, one after the other.",
        (2, 3),
        (f"{_BROKERS}::test_nothing_is_lost_or_doubled_when_leader_after_leader_is_killed_and_wiped",),
    ),
    Fault(
        "workers and server of the SDK",
        "Real worker processes are killed, stopped and cut off, and the server is killed as well.",
        (3, 15),
        ("tests/system/worker_processes/test_random_run.py::test_a_long_run_with_server_kills",),
    ),
)
