"""A release is built, checked, and installed with its requirements into a fresh venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("twine", reason="it builds a release: run make test-integration")
pytestmark = pytest.mark.xdist_group("release")  # shares one build
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "Scripts" if os.name == "nt" else "bin"
COMMANDS = (
    ("train", "ngram", "--data", "grammar", "--out", "runs/ngram"),
    ("score", "runs/ngram", "--text", "the dog sleeps"),
)


def run(*command: object, cwd: Path | None = None) -> str:
    """Output of a command, without this checkout's code on its path."""
    removed = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    own = {name: value for name, value in os.environ.items() if name not in removed}
    words = [*map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, cwd=cwd, env=own)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel built from it."""
    # From a copy, because setuptools writes files next to the sources.
    sources = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", sources / "src", ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: the pinned setuptools of this environment builds it.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, sources)
    return out


def test_twine_accepts_the_distributions(release: Path):
    [source], [wheel] = release.glob("lmlab-*.tar.gz"), release.glob("lmlab-*.whl")
    output = run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    assert output.count("PASSED") == 2


def test_wheel_built_from_sdist_holds_all_files(release: Path):
    [wheel] = release.glob("lmlab-*.whl")
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "lmlab").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_commands_run_from_the_wheel_in_a_fresh_venv(release: Path, tmp_path: Path):
    [wheel] = release.glob("lmlab-*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    programs, outside, here = tmp_path / "fresh" / PROGRAMS, tmp_path / "a", tmp_path / "b"
    python = programs / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    run(*pip, "check")
    location = run(python, "-c", "import lmlab; print(lmlab.__file__)", cwd=tmp_path).strip()
    assert Path(location).is_relative_to(tmp_path)
    for directory in (outside, here):
        directory.mkdir()
    for command in COMMANDS:
        printed = run(programs / "lmlab", *command, cwd=outside)
        own = run(Path(sys.executable).with_name("lmlab"), *command, cwd=here)
    # The wheel and this checkout print the same score.
    assert printed == own and "the dog sleeps" in printed
