"""`lmlab score RUN [FILE | -] [--text T ...]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import Errors, Json, Run
from lmlab.cli.output import print_json_list, scoring_bar
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.core.score import Score


def score(
    run: Run,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE | -]", help="A text a line; - is standard input.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="T", help="A text; may be given several times.")
    ] = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Each token as well.")] = False,
    per_word: Annotated[bool, typer.Option("--per-word", help="Each word as well.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Surprisal by word with character offsets, as CSV.")
    ] = False,
    as_json: Json = False,
    window: Annotated[
        int | None, typer.Option(help="Tokens of context, scored by rolling windows.")
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens newly scored in each window.")] = None,
    errors: Errors = "strict",
) -> None:
    """Score texts: log-probability in nats, its kind, and the conventions behind it."""
    if csv and (as_json or per_token):
        raise UserError("--csv is a table by word of its own; leave out --json and --per-token.")

    from lmlab.api import load
    from lmlab.cli.texts import texts_from

    texts = texts_from(file, text or [], errors)
    model = load(run)
    with scoring_bar(f"scoring {texts.name}", texts.split, texts.size) as progress:
        by_token = per_token or per_word or csv or as_json
        # Texts given one by one belong to no stream: each starts by itself.
        scorer = model.scorer(window=window, stride=stride, progress=progress, carry=not text)
        scores = scorer.score(texts.texts, per_token=by_token)
        if as_json:
            print_json_list(_record(score, per_word) for score in scores)
        elif csv:
            from lmlab.scoring.words import write_surprisal_csv

            write_surprisal_csv(scores, sys.stdout)
        else:
            print_scores(scores, per_token=per_token, per_word=per_word)
    if texts.split is not None and sys.stderr.isatty():
        print(f"{texts.name}: {texts.split.report.summary()}", file=sys.stderr)


def _record(score: Score, per_word: bool) -> dict[str, Any]:
    """What JSON tells of a score: as `Score.as_dict`, without the copying that makes that slow."""
    record = dict(vars(score))
    record["convention"] = vars(score.convention)
    record["per_token"] = [vars(token) for token in score.per_token]
    if per_word:
        from lmlab.scoring.words import word_scores

        record["per_word"] = [asdict(word) for word in word_scores(score)]
    return record


def print_scores(scores: Iterator[Score], *, per_token: bool, per_word: bool) -> None:
    """A line for each text, its tokens or words below it, and the sum of all in the last line."""
    from lmlab.core.score import summarise
    from lmlab.diagnostics.wording import summary_words

    def printed() -> Iterator[Score]:
        for score in scores:
            each = -score.total / max(score.tokens, 1)
            shown = score.text.replace("\n", "\\n")
            print(f"{score.total:.4f} nats\t{score.tokens} tokens\t{each:.4f} nats/token\t{shown}")
            if per_token:
                print_parts([(t.token, t.start, t.end, t.log_prob) for t in score.per_token])
            if per_word:
                print_words(score)
            yield score

    print(summary_words(summarise(printed())))


def print_words(score: Score) -> None:
    """The words of a text with their log-probabilities."""
    from lmlab.scoring.words import word_scores

    print_parts([(w.word, w.start, w.end, w.log_prob) for w in word_scores(score)])


def print_parts(parts: list[tuple[str, int, int, float]]) -> None:
    """Pieces of a text, each with its characters and its log-probability in nats."""
    for piece, start, end, log_prob in parts:
        print(f"\t{log_prob:.4f}\t{start}-{end}\t{piece}")
