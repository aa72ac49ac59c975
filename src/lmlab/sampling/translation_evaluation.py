"""Translation evaluation: sacreBLEU metrics, significance tests, and BLEU for model selection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus
from lmlab.sampling.translation import Translator, make_translator
from lmlab.scoring.translation_metrics import (
    TranslationScore,
    check_metrics,
    make_metric,
    score_translations,
)

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


def evaluate_translators(
    models: dict[str, Any],
    corpus: Corpus,
    *,
    split: str = "test",
    metrics: Sequence[str] = ("bleu", "chrf"),
    tokenize: str = "none",
    limit: int | None = None,
    progress: Callable[[str, int], None] = lambda name, done: None,
    **options: Any,
) -> TranslationEvaluation:
    """Translate a split with every model (settings as for `make_translator`) and compare metrics.

    The first model is the baseline of the significance tests. Inputs are checked before anything is
    translated.
    """
    check_metrics(metrics, tokenize)
    if corpus.layout.kind != "pairs":
        raise UserError(
            f"translations are evaluated on pairs of texts, and {corpus.name} holds single "
            "ones; give a parallel corpus (two files, TSV or JSONL)."
        )
    translators = {name: _translator(name, model, options) for name, model in models.items()}
    examples_of_split = corpus.split(split)
    examples = list(islice(examples_of_split, limit))
    sources = [example.condition or "" for example in examples]
    translations: dict[str, tuple[str, ...]] = {}
    cut: dict[str, tuple[int, ...]] = {}
    for name, translator in translators.items():
        results = []
        for translation in translator.translate(_chunks(sources)):
            results.append(translation)
            progress(name, len(results))
        translations[name] = tuple(translation.text for translation in results)
        cut[name] = tuple(
            number for number, translation in enumerate(results, 1) if translation.truncated_tokens
        )
    references = [example.text for example in examples]
    return TranslationEvaluation(
        corpus=corpus.name,
        split=split,
        method=str(options.get("method", "beam")),
        scores=tuple(score_translations(metrics, translations, references, tokenize=tokenize)),
        translations=translations,
        cut=cut,
        skipped=examples_of_split.report.empty_rows + examples_of_split.report.bad_rows,
    )


def unique_model_names(models: Sequence[Any]) -> dict[str, Any]:
    """Models by the names of their folders, those of equal names by their paths."""
    counts = Counter(model.name for model in models)
    named = {model.name if counts[model.name] == 1 else str(model.path): model for model in models}
    if len(named) < len(models):
        repeated = next(model.path for model in models if counts[model.name] > 1)
        raise UserError(f"{repeated} was given twice; give every run once.")
    return named


class ValidationBleu:
    """Validation metric: BLEU of greedy translations, to select the best weights by."""

    name = "bleu"

    def __init__(self, corpus: Corpus, tokenizer: Any, source_tokenizer: Any) -> None:
        examples = list(corpus.split("validation"))
        self.sources = [example.condition or "" for example in examples]
        self.references = [example.text for example in examples]
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer
        self.metric = make_metric("bleu")

    def __call__(self, system: Any) -> float:
        translator = make_translator(system, self.tokenizer, self.source_tokenizer, method="greedy")
        texts = [translation.text for translation in translator.translate(_chunks(self.sources))]
        return float(self.metric.corpus_score(texts, [self.references]).score)


def _chunks(sources: Sequence[str]) -> Iterator[Sequence[str]]:
    return (
        sources[first : first + TRANSLATIONS_PER_CHUNK]
        for first in range(0, len(sources), TRANSLATIONS_PER_CHUNK)
    )


def _translator(name: str, model: Any, options: dict[str, Any]) -> Translator:
    if not model.card.conditional:
        raise UserError(
            f"{name} generates texts without a source; translation needs a system with one "
            "(seq2seq, seq2seq-attention, transformer …)."
        )
    return make_translator(
        model.system, model.tokenizer, model.effective_source_tokenizer, **options
    )
