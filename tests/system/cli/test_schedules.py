"""`liveness schedules` and `liveness limits`, against a real server."""

from __future__ import annotations

from tests.system.cli.shell import Shell

ACTIVITY = ("--type", "report", "--task-queue", "night")


def test_schedules_are_created_listed_described_and_deleted(shell: Shell) -> None:
    assert shell.run("schedules", "list").stderr.startswith(
        f"No such schedule in namespace {shell.namespace}.\n"
    )
    created = shell.run(
        "schedules", "create", "nightly", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin",
        "--input", '{"a": 1}', "--note", "für Menschen", *ACTIVITY,
    )  # fmt: skip
    assert created.stderr.startswith("Schedule nightly is created; it fires next at ")
    again = ("schedules", "create", "nightly", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin")
    assert "SCHEDULE_EXISTS" in shell.sentence(*again, *ACTIVITY)
    shell.ok(
        "schedules", "create", "often", "--every", "1h", "--overlap", "skip", "--missed", "all", *ACTIVITY
    )
    [nightly, often] = shell.json("schedules", "list")
    assert (nightly["schedule_id"], nightly["spec"]["time_zone"]) == ("nightly", "Europe/Berlin")
    assert often["spec"]["missed"] == "MISSED_POLICY_ALL"
    assert "every 1 h" in shell.ok("schedules", "list", "of")
    described = shell.ok("schedules", "describe", "nightly")
    assert described.count("next ") == 5
    assert '{"a": 1}' in described
    assert "paused" in shell.run("schedules", "pause", "often", "--reason", "why").stderr
    assert "PAUSED" in shell.ok("schedules", "list")
    fired = shell.run("schedules", "trigger", "often", "--trigger-id", "one").stderr
    assert "has fired: activity schedule:often/" in fired
    assert (
        "had fired for this id before"
        in shell.run("schedules", "trigger", "often", "--trigger-id", "one").stderr
    )
    assert "is resumed; it fires next at" in shell.run("schedules", "resume", "often").stderr
    assert "is updated" in shell.run("schedules", "update", "often", "--every", "2h", *ACTIVITY).stderr
    assert "not confirmed" in shell.run("schedules", "delete", "often").stderr
    shell.ok("schedules", "delete", "often", "--yes")
    assert shell.sentence("schedules", "describe", "often") == (
        f"There is no schedule often in namespace {shell.namespace} (SCHEDULE_NOT_FOUND)."
    )


def test_wrong_options_of_schedules_are_refused_in_one_sentence(shell: Shell) -> None:
    create = ("schedules", "create", "s", *ACTIVITY)
    assert "--cron or by --every" in shell.sentence(*create, exit_code=2)
    assert "spec.cron must have five fields" in shell.sentence(*create, "--cron", "often")
    assert "spec.time_zone" in shell.sentence(*create, "--cron", "@daily", "--time-zone", "Mars/Base")


def test_limits_are_set_listed_and_removed(shell: Shell) -> None:
    told = shell.run("limits", "set", "tenant-7", "--max", "3")
    assert told.stderr == "At most 3 activities of workflow tenant-7 run at once; 0 run now, and 0 wait.\n"
    [limit] = shell.json("limits", "list")
    assert (limit["workflow_id"], limit["maximum"], limit["running"]) == ("tenant-7", 3, 0)
    assert "tenant-7" in shell.ok("limits", "list", "tenant")
    shell.ok("limits", "set", "tenant-7", "--max", "0")
    shell.ok("activities", "schedule", "tenant-7", "run", "a", "--type", "work", "--task-queue", "queue")
    waits = shell.ok("activities", "describe", "tenant-7", "run", "a")
    assert "0 of 0 activities of tenant-7 are running" in waits
    assert "not confirmed" in shell.run("limits", "remove", "tenant-7").stderr
    shell.ok("limits", "remove", "tenant-7", "--yes")
    assert "CONCURRENCY_LIMIT_NOT_FOUND" in shell.sentence("limits", "remove", "tenant-7", "--yes")
