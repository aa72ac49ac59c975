"""Is a Transformer a mixture model (003)? Attention's expectation against a mixture over sources.

    python benchmarks/notes/sampled_attention.py [--seeds 3]

Attention passes on the weighted mean of the sources. A mixture would let every head draw one source
by the same weights, predict from it, and average the predictions over draws. A trained `gpt` (two
layers) is evaluated as it is; as that mixture, with DRAWS draws of all heads and positions; with
the mean loss of a single draw; and with the most probable source alone. Held-out nats per token,
the same weights and texts; beside them the entropy of the weights, as a number of sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.data.corpus import open_corpus
from lmlab.layers import attention as attention_layer
from lmlab.layers.attention import MultiHeadAttention, hard_attention_weights

DRAWS, TEXTS, STEPS = 64, 200, 1500
LANGUAGES = ("grammar", "hops", "recall")
SETTINGS: Record = {
    "width": 64,
    "layers": 2,
    "heads": 2,
    "length": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 1e-3,
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
}


def measure(language: str, seed: int) -> Record:
    corpus = open_corpus(language)
    model = train_model("gpt", corpus, SETTINGS, seed=seed, steps=STEPS)
    vocabulary = model.system.vocabulary
    rows = [
        [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        for example in corpus.splits["test"].first(TEXTS)
    ]
    batch = Batch.collate(rows, pad=vocabulary.pad)
    torch.manual_seed(seed)
    expected = target_log_probs(model, batch)
    perplexities: list[float] = []
    with weights_replaced(model, record_perplexity(perplexities)):
        target_log_probs(model, batch)
    with weights_replaced(model, one_hot_draw):
        draws = torch.stack([target_log_probs(model, batch) for _ in range(DRAWS)])
    with weights_replaced(model, hard_attention_weights):
        hard = target_log_probs(model, batch)
    return {
        "expectation": -float(expected.mean()),
        "mixture over sources": -float((draws.logsumexp(0) - math.log(DRAWS)).mean()),
        "a single draw": -float(draws.mean()),
        "the best source alone": -float(hard.mean()),
        "sources attended to": sum(perplexities) / len(perplexities),
    }


@torch.no_grad()
def target_log_probs(model: Any, batch: Batch) -> Tensor:
    """(N,) log-probabilities of all predicted tokens."""
    system = model.system
    predictions = system.target_log_probs(system.objective.view(batch))
    log_probs: Tensor = predictions.log_probs
    return log_probs


@contextmanager
def weights_replaced(model: Any, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Every head's weights (B, H, T, T) go through the function, where hard attention goes."""
    layers = [m for m in model.system.modules() if isinstance(m, MultiHeadAttention)]
    before = attention_layer.hard_attention_weights
    attention_layer.hard_attention_weights = function
    for layer in layers:
        layer.scores.hard = True
    try:
        yield
    finally:
        attention_layer.hard_attention_weights = before
        for layer in layers:
            layer.scores.hard = False


def one_hot_draw(weights: Tensor) -> Tensor:
    """One source per head and position, drawn by the weights."""
    # Positions beyond the end may have no source; any will do there.
    draws = torch.multinomial(weights.flatten(0, -2) + 1e-12, 1)
    return torch.zeros_like(weights).flatten(0, -2).scatter_(1, draws, 1.0).view_as(weights)


def record_perplexity(values: list[float]) -> Callable[[Tensor], Tensor]:
    """Leaves the weights as they are, and notes e^entropy."""

    def unchanged(weights: Tensor) -> Tensor:
        values.append(float(torch.special.entr(weights).sum(-1).exp().mean()))
        return weights

    return unchanged


def main() -> None:
    options = parse_arguments(__doc__, "sampled-attention")
    torch.set_num_threads(1)
    configurations = [{"language": language} for language in LANGUAGES]
    settings = SETTINGS | {"steps": STEPS, "draws": DRAWS, "texts": TEXTS}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("language",))


if __name__ == "__main__":
    main()
