"""`lmlab cloze RUN [FILE | - | TEXT...]`: accuracy of predicting a masked token."""

from __future__ import annotations

from collections.abc import Iterator

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import print, print_json, text_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    file_or_texts,
    read_texts,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import evaluation as verbs


@terminal(verbs.cloze)
def cloze(
    run: RunArgument,
    arguments: TextsOrFileArgument = None,
    text: TextOption = None,
    named_file: FileOption = None,
    errors: Errors = "strict",
    raw: RawOption = False,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    data: str | None,
    max_texts: int,
    seed: int,
) -> None:
    from lmlab.scoring.cloze import METHOD_DESCRIPTIONS
    from lmlab.verbs.loading import load, shared_corpus

    file, given_texts = file_or_texts(arguments, text, named_file)
    if data is not None and (file is not None or given_texts):
        raise UserError("--data does not apply to a FILE or to texts; remove it.")
    has_texts = file is not None or bool(given_texts)
    text_input = read_texts(file, given_texts, errors, instead="--text") if has_texts else None
    model = load(run)
    if text_input is not None:
        text_input.count_unknown_words(model.tokenizer)
    evaluated: Iterator[str]
    if text_input is not None:
        evaluated, where = text_input.texts, text_input.name
    else:
        corpus = shared_corpus([model.model], data, None)
        evaluated = (example.text for example in corpus.split("test"))
        where = f"the test split of {corpus.name}"
    report, size = (None, None) if text_input is None else (text_input.report, text_input.size)
    with text_progress_bar("cloze", report, size, unit="texts", results_follow=True) as done:
        result = model.cloze(evaluated, max_texts=max_texts, seed=seed, progress=done)
    if text_input is not None:
        text_input.warn_empty_lines()
        text_input.warn_unknown_words()
    if as_json:
        print_json({**result.as_dict(), "where": where})
        return
    print(f"asked for {METHOD_DESCRIPTIONS[result.method]}")
    print(
        f"accuracy {result.accuracy:.3f} ± {result.standard_error:.3f}, {result.nats:.3f} nats "
        f"per masked token, on {result.texts:,} texts of {where}"
    )
    if result.skipped:
        print(f"{result.skipped:,} texts were too long, or had no known token to mask")
