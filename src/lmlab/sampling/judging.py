"""Translators judged on a corpus of pairs: each translates the sources, sacreBLEU compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus
from lmlab.sampling.translating import make_translator
from lmlab.scoring.translations import Judged, judge, make_metric

AT_ONCE = 512
"""Texts that are translated together, gathered by length."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What came of it: figures, and the translations themselves."""

    corpus: str
    split: str
    method: str
    judged: tuple[Judged, ...]
    translations: dict[str, tuple[str, ...]]
    """By system, in the order of the split."""

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
) -> Evaluation:
    """Translate a split with every model (as `make_translator` is told) and judge them alike.

    The first model is the one that the others are tested against.
    """
    if corpus.layout.kind != "pairs":
        raise UserError(
            f"translations are judged on pairs of texts, and {corpus.name} holds single ones; give "
            "a parallel corpus (two files, TSV or JSONL)."
        )
    examples = list(corpus.split(split))[:limit]
    sources = [example.condition or "" for example in examples]
    translations: dict[str, tuple[str, ...]] = {}
    for name, model in models.items():
        if not model.card.conditional:
            raise UserError(
                f"{name} writes texts that are given nothing; translating needs a system with a "
                "source (seq2seq, seq2seq-attention, transformer …)."
            )
        found = []
        for text in _translated(model, sources, options):
            found.append(text)
            progress(name, len(found))
        translations[name] = tuple(found)
    references = [example.text for example in examples]
    return Evaluation(
        corpus=corpus.name,
        split=split,
        method=str(options.get("method", "beam")),
        judged=tuple(judge(metrics, translations, references, tokenize=tokenize)),
        translations=translations,
    )


class ValidationBleu:
    """BLEU of greedy translations of a corpus's validation split, for choosing weights by."""

    name = "bleu"

    def __init__(self, corpus: Corpus, tokenizer: Any, source_tokenizer: Any) -> None:
        examples = list(corpus.split("validation"))
        self.sources = [example.condition or "" for example in examples]
        self.references = [example.text for example in examples]
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer
        self.metric = make_metric("bleu")

    def __call__(self, system: Any) -> float:
        translator = make_translator(system, self.tokenizer, self.source_tokenizer, method="greedy")
        found = [each.text for each in translator.translate(_chunks(self.sources))]
        return float(self.metric.corpus_score(found, [self.references]).score)


def _chunks(sources: Sequence[str]) -> Iterator[Sequence[str]]:
    return (sources[first : first + AT_ONCE] for first in range(0, len(sources), AT_ONCE))


def _translated(model: Any, sources: Sequence[str], options: dict[str, Any]) -> Iterator[str]:
    translator = make_translator(model.system, model.tokenizer, model.reads_by, **options)
    for translation in translator.translate(_chunks(sources)):
        yield translation.text
