"""GitHub workflows, issue forms and the citation file are valid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ISSUES = ROOT / ".github" / "ISSUE_TEMPLATE"
FILES = {
    "github-workflows": WORKFLOWS,
    "github-issue-config": [ISSUES / "config.yml"],
    "github-issue-forms": sorted(set(ISSUES.glob("*.yml")) - {ISSUES / "config.yml"}),
    "citation-file-format": [ROOT / "CITATION.cff"],
}
BROKEN = """
on: push
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ matrix.os }}
        shel: bash
"""


def run(*command: object) -> tuple[int, str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def check_schema(schema: str, *files: Path) -> tuple[int, str]:
    """Check files against a schema bundled with check-jsonschema, offline."""
    options = ["--default-filetype", "yaml", "--builtin-schema", f"vendor.{schema}"]
    return run(sys.executable, "-m", "check_jsonschema", *options, *files)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A workflow with a key that does not exist."""
    path = tmp_path / ".github" / "workflows" / "broken.yml"
    path.parent.mkdir(parents=True)
    path.write_text(BROKEN, encoding="utf-8")
    return path


@pytest.mark.parametrize("schema", FILES)
def test_files_match_their_schema(schema: str):
    pytest.importorskip("check_jsonschema", reason="run make test-integration")
    assert FILES[schema]
    code, output = check_schema(schema, *FILES[schema])
    assert code == 0, output


def test_schema_rejects_a_broken_workflow(broken: Path):
    pytest.importorskip("check_jsonschema", reason="run make test-integration")
    code, output = check_schema("github-workflows", broken)
    assert code == 1 and "shel" in output


def test_actionlint_finds_nothing(broken: Path):
    program = shutil.which("actionlint", path=Path(sys.executable).parent)
    program = program or shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed")
    code, output = run(program, "-no-color", *WORKFLOWS)
    assert code == 0, output
    code, output = run(program, "-no-color", broken)
    assert code == 1 and 'unexpected key "shel"' in output
