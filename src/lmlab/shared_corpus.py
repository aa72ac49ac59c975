"""The corpus that several trained models share (or one given), split as in their training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.training.run_folder import TrainedModel


def shared_corpus(
    models: Sequence[TrainedModel], data: str | Path | None, errors: str | None
) -> Corpus:
    """The given corpus, or the one that all models were trained on.

    A model's training corpus is split as in training; otherwise its test split would contain
    training texts.
    """
    if data is not None:
        trained = [model.config["corpus"] for model in models]
        seeds = {corpus["seed"] for corpus in trained if corpus["spec"] == str(data)}
        if len(seeds) > 1:
            raise UserError(f"these runs divided {data} by different seeds, so no split is unseen.")
        return open_corpus(data, errors=errors or "strict", seed=seeds.pop() if seeds else 0)
    by_fingerprint = {
        model.config["corpus"]["fingerprint"]: model.config["corpus"] for model in models
    }
    by_fingerprint.pop("", None)  # an imported model does not know its corpus, and fits any
    if not by_fingerprint:
        raise UserError(
            "these models were not trained here; give the corpus to compare them on by --data."
        )
    if len(by_fingerprint) != 1:
        names = ", ".join(sorted({str(corpus["spec"]) for corpus in by_fingerprint.values()}))
        raise UserError(
            f"these runs were trained on different corpora ({names}); choose one by --data."
        )
    [(fingerprint, trained_on)] = by_fingerprint.items()
    decode_errors = errors or trained_on.get("errors", "strict")
    try:
        corpus = open_corpus(trained_on["spec"], errors=decode_errors, seed=trained_on["seed"])
    except UserError as error:
        raise UserError(
            f"the training corpus of the runs can't be read ({str(error).rstrip('.')}); give "
            "its path by --data."
        ) from error
    if corpus.fingerprint() != fingerprint:
        raise UserError(
            f"{trained_on['spec']} has changed since the runs were trained on it; give the "
            "corpus to compare them on by --data."
        )
    return corpus
