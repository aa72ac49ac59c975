"""Training corpus and its tokenisers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.length_ratio import filter_by_length_ratio
from lmlab.data.tokenizers import Tokenizer, tokenizer_for
from lmlab.training.base_models import BaseModel
from lmlab.training.config import TrainingConfig
from lmlab.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class OpenedCorpus:
    """A corpus, and the options it was loaded with."""

    corpus: Corpus
    training_corpus: Corpus
    """The same without pairs beyond the maximum length ratio."""
    spec: str
    """The corpus as named by the user."""
    seed: int
    """Random seed for splitting a corpus without splits."""
    errors: str
    """Handling of undecodable bytes."""


def open_training_corpus(
    data: str | Path | Corpus,
    before: Mapping[str, Any] | None,
    config: TrainingConfig,
    *,
    seed: int | None,
    errors: str | None,
) -> OpenedCorpus:
    """Load the training corpus; options not given are those of the resumed run."""
    said = {} if before is None else before["corpus"]
    if seed is None:
        seed = int(said.get("seed", 0))
    if errors is None:
        errors = str(said.get("errors", "strict"))
    corpus = data if isinstance(data, Corpus) else open_corpus(data, errors=errors, seed=seed)
    most = config.max_length_ratio
    return OpenedCorpus(
        corpus=corpus,
        training_corpus=corpus if most is None else filter_by_length_ratio(corpus, most),
        spec=corpus.name if isinstance(data, Corpus) else str(data),
        seed=seed,
        errors=errors,
    )


@dataclass(frozen=True, kw_only=True)
class RunTokenizers:
    """The tokenisers of a run."""

    texts: Tokenizer
    sources: Tokenizer | None
    """The source tokeniser, where it is a different one."""


def prepare_tokenizers(
    run: RunFolder,
    before: Mapping[str, Any] | None,
    corpus: Corpus,
    config: TrainingConfig,
    base: BaseModel | None,
    *,
    texts: str | None,
    sources: str | None,
) -> RunTokenizers:
    """Prepare the tokenisers by kind or file, `texts` and `sources`; existing ones are reused."""
    apart = sources is not None or run.source_tokenizer.exists()
    return RunTokenizers(
        texts=_tokenizer_of_texts(run, before, corpus, texts, config, base, apart=apart),
        sources=_tokenizer_of_sources(run, corpus, sources, config) if apart else None,
    )


def _tokenizer_of_texts(
    run: RunFolder,
    before: Mapping[str, Any] | None,
    corpus: Corpus,
    kind: str | None,
    config: TrainingConfig,
    base: BaseModel | None,
    *,
    apart: bool,
) -> Tokenizer:
    """The run's own tokeniser, or its base's; else loaded from a file, or trained on the corpus.

    `apart`: sources have another, so this one is trained on the target texts alone.
    """
    if before is not None and run.tokenizer.exists():
        if kind not in (None, before["tokenizer"]) and not str(kind).endswith(".json"):
            raise UserError(
                f"the run {run.path} was started with the tokeniser {before['tokenizer']}, "
                f"got {kind}; resume it unchanged, or choose another --out."
            )
        return Tokenizer.load(run.tokenizer)
    if base is not None:
        if kind is not None:
            raise UserError(
                f"--tokenizer {kind} does not apply: the tokeniser is that of the base "
                f"{base.description['path']}; remove it."
            )
        return base.tokenizer
    if kind is not None and kind.endswith(".json"):
        return Tokenizer.load(kind)
    return tokenizer_for(
        corpus,
        kind,
        min_count=config.min_count,
        size=config.vocabulary_size,
        source=False if apart else None,
    )


def _tokenizer_of_sources(
    run: RunFolder, corpus: Corpus, kind: str | None, config: TrainingConfig
) -> Tokenizer:
    """The source tokeniser: the run's own, a file's, or trained on the corpus."""
    if corpus.layout.kind != "pairs":
        raise UserError(
            "--source-tokenizer does not apply to a corpus of single texts, only to a "
            "parallel corpus; remove it."
        )
    if run.source_tokenizer.exists():
        return Tokenizer.load(run.source_tokenizer)
    if kind is not None and kind.endswith(".json"):
        return Tokenizer.load(kind)
    return tokenizer_for(
        corpus, kind, min_count=config.min_count, size=config.vocabulary_size, source=True
    )
