"""The options --address, --namespace and --json are accepted before and after the subcommand."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

from liveness.cli import COMMANDS, main


def parsed_options(line: str) -> dict[str, Any]:
    """The options with which the innermost command of `line` would run. Nothing is run."""
    command: click.Command = main
    name, args, parent = "liveness", shlex.split(line), None
    while True:
        context = command.make_context(name, args, parent=parent)
        if not isinstance(command, click.Group):
            return context.params
        found, subcommand, args = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        assert subcommand is not None
        name, command, parent = found, subcommand, context


@pytest.mark.parametrize(
    "line",
    [
        "--address a:1 --namespace orders --json workers list",
        "-n orders --json workers --address a:1 list",
        "--json workers list --address a:1 -n orders",
        "workers --json --address a:1 -n orders list",
        "workers list --json --address a:1 -n orders",
    ],
)
def test_the_place_of_a_shared_option_does_not_matter(line: str) -> None:
    options = parsed_options(line)
    assert (options["address"], options["namespace"], options["as_json"]) == ("a:1", "orders", True)


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("--address a:1 workers --address b:2 list --address c:3", "c:3"),
        ("--address a:1 workers --address b:2 list", "b:2"),
        ("--address a:1 top --address c:3", "c:3"),
    ],
)
def test_the_innermost_option_wins(line: str, address: str) -> None:
    assert parsed_options(line)["address"] == address


def test_options_that_are_not_given_stay_unset() -> None:
    options = parsed_options("workers list")
    assert (options["address"], options["namespace"], options["as_json"]) == (None, None, False)


def test_an_empty_value_is_passed_on_as_given() -> None:
    assert parsed_options("--namespace '' workers list")["namespace"] == ""


def test_a_value_that_looks_like_an_option_is_passed_on_as_a_value() -> None:
    assert parsed_options("--namespace=--json workers list")["namespace"] == "--json"


def test_a_namespace_before_relay_replay_limits_what_is_replayed() -> None:
    assert parsed_options("-n orders relay replay --since 1h")["only_namespace"] == "orders"


def test_arguments_that_begin_with_a_dash_are_not_disturbed() -> None:
    options = parsed_options("--json workers describe -- --odd-key")
    assert (options["key"], options["as_json"]) == ("--odd-key", True)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--address a:1 serve", "`liveness serve` has no option --address"),
        ("--json serve", "`liveness serve` has no option --json"),
        ("--namespace x doctor", "`liveness doctor` has no option --namespace"),
        ("--namespace x nodes list", "`liveness nodes list` has no option --namespace"),
        ("nodes --namespace x list", "`liveness nodes list` has no option --namespace"),
        ("--address a:1 backup copy.db", "`liveness backup` has no option --address"),
    ],
)
def test_a_command_refuses_a_shared_option_that_it_does_not_use(line: str, error: str) -> None:
    result = CliRunner().invoke(main, shlex.split(line), prog_name="liveness")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {error}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_shown_with_a_shared_option_that_the_command_uses(name: str) -> None:
    """Help stays reachable: a refused option is the only reason not to show it."""
    before = [] if name in ("serve", "frontend", "supervise") else ["--json"]
    result = CliRunner().invoke(main, [*before, name, "--help"], prog_name="liveness")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: liveness {name} ")


@pytest.mark.parametrize("line", ["worker list", "--json worker list"])
def test_a_misspelt_command_is_answered_with_the_similar_one(line: str) -> None:
    result = CliRunner().invoke(main, shlex.split(line))
    assert result.exit_code == 2
    assert "No such command 'worker'. Did you mean 'workers'?" in result.output
