"""`python -OO` removes docstrings; error messages must not depend on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

RENDER_ALL = """
from tests.unit.errors.error_trees import all_errors, qualified_name, sample
for kind in all_errors():
    print(qualified_name(kind), repr(str(sample(kind))))
"""


def render_all(*options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", RENDER_ALL],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_messages_are_the_same_without_docstrings() -> None:
    messages = render_all()
    assert len(messages) > 80
    assert render_all("-OO") == messages
