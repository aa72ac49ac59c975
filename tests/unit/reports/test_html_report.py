"""HTML report: self-contained, well-formed, complete, and safe with hostile names."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, TokenScore
from lmlab.plotting.training_curves import LossCurve
from lmlab.reports.html_report import assign_colours, render_report, write_report
from lmlab.reports.report_sections import ReportSection, SampledText
from lmlab.scoring.comparison_records import (
    ComparedSentence,
    Comparison,
    ComparisonRow,
    Difference,
    EntropyFloor,
)
from lmlab.scoring.comparison_tables import markdown
from lmlab.scoring.metric_registry import all_metrics

HOSTILE = "</td><script>alert(1)</script>&\"'"
WORDS = Convention(tokenizer="word, 66 tokens", start=True, end=True)


def row(name: str, nats: float, **changes: object) -> ComparisonRow:
    values = {
        "name": name,
        "runs": (f"runs/{name}",),
        "system": "lstm",
        "seeds": (0,),
        "kind": "exact",
        "convention": WORDS,
        "tokenization": "word, 66 tokens (abc)",
        "tokens": 100,
        "characters": 400,
        "utf8_bytes": 500,
        "unknown": 0,
        "sequences": 10,
    }
    metrics = {
        "parameters": 1234,
        "nats_per_token": nats,
        "seed_std": None,
        "perplexity": math.exp(nats),
        "bits_per_character": nats / 3,
        "bits_per_byte": nats / 4,
        "floor": 2.0,
        "regret": nats - 2.0,
        "unknown_share": 0.0,
        "train_seconds": None,
    }
    values |= {name: changes.pop(name) for name in [*changes] if name not in metrics}
    return ComparisonRow(**values, values=metrics | changes)  # type: ignore[arg-type]


def make_section(*rows: ComparisonRow, corpus: str = "grammar") -> ReportSection:
    token = TokenScore(token="狗<", start=0, end=2, log_prob=-2.5, unknown=True)
    comparison = Comparison(
        corpus=corpus,
        split="test",
        rows=rows,
        differences=(
            Difference(
                first="a",
                second="b",
                value=-0.5,
                low=-0.6,
                high=-0.4,
                p_value=0.001,
                p_corrected=0.001,
            ),
        ),
        floor=EntropyFloor(
            nats_per_text=20,
            bits_per_character=0.7,
            bits_per_byte=0.6,
            entropy=19.5,
            entropy_per_token=2.05,
        ),
        notes=("A note & a warning.",),
        metrics=tuple(all_metrics().values()),
        sentences=(
            ComparedSentence(text="狗<", tokens={compared.name: (token,) for compared in rows}),
        ),
    )
    return ReportSection(
        comparison=comparison,
        curves=tuple(
            LossCurve(name=compared.name, train=(), held_out=((1.0, 3.0), (2.0, 2.5)))
            for compared in rows
        ),
        entropy=2.05,
        samples={
            compared.name: (SampledText(text="a <b> text", log_prob=-7.25),) for compared in rows
        },
        commands={
            compared.name: (f"lmlab train lstm --out '{compared.name}'",) for compared in rows
        },
    )


class Balanced(HTMLParser):
    """Collects elements that are closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.resources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data") and value:
                self.resources.append(value)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    return parser


def test_report_is_well_formed_and_self_contained() -> None:
    text = render_report([make_section(row("a", 2.5), row("b", 3.0))], title="t")
    parser = parsed(text)
    assert parser.wrong == []
    assert parser.open == []
    assert all(resource.startswith("#") for resource in parser.resources)
    assert not re.search(r"@import|url\((?!#)", text)


def test_report_is_deterministic() -> None:
    sections = [make_section(row("a", 2.5), row("b", 3.0))]
    assert render_report(sections, title="t") == render_report(sections, title="t")


def test_hostile_names_and_texts_are_escaped() -> None:
    bad = make_section(row(HOSTILE, 2.5), row("b", 3.0), corpus=HOSTILE)
    bad = replace(bad, samples={HOSTILE: (SampledText(text=HOSTILE, log_prob=None),)})
    text = render_report([bad], title=HOSTILE)
    assert "<script>alert" not in text
    assert parsed(text).wrong == []
    assert text.count("<script>") == 1  # our own, which sorts the tables


