"""Options of generating, translating, filling and answering; importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from lmlab.core.options import Option
from lmlab.core.shared_options import Seed, SplitName, no_progress

SAMPLE_BEAM_WIDTH, TRANSLATION_BEAM_WIDTH, ANSWER_BEAM_WIDTH = 8, 5, 5
TRANSLATION_LENGTH_PENALTY = 1.0
"""Log p alone prefers short translations that omit much of the source."""
TRANSLATION_PRUNING = 4.0
"""Relative pruning threshold of translation in nats: see `BeamConfig.within`."""
MBR_SAMPLES, ANSWER_TOKENS = 16, 50
LENGTH_FACTOR, LENGTH_EXTRA = 2, 10
"""Maximum length of a translation: factor × source tokens + extra."""

Source = Annotated[str | None, Option("Source text, for translation models.", metavar="T")]


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """How texts are generated: by ancestral sampling, greedy decoding or beam search."""

    n: Annotated[int, Option("Number of texts.", flag="-n")] = field(default=1, kw_only=False)
    prefix: Annotated[str, Option("Prefix of every text.", metavar="T")] = ""
    source: Source = None
    method: Annotated[
        Literal["ancestral", "greedy", "beam"],
        Option("Decoding method; gibbs and metropolis are MCMC, for masked and energy models."),
    ] = "ancestral"
    temperature: Annotated[
        float | None,
        Option("Softmax temperature, for ancestral; of the target, for MCMC.", show_default="1"),
    ] = None
    top_k: Annotated[
        int | None, Option("Sample from the K most probable tokens; for ancestral.")
    ] = None
    top_p: Annotated[
        float | None, Option("Nucleus sampling: the most probable tokens of mass P; for ancestral.")
    ] = None
    beam: Annotated[
        int | None, Option("Beam width; for beam.", show_default=str(SAMPLE_BEAM_WIDTH))
    ] = None
    length_penalty: Annotated[
        float | None,
        Option("Length penalty, larger prefers longer texts; for beam.", show_default="0"),
    ] = None
    max_length: Annotated[int, Option("Maximum number of tokens after the prefix.")] = 100
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class TranslationDecoding:
    """How translations are decoded; an option of another method is refused."""

    method: Annotated[
        Literal["beam", "greedy", "sample", "mbr"],
        Option("Decoding method; mbr is minimum Bayes risk."),
    ] = "beam"
    beam: Annotated[int | None, Option("Beam width.", show_default=str(TRANSLATION_BEAM_WIDTH))] = (
        None
    )
    length_penalty: Annotated[
        float | None,
        Option(
            "Exponent A of log p / length^A; larger prefers longer, 0 is log p.",
            show_default=f"{TRANSLATION_LENGTH_PENALTY:g}",
        ),
    ] = None
    within: Annotated[
        float | None,
        Option(
            "Prune beams this far behind the best; inf keeps all.",
            metavar="NATS",
            show_default=f"{TRANSLATION_PRUNING:g}",
        ),
    ] = None
    samples: Annotated[
        int | None, Option("Number of samples; for mbr.", show_default=str(MBR_SAMPLES))
    ] = None
    utility: Annotated[
        Literal["chrf", "bleu"] | None, Option("Utility; for mbr.", show_default="chrf")
    ] = None
    temperature: Annotated[
        float | None, Option("Softmax temperature; for sample and mbr.", show_default="1")
    ] = None
    top_k: Annotated[
        int | None, Option("Sample from the K most probable tokens; for sample and mbr.")
    ] = None
    top_p: Annotated[float | None, Option("Nucleus sampling; for sample and mbr.")] = None
    max_length: Annotated[
        int | None,
        Option(
            "Maximum number of tokens of a translation, without --prefix.",
            show_default=f"{LENGTH_FACTOR} times the source's and {LENGTH_EXTRA}",
        ),
    ] = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(TranslationDecoding):
    """How texts are translated: decoding, the number of translations, word constraints."""

    best: Annotated[
        int, Option("Number of translations per text, best first.", flag="--n-best")
    ] = 1
    required: Annotated[
        Sequence[str], Option("Words that must occur; for beam.", flag="--require", metavar="W")
    ] = ()
    banned: Annotated[
        Sequence[str], Option("Words that must not occur; for beam.", flag="--ban", metavar="W")
    ] = ()
    prefix: Annotated[str | None, Option("Prefix of every translation; for beam.", metavar="T")] = (
        None
    )
    ahead: int | None = None
    """Look-ahead in tokens of the stopping criterion [default: 2]: see `BeamConfig.ahead`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(TranslationDecoding):
    """What translators are evaluated on, by which metrics, and how they decode."""

    split: SplitName = "test"
    metrics: Annotated[
        str | Sequence[str], Option("Metrics: bleu, chrf, or both with a comma.", flag="--metric")
    ] = "bleu,chrf"
    tokenize: Annotated[
        str, Option("Tokenizer of sacreBLEU: none for tokenized texts, or 13a.")
    ] = "none"
    limit: Annotated[int | None, Option("Evaluate on the first N texts only.")] = None
    progress: Callable[[str, int], None] = no_progress
    """Called with a system's name and the number of its translations so far."""


@dataclass(frozen=True, kw_only=True)
class FillLimits:
    """How many fillings are searched and returned."""

    top: Annotated[int, Option("Number of fillings, best first.")] = 5
    beam: Annotated[int, Option("Beam width for several masks; at least --top.")] = 8
    max_length: Annotated[int, Option("Maximum number of tokens in the blanks of a text.")] = 20


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How many answers are given, and how systems that generate them decode."""

    answers: Annotated[int, Option("Number of answers per question, best first.", flag="-n")] = 1
    method: Annotated[
        Literal["thorough", "fast", "beam", "greedy", "sample"] | None,
        Option(
            "Decoding method of systems that generate answers.", show_default="the system's first"
        ),
    ] = None
    beam: Annotated[int | None, Option("Beam width.", show_default=str(ANSWER_BEAM_WIDTH))] = None
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens of a generated answer.", show_default=str(ANSWER_TOKENS)),
    ] = None
    seed: Seed = 0
