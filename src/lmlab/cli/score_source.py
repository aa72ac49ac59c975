"""`lmlab score RUN PAIRS.tsv` and `--source S --text T`: texts given what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from lmlab.cli.texts import STDIN, Texts
from lmlab.core.errors import UserError
from lmlab.data.readers import Example
from lmlab.scoring.given_source import paired

if TYPE_CHECKING:
    from lmlab.core.score import Score
    from lmlab.language_model import LanguageModel


def with_sources(texts: Texts, given: list[str], sources: list[str]) -> Texts:
    """The texts of the command line, each with the source at its place."""
    if not given:
        raise UserError(
            "--source goes with --text; in a FILE a source stands before its text, with a tab "
            "between them."
        )
    pairs = paired(sources, given)
    return replace(texts, examples=(Example(text, condition=source) for source, text in pairs))


def scores_of(
    model: LanguageModel, texts: Texts, *, per_token: bool, carry: bool, **options: Any
) -> Iterator[Score]:
    """The scores of texts, each given its source where the first has one."""
    examples = texts.examples
    if texts.name == STDIN and model.model.layout.kind == "pairs":
        examples = map(_from_columns, examples)
    first = next(examples)
    texts = replace(texts, examples=chain([first], examples))
    if first.condition is None:
        return model.scorer(carry=carry, **options).score(texts.texts, per_token=per_token)
    return model.source_scorer(**options).score_examples(texts.examples, per_token=per_token)


def _from_columns(line: Example) -> Example:
    source, _, text = (part.strip() for part in line.text.partition("\t"))
    if not text:
        raise UserError(
            f"{STDIN}: this model scores a text given its source, so a line is a source, a tab and "
            f"a text, and {line.text[:40]!r} came."
        )
    return Example(text, condition=source)
