"""docs/plugins.md: its commands run, and its files are those of examples/plugin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmlab.core.registry import remove_system

from .page_runner import run_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "plugins.md"
EXAMPLE = ROOT / "examples" / "plugin"
FILE = re.compile(r"^`([\w/]+\.py)`:\n\n```python file\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.xdist_group("plugins")


def test_page_shows_the_files_of_the_example():
    page = PAGE.read_text(encoding="utf-8")
    assert dict(FILE.findall(page)) == {
        "traces.py": (EXAMPLE / "src/lmlab_traces/traces.py").read_text(encoding="utf-8")
    }
    tests = (EXAMPLE / "tests/test_conformance.py").read_text(encoding="utf-8")
    assert 'test_conformance = conformance_tests("traces")\n' in page
    assert 'test_conformance = conformance_tests("traces")\n' in tests
    for line in re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0].splitlines():
        assert line in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8").splitlines()


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    page = PAGE.read_text(encoding="utf-8")
    for name, code in FILE.findall(page):
        (tmp_path / name).write_text(code, encoding="utf-8")
    blocks = page.split("```bash fails")
    run_page(blocks[0])
    remove_system("traces")  # each command of a shell is a process of its own
    run_page("```bash fails" + blocks[1])
    remove_system("traces")
