"""The verb `mix`: linear interpolation of trained runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lmlab.core.errors import UserError
from lmlab.core.options import Option
from lmlab.core.shared_options import RunErrors
from lmlab.core.untrusted_input import check_path

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.scoring.mixing import HeldOutText, MixResult
    from lmlab.training.run_folder import TrainedModel
    from lmlab.verbs.loading import GivenModel


def parse_weights(text: str) -> tuple[float, ...]:
    """Parse 0.3,0.7 as (0.3, 0.7)."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--weights must be numbers such as 0.3,0.7, got {text!r}.") from None


def mix(
    runs: Sequence[GivenModel],
    *,
    data: Annotated[
        str | Path | Corpus | None,
        Option(
            "Held-out text to tune the weights on: a file, or a corpus.",
            metavar="CORPUS",
            show_default="the runs' own",
        ),
    ] = None,
    out: Annotated[str | Path, Option("Folder of the new run.", metavar="RUN")],
    weights: Annotated[
        Sequence[float] | None,
        Option(
            "Weights of the runs, instead of tuning them.",
            metavar="W,W",
            parse=parse_weights,
            show_default="tuned",
        ),
    ] = None,
    split: Annotated[
        Literal["validation", "test"] | None,
        Option(
            "Split of the corpus to tune on.", show_default="validation; all of a file of its own"
        ),
    ] = None,
    errors: RunErrors = None,
    progress: Callable[[str, int], None] | None = None,
) -> MixResult:
    """Interpolate trained runs: p(token | prefix) = Σ w p of each, weights tuned on held-out text.

    The result is a run like any other, which stores the runs it is made of. They need one tokenizer
    and next-token distributions (n-grams, recurrent networks, Transformers, other mixtures).

    >>> result = lmlab.mix(["runs/ngram", "runs/window"], out="runs/mixed")
    >>> [figures] = result.figures[:1]
    >>> round(sum(result.weights), 6), figures.mixture < min(figures.runs) + 1e-6
    (1.0, True)
    >>> lmlab.load("runs/mixed").score(["the cat sleeps"])[0].kind
    'exact'
    """
    from lmlab.scoring.minimal_pairs import unique_model_names
    from lmlab.scoring.mixing import check_components, mix_models
    from lmlab.verbs.loading import check_list, trained_models

    check_list(runs, "mix")
    check_path(out, "out")
    folder = Path(out)
    if folder.exists():
        raise UserError(f"{folder} already exists; choose another --out.")
    if weights is not None and data is None and split is not None:
        raise UserError("--split does not apply to --weights without --data; remove it.")
    models = trained_models(runs)
    names = unique_model_names([model.path for model in models])
    check_components(models, names)
    held_out = test = None
    if weights is None or data is not None:
        held_out = held_out_text(models, data, split, errors)
        test = _test_text(held_out)
    return mix_models(
        models, names, out=folder, weights=weights, held_out=held_out, test=test, progress=progress
    )


def held_out_text(
    models: Sequence[TrainedModel],
    data: str | Path | Corpus | None,
    split: str | None,
    errors: str | None,
) -> HeldOutText:
    """The text to tune on: a split of a corpus, or a whole file that is not the runs' own."""
    from lmlab.data.corpus import Corpus
    from lmlab.data.load_corpus import load_undivided
    from lmlab.scoring.mixing import HeldOutText
    from lmlab.verbs.loading import shared_corpus

    own = [model.config.corpus for model in models]
    is_own = str(data) in {corpus.spec for corpus in own}
    if isinstance(data, (str, Path)) and split is None and not is_own and Path(data).is_file():
        corpus = load_undivided(Path(data), errors=errors or "strict")
        return HeldOutText(corpus=corpus, split="train", spec=str(data), label="all")
    corpus = data if isinstance(data, Corpus) else shared_corpus(models, data, errors)
    spec = corpus.name if isinstance(data, Corpus) else str(data or own[0].spec)
    chosen = split or "validation"
    if chosen not in corpus.splits:
        raise UserError(
            f"{spec} has no {chosen} split to tune the weights on, only "
            f"{', '.join(corpus.splits)}; name one by --split, or give a file of held-out text."
        )
    return HeldOutText(corpus=corpus, split=chosen, spec=spec, label=chosen)


def _test_text(held_out: HeldOutText) -> HeldOutText | None:
    """The test split of the same corpus, if it has one that is not tuned on."""
    from dataclasses import replace

    if held_out.split == "test" or "test" not in held_out.corpus.splits:
        return None
    return replace(held_out, split="test", label="test")
