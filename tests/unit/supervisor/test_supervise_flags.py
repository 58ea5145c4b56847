"""What `liveness supervise` refuses before it runs anything, with exit code 2 and one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from liveness.cli import main

RUN = ("--", "true")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --name and a command after --"),
        (("--name", "g"), "give --name and a command after --"),
        (RUN, "give --name and a command after --"),
        (("--name", "a:b", *RUN), "flag --name is 'a:b', but must be"),
        (("--name", "g", "--processes", "-1", *RUN), "Invalid value for '--processes'"),
        (("--name", "g", "--processes", "many", *RUN), "Invalid value for '--processes'"),
        (("--name", "g", "--wait", "nan", *RUN), "flag --wait"),
        (("--name", "g", "--wait", "-1", *RUN), "Invalid value for '--wait'"),
        (("--name", "g", "--log-level", "loud", *RUN), "Invalid value for '--log-level'"),
        (("--name", "g", "--log-format", "xml", *RUN), "Invalid value for '--log-format'"),
        (("--name", "g", "--proceses", "1", *RUN), "No such option"),
        (("--name", "g", "--", ""), "starts with an empty word"),
        (("--name", "g", "--address", "nowhere", *RUN), "--address"),
        (("--config", "missing.toml"), "missing.toml cannot be read: No such file or directory."),
        (("--config", "missing.toml", "--name", "g"), "not both"),
        (("--config", "twice.toml"), "is not valid TOML"),
        (("--config", "wrong.toml"), "key stop_timeout of group g in wrong.toml is 'soon'"),
    ],
)
def test_wrong_flags_end_with_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("twice.toml").write_text("[group.g]\n[group.g]\n")
    Path("wrong.toml").write_text('[group.g]\ncommand = "true"\nstop_timeout = "soon"\n')
    result = CliRunner().invoke(main, ["supervise", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output
