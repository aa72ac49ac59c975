"""Inspecting runs from end to end: files, page, list, and what a report shows of them."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.inspection.figure_files import (
    MANIFEST,
    PAGE,
    SavedFigure,
    read_figure_files,
    render_inspection_page,
    write_figure_files,
)
from lmlab.inspection.inspect_model import Inspection, inspect_models
from lmlab.inspection.seriation import (
    order_by_centroid,
    order_by_principal_component,
    order_by_size,
    order_by_transitions,
    stationary_states,
)
from lmlab.reports.html_report import render_report
from lmlab.reports.report_sections import make_report_section
from lmlab.scoring.model_comparison import compare_models
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

TEXTS = ("the cat sleeps", "a dog sees mary")

pytestmark = pytest.mark.xdist_group("inspection")  # its costly fixtures are made once


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedModel]:
    folder = tmp_path_factory.mktemp("runs")
    for system in ("ngram", "gru", "rnn", "window"):
        train(system, data="grammar", out=folder / system, size="tiny", steps=2, quiet=True)
    return {path.name: load_run(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def found(models: dict[str, TrainedModel], tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    out = tmp_path_factory.mktemp("out") / "new" / "pictures"
    return inspect_models([models["gru"]], out=out, texts=TEXTS, words=["cat", "the"])


def size_of_png(content: bytes) -> tuple[int, int]:
    """Width and height from the header (PNG specification, 11.2.2)."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_every_picture_is_a_valid_svg_and_png_with_a_sentence(found: Inspection) -> None:
    for shot in found.figures:
        svg, png = found.files(shot)
        root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
        assert "viewBox" in root.attrib
        width, height = size_of_png(png.read_bytes())
        assert min(width, height) > 100
        assert shot.caption.endswith(".")
        assert shot.title


def test_a_run_without_captures_still_has_the_common_pictures(
    models: dict[str, TrainedModel],
) -> None:
    """And without a folder given they go to the run's own figures."""
    found = inspect_models([models["rnn"]], texts=TEXTS[:1])
    assert found.page == models["rnn"].path / "figures" / PAGE
    assert [shot.name for shot in found.figures] == [
        "norms",
        "gradient",
        "surprisal",
        "view",
        "neighbours-embedding",
        "neighbours-emission",
    ]


def test_gates_of_every_sentence_are_drawn(found: Inspection) -> None:
    named = {shot.name: shot for shot in found.figures}
    assert named["update-gate-1"].text == TEXTS[0]
    assert named["update-gate-2"].text == TEXTS[1]
    words = ElementTree.fromstring(named["update-gate-2"].svg)
    written = [e.text for e in words.iter() if e.tag.endswith("text")]
    assert {"a", "dog", "sees", "mary", "</s>"} <= set(written)


def test_the_page_is_whole_and_needs_no_other_file(found: Inspection) -> None:
    page = found.page.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == len(found.figures)
    assert page.count("<figcaption") == len(found.figures)
    for address in re.findall(r'(?:href|src)="([^"#][^"]*)"', page):
        assert address.startswith("data:image/png;base64,")
    for shot in found.figures:
        assert f'aria-label="{shot.title}"' in page
    assert "“the cat sleeps”" in page
    assert "nearest by cosine" in page


def test_json_names_files_that_are_there(found: Inspection) -> None:
    told = json.loads(json.dumps(found.as_dict()))
    assert Path(told["page"]).is_file()
    for picture in told["pictures"]:
        assert Path(picture["svg"]).is_file()
        assert Path(picture["png"]).is_file()
        assert picture["run"] == "gru"
    [first, *_] = [p for p in told["pictures"] if p["name"].startswith("neighbours")]
    assert first["table"]["header"] == ["word", "nearest by cosine"]


def test_several_runs_stand_side_by_side(models: dict[str, TrainedModel], tmp_path: Path) -> None:
    pair = [models["rnn"], models["window"]]
    found = inspect_models(pair, out=tmp_path, texts=TEXTS[:1])
    together = [shot.name for shot in found.figures if shot.run == ""]
    assert together == ["norms", "gradient", "surprisal"]
    [gradient] = [shot for shot in found.figures if shot.name == "gradient"]
    assert re.search(r"rnn, × \d\.\d\d per step", gradient.svg)
    assert ">window, × " in gradient.svg or ">window<" in gradient.svg
    assert {shot.name.split("-")[0] for shot in found.figures if shot.run} == {"rnn", "window"}
    page = found.page.read_text(encoding="utf-8")
    assert "Side by side" in page
    kept = read_figure_files(models["rnn"].path / "figures")
    assert [shot.run for shot in kept] == [""] * 3 + ["rnn"] * 3
    # A report shows what the runs share once, and what is their own in a fold each.
    chapter = make_report_section(compare_models(pair, open_corpus("grammar")), pair)
    told = render_report([chapter], title="Report")
    assert told.count('aria-label="gradient against distance"') == 1
    assert "rnn, 3 figures" in told


