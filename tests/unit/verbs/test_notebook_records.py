"""What notebooks show of results: complete, and with all text escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import lmlab
from lmlab.core.notebook import NotebookRecord, Records
from lmlab.experiments.ablation import Ablation, AblationRow, SeedMean
from lmlab.experiments.sweep_results import Sweep, Trial
from lmlab.scoring.word_vectors import Neighbour

HOSTILE = "<script>alert(1)</script><img/src=x/onerror=alert(1)>\"'&"
HIDDEN = "\u202e"
ALLOWED_TAGS = {
    *("div", "span", "style", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "b", "i"),
    *("p", "pre", "details", "summary", "figure", "figcaption", "h4"),
    *("svg", "g", "path", "text", "use", "defs", "clippath", "rect", "tspan", "title", "line"),
}


class Reader(HTMLParser):
    """The elements and the text of a fragment."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def train(folder: Path, name: str, **settings: Any) -> Path:
    out = folder / name
    data = folder / "corpus.txt"
    lmlab.train("ngram", data=data, out=out, size="tiny", settings=settings, quiet=True)
    return out


def trial(number: int, width: int, **values: Any) -> Trial:
    return Trial(number=number, point={"width": width}, values={}, **values)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    words = f"a {HOSTILE} b".split()
    lines = [" ".join(words[i % 3 :] + words[: i % 3]) for i in range(60)]
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    first, second = (train(folder, f"order-{order}", order=order) for order in (2, 3))
    lmlab.runs_tag(first, ["a<b"])
    pair = {"sentence_good": f"a {HOSTILE}", "sentence_bad": "b b", "UID": HOSTILE}
    (folder / "pairs.jsonl").write_text(json.dumps(pair), encoding="utf-8")
    model = lmlab.load(first)
    mixed = tmp_path_factory.mktemp("mixtures") / "mixed"
    sweep = Sweep(
        path=folder,
        systems=("gru",),
        corpus=HOSTILE,
        varied=("width",),
        log_scaled=(),
        select="loss",
        unit="nats per token",
        lower_is_better=True,
        seeds=(0,),
        trials=(
            trial(1, 8, state="finished", value=2.0),
            trial(0, 4, state="finished", value=2.5),
            trial(2, 16, state="failed", failure=HOSTILE),
        ),
        importances=None,
        notes=(f"1 trial failed: {HOSTILE}",),
        finished=True,
    )
    loss = SeedMean(mean=2.0, standard_deviation=0.1, seeds=2)
    rows = [
        AblationRow(
            disabled=disabled,
            terms=HOSTILE if disabled else "intact",
            intact=not disabled,
            parameters=10,
            seconds=1.0,
            losses={1: loss},
            differences={1: loss} if disabled else {},
        )
        for disabled in ((), (0,))
    ]
    ablation = Ablation(
        path=folder,
        system="gru-minimal",
        corpus=HOSTILE,
        split="validation",
        switches=(HOSTILE,),
        report_epochs=(1,),
        seeds=2,
        rows=tuple(rows),
        trials=(),
        notes=(HOSTILE,),
        finished=True,
    )
    return {
        "scores": model.score([f"a {HOSTILE}", f"b {HIDDEN}"]),
        "score": model.score([f"{HOSTILE} b"])[0],
        "summary": model.summary([HOSTILE]),
        "table": lmlab.score([first, second], [f"a {HOSTILE}"], no_end=True),
        "mixture": lmlab.mix([first, second], data=folder / "corpus.txt", out=mixed),
        "comparison": lmlab.compare([first, second], data=folder / "corpus.txt"),
        "inspection": lmlab.inspect([first], texts=[f"a {HOSTILE}"], out=folder / "figures"),
        "objective": lmlab.show_objective("gpt", text=f"a {HOSTILE}"),
        "doctor": lmlab.doctor(first, text=f"a {HOSTILE}"),
        "runs": lmlab.runs(folder, columns=["run", "tag", "data"]),
        "details": lmlab.runs_show(first),
        "diff": lmlab.runs_diff([first, second]),
        "sweep": sweep,
        "ablation": ablation,
        "pairs": lmlab.pairs([first, second], [folder / "pairs.jsonl"]),
        "benchmark": lmlab.bench("blimp", [first, second], data=folder / "pairs.jsonl"),
        "neighbours": Records([Neighbour(word=HOSTILE, cosine=0.5)]),
        "samples": model.sample(3),
        "systems": lmlab.systems(),
    }


