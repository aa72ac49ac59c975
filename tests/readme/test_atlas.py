"""The atlas is up to date, its links resolve, and its commands run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from lmlab.core.assembly import ComposedSystem
from lmlab.core.registry import catalogue

from .page_runner import run_page

ROOT = Path(__file__).resolve().parents[2]
SVG = "http://www.w3.org/2000/svg"
ATLAS = ROOT / "docs" / "atlas"

pytestmark = pytest.mark.xdist_group("atlas")  # shares expensive fixtures


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module("build_atlas")


@pytest.fixture(scope="module")
def files(builder: ModuleType) -> dict[Path, str]:
    return dict(builder.build())


def test_atlas_is_up_to_date(builder: ModuleType, files: dict[Path, str]):
    assert builder.stale(files) == [], "run `make atlas` and commit what it writes"


def test_changed_missing_and_left_over_files_are_stale(builder: ModuleType, tmp_path):
    builder_root, builder_atlas = builder.ROOT, builder.ATLAS
    builder.ROOT = builder.ATLAS = tmp_path
    try:
        kept, changed, missing = (tmp_path / f"{name}.md" for name in ("kept", "changed", "gone"))
        kept.write_text("as it was")
        changed.write_text("otherwise")
        (tmp_path / "left_over.md").write_text("of a system that went")
        wanted = {kept: "as it was", changed: "as it was", missing: "as it was"}
        assert builder.stale(wanted) == ["changed.md", "gone.md", "left_over.md"]
    finally:
        builder.ROOT, builder.ATLAS = builder_root, builder_atlas


def test_every_system_has_a_page_with_formula_and_figure(
    builder: ModuleType, files: dict[Path, str]
):
    for name, card in catalogue().items():
        page = files[ATLAS / f"{name}.md"]
        formula = page.split("```")[1]
        assert "=" in formula, f"{name}: the second paragraph of its docstring is not a formula"
        assert card.paper.replace("|", "\\|") in page
        for check, why in card.exempt.items():
            assert check in page and why in page
        shown = isinstance(builder.tiny_instance(name), ComposedSystem)
        assert ("](pictures/" in page) == shown, "pictures are of what is made of parts"
        if not shown:
            continue
        tree = ElementTree.fromstring(files[ATLAS / "pictures" / f"{name}.svg"])
        shapes = [e for kind in ("rect", "path") for e in tree.iter(f"{{{SVG}}}{kind}")]
        assert len(shapes) >= 7 * 7, "seven words, each with seven inputs"


def test_every_setting_is_explained(builder: ModuleType):
    for name in catalogue():
        module = builder.system_module(name)
        rows = builder.settings_table(module).splitlines()[2:]
        assert rows and all(row.rstrip(" |").endswith(".") for row in rows), rows


def test_compatibility_table_agrees_with_the_zoo(builder: ModuleType):
    """Every backbone-emission pair used in the zoo is in the table."""
    rows = [line.strip("|").split("|") for line in builder.fitting_table().splitlines()[2:]]
    pairs = {
        (backbone, emission)
        for _, backbones, emissions in rows
        for backbone in re.findall(r"`(\w+)`", backbones)
        for emission in re.findall(r"`(\w+)`", emissions)
    }
    for name in catalogue():
        system = builder.tiny_instance(name)
        if isinstance(system, ComposedSystem):
            pair = type(system.backbone).__name__, type(system.emission).__name__
            assert pair in pairs, f"{name} is built from a pair that the table says does not fit"


def test_atlas_links_resolve(files: dict[Path, str]):
    broken = []
    for path, text in files.items():
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            target = (path.parent / link).resolve()
            if not link.startswith("http") and target not in files and not target.exists():
                broken.append(f"{path.name}: {link}")
    assert broken == []


QUICK = ("independent", "lstm", "ngram")
"""One system for each fitting method; the other pages differ only in the name."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name, card in catalogue().items()
        if card.corpus == "grammar"  # others take longer, and have no lines in Python
    ],
)
def test_commands_of_an_atlas_page_run(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    ran = run_page((ATLAS / f"{name}.md").read_text(encoding="utf-8"))
    (shell, by_shell), (python, by_python) = ran
    assert (shell.kind, python.kind) == ("bash", "python")
    # Same corpus, settings and seed: the shell and Python give the same score and first sample.
    samples = bool({"Step", "Sample"} & set(catalogue()[name].protocols))
    total, *sampled = [line for line in by_python.splitlines() if line][-2 if samples else -1 :]
    # A negative energy may be above zero.
    assert re.findall(r"^(-?\d+\.\d+) nats", by_shell, re.MULTILINE) == [f"{float(total):.4f}"]
    assert len(sampled) == samples and set(sampled) <= set(by_shell.splitlines())
