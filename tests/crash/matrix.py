"""The faults that `make crash` injects, and the tests that inject them."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of fault. Its tests may report several rows."""

    name: str
    what: str
    """The fault, and the property that must hold in spite of it."""
    invariants: tuple[int, ...]
    """The invariants under attack, by their number in `INVARIANTS`."""
    nodes: tuple[str, ...]
    """Test ids for pytest."""


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
        "The harness kills the server at a random moment under load, again and again on the same file; every other run "
        "checkpoints and compacts all the time. Every sixth outage is longer than a lease.",
        (1, 2, 3, 4, 9, 12),
        (f"{_KILL}::test_many_kills_lose_no_acknowledged_heartbeat_on_sqlite",),
    ),
    Fault(
        "kill -9, PostgreSQL",
        "The same, with a PostgreSQL that syncs its commits to disk.",
        (1, 2, 3, 4, 9, 12),
        (f"{_KILL}::test_many_kills_lose_no_acknowledged_heartbeat_on_postgres",),
    ),
    Fault(
        "failpoint",
        "Before or after a chosen step, the process is killed, the step fails, or the step takes longer than the shortest "
        "lease.",
        (1, 2, 3, 4, 9, 12, 13),
        ("tests/crash/test_failpoints.py",),
    ),
    Fault(
        "power loss",
        "The harness kills the process and takes back its unsynced writes: all of them, or a random part in random order, "
        "some writes by half.",
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
        "The harness flips a bit of a row, of the closed database file or of its write-ahead log. The server does not start, "
        "refuses to answer, or answers with the acknowledged data. It runs in the test's own process, because hundreds of "
        "process starts would take too long. A row's checksum cannot find three kinds of damage: to the last commit in the "
        "write-ahead log of a killed server, which looks like a torn commit; to a task's state, attempts and last error, "
        "which are stored beside its payload, so that a list may lack the task; and to an entry of SQLite's own index, which "
        "can hide an event from a history.",
        (1, 8, 13),
        ("tests/crash/test_bit_flips.py",),
    ),
    Fault(
        "PostgreSQL: restarts and lost sessions",
        "The database restarts, crashes, or ends every session under load; the server recovers without help.",
        (1, 2, 4, 13),
        (
            "tests/system/postgres_failures/test_restarts.py",
            f"{_KILL}::test_a_crash_of_postgres_loses_no_acknowledged_heartbeat",
        ),
    ),
    Fault(
        "PostgreSQL: lost answers",
        "The answer to a COMMIT never arrives.",
        (1, 3, 13),
        ("tests/system/postgres_failures/test_lost_answers.py",),
    ),
    Fault(
        "PostgreSQL: fail-over, no room",
        "The primary is killed and its synchronous standby is promoted; the database has no free connection.",
        (1, 13),
        (
            "tests/system/postgres_failures/test_failover.py",
            "tests/system/postgres_failures/test_connection_limit.py",
        ),
    ),
    Fault(
        "owner stopped between check and commit",
        "A node stops itself inside its transaction, after the epoch check and before COMMIT. Other nodes take its shards; "
        "then the stopped node continues.",
        (1, 9, 10),
        ("tests/crash/test_stopped_owner.py",),
    ),
    Fault(
        "nodes killed, stopped, cut off",
        "One of three nodes is killed, is stopped and continues, or loses its connection to the database.",
        (1, 2, 4, 9, 10),
        (
            f"{_NODES}::test_killed_nodes_lose_no_acknowledged_heartbeat",
            f"{_NODES}::test_resumed_nodes_lose_no_acknowledged_heartbeat",
            f"{_NODES}::test_a_node_without_its_database_is_replaced_and_comes_back",
            f"{_NODES}::test_nodes_cut_off_from_the_database_lose_no_acknowledged_heartbeat",
        ),
    ),
    Fault(
        "nodes: rolling restarts, watchers, claims",
        "Nodes are restarted one by one and killed while clients watch events and complete activities.",
        (2, 3, 9, 10, 15),
        (
            "tests/system/cluster/test_hand_over.py::test_workers_do_not_notice_rolling_restarts",
            "tests/system/cluster/test_watch.py::test_watchers_miss_nothing_in_many_runs",
            "tests/system/cluster/test_activities.py::test_every_activity_completes_once_although_many_workers_die",
        ),
    ),
    Fault(
        "wall clock ± 1 h",
        "The wall clock of a serving process jumps an hour ahead and back; three nodes have clocks that are minutes apart.",
        (4, 5),
        (
            "tests/crash/test_wall_clock.py",
            "tests/system/cluster/test_clock_skew.py::test_skewed_clocks_change_nothing_in_many_runs",
        ),
    ),
    Fault(
        "storm of 20,000 workers",
        "20,000 workers fall silent at once. A held worker that comes back keeps its lease. A worker that never comes back "
        "expires within two leases, one second and its wait in the paced queue, and its activity is rescheduled once. "
        "Workers whose leases end before the storm is declared, at most 30 %, expire as usual.",
        (2, 3, 4, 5),
        ("tests/crash/test_storm.py",),
    ),
    Fault(
        "SIGTERM, SIGINT, SIGSTOP",
        "The server is shut down gracefully under load, or is stopped for longer than leases.",
        (1, 4),
        ("tests/system/server/test_signals.py",),
    ),
    Fault(
        "broker killed and wiped",
        "In a cluster of three NATS servers, one stream leader after the other is killed and loses its disk.",
        (2, 3),
        (f"{_BROKERS}::test_killing_and_wiping_leader_after_leader_loses_and_doubles_no_message",),
    ),
    Fault(
        "random inputs",
        "Random calls of every method of both gRPC listeners, and random bytes at the HTTP listener: valid requests, nearly "
        "valid ones, wrong wire types, huge lists, odd metadata, nonsense. They go to one node; to a node that asks who calls, with "
        "tokens of every role, sessions and JWTs, and with expired, revoked, garbled and forged ones; through a frontend; and to two "
        "nodes that forward calls to each other. Also the largest request of each kind. No answer is "
        "UNKNOWN, INTERNAL or 500, no step of the event loop takes longer than 50 ms of processor time, and memory stays bounded; "
        "afterwards the server renews a lease, lists workers, and its database passes verification. The calls run in the "
        "process of the test, several thousand a second; `python -m tests.fuzz` repeats one of them.",
        (11, 13),
        (
            "tests/fuzz/test_grpc_inputs.py::test_no_input_of_many_makes_the_server_fail_or_stand_still",
            "tests/fuzz/test_grpc_inputs.py::test_no_input_of_many_makes_other_servers_fail_or_stand_still",
            "tests/fuzz/test_http_inputs.py::test_no_input_of_many_makes_the_server_fail",
            "tests/fuzz/test_http_inputs.py::test_no_input_of_many_makes_a_server_fail_that_asks_who_calls",
            "tests/fuzz/test_largest_requests.py::test_no_large_request_takes_the_loop_for_long_on_postgres",
        ),
    ),
    Fault(
        "workers and server of the SDK",
        "Real worker processes are killed, stopped and disconnected, and the server is killed as well.",
        (3, 15),
        (
            "tests/system/worker_processes/test_random_run.py::test_a_long_random_run_with_server_kills_completes_each_activity_once",
        ),
    ),
    Fault(
        "Temporal workers behind the bridge",
        "A Temporal workflow runs 200 activities on five workers, which are killed at random. It completes, and the last attempt "
        "of each activity has its effect.",
        (2, 3),
        ("tests/system/temporal/test_storm.py",),
    ),
)
