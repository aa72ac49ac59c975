"""The worked examples of docs/add-a-system.md, tested in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lmlab
from lmlab.conformance.suite import CHECKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "add-a-system.md"
FILE = re.compile(
    r"^`((?:src|tests)/[\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
SYSTEMS = ("bigram-sphere", "leaky")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the page's files; unaffected folders are symbolic links."""
    root = tmp_path_factory.mktemp("copy")
    package = root / "src" / "lmlab"
    package.mkdir(parents=True)
    for item in (ROOT / "src" / "lmlab").iterdir():
        if item.name in ("zoo", "backbones", "core"):
            # The registry looks for the zoo next to itself, so `core` must be copied too.
            (package / item.name).mkdir()
            for file in item.glob("*.*"):
                (package / item.name / file.name).write_bytes(file.read_bytes())
        elif item.name != "__pycache__":
            (package / item.name).symlink_to(item)
    for name, code in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(code, encoding="utf-8")
    return root


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment = {
        **outer,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=200,
    )


def test_page_names_its_files(copy: Path):
    names = [name for name, _ in FILE.findall(PAGE.read_text(encoding="utf-8"))]
    assert names == [
        "src/lmlab/zoo/bigram_sphere.py",
        "src/lmlab/backbones/leaky.py",
        "src/lmlab/zoo/leaky.py",
        "tests/parity/test_leaky.py",
    ]


def test_new_systems_are_registered_by_their_files(copy: Path):
    done = run(copy, "-m", "lmlab", "find", "leaky")
    assert done.returncode == 0, done.stderr
    assert "the sum of all words so far" in done.stdout
    assert "Numbers in an embedding and in the sum." in done.stdout


def test_new_systems_pass_the_conformance_suite(copy: Path):
    done = run(copy, "-m", "lmlab", "conformance", *SYSTEMS, "--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    # Every check but those of protocols that they lack and of systems conditioned on a source.
    applicable = [
        check.name
        for check in CHECKS.values()
        if check.protocol in ("", "LogProb", "Step") and not check.conditional
    ]
    for report in json.loads(done.stdout):
        outcomes = {result["check"]: result["outcome"] for result in report["results"]}
        passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
        without_layers = {"layer-vectors"} - passed
        assert passed | without_layers == {"training", *applicable}


def test_page_shows_the_output_of_a_failing_system(tmp_path: Path):
    """The failures shown are those of the file shown; numbers to 1e-3, as processors round."""
    text = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^`scaled_window.py`:\n\n```python\n(.*?)^```$", text, re.M | re.S)
    [shown] = re.findall(r"^```text\n(masked-inputs failed.*?)^```$", text, re.M | re.S)
    (tmp_path / "scaled_window.py").write_text(code, encoding="utf-8")
    checks = ("masked-inputs", "batch-independence", "stepping")
    report = lmlab.conformance(tmp_path / "scaled_window.py", checks=checks)
    measured = "\n\n".join(
        f"{failure.check} failed: {failure.property}\n  {failure.message}"
        for name in checks
        for failure in report.failures
        if failure.check == name
    )
    number = re.compile(r"-?\d+\.\d+")
    assert number.sub("…", measured) == number.sub("…", shown.strip())
    numbers = [[float(text) for text in number.findall(each)] for each in (measured, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


def test_new_systems_pass_their_oracles(copy: Path):
    done = run(
        copy,
        *("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
        *("-p", "no:cacheprovider", "--numprocesses", "0", "-k", " or ".join(SYSTEMS)),
        *(str(ROOT / "tests" / "conformance" / "test_oracles.py"), str(copy / "tests")),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) == len(SYSTEMS) + 1


def test_new_files_satisfy_the_linter(copy: Path):
    written = [str(copy / name) for name, _ in FILE.findall(PAGE.read_text(encoding="utf-8"))]
    check = ["-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    assert run(copy, *check, *written).returncode == 0
    shape = ["-m", "ruff", "format", "--check", "--no-cache", "--config"]
    assert run(copy, *shape, str(ROOT / "pyproject.toml"), *written).returncode == 0
