"""The plug-in of pytest, in a pytest of its own: options, test ids, failures, and lightness."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lmlab
from lmlab.conformance.pytest_plugin import run_case
from lmlab.conformance.system_under_test import Workspace
from lmlab.core.registry import remove_system
from lmlab.core.system_files import register

SOURCE = Path(lmlab.__file__).resolve().parents[1]
CHECKS = ("stepping", "state-selection", "sampling")
TEST_FILE = f"""
from lmlab.conformance.pytest_plugin import conformance_tests

test_window = conformance_tests("window", checks={CHECKS!r})
"""
BROKEN = """
from lmlab.models.causal_lm import AutoregressiveLM

advance = AutoregressiveLM.advance
AutoregressiveLM.advance = lambda self, s, tokens: advance(self, s, tokens.clamp(max=5))
"""
"""A plug-in that makes every system forget which word it was, so that it steps otherwise."""
STEPPING = (
    "window: stepping: token by token it gives another log-probability than at once: at position 2 "
    "expected "
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the entry points that pyproject.toml declares, as an installation has them."""
    pyproject = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(pyproject)["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in declared.items()]
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / "lmlab_entry_points-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: lmlab-entry-points\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]) + "\n")
    return folder


def run_pytest(folder: Path, installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, as where lmlab is installed."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": f"{SOURCE}{os.pathsep}{installed}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


def test_one_test_per_check_with_readable_ids(tmp_path: Path, installed: Path):
    (tmp_path / "test_systems.py").write_text(TEST_FILE, encoding="utf-8")
    done = run_pytest(tmp_path, installed, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    for check in CHECKS:
        assert f"test_systems.py::test_window[window:{check}] PASSED" in done.stdout
    assert f"{len(CHECKS)} passed" in done.stdout


def test_option_adds_the_tests_of_a_system(tmp_path: Path, installed: Path):
    chosen = ("-k", "stepping or exemptions")
    done = run_pytest(tmp_path, installed, "--lmlab-system", "window", "-v", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance[window:stepping] PASSED" in done.stdout
    assert "2 passed" in done.stdout


def test_failure_is_one_sentence_with_the_position(tmp_path: Path, installed: Path):
    """By a test file and by the option."""
    (tmp_path / "test_systems.py").write_text(TEST_FILE, encoding="utf-8")
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    chosen = ("-p", "broken", "--lmlab-system", "window", "-k", "stepping")
    done = run_pytest(tmp_path, installed, *chosen)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed" in done.stdout
    failures, _, summary = done.stdout.partition("short test summary info")
    assert failures.count(STEPPING) == 2
    assert "test_window[window:stepping]" in summary
    assert "conformance[window:stepping]" in summary
    assert "During handling" not in done.stdout
    assert "Traceback" not in done.stdout
    assert "suite.py" not in done.stdout


def test_mistake_in_a_systems_file_is_one_sentence(tmp_path: Path):
    path = tmp_path / "no_sizes.py"
    card = "family='x', kind='exact', paper='', source='', protocols=(), oracle=''"
    path.write_text(f"from lmlab.core.card import Card\nCARD = Card({card})\n")
    name = register(path).name
    with pytest.raises(pytest.fail.Exception) as failure:
        run_case(name, "stepping", Workspace(tmp_path))
    remove_system(name)
    assert not failure.value.pytrace
    assert f"no-sizes: stepping: {path} declares no" in str(failure.value)


def test_wrong_system_is_a_usage_error(tmp_path: Path, installed: Path):
    done = run_pytest(tmp_path, installed, "--lmlab-system", "windows")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no system called 'windows'; did you mean 'window'" in done.stderr


UNRELATED = """
import sys

def test_own(request):
    assert request.config.pluginmanager.hasplugin("lmlab_conformance")
    slow = {"torch", "numpy", "typer", "rich", "matplotlib"}
    assert slow & sys.modules.keys() == set()
"""


def test_unrelated_projects_are_not_touched(tmp_path: Path, installed: Path):
    """Neither another test, nor a warning, nor a slow import."""
    (tmp_path / "test_own.py").write_text(UNRELATED, encoding="utf-8")
    done = run_pytest(tmp_path, installed, "-W", "error", "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
