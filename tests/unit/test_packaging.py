"""The wheel: built offline, installed alone, and complete."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, **words) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, **words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build from, because setuptools writes files next to the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src" / "lmlab").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return copy


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # Without isolation: uses the installed setuptools and downloads nothing.
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(sources)]
    run(sys.executable, *build)
    [built] = out.glob("lmlab-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = ["-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]
    run(sys.executable, *pip, "--target", str(target), str(wheel))
    return target


def test_wheel_holds_every_source_file(sources: Path, wheel: Path):
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (sources / "src" / "lmlab").rglob("*") if path.is_file()]
    assert {str(path.relative_to(sources / "src")) for path in files} - inside == set()


def test_wheel_declares_types_licences_and_command(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    inside = archive.namelist()
    assert "lmlab/py.typed" in inside
    licences = [name for name in inside if ".dist-info/licenses/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in licences)
    assert any("wordnet/LICENSE" in name for name in licences)
    [entry] = [name for name in inside if name.endswith("entry_points.txt")]
    assert "lmlab = lmlab.cli.main:run" in archive.read(entry).decode()
    [metadata] = [name for name in inside if name.endswith(".dist-info/METADATA")]
    described = archive.read(metadata).decode()
    assert "License-Expression: Apache-2.0" in described
    assert "Requires-Python: >=3.11" in described
    # WordNet may take at most about 10 MB of the wheel.
    assert wheel.stat().st_size < 12_000_000


INSTALLED = """
from pathlib import Path
import lmlab
from lmlab.core.registry import catalogue
from lmlab.data.corpus import open_corpus
home = Path(lmlab.__file__).parent
assert str(home).startswith({target!r}), home
wordnet = home / "data" / "wordnet"
assert "Princeton University" in (wordnet / "LICENSE").read_text(encoding="utf-8")
assert (home / "core" / "glossary.md").exists()
[gloss] = open_corpus("wordnet").splits["train"].first()
assert len(gloss.text) > 0
print(" ".join(catalogue()))
"""


def test_installed_package_works_away_from_the_sources(
    sources: Path, installed: Path, tmp_path: Path
):
    code = INSTALLED.format(target=str(installed))
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    zoo = (sources / "src" / "lmlab" / "zoo").glob("[a-z]*.py")
    assert done.stdout.split() == sorted(path.stem.replace("_", "-") for path in zoo)


def test_citation_has_the_package_version():
    import lmlab

    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {lmlab.__version__}" in lines