EXPECTED: Mapping[str, tuple[str, ...]] = {
    "scores": (HOSTILE, "\\u202e", "exact", "start token given", "unknown ones are underlined"),
    "score": (HOSTILE, "nats", "exact: the model's own log-probability"),
    "summary": ("perplexity", "nats per token"),
    "table": (HOSTILE, "order-2", "order-3"),
    "mixture": ("order-2", "order-3", "mixed", "report figures on other text"),
    "comparison": ("order-2", "order-3", "perplexity", "95 % interval"),
    "inspection": ("surprisal", f"“a {HOSTILE}”"),
    "objective": ("targets",),
    "doctor": ("ngram on", "baseline", "among"),
    "runs": ("order-2", "a<b"),
    "details": ("ngram", "finished"),
    "diff": ("settings", "order"),
    "sweep": (HOSTILE, "width", "failed", "2.5000"),
    "ablation": (HOSTILE, "intact", "difference"),
    "pairs": (HOSTILE, "accuracy", "ties counted one half"),
    "benchmark": (HOSTILE, "accuracy", "unweighted mean over paradigms"),
    "neighbours": (HOSTILE, "0.5"),
    "samples": ("log prob",),
    "systems": ("lstm", "Hochreiter"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_html_is_complete_well_formed_and_escaped(records: Mapping[str, Any], name: str) -> None:
    html = records[name]._repr_html_()
    reader = Reader(html)
    assert reader.open == []
    assert reader.tags <= ALLOWED_TAGS
    assert [name for name in reader.attributes if name.startswith("on")] == []
    for text in EXPECTED[name]:
        assert text in reader.text
    assert HIDDEN not in html
    assert "<style>" in html and "#fff" not in html.split("</style>")[0]  # the theme's own colours


def test_figures_are_inline(records: Mapping[str, Any]) -> None:
    for name in ("inspection", "objective", "sweep", "ablation", "doctor"):
        html = records[name]._repr_html_()
        assert "<svg" in html and "currentColor" in html


def test_rows_of_tables(records: Mapping[str, Any]) -> None:
    scores, comparison = records["scores"], records["comparison"]
    rows = [*scores.table_rows()]
    assert [row["line"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert sum(row["surprisal_nats"] for row in rows) == pytest.approx(
        -sum(score.total for score in scores)
    )
    first = rows[0]
    assert scores[0].text[first["start"] : first["end"]] == first["token"] == "a"
    assert [row["model"] for row in comparison.table_rows()] == [r.name for r in comparison.rows]
    assert [row["trial"] for row in records["sweep"].table_rows()] == [1, 0, 2]
    assert [row["loss"] for row in records["sweep"].table_rows()] == [2.0, 2.5, None]
    assert [row["difference"] for row in records["ablation"].table_rows()] == [None, 2.0]
    [listed, _] = records["runs"].table_rows()
    assert (listed["run"], listed["system"], listed["order"]) == ("order-2", "ngram", 2)
    assert [row["word"] for row in records["table"].table_rows()] == ["a", HOSTILE] * 2
    mixture = [*records["mixture"].table_rows()]
    assert [row["model"] for row in mixture] == ["order-2", "order-3", "mixed"]
    assert (
        mixture[2]["validation loss"] <= min(row["validation loss"] for row in mixture[:2]) + 1e-6
    )
    assert [*records["neighbours"].table_rows()] == [{"word": HOSTILE, "cosine": 0.5}]
    by = [(row["model"], row["by"]) for row in records["pairs"].table_rows()]
    assert by[0] == ("order-2", "all") and ("order-3", "paradigm") in by


def test_records_of_every_verb_know_notebooks(records: Mapping[str, Any]) -> None:
    assert all(isinstance(record, (NotebookRecord, Records)) for record in records.values())
