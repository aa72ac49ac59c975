"""The public names: light to import, typed for users, and without unrelated packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src"
HEAVY = ("torch", "numpy", "matplotlib", "transformers", "typer", "tokenizers", "accelerate")


def python(code: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_importing_lmlab_imports_no_heavy_package(tmp_path: Path) -> None:
    code = f"import sys, lmlab; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code, tmp_path) == "[]"


def test_completion_shows_the_table_of_names_alone(tmp_path: Path) -> None:
    """Those that the file imports from its own modules; no Any, no subpackages."""
    table = re.findall(
        r"^from lmlab\.\S+ import (\w+)", (SOURCE / "lmlab/__init__.py").read_text(), re.M
    )
    code = "import lmlab, lmlab.conformance.check; print(*dir(lmlab))"
    assert python(code, tmp_path).split() == sorted([*table, "__version__"])


TRAINING = """
import sys, lmlab
lmlab.train("ngram", data="grammar", out="run", size="tiny", quiet=True)
print(*sorted(name for name in sys.modules if name.startswith("lmlab.")))
"""
UNRELATED = ("interop", "inspection", "reports", "plotting", "diagnosis", "objective_figures")
"""Packages that a training does not need."""


def test_training_imports_no_unrelated_packages(tmp_path: Path) -> None:
    modules = python(TRAINING, tmp_path).split()
    packages = {name.split(".")[1] for name in modules}
    assert "training" in packages
    assert packages & set(UNRELATED) == set()
    of_tasks = {name for name in modules if name.startswith("lmlab.tasks.")}
    assert of_tasks <= {"lmlab.tasks.finetune_options"}  # declarations alone
    assert len(modules) <= 206  # a fifth of them are declarations of options


USER_CODE = """
from typing import reveal_type
import lmlab

reveal_type(lmlab.load("x"))
reveal_type(lmlab.load("x").score(["a"]))
lmlab.train("lstm", data="grammar", out="x", epochs=2)
lmlab.load("x").sample(3, method="beam", beam=4)
lmlab.train("lstm", data=1, out="x")
lmlab.train("lstm", data="grammar", out="x", epohcs=2)
lmlab.load("x").sample(3, method="beem")
"""


@pytest.mark.timeout(600)
def test_type_checker_sees_the_names_and_their_options(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_CODE)
    # A user's checker follows the installed package (py.typed) without reporting its errors.
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "user.py"]
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=580
    )
    lines = done.stdout.splitlines()
    assert any('user.py:5: note: Revealed type is "lmlab.verbs' in line for line in lines), lines
    assert any("user.py:6:" in line and "Records[lmlab.core.score.Score]" in line for line in lines)
    errors = [line for line in lines if ": error:" in line]
    assert [line.split(":")[1] for line in errors] == ["9", "10", "11"], errors
