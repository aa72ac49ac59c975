"""A strict run of the suite fails where an oracle is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.skips import Rule, Skip, not_allowed, read_rules

ROOT = Path(__file__).resolve().parents[2]
MODULE = 'import pytest\npytest.importorskip("no_such_oracle")\ndef test_it():\n    pass\n'
TEST = 'import pytest\ndef test_it():\n    pytest.skip("{}")\ndef test_other():\n    pass\n'
RULE = '[[skip]]\ntest = "*test_it"\nreason = "of no use here"\nwhy = "A test."\n'


def run(folder: Path, *options: str) -> tuple[int, str]:
    """A suite of its own with our plugin, in a process of its own."""
    for name in ("conftest.py", "skips.py", "__init__.py"):
        (folder / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (folder / "allowed_skips.toml").write_text(RULE, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--numprocesses", "1")], ids=["alone", "worker"])
def test_a_missing_oracle_fails_a_strict_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "test_one.py").write_text(TEST.format("a bad reason"), encoding="utf-8")
    code, said = run(tmp_path, "--no-skips", *options)
    assert code == 1, said
    assert "test_module.py: could not import 'no_such_oracle'" in said
    assert "test_one.py::test_it: a bad reason" in said
    assert "ALLOW_SKIPS=1" in said


def test_an_allowed_skip_and_a_run_that_is_not_strict_pass(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TEST.format("of no use here"), encoding="utf-8")
    assert run(tmp_path, "--no-skips")[0] == 0
    (tmp_path / "test_one.py").write_text(TEST.format("a bad reason"), encoding="utf-8")
    assert run(tmp_path)[0] == 0


def test_a_rule_allows_its_tests_and_its_reason_alone() -> None:
    rules = [Rule("tests/a.py::*", "no corpus", "why")]
    right = Skip("tests/a.py::test_x", "there is no corpus here")
    elsewhere, other = Skip("tests/b.py::test_x", "no corpus"), Skip("tests/a.py::test_x", "numba")
    assert not_allowed([right, elsewhere, other, other], rules) == [elsewhere, other]


def test_every_rule_names_a_file_and_says_why() -> None:
    for rule in read_rules():
        file = rule.test.partition("::")[0]
        assert list(ROOT.glob(file)), rule
        assert rule.reason and len(rule.why) > 20, rule


def test_the_suite_of_make_test_is_strict_unless_skips_are_allowed() -> None:
    def command(*variables: str) -> str:
        done = subprocess.run(
            ["make", "--dry-run", "--always-make", "--no-print-directory", "test", *variables],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return next(line for line in done.stdout.splitlines() if "-m pytest" in line)

    assert "--no-skips" in command()
    assert "--no-skips" not in command("ALLOW_SKIPS=1")
