"""Figure files of an inspection: round trip, damaged manifests, and escaping."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.inspection.figure_files import (
    MANIFEST,
    PAGE,
    SavedFigure,
    read_figure_files,
    render_inspection_page,
    write_figure_files,
)
from lmlab.plotting.figure import RenderedFigure


def saved_figure(name: str = "a", **changes: str) -> SavedFigure:
    values = {"run": "r", "title": "T", "caption": "R.", "svg": "<svg/>"} | changes
    return SavedFigure(name=name, **values)


def png(content: bytes) -> RenderedFigure:
    return RenderedFigure(svg="<svg/>", png_bytes=content, pdf=b"%PDF")


def test_formats_are_chosen_and_files_of_others_removed(tmp_path: Path) -> None:
    write_figure_files(tmp_path, [saved_figure("a")], [png(b"1")])
    assert {path.suffix for path in tmp_path.glob("a.*")} == {".svg", ".png"}
    write_figure_files(tmp_path, [saved_figure("a")], [png(b"1")], suffixes=(".pdf",))
    assert [path.name for path in tmp_path.glob("a.*")] == ["a.pdf"]
    assert (tmp_path / "a.pdf").read_bytes() == b"%PDF"


def test_figure_files_round_trip_and_replace_old_ones(tmp_path: Path) -> None:
    other = tmp_path / "curves.svg"
    other.write_text("<svg/>")
    write_figure_files(
        tmp_path, [saved_figure("a"), saved_figure("b")], [png(b"1"), png(b"2")], page="page"
    )
    assert [entry.name for entry in read_figure_files(tmp_path)] == ["a", "b"]
    write_figure_files(tmp_path, [saved_figure("b")], [png(b"3")])
    assert [entry.name for entry in read_figure_files(tmp_path)] == ["b"]
    listed = (tmp_path / MANIFEST).read_text()
    for damaged in ("[" * 200_000, '{"format": Infinity}', '{"format": [1]}', "5"):
        (tmp_path / MANIFEST).write_text(damaged)
        assert read_figure_files(tmp_path) == ()
    (tmp_path / MANIFEST).write_text(listed)
    # Files that are not in the manifest stay.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["b.svg", "b.png", "curves.svg", MANIFEST, PAGE]
    )


@pytest.mark.parametrize(
    "manifest",
    [
        "no json",
        "[]",
        '{"format": 1, "pictures": [{"name": "../secret"}, 3, {"name": "gone"}]}',
        '{"format": 99, "pictures": [{"name": "a"}]}',
    ],
)
def test_damaged_or_escaping_manifest_yields_no_figures(tmp_path: Path, manifest: str) -> None:
    folder = tmp_path / "figures"
    write_figure_files(folder, [saved_figure("a")], [png(b"")])
    (tmp_path / "secret.svg").write_text("<svg/>")
    (folder / MANIFEST).write_text(manifest)
    assert read_figure_files(folder) == ()


def test_svg_with_a_script_is_ignored(tmp_path: Path) -> None:
    write_figure_files(
        tmp_path, [saved_figure("a", svg="<svg><script>alert(1)</script></svg>")], [png(b"")]
    )
    assert read_figure_files(tmp_path) == ()


def test_hostile_text_is_escaped_in_the_page() -> None:
    page = render_inspection_page(
        [saved_figure(text="</h3><script>x</script>", caption="<b>.", title="t")],
        runs=["<i>"],
        notes=[],
    )
    assert "<script>x" not in page
    assert "<b>." not in page
    assert "&lt;i&gt;" in page