def test_result_entropy_floor_and_regret_are_reported() -> None:
    text = render_report([make_section(row("a", 2.5), row("b", 3.0))], title="t")
    assert "<strong>a</strong> does best: 2.500 nats per token, perplexity 12.18" in text
    assert "The entropy of the language is 2.000 on this split" in text
    for part in (
        ">0.5000<",  # the regret of a
        "−0.6000 … −0.4000",
        "A note &amp; a warning.",
        "a &lt;b&gt; text",
        "−7.2",
        "lmlab train lstm",
        "start token given; end predicted",
        "the model&#x27;s own log-probability",
    ):
        assert part in text


def test_tokens_are_coloured_by_surprisal_with_tooltips() -> None:
    text = render_report([make_section(row("a", 2.5))], title="t")
    # 1 - exp(-2.5 / 3) = 0.565 and exp(-2.5) = 0.0821
    assert 'style="--s:0.565"' in text
    assert "2.500 nats, p = 0.0821, unknown to the model" in text
    assert "狗&lt;" in text


def test_seeds_and_their_standard_deviation_are_shown() -> None:
    text = render_report([make_section(row("a", 2.5, seeds=(0, 1), seed_std=0.01))], title="t")
    assert "a (lstm) (2 seeds)" in text
    assert "2.5000 ± 0.0100" in text


def test_different_tokenizers_are_compared_per_character() -> None:
    other = row("b", 1.0, tokenization="char, 30 tokens (xyz)", bits_per_character=0.5)
    text = render_report([make_section(row("a", 2.5), other)], title="t")
    assert "Best by character: <strong>b</strong> with 0.500 bits per character." in text
    assert "bits per character, which compare whatever" in text.lower()


def test_sampled_training_loss_is_noted_below_the_curves() -> None:
    note = "Another loss than the held-out one"
    plain = make_section(row("a", 2.5))
    sampled = replace(
        plain, curves=tuple(replace(curve, another_loss=True) for curve in plain.curves)
    )
    assert note not in render_report([plain], title="t")
    assert note in render_report([sampled], title="t")


def test_rows_without_bits_per_character_are_not_ranked() -> None:
    nothing = {"kind": "unnormalised", "perplexity": None, "bits_per_character": None}
    text = render_report([make_section(row("a", 2.5), row("e", -9.0, **nothing))], title="t")
    assert "Best by character: <strong>a</strong> with 0.833 bits per character." in text
    letters = row("f", -1.0, tokenization="char, 30 tokens (xyz)", **nothing)
    text = render_report([make_section(row("e", -9.0, **nothing), letters)], title="t")
    assert "tokens differ, and none has bits per character." in text
    assert "which compare whatever" not in text


def test_row_without_perplexity_or_finite_loss() -> None:
    odd = row("a", math.inf, kind="pseudo", perplexity=None, floor=None, regret=None)
    text = render_report([make_section(odd)], title="t")
    assert "∞" in text
    assert "a sum of conditionals that need not come from one distribution" in text


def test_run_keeps_its_colour_in_every_section() -> None:
    first, second = assign_colours(
        [make_section(row("a", 2.5), row("b", 3.0)), make_section(row("b", 2.5), row("c", 3.0))]
    )
    assert first.colour_index("b") == second.colour_index("b") == 1
    assert second.colour_index("c") == 2
    assert [curve.colour_index for curve in second.curves] == [1, 2]


def test_sections_are_linked() -> None:
    sections = [make_section(row("a", 2.5)), make_section(row("a", 2.5), corpus="capitals")]
    text = render_report(sections, title="t")
    assert '<a href="#corpus-2">capitals</a>' in text
    assert '<section id="corpus-2">' in text


def test_unwritable_report_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file is in its way"):
        write_report(tmp_path / "file" / "report.html", [make_section(row("a", 2.5))], title="t")


@pytest.mark.parametrize(
    ("one_pass", "sentence"),
    [(True, "A line across: a model fitted in one pass."), (False, "validated once")],
)
def test_curve_caption_explains_lines_and_points_shown(one_pass: bool, sentence: str) -> None:
    section, others = make_section(row("a", 2.5)), ("A line across", "validated once")
    assert not any(words in render_report([section], title="t") for words in others)
    curve = LossCurve(name="a", train=((1.0, 3.0),), held_out=((1.0, 3.0),), single_epoch=one_pass)
    text = render_report([replace(section, curves=(curve,))], title="t")
    assert sentence in text
    assert sum(words in text for words in others) == 1


def test_training_time_is_formatted_as_in_the_markdown_table() -> None:
    text = render_report([make_section(row("a", 2.5, train_seconds=75.0))], title="t")
    assert "1 min 15 s" in text
    assert "1 min 15 s" in markdown(make_section(row("a", 2.5, train_seconds=75.0)).comparison)
