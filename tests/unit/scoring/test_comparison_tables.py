"""Comparison tables in every format rank only comparable rows."""

from __future__ import annotations

import io
import json
import math
import re

import pytest
from rich.console import Console

from lmlab.core.score import Convention
from lmlab.scoring.comparison_records import Comparison, ComparisonRow, Difference
from lmlab.scoring.comparison_tables import (
    comparison_json,
    latex,
    markdown,
    rich_differences,
    rich_table,
    row_groups,
)
from lmlab.scoring.metric_registry import all_metrics


def row(name: str, nats: float, **more) -> ComparisonRow:
    settings = {
        "name": name,
        "runs": (f"runs/{name}",),
        "system": name,
        "seeds": (0,),
        "kind": "exact",
        "convention": Convention(tokenizer="word, 20 tokens", start=True, end=True),
        "tokenization": "word, 20 tokens (0)",
        "tokens": 1000,
        "characters": 5000,
        "utf8_bytes": 6000,
        "unknown": 0,
        "sequences": 100,
    }
    values = {
        "parameters": 12345,
        "nats_per_token": nats,
        "seed_std": None,
        "perplexity": math.exp(nats),
        "bits_per_character": nats / 4,
        "bits_per_byte": nats / 5,
        "floor": None,
        "regret": None,
        "train_seconds": None,
    }
    settings |= {name: more.pop(name) for name in [*more] if name not in values}
    return ComparisonRow(**settings, values=values | more)


def comparison(*rows: ComparisonRow, **more) -> Comparison:
    settings = {
        "corpus": "my_corpus",
        "split": "test",
        "rows": rows,
        "differences": (),
        "floor": None,
        "notes": (),
        "metrics": tuple(all_metrics().values()),
    }
    return Comparison(**(settings | more))


MIXED = comparison(
    row("slow_one", 3.0, seed_std=0.0123, runs=("a", "b"), seeds=(0, 1)),
    row("quick", 2.0, train_seconds=75.0),
    row(
        "letters",
        1.0,
        tokenization="char, 9 tokens (1)",
        convention=Convention(tokenizer="char, 9 tokens", start=True, end=True),
    ),
    row("energy", 0.5, kind="unnormalised", perplexity=None),
    differences=(
        Difference(
            first="quick",
            second="slow_one",
            value=-1.0,
            low=-1.2,
            high=-0.8,
            p_value=0.002,
            p_corrected=0.004,
        ),
        Difference(
            first="quick",
            second="letters",
            value=0.1,
            low=-0.1,
            high=0.3,
            p_value=0.4,
            p_corrected=0.4,
            unit="character",
        ),
    ),
    notes=("50% of <unk> & such.",),
)


def test_rows_are_ranked_within_kind_and_tokenizer():
    groups = {group.title: [each.name for each in group.rows] for group in row_groups(MIXED)}
    assert groups == {
        "exact; word, 20 tokens": ["quick", "slow_one"],
        "exact; char, 9 tokens": ["letters"],
        "unnormalised; word, 20 tokens": ["energy"],
    }


def test_markdown_table():
    text = markdown(comparison(row("quick", 2.0), row("a|b", 3.0)))
    lines = text.splitlines()
    assert lines[0] == "my\\_corpus, test split: 100 texts, 1,000 tokens, ends counted."
    assert lines[2:5] == [
        "| model | kind | parameters | nats/token | perplexity | bits/char | bits/byte |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        # exp(2) = 7.389, 2 / 4 = 0.5, 2 / 5 = 0.4
        "| quick | exact | 12,345 | 2.0000 | 7.39 | 0.5000 | 0.4000 |",
    ]
    assert lines[5].startswith("| a\\|b |")
    mixed = markdown(MIXED)
    assert "**exact; char, 9 tokens**" in mixed
    assert "3.0000 ± 0.0123" in mixed and "1 min 15 s" in mixed
    assert "| quick | slow\\_one | -1.0000 | -1.2000 … -0.8000 | 0.0040 |" in mixed
    assert "+0.1000 /char" in mixed
    assert "- 50% of \\<unk\\> & such." in mixed


def test_latex_is_balanced_and_escaped():
    text = latex(MIXED)
    assert r"slow\_one" in text and r"my\_corpus" in text
    assert r"50\% of \textless{}unk\textgreater{} \& such." in text
    assert r"3.0000 $\pm$ 0.0123" in text
    for word in ("toprule", "bottomrule"):
        assert text.count(rf"\{word}") == 1
    assert text.count(r"\midrule") == 3
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    # Every line of the table has as many cells as the alignment has letters.
    (alignment,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    cells = [
        line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    ]
    assert len(cells) == 5
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in cells} == {len(alignment)}


def test_json_has_all_values_and_no_nan_or_infinity():
    never = row("never", math.inf, perplexity=math.inf, bits_per_character=math.inf)
    document = json.loads(
        json.dumps(comparison_json(comparison(row("quick", 2.0), never)), allow_nan=False)
    )
    assert document["rows"][0]["nats_per_token"] == 2.0
    assert document["rows"][0]["convention"]["tokenizer"] == "word, 20 tokens"
    assert document["rows"][1]["perplexity"] is None
    assert document["corpus"] == "my_corpus" and document["differences"] == []
    assert json.loads(json.dumps(comparison_json(MIXED)))["differences"][1]["unit"] == "character"


def test_rich_terminal_table():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(rich_table(MIXED))
    console.print(*rich_differences(MIXED))
    text = console.export_text()
    lines = [line for line in text.splitlines() if "quick" in line or "slow_one" in line]
    assert "2.0000" in lines[0] and "7.39" in lines[0]
    assert "3.0000 ± 0.0123" in lines[1]
    (energy,) = [line for line in text.splitlines() if "│ energy" in line]
    assert "–" in energy, "no perplexity for an energy"
    assert "-1.2000 … -0.8000" in text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3.21, "3.2 s"), (61, "1 min 01 s"), (3725, "1 h 02 min")]
)
def test_training_time_format(seconds, shown):
    assert shown in markdown(comparison(row("quick", 2.0, train_seconds=float(seconds))))


def test_markup_in_names_is_escaped():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_table(comparison(row("[bold]x[/bold]", 1.0), row("[/]", 2.0))))
    text = console.export_text()
    assert "[bold]x[/bold]" in text and "[/]" in text
