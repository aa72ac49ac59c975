"""Energy models with candidates added at an upper layer: KL from the true distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.countries import country_table
from lmlab.layers.sequence_mixer import LayerContext, attention_mask_tensor
from lmlab.zoo import bert
from lmlab.zoo._transformer import make_token_embedding, make_transformer

SHAPE = {
    "width": 32,
    "layers": 2,
    "heads": 4,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
SINGLE_TEXT = {"pairs": "none", "segments": 0, "masking": "dynamic"}
COUNTRIES, LAYERS, NEGATIVES, STEPS = 12, 3, 127, 1500


class LateCandidates(nn.Module):
    """E = -Σ_blanks h·e(token): masked up to layer L - l, where token embeddings are added."""

    def __init__(self, size: int, candidate_layers: int, width: int = 64) -> None:
        super().__init__()
        settings = {**SHAPE, "width": width, "layers": LAYERS, **SINGLE_TEXT}
        config = bert.Config(**settings)
        self.tokens = make_token_embedding(config, Vocabulary(size=size))
        self.encoder = make_transformer(config, self.tokens)
        self.candidate_layers = candidate_layers

    def forward(self, template: Tensor, blanks: Tensor, filled: Tensor) -> Tensor:
        """(N,) negative energies of the fillings (N, T) of a template (T,) with blanks (T,)."""
        stack, positions = self.encoder.stack, torch.arange(len(template))[None]
        mask, causal = attention_mask_tensor(
            FullMask(), torch.tensor([len(template)]), len(template)
        )
        context = LayerContext(
            mask=mask, causal=causal, query_positions=positions, key_positions=positions
        )
        blocks = list(stack.layers())
        values = self.encoder.embedding(template[None], positions, None)
        for _, block in blocks[: LAYERS - self.candidate_layers]:
            values = block(values, context)
        token_vectors = self.tokens(filled)
        values = (
            values + token_vectors * blanks[:, None]
            if self.candidate_layers
            else values.expand(len(filled), -1, -1)
        )
        for _, block in blocks[LAYERS - self.candidate_layers :]:
            values = block(values, context)
        scores: Tensor = (stack.finish(values) * token_vectors * blanks[:, None]).sum((-1, -2))
        return scores


def kl_by_candidate_layers(folder: Path, seeds: int) -> dict[str, Any]:
    """KL of the joint distribution of four blanks, by number of layers above the candidates."""
    countries = [c for c in country_table() if len(c.country_zh) == 2 and len(c.capital_zh) == 2][
        :COUNTRIES
    ]
    texts = [f"{c.country_zh}的首都是{c.capital_zh}" for c in countries]
    letters = sorted(set("".join(texts)))
    ids = torch.tensor([[5 + letters.index(letter) for letter in text] for text in texts])
    blanks = torch.tensor([1.0, 1, 0, 0, 0, 0, 1, 1])
    template = torch.where(blanks.bool(), 4, ids[0])
    positions = blanks.nonzero()[:, 0]
    fillings = torch.cartesian_prod(*(ids[:, position] for position in positions))
    divergences: dict[str, list[float]] = {}
    for candidate_layers in range(LAYERS + 1):
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = LateCandidates(5 + len(letters), candidate_layers)
            _fit(model, template, blanks, ids, fillings, positions)
            with torch.no_grad():
                scores = torch.cat(
                    [
                        model(template, blanks, _fill(template, positions, part))
                        for part in fillings.split(4096)
                    ]
                )
                log_z = scores.logsumexp(0)
                log_probs = model(template, blanks, ids) - log_z
            # The true distribution is uniform over the twelve sentences.
            divergences.setdefault(str(candidate_layers), []).append(
                float(-torch.tensor(len(texts)).log() - log_probs.mean())
            )
        print("layers", candidate_layers, divergences[str(candidate_layers)], flush=True)
    return {"kl": divergences, "fillings": len(fillings)}


def _fill(template: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    filled = template.repeat(len(tokens), 1)
    filled[:, positions] = tokens
    return filled


def _fit(
    model: LateCandidates,
    template: Tensor,
    blanks: Tensor,
    ids: Tensor,
    fillings: Tensor,
    positions: Tensor,
) -> None:
    """Train by softmax over a true filling and uniform negatives (optimum: the truth)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        negatives = fillings[torch.randint(len(fillings), (NEGATIVES,))]
        scores = model(template, blanks, torch.cat([ids, _fill(template, positions, negatives)]))
        true, other = scores[: len(ids)], scores[len(ids) :]
        loss = -(true - torch.logaddexp(true, other.logsumexp(0))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
