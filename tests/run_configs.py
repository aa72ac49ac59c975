"""Configs of runs that were never trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_records import CorpusRecord, unknown_corpus


def run_config(system: str, **changed: Any) -> RunConfig:
    """A config with the least that a run has, and the fields given."""
    config = RunConfig(
        system=system,
        size="tiny",
        system_config={},
        vocabulary=Vocabulary(size=9),
        tokenizer="word",
        layout=Layout(),
        corpus=unknown_corpus(),
        training=TrainingConfig(),
    )
    return replace(config, **changed)


def corpus_record(spec: str) -> CorpusRecord:
    """The record of a corpus of that name."""
    return CorpusRecord(name=spec, spec=spec, fingerprint=f"of {spec}", seed=0, errors="strict")
