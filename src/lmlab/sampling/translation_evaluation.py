"""Translation evaluation: sacreBLEU metrics, significance tests, and BLEU for model selection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from lmlab.core.errors import UserError
from lmlab.core.options import as_keywords, takes
from lmlab.core.system import System
from lmlab.data.corpus import Corpus
from lmlab.sampling.generation_options import EvaluationOptions, TranslationDecoding
from lmlab.sampling.translation import Translator, make_translator
from lmlab.scoring.translation_metrics import (
    TranslationScore,
    check_metrics,
    make_metric,
    score_translations,
)

if TYPE_CHECKING:
    from lmlab.data.tokenizers import Tokenizer
    from lmlab.training.run_folder import TrainedModel

TRANSLATIONS_PER_CHUNK = 512
"""Texts translated together, batched by length."""


@dataclass(frozen=True, kw_only=True)
class TranslationEvaluation:
    """Metrics of the translators, and their translations."""

    corpus: str
    split: str
    method: str
    scores: tuple[TranslationScore, ...]
    translations: dict[str, tuple[str, ...]]
    """By system, in the order of the split."""
    cut: dict[str, tuple[int, ...]]
    """By system, the numbers of texts that were truncated to its maximum length."""
    skipped: int = 0
    """Pairs of the split that were skipped: an empty side, or malformed."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@takes(EvaluationOptions)
def evaluate_translators(
    models: Mapping[str, TrainedModel], corpus: Corpus, options: EvaluationOptions
) -> TranslationEvaluation:
    """Translate a split with every model (settings as for `make_translator`) and compare metrics.

    The first model is the baseline of the significance tests. Inputs are checked before anything is
    translated.
    """
    metrics, tokenize = split_names(options.metrics), options.tokenize
    check_metrics(metrics, tokenize)
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit must be at least 1, got {options.limit}.")
    if corpus.layout.kind != "pairs":
        raise UserError(
            f"translations are evaluated on pairs of texts, and {corpus.name} holds single "
            "ones; give a parallel corpus (two files, TSV or JSONL)."
        )
    decoding = as_keywords(options, TranslationDecoding)
    translators = {name: _translator(name, model, decoding) for name, model in models.items()}
    examples_of_split = corpus.split(options.split)
    examples = list(islice(examples_of_split, options.limit))
    sources = [example.condition or "" for example in examples]
    translations: dict[str, tuple[str, ...]] = {}
    cut: dict[str, tuple[int, ...]] = {}
    for name, translator in translators.items():
        results = []
        for translation in translator.translate(_chunks(sources)):
            results.append(translation)
            options.progress(name, len(results))
        translations[name] = tuple(translation.text for translation in results)
        cut[name] = tuple(
            number for number, translation in enumerate(results, 1) if translation.truncated_tokens
        )
    references = [example.text for example in examples]
    return TranslationEvaluation(
        corpus=corpus.name,
        split=options.split,
        method=options.method,
        scores=tuple(score_translations(metrics, translations, references, tokenize=tokenize)),
        translations=translations,
        cut=cut,
        skipped=examples_of_split.report.empty_rows + examples_of_split.report.bad_rows,
    )


def split_names(names: str | Sequence[str]) -> list[str]:
    """Names given as a list, or as a string with commas."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


class ValidationBleu:
    """Validation metric: BLEU of greedy translations, to select the best weights by."""

    name = "bleu"

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> None:
        examples = list(corpus.split("validation"))
        self.sources = [example.condition or "" for example in examples]
        self.references = [example.text for example in examples]
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer
        self.metric = make_metric("bleu")

    def __call__(self, system: System) -> float:
        translator = make_translator(system, self.tokenizer, self.source_tokenizer, method="greedy")
        texts = [translation.text for translation in translator.translate(_chunks(self.sources))]
        return float(self.metric.corpus_score(texts, [self.references]).score)


def _chunks(sources: Sequence[str]) -> Iterator[Sequence[str]]:
    return (
        sources[first : first + TRANSLATIONS_PER_CHUNK]
        for first in range(0, len(sources), TRANSLATIONS_PER_CHUNK)
    )


def _translator(name: str, model: TrainedModel, options: dict[str, Any]) -> Translator:
    if not model.card.conditional:
        raise UserError(
            f"{name} generates texts without a source; translation needs a system with one "
            "(seq2seq, seq2seq-attention, transformer …)."
        )
    return make_translator(
        model.system, model.tokenizer, model.effective_source_tokenizer, **options
    )
