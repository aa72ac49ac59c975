"""The options of `lmlab train` and `lmlab.train`; importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.compute_options import TrainingComputeOptions
from lmlab.core.options import Option
from lmlab.core.shared_options import (
    BUDGET,
    Minutes,
    Recipe,
    Resume,
    RunErrors,
    Settings,
    Size,
    Steps,
    TextTokenizer,
    settings_option,
)
from lmlab.core.tracking_options import Track

StoppingRule = Callable[[Sequence[float]], bool]
"""Whether a training with these validation losses so far ends; the same losses, the same answer."""

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.data.tokenizers import Tokenizer
    from lmlab.training.loop import ValidationMetric

    MetricFactory = Callable[[Corpus, Tokenizer, Tokenizer], ValidationMetric]
    """From a corpus, its text tokenizer and its source tokenizer to a validation metric."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TrainingComputeOptions):
    """What is trained on what, into which folder and for how long."""

    data: Annotated[
        str | Path | Corpus,
        Option(
            "Training corpus: a built-in name, a file, a folder, NAME:PATH for a protocol; for "
            "translation models pairs.tsv, parallel:de-en:FOLDER or parallel:FILE,FILE. See lmlab "
            "data list.",
            metavar="CORPUS",
        ),
    ]
    out: Annotated[str | Path, Option("Output folder.", metavar="RUN")]
    size: Size = None
    settings: Annotated[
        Settings,
        settings_option(
            "Set a setting of the system or of the training; repeatable. See lmlab settings SYSTEM."
        ),
    ] = None
    """Strings or values, applied after those of the size and the recipe."""
    tokenizer: TextTokenizer = None
    source_tokenizer: Annotated[
        str | None,
        Option(
            "Tokenizer of the sources of a parallel corpus, for a vocabulary of their own.",
            show_default="shared with the texts",
        ),
    ] = None
    objective: Annotated[
        str | None, Option("Training objective.", show_default="the system's first")
    ] = None
    recipe: Recipe = None
    base: Annotated[
        str | Path | None,
        Option(
            "A run of the same system to train further, or one of another that it is built on.",
            metavar="RUN",
        ),
    ] = None
    encoder: Annotated[
        str | Path | None,
        Option(
            "A Transformer run (roberta, bert …) to initialise the system's encoder from, weights "
            "and settings.",
            metavar="RUN",
        ),
    ] = None
    teacher: Annotated[
        str | Path | None,
        Option(
            "A run, of any system that predicts at the same positions, to distil into this one. "
            "See docs/distillation.md.",
            metavar="RUN",
        ),
    ] = None
    predecessor: Annotated[
        str | Path | None,
        Option(
            "A run of the same system with more layers, to replace its layers one by one "
            "(BERT-of-Theseus); its other settings are the defaults.",
            metavar="RUN",
        ),
    ] = None
    documents: Annotated[
        str | None,
        Option(
            "Documents to retrieve from: capitals, wordnet, a file with one document per line, "
            "JSON lines or a folder of texts.",
            show_default="the system's own",
        ),
    ] = None
    knowledge: Annotated[
        str | None,
        Option(
            "Entities and facts: capitals, wordnet, or a folder; several joined by +.",
            show_default="the system's own",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        Option("Budget: epochs; the first budget reached ends the training.", family=BUDGET),
    ] = None
    steps: Steps = None
    minutes: Minutes = None
    seed: Annotated[int | None, Option("Random seed.", show_default="0")] = None
    data_seed: Annotated[
        int | None,
        Option(
            "Random seed by which a corpus without splits is split; not --seed, so that runs with "
            "several seeds compare.",
            show_default="0",
        ),
    ] = None
    resume: Resume = False
    track: Track = ()
    errors: RunErrors = None
    quiet: bool = False
    metric: MetricFactory | None = None
    """Makes the metric of `select_by`."""
    stopping_rule: StoppingRule | None = None
    """Ends the training after a validation, given the validation losses so far (pruning)."""
