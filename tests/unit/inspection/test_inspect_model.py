"""Inspecting runs end to end: figures, page, JSON record, and report sections."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.inspection.figure_files import PAGE, read_figure_files
from lmlab.inspection.inspect_model import Inspection, inspect_models
from lmlab.reports.html_report import render_report
from lmlab.reports.report_sections import make_report_section
from lmlab.scoring.model_comparison import compare_models
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

TEXTS = ("the cat sleeps", "a dog sees mary")

pytestmark = pytest.mark.xdist_group("inspection")  # share the costly fixtures


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedModel]:
    folder = tmp_path_factory.mktemp("runs")
    for system in ("ngram", "gru", "rnn", "window"):
        train(system, data="grammar", out=folder / system, size="tiny", steps=2, quiet=True)
    return {path.name: load_run(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def inspection(
    models: dict[str, TrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> Inspection:
    out = tmp_path_factory.mktemp("out") / "new" / "pictures"
    return inspect_models([models["gru"]], out=out, texts=TEXTS, words=["cat", "the"])


def size_of_png(content: bytes) -> tuple[int, int]:
    """Width and height from the header (PNG specification, 11.2.2)."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_every_figure_is_valid_svg_and_png_with_a_caption(inspection: Inspection) -> None:
    for saved_figure in inspection.figures:
        svg, png = inspection.files(saved_figure)
        root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
        assert "viewBox" in root.attrib
        width, height = size_of_png(png.read_bytes())
        assert min(width, height) > 100
        assert saved_figure.caption.endswith(".")
        assert saved_figure.title


def test_run_without_captures_has_the_common_figures(models: dict[str, TrainedModel]) -> None:
    """Without an output folder they are written to the run's figures."""
    inspection = inspect_models([models["rnn"]], texts=TEXTS[:1])
    assert inspection.page == models["rnn"].path / "figures" / PAGE
    assert [saved_figure.name for saved_figure in inspection.figures] == [
        "norms",
        "gradient",
        "surprisal",
        "layer-1-hidden",
        "view",
        "neighbours-embedding",
        "neighbours-emission",
    ]


def test_gates_are_plotted_for_every_sentence(inspection: Inspection) -> None:
    named = {saved_figure.name: saved_figure for saved_figure in inspection.figures}
    assert named["layer-1-update-gate-1"].text == TEXTS[0]
    assert named["layer-1-update-gate-2"].text == TEXTS[1]
    root = ElementTree.fromstring(named["layer-1-update-gate-2"].svg)
    labels = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"a", "dog", "sees", "mary", "</s>"} <= set(labels)


def test_page_is_complete_and_self_contained(inspection: Inspection) -> None:
    page = inspection.page.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == len(inspection.figures)
    assert page.count("<figcaption") == len(inspection.figures)
    for address in re.findall(r'(?:href|src)="([^"#][^"]*)"', page):
        assert address.startswith("data:image/png;base64,")
    for saved_figure in inspection.figures:
        assert f'aria-label="{saved_figure.title}"' in page
    assert "“the cat sleeps”" in page
    assert "nearest by cosine" in page


def test_json_lists_existing_files(inspection: Inspection) -> None:
    record = json.loads(json.dumps(inspection.as_dict()))
    assert Path(record["page"]).is_file()
    for entry in record["pictures"]:
        assert Path(entry["svg"]).is_file()
        assert Path(entry["png"]).is_file()
        assert entry["run"] == "gru"
    [first, *_] = [p for p in record["pictures"] if p["name"].startswith("neighbours")]
    assert first["table"]["header"] == ["word", "nearest by cosine"]


def test_several_runs_are_compared_side_by_side(
    models: dict[str, TrainedModel], tmp_path: Path
) -> None:
    pair = [models["rnn"], models["window"]]
    inspection = inspect_models(pair, out=tmp_path, texts=TEXTS[:1])
    shared = [saved_figure.name for saved_figure in inspection.figures if saved_figure.run == ""]
    assert shared == ["norms", "gradient", "surprisal"]
    [gradient] = [
        saved_figure for saved_figure in inspection.figures if saved_figure.name == "gradient"
    ]
    assert re.search(r"rnn, × \d\.\d\d per step", gradient.svg)
    assert ">window, × " in gradient.svg or ">window<" in gradient.svg
    assert {
        saved_figure.name.split("-")[0] for saved_figure in inspection.figures if saved_figure.run
    } == {"rnn", "window"}
    page = inspection.page.read_text(encoding="utf-8")
    assert "Side by side" in page
    stored = read_figure_files(models["rnn"].path / "figures")
    assert [saved_figure.run for saved_figure in stored] == [""] * 3 + ["rnn"] * 4
    # A report shows shared figures once, and each run's own in a collapsible section.
    section = make_report_section(compare_models(pair, open_corpus("grammar")), pair)
    record = render_report([section], title="Report")
    assert record.count('aria-label="gradient against distance"') == 1
    assert "rnn, 4 figures" in record


def test_report_includes_inspection_figures_of_its_runs(
    models: dict[str, TrainedModel], inspection: Inspection
) -> None:
    pair = [models["gru"], models["ngram"]]
    section = make_report_section(compare_models(pair, open_corpus("grammar")), pair)
    # Figures written elsewhere are in the run's own folder too.
    assert [saved_figure.name for saved_figure in section.inspection_figures["gru"]] == [
        saved_figure.name for saved_figure in inspection.figures
    ]
    page = render_report([section], title="Report")
    assert f"gru, {len(inspection.figures)} figures" in page
    assert "How much the last prediction of a sentence depends on" in page
    without = render_report([replace(section, inspection_figures={})], title="Report")
    assert "<h3>Inside</h3>" not in without


def test_invalid_arguments_are_refused(models: dict[str, TrainedModel], tmp_path: Path) -> None:
    gru, ngram = models["gru"], models["ngram"]
    with pytest.raises(UserError, match="at least one run"):
        inspect_models([])
    with pytest.raises(UserError, match="given twice"):
        inspect_models([gru, gru], out=tmp_path)
    with pytest.raises(UserError, match="give --out DIR"):
        inspect_models([gru, ngram])
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="is a file"):
        inspect_models([gru], out=file)
    with pytest.raises(UserError, match="remove --words"):
        inspect_models([ngram], out=tmp_path, texts=TEXTS[:1], words=["cat"])
