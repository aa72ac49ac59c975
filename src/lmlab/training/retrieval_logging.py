"""Retrieval logging: documents retrieved for a few held-out texts during training."""

from __future__ import annotations

from typing import Any

import torch

from lmlab.core.protocols import Retrieve, TokenizerProtocol, WithDocuments
from lmlab.core.system import System
from lmlab.retrieval.document_memory import evaluation_mode
from lmlab.training.data_loaders import BatchLoader

LOGGED_TEXTS = 3
"""Number of held-out texts that are logged."""
NO_RETRIEVED_DOCUMENT = "no document"
RETRIEVED_EVENT = "looked up"
"""The event name in metrics.jsonl."""


def retrieved_documents(system: System, source: BatchLoader) -> list[dict[str, Any]]:
    """The query of each text, and p(document | query) by document name.

    The query is the source where there is one, else the text. Empty for systems without retrieval.
    """
    if not isinstance(system, Retrieve):
        return []
    batch = next(iter(source.epoch(0)))
    asking = batch if batch.condition is None else batch.condition
    asking = asking.select(list(range(min(LOGGED_TEXTS, len(asking))))).to(
        next(system.parameters()).device
    )
    with evaluation_mode(system), torch.no_grad():
        found = system.retrieve(asking)
    texts = zip(asking.tokens.tolist(), asking.lengths.tolist(), strict=True)
    documents = zip(found.numbers.tolist(), found.log_probs.exp().tolist(), strict=True)
    return [
        {
            "text": _words(system, tokens[:length]),
            "documents": {
                system.documents[number].name if number >= 0 else NO_RETRIEVED_DOCUMENT: round(
                    probability, 6
                )
                for number, probability in zip(numbers, shares, strict=True)
                if probability > 0
            },
        }
        for (tokens, length), (numbers, shares) in zip(texts, documents, strict=True)
    ]


def index_recall(system: System) -> float | None:
    """Recall@10 of a system's approximate index, measured when it was built."""
    return system.index_recall if isinstance(system, WithDocuments) else None


def _words(system: Any, tokens: list[int]) -> str:
    pieces: TokenizerProtocol | None = getattr(system, "tokenizer", None)
    return "" if pieces is None else pieces.decode(tokens)
