"""The notebooks of examples/notebooks run from top to bottom, and give what they say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.readme.page_runner import run_page

nbformat = pytest.importorskip("nbformat", reason="run make test-integration")
nbclient = pytest.importorskip("nbclient", reason="run make test-integration")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
FRAGMENT = re.compile(r'^<div class="lmlab">')


class Executed:
    """A notebook after it has run, with the value of an expression at its end as JSON."""

    def __init__(self, cells: list[str] | Path, folder: Path, values: str = "None") -> None:
        if isinstance(cells, Path):
            self.book = nbformat.read(cells, as_version=4)
        else:
            self.book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
        last = f"import json; print(json.dumps({values}))"
        self.book.cells.append(nbformat.v4.new_code_cell(last))
        resources = {"metadata": {"path": str(folder)}}
        client = nbclient.NotebookClient(self.book, timeout=300, resources=resources)
        client.execute()
        [output] = self.book.cells[-1].outputs
        self.values = json.loads(output.text)

    @property
    def outputs(self) -> Iterator[Any]:
        for cell in self.book.cells:
            yield from cell.get("outputs", [])

    @property
    def errors(self) -> list[list[str]]:
        return [output.traceback for output in self.outputs if output.output_type == "error"]

    @property
    def html(self) -> list[str]:
        """What records show."""
        shown = [output.data.get("text/html", "") for output in self.outputs if "data" in output]
        return [html for html in shown if FRAGMENT.match(html)]

    def html_of(self, code: str) -> str:
        """The HTML below the cell that contains this code."""
        [cell] = [cell for cell in self.book.cells if code in cell.source]
        return "\n".join(output.data["text/html"] for output in cell.outputs if "data" in output)


@pytest.fixture(autouse=True)
def own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel imports this checkout, and computes with one thread."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_notebooks_are_stored_without_outputs() -> None:
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [path.stem for path in paths] == [
        "checkpoint_to_index_and_sweep",
        "objectives_and_attention",
        "psycholinguistics",
    ]
    for path in paths:
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_psycholinguistics_finds_the_simulated_truth(tmp_path: Path) -> None:
    book = Executed(
        NOTEBOOKS / "psycholinguistics.ipynb",
        tmp_path,
        "[results.to_dict('records'), words.columns.tolist(), len(words), words.isna().sum().sum()"
        ".item(), words.line.nunique()]",
    )
    results, columns, words, missing, lines = book.values
    by_model = {row["model"]: row for row in results}
    assert results[0]["model"] == "lstm"
    assert by_model["lstm"]["low"] < 6.0 < by_model["lstm"]["high"]
    assert by_model["lstm"]["delta_ll"] > 1.2 * by_model["ngram"]["delta_ll"] > 0
    assert {name: row["kind"] for name, row in by_model.items()} == {
        "ngram": "exact",
        "lstm": "exact",
        "gpt": "exact",
        "bert": "pseudo",
    }
    keys = ["line", "position", "token"]
    assert columns == [*keys, "ngram", "lstm", "gpt", "bert", "length", "rt"]
    # The four tables have the same words: only the first ones of lines have no reading time.
    assert (lines, missing) == (150, 150) and words > 1000
    assert 'class="token"' in book.html_of("score(stimuli[:3])")
    assert "pseudo" in book.html_of("lmlab.compare")
    assert book.errors == []


def test_class_on_objectives_and_attention(tmp_path: Path) -> None:
    book = Executed(
        NOTEBOOKS / "objectives_and_attention.ipynb",
        tmp_path,
        "[report.causality.verdict, weights.triu(1).abs().max().item(),"
        " (weights.sum(-1) - 1).abs().max().item(),"
        " int((figures['gpt'].view.targets[0] != NO_TARGET).sum()), len(inspection.figures)]",
    )
    verdict, above, error, predictions, figures = book.values
    assert (verdict, above) == ("causal", 0.0) and error < 1e-5
    assert predictions == 8  # seven words and the end
    assert book.html_of("lmlab.inspect(").count("<svg") == figures >= 3
    for name in ("gpt", "bert", "xlnet"):
        assert "<svg" in book.html_of(f'show_objective("{name}"')
    assert "nats per token" in book.html_of("lmlab.doctor(")
    # A wrong question is answered in one sentence, and bars end in one output each.
    [traceback] = book.errors
    assert traceback == [
        "lmlab: perplexity needs a score of kind exact, bound or estimate, got pseudo; compare "
        "such scores by accuracy on pairs instead."
    ]
    assert book.html_of("lmlab.train(").count("100%") == 2


def test_checkpoint_to_index_and_sweep(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="run make test-integration")
    book = Executed(
        NOTEBOOKS / "checkpoint_to_index_and_sweep.ipynb",
        tmp_path,
        "[shares, before, after, table.to_dict('records'), sweep.finished,"
        " hits[0].document.name, [run.status for run in lmlab.runs('.')]]",
    )
    shares, before, after, table, finished, first, statuses = book.values
    assert (shares["bm25"], first) == (1.0, "Peru")
    assert shares["checkpoint"] > 0.5  # 1 of 186 by chance
    assert after < 0.6 * before
    assert finished and len(table) == 6
    losses = [row["loss"] for row in table]
    assert losses == sorted(losses) and table[0]["learning_rate"] > 0.0003
    assert len(statuses) == 8 and set(statuses) <= {"finished", "stopped"}
    assert "<svg" in book.html_of("lmlab.sweep(")
    assert book.errors == []


def test_page_on_notebooks_prints_the_shown_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="run make test-integration")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert len(run_page(page)) == 3
    for name in re.findall(r"\]\(((?:\.\./|images/)[^)#]+)\)", page):
        assert (ROOT / "docs" / name).exists()


def test_warnings_and_bars_in_a_kernel(tmp_path: Path) -> None:
    book = Executed(
        [
            "import warnings, lmlab\nfrom lmlab.core.errors import LmlabWarning",
            "warnings.warn('few words', LmlabWarning)",
            "result = lmlab.train('gpt', data='grammar', out='run', size='tiny', steps=3)",
        ],
        tmp_path,
        "result.steps",
    )
    assert book.values == 3
    _, warned, trained = (cell.outputs for cell in book.book.cells[:3])
    assert [output.text for output in warned] == ["lmlab: few words\n"]
    shown = [output.data.get("text/html", "") for output in trained if "data" in output]
    assert sum("100%" in html for html in shown) == 1
    assert any("finished at step 3" in html for html in shown)
