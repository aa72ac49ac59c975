"""What is looked up for a few held-out texts, written down as a training goes on."""

from __future__ import annotations

from typing import Any

import torch

from lmlab.core.protocols import Retrieve, TokenizerProtocol, WithDocuments
from lmlab.core.system import System
from lmlab.retrieval.document_memory import evaluation_mode
from lmlab.training.data_loaders import BatchLoader

LOGGED_TEXTS = 3
"""The first so many of the held-out texts are followed."""
NO_RETRIEVED_DOCUMENT = "no document"
RETRIEVED_EVENT = "looked up"
"""The event of metrics.jsonl."""


def retrieved_documents(system: System, source: BatchLoader) -> list[dict[str, Any]]:
    """Of each text what it asks with, and p(document | text) by the documents' names.

    A text that is given a question asks with it. Empty for systems that look no documents up.
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
    """Share of the ten nearest documents that a system's index found when it was built."""
    return system.index_recall if isinstance(system, WithDocuments) else None


def _words(system: Any, tokens: list[int]) -> str:
    pieces: TokenizerProtocol | None = getattr(system, "tokenizer", None)
    return "" if pieces is None else pieces.decode(tokens)
