"""The worked examples of docs/add-a-system.md, tested in a copy of the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_new_systems_pass_conformance_and_oracle_tests(copy: Path):
    done = run(
        copy,
        *("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
        *("-p", "no:cacheprovider", "--numprocesses", "0", "-k", " or ".join(SYSTEMS)),
        *("-rs", str(ROOT / "tests" / "conformance"), str(copy / "tests")),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert "skipped" not in done.stdout
    # Every check of each system except those for protocols that they lack and for conditional
    # systems, and the oracle of `leaky`.
    checks = (ROOT / "tests/conformance/test_conformance.py").read_text(encoding="utf-8")
    expected = len(re.findall(r"^def test_", checks, re.MULTILINE))
    expected -= len(re.findall(r'protocol\("(?!Step|LogProb)\w+"\)', checks))
    expected -= len(re.findall(r"^@pytest.mark.conditional$", checks, re.MULTILINE))
    for name in ("card_corpora", "oracles", "reveal", "vectors_of_texts"):
        others = (ROOT / f"tests/conformance/test_{name}.py").read_text(encoding="utf-8")
        expected += len(re.findall(r"^def test_\w+\((?:specimen|name)\b", others, re.MULTILINE))
    assert int(passed) == len(SYSTEMS) * expected + 1


def test_new_files_satisfy_the_linter(copy: Path):
    written = [str(copy / name) for name, _ in FILE.findall(PAGE.read_text(encoding="utf-8"))]
    check = ["-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    assert run(copy, *check, *written).returncode == 0
    shape = ["-m", "ruff", "format", "--check", "--no-cache", "--config"]
    assert run(copy, *shape, str(ROOT / "pyproject.toml"), *written).returncode == 0
