"""Every planted bug still applies, and the runner counts only real catches. `make mutants` runs all bugs."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.bug import ROOT, Bug, DoesNotApply, read_bugs
from tests.mutants.mutation_run import MutationRunner, Verdict, check_imports, copy_tree, run_harness

INVARIANTS, PLANTED = read_bugs()


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_each_planted_bug_applies_and_leaves_valid_python(bug: Bug) -> None:
    mutated = bug.mutate((ROOT / bug.file).read_text(encoding="utf-8"))
    compile(mutated, bug.file, "exec")
    assert bug.harnesses
    assert [harness for harness in bug.harnesses if not (ROOT / harness).exists()] == []


def test_every_invariant_has_a_bug_and_every_bug_has_a_unique_name() -> None:
    assert {bug.invariant for bug in PLANTED} == set(INVARIANTS) == set(range(1, 22))
    assert [name for name, count in Counter(bug.name for bug in PLANTED).items() if count > 1] == []
    assert len(PLANTED) >= 25


def test_a_bug_whose_text_is_missing_or_ambiguous_does_not_apply() -> None:
    for text, times in (("", 0), ("the right thing; the right thing", 2)):
        with pytest.raises(DoesNotApply, match=f"occurs {times} times in liveness/__init__.py"):
            _bug("the right thing", "another").mutate(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A product of one line, its tests, and the modules that `check_imports` imports."""
    files = {
        "pytest.ini": "[pytest]\n",
        "conftest.py": "import hypothesis\nhypothesis.settings.register_profile('hasty')\n",
        "liveness/__init__.py": "ANSWER = 42\n",
        "liveness/tasks/contract.py": "",
        "tests/databases.py": "",
        "tests/test_here.py": "import liveness\ndef test_here():\n    assert liveness.ANSWER == 42\n",
        "tests/test_child.py": (
            "import subprocess, sys\n"
            "def test_child():\n"
            "    program = 'import liveness; print(liveness.ANSWER)'\n"
            "    done = subprocess.run([sys.executable, '-P', '-c', program], capture_output=True, cwd='/')\n"
            "    assert done.stdout == b'42\\n'\n"
        ),
        "tests/test_fixture.py": (
            "import liveness, pytest\n"
            "@pytest.fixture\n"
            "def broken():\n"
            "    assert liveness.ANSWER == 42\n"
            "def test_with_fixture(broken):\n"
            "    pass\n"
        ),
        "tests/test_never.py": "def test_never():\n    assert False, 'never'\n",
        "tests/test_blind.py": "def test_blind():\n    pass\n",
    }
    root = tmp_path / "folder" / "tree"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _bug(old: str, new: str, *harnesses: str) -> Bug:
    return Bug(
        name="wrong-answer", invariant=1, breaks="The answer.", file="liveness/__init__.py", old=old, new=new,
        harnesses=harnesses,
    )  # fmt: skip


def test_a_test_that_fails_with_the_bug_and_passes_without_it_catches_the_bug(tree: Path) -> None:
    harnesses = [f"tests/test_{name}.py" for name in ("blind", "fixture", "never", "here", "child")]
    result = MutationRunner(tree).run_bug(_bug("42", "41", *harnesses))
    assert [(run.harness, run.verdict) for run in result.runs] == [
        (harnesses[0], Verdict.PASSED),
        (harnesses[1], Verdict.BROKE),
        (harnesses[2], Verdict.FAILS_ANYWAY),
        (harnesses[3], Verdict.NOTICED),
    ]
    assert [run.test for run in result.noticed] == ["tests/test_here.py::test_here"]
    assert result.noticed[0].words == "assert 41 == 42"
    assert (tree / "liveness/__init__.py").read_text() == "ANSWER = 42\n"


def test_processes_that_tests_start_run_the_copy_with_the_bug(tree: Path) -> None:
    result = MutationRunner(tree).run_bug(_bug("42", "41", "tests/test_child.py"))
    assert [run.verdict for run in result.runs] == [Verdict.NOTICED]


def test_a_copy_that_cannot_be_imported_does_not_count_as_a_catch(tree: Path) -> None:
    result = MutationRunner(tree).run_bug(
        _bug("ANSWER = 42", "import nothing_of_that_name", "tests/test_here.py")
    )
    assert [run.verdict for run in result.runs] == [Verdict.BROKE]
    assert result.noticed == []


def test_a_harness_that_hangs_is_killed_and_does_not_count_as_a_catch(tree: Path) -> None:
    (tree / "tests/test_here.py").write_text("import signal\ndef test_here():\n    signal.pause()\n")
    assert run_harness(tree, "tests/test_here.py", seconds_max=3).verdict is Verdict.HUNG


def test_a_copy_that_would_import_the_original_is_refused(tree: Path) -> None:
    check_imports(tree)
    shutil.rmtree(tree / "liveness")
    with pytest.raises(RuntimeError, match="outside the copy"):
        check_imports(tree)


def test_a_copy_holds_tracked_and_untracked_files_but_no_deleted_or_ignored_ones(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)
    for name in ("kept.py", "gone.py", "new.py", "ignored.log", ".gitignore"):
        (source / name).write_text("*.log\n")
    subprocess.run(["git", "add", "kept.py", "gone.py", ".gitignore"], cwd=source, check=True)
    (source / "gone.py").unlink()
    copy_tree(source, target)
    assert sorted(path.name for path in target.iterdir()) == [".gitignore", "kept.py", "new.py"]