def test_a_report_shows_what_was_drawn_of_its_runs(
    models: dict[str, TrainedModel], found: Inspection
) -> None:
    pair = [models["gru"], models["ngram"]]
    chapter = make_report_section(compare_models(pair, open_corpus("grammar")), pair)
    # What was written elsewhere is in the run's own figures too.
    assert [shot.name for shot in chapter.inspection_figures["gru"]] == [
        shot.name for shot in found.figures
    ]
    page = render_report([chapter], title="Report")
    assert f"gru, {len(found.figures)} figures" in page
    assert "How much the last prediction of a sentence depends on" in page
    without = render_report([replace(chapter, inspection_figures={})], title="Report")
    assert "<h3>Inside</h3>" not in without


def test_mistakes_are_told(models: dict[str, TrainedModel], tmp_path: Path) -> None:
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


# Files


def shot(name: str = "a", **changes: str) -> SavedFigure:
    values = {"run": "r", "title": "T", "caption": "R.", "svg": "<svg/>"} | changes
    return SavedFigure(name=name, **values)


def test_what_was_written_is_read_again_and_old_pictures_go(tmp_path: Path) -> None:
    other = tmp_path / "curves.svg"
    other.write_text("<svg/>")
    write_figure_files(tmp_path, [shot("a"), shot("b")], [b"1", b"2"], page="page")
    assert [each.name for each in read_figure_files(tmp_path)] == ["a", "b"]
    write_figure_files(tmp_path, [shot("b")], [b"3"])
    assert [each.name for each in read_figure_files(tmp_path)] == ["b"]
    listed = (tmp_path / MANIFEST).read_text()
    for damaged in ("[" * 200_000, '{"format": Infinity}', '{"format": [1]}', "5"):
        (tmp_path / MANIFEST).write_text(damaged)
        assert read_figure_files(tmp_path) == ()
    (tmp_path / MANIFEST).write_text(listed)
    # What is not of the list stays.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["b.svg", "b.png", "curves.svg", MANIFEST, PAGE]
    )


@pytest.mark.parametrize(
    "told",
    [
        "no json",
        "[]",
        '{"format": 1, "pictures": [{"name": "../secret"}, 3, {"name": "gone"}]}',
        '{"format": 99, "pictures": [{"name": "a"}]}',
    ],
)
def test_a_list_that_is_damaged_or_points_elsewhere_shows_nothing(
    tmp_path: Path, told: str
) -> None:
    folder = tmp_path / "figures"
    write_figure_files(folder, [shot("a")], [b""])
    (tmp_path / "secret.svg").write_text("<svg/>")
    (folder / MANIFEST).write_text(told)
    assert read_figure_files(folder) == ()


def test_a_picture_with_a_script_is_not_shown(tmp_path: Path) -> None:
    write_figure_files(tmp_path, [shot("a", svg="<svg><script>alert(1)</script></svg>")], [b""])
    assert read_figure_files(tmp_path) == ()


def test_hostile_words_are_escaped() -> None:
    page = render_inspection_page(
        [shot(text="</h3><script>x</script>", caption="<b>.", title="t")], runs=["<i>"], remarks=[]
    )
    assert "<script>x" not in page
    assert "<b>." not in page
    assert "&lt;i&gt;" in page


# Orders


def test_orders_of_states_and_units() -> None:
    assert order_by_size(np.array([0.2, 0.5, 0.2, 0.1])).tolist() == [1, 0, 2, 3]
    late_early = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert order_by_centroid(late_early).tolist() == [1, 2, 0]
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.1]])
    order = order_by_principal_component(rows).tolist()
    assert order in ([0, 2, 3, 1], [1, 3, 2, 0])
    assert order_by_transitions(np.ones((2, 2)) / 2).tolist() == [0, 1]


def test_the_most_visited_states_are_where_the_chain_rests() -> None:
    """From anywhere to state 2, from there to 0: in the long run half the time each."""
    chain = np.zeros((4, 4))
    chain[:, 2] = 1.0
    chain[2] = (1.0, 0.0, 0.0, 0.0)
    assert stationary_states(chain, 2).tolist() == [0, 2]
