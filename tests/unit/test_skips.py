"""A strict test run fails on skips that are not allowed, such as a missing oracle."""

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
    """Run a separate test suite with our plugin in a subprocess."""
    for name in ("conftest.py", "skips.py", "__init__.py"):
        (folder / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (folder / "allowed_skips.toml").write_text(RULE, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--numprocesses", "1")], ids=["alone", "worker"])
def test_missing_oracle_fails_a_strict_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "test_one.py").write_text(TEST.format("a bad reason"), encoding="utf-8")
    code, output = run(tmp_path, "--no-skips", *options)
    assert code == 1, output
    assert "test_module.py: could not import 'no_such_oracle'" in output
    assert "test_one.py::test_it: a bad reason" in output
    assert "ALLOW_SKIPS=1" in output


def test_allowed_skip_and_non_strict_run_pass(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TEST.format("of no use here"), encoding="utf-8")
    assert run(tmp_path, "--no-skips")[0] == 0
    (tmp_path / "test_one.py").write_text(TEST.format("a bad reason"), encoding="utf-8")
    assert run(tmp_path)[0] == 0


def test_rule_allows_only_its_tests_and_reason() -> None:
    rules = [Rule("tests/a.py::*", "no corpus", "why")]
    right = Skip("tests/a.py::test_x", "there is no corpus here")
    elsewhere, other = Skip("tests/b.py::test_x", "no corpus"), Skip("tests/a.py::test_x", "numba")
    assert not_allowed([right, elsewhere, other, other], rules) == [elsewhere, other]


def test_every_rule_names_a_file_and_a_reason() -> None:
    for rule in read_rules():
        file = rule.test.partition("::")[0]
        assert list(ROOT.glob(file)), rule
        assert rule.reason and len(rule.why) > 20, rule


def test_make_test_is_strict_unless_skips_are_allowed() -> None:
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
