"""Corpus and tokenizers of a training: trained, from a file, or those of a base or resumed run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.length_ratio import filter_by_length_ratio
from lmlab.data.tokenizer_training import NO_RULES, TextRules
from lmlab.data.tokenizers import Tokenizer, tokenizer_for
from lmlab.training.base_models import BaseModel
from lmlab.training.config import TrainingConfig
from lmlab.training.continued_training import ContinuedRun
from lmlab.training.run_config import RunConfig
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
    resumed: RunConfig | None,
    config: TrainingConfig,
    *,
    seed: int | None,
    errors: str | None,
) -> OpenedCorpus:
    """Load the training corpus; options not given are those of the resumed run."""
    if seed is None:
        seed = 0 if resumed is None else resumed.corpus.seed
    if errors is None:
        errors = "strict" if resumed is None else resumed.corpus.decode_errors
    corpus = data if isinstance(data, Corpus) else open_corpus(data, errors=errors, seed=seed)
    max_ratio = config.max_length_ratio
    return OpenedCorpus(
        corpus=corpus,
        training_corpus=corpus if max_ratio is None else filter_by_length_ratio(corpus, max_ratio),
        spec=corpus.name if isinstance(data, Corpus) else str(data),
        seed=seed,
        errors=errors,
    )


@dataclass(frozen=True, kw_only=True)
class RunTokenizers:
    """The tokenizers of a run."""

    texts: Tokenizer
    sources: Tokenizer | None
    """The source tokenizer, where it is a different one."""


def prepare_tokenizers(
    run: RunFolder,
    resumed: RunConfig | None,
    corpus: Corpus,
    config: TrainingConfig,
    base: BaseModel | None,
    continued: ContinuedRun | None = None,
    *,
    texts: str | None,
    sources: str | None,
) -> RunTokenizers:
    """Prepare the tokenizers by kind or file, `texts` and `sources`; existing ones are reused."""
    if continued is not None:
        return RunTokenizers(texts=continued.tokenizer, sources=continued.source_tokenizer)
    separate = sources is not None or run.source_tokenizer.exists()
    if base is not None and base.source_tokenizer is not None and resumed is None:
        if sources is not None:
            raise UserError(_tokenizer_of(base, "source-tokenizer", sources))
        return RunTokenizers(
            texts=_text_tokenizer(run, resumed, corpus, texts, config, base, separate=True),
            sources=base.source_tokenizer,
        )
    return RunTokenizers(
        texts=_text_tokenizer(run, resumed, corpus, texts, config, base, separate=separate),
        sources=_source_tokenizer(run, corpus, sources, config) if separate else None,
    )


def _text_tokenizer(
    run: RunFolder,
    resumed: RunConfig | None,
    corpus: Corpus,
    kind: str | None,
    config: TrainingConfig,
    base: BaseModel | None,
    *,
    separate: bool,
) -> Tokenizer:
    """The run's own tokenizer, or its base's; else loaded from a file, or trained on the corpus.

    `separate`: sources have another, so this one is trained on the target texts alone.
    """
    if resumed is not None and run.tokenizer.exists():
        if kind not in (None, resumed.tokenizer) and not str(kind).endswith(".json"):
            raise UserError(
                f"the run {run.path} was started with the tokenizer {resumed.tokenizer}, "
                f"got {kind}; resume it unchanged, or choose another --out."
            )
        return Tokenizer.load(run.tokenizer)
    rules = _text_rules(config)
    if rules != NO_RULES and (base is not None or (kind is not None and kind.endswith(".json"))):
        which = kind if base is None else f"of the base {base.description.path}"
        raise UserError(
            f"--set lowercase and punctuation are for a new tokenizer, and {which} stays as it is; "
            "remove them."
        )
    if base is not None:
        if kind is not None:
            raise UserError(_tokenizer_of(base, "tokenizer", kind))
        return base.tokenizer
    if kind is not None and kind.endswith(".json"):
        return Tokenizer.load(kind)
    return tokenizer_for(
        corpus,
        kind,
        min_count=config.min_count,
        size=config.vocabulary_size,
        rules=rules,
        source=False if separate else None,
    )


def _tokenizer_of(base: BaseModel, option: str, kind: str) -> str:
    return (
        f"--{option} {kind} does not apply: the tokenizer is that of the {base.role} "
        f"{base.description.path}; remove it."
    )


def _source_tokenizer(
    run: RunFolder, corpus: Corpus, kind: str | None, config: TrainingConfig
) -> Tokenizer:
    """The source tokenizer: the run's own, a file's, or trained on the corpus."""
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
        corpus,
        kind,
        min_count=config.min_count,
        size=config.vocabulary_size,
        rules=_text_rules(config),
        source=True,
    )


def _text_rules(config: TrainingConfig) -> TextRules:
    return TextRules(lowercase=config.lowercase, split_punctuation=config.punctuation == "split")
