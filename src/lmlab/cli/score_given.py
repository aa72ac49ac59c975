"""`lmlab score RUN --given PREFIX …` and `--conditional`: continuations given what comes before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lmlab.cli.output import print_json_list
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.scoring.conditional import ConditionalScore


def pairs_from(
    file: str | None, texts: list[str], prefix: str | None, errors: str
) -> Iterator[tuple[str, str]]:
    """Prefix and continuation: texts that all continue one prefix, or the lines of a file."""
    from lmlab.cli.texts import texts_from

    if prefix is not None:
        found = texts_from(file, texts, errors, instead="--text")
        return ((prefix, text) for text in found.texts)
    if file is None or texts:
        raise UserError("--conditional reads prefixes and continuations from a FILE; name it.")
    return _pairs_of(Path(file), errors)


def _pairs_of(path: Path, errors: str) -> Iterator[tuple[str, str]]:
    from lmlab.data.corpus import Split
    from lmlab.data.lines import check_errors
    from lmlab.data.opening import reader_for

    if not path.is_file():
        raise UserError(f"there is no file {path}; give one with a prefix and a text a line.")
    for example in Split(reader_for(path, check_errors(errors)), name="text"):
        if example.condition is None:
            raise UserError(
                f"{path} holds single texts; give a .tsv file with a prefix, a tab and a "
                "continuation a line, or --given with one prefix for all."
            )
        yield example.condition, example.text


def print_continuations(
    scores: Iterable[ConditionalScore], *, as_json: bool, per_token: bool, mean: bool
) -> None:
    """A line for each continuation, or one JSON document."""
    if as_json:
        print_json_list({**score.as_dict(), "mean": score.mean} for score in scores)
        return
    from lmlab.diagnostics.wording import KINDS_EXPLAINED, convention_words, counted

    told: set[str] = set()
    for score in scores:
        unit = "nats in the mean" if mean else "nats"
        figure = score.mean if mean else score.total
        shown = f"{score.prefix} |{score.continuation}".replace("\n", "\\n")
        print(f"{figure:.4f} {unit}\t{counted(score.tokens, 'token')}\t{shown}")
        for token in score.per_token if per_token else ():
            print(f"\t{token.log_prob:.4f}\t{token.start}-{token.end}\t{token.token}")
        explained = f"{score.kind} ({KINDS_EXPLAINED[score.kind]})"
        told.add(f"kind {explained}; {convention_words(score.convention)}")
    for sentence in sorted(told):
        print(sentence)
