"""`lmlab score RUN PAIRS.tsv` and `--source S --text T`: texts given what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from lmlab.cli.texts import STDIN, Texts, single_text, with_lines
from lmlab.core.errors import UserError
from lmlab.data.readers import Example
from lmlab.scoring.given_source import paired

if TYPE_CHECKING:
    from lmlab.core.score import Score
    from lmlab.language_model import LanguageModel


def add_sources(texts: Texts, given: list[str], sources: list[str]) -> None:
    """Give each text of the command line the source with its number."""
    if not given:
        raise UserError(
            "--source goes with --text; in a FILE a source stands before its text, with a tab "
            "between them."
        )
    pairs = zip(texts.reader, paired(sources, given), strict=True)
    texts.reader = (replace(line, condition=pair.source) for line, pair in pairs)


def scores_of(
    model: LanguageModel, texts: Texts, *, per_token: bool, carry: bool, **options: Any
) -> Iterator[Score]:
    """The scores of texts with their lines, each given its source where the first has one."""
    if texts.name == STDIN and model.model.layout.kind == "pairs":
        texts.reader = map(from_columns, texts.reader)

    def scored(examples: Iterator[Example]) -> Iterator[Score]:
        first = next(examples)
        examples = chain([first], examples)
        if first.condition is None:
            alone = (single_text(example, texts.name) for example in examples)
            return model.scorer(carry=carry, **options).score(alone, per_token=per_token)
        return model.source_scorer(**options).score_examples(examples, per_token=per_token)

    for line, score in with_lines(texts.examples, scored):
        assert score is not None, "examples have text"
        yield replace(score, line=line.line)


def from_columns(line: Example) -> Example:
    """A source, a tab and a text as an example; a line without text stays so."""
    source, _, text = (part.strip() for part in line.text.partition("\t"))
    if line.text and not text:
        raise UserError(
            f"{STDIN}, line {line.line}: expected a source, a tab and a text, as this model scores "
            f"a text given its source, got {line.text[:40]!r}."
        )
    return replace(line, text=text, condition=source)
