"""Energies whose candidates enter some layers below the top: KL from the true distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.countries import country_table
from lmlab.layers.attention_context import AttentionContext, attention_mask_tensor
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
ALONE = {"pairs": "none", "segments": 0, "masking": "dynamic"}
COUNTRIES, STACK, NEGATIVES, STEPS = 12, 3, 127, 1500


class LateCandidates(nn.Module):
    """E = -Σ_blanks h·e(token): masks up to layer L - l, then the tokens join the blanks."""

    def __init__(self, size: int, below: int, width: int = 64) -> None:
        super().__init__()
        settings = {**SHAPE, "width": width, "layers": STACK, **ALONE}
        config = bert.Config(**settings)
        self.tokens = make_token_embedding(config, Vocabulary(size=size))
        self.encoder = make_transformer(config, self.tokens)
        self.below = below

    def forward(self, template: Tensor, blanks: Tensor, filled: Tensor) -> Tensor:
        """(N,) minus the energy of each filling (N, T) of a template (T,) with blanks (T,)."""
        stack, positions = self.encoder.stack, torch.arange(len(template))[None]
        mask, causal = attention_mask_tensor(
            FullMask(), torch.tensor([len(template)]), len(template)
        )
        scope = AttentionContext(
            mask=mask, causal=causal, query_positions=positions, key_positions=positions
        )
        layers = list(stack.layers())
        values = self.encoder.embedding(template[None], positions, None)
        for _, block in layers[: STACK - self.below]:
            values = block(values, scope)
        own = self.tokens(filled)
        values = (
            values + own * blanks[:, None] if self.below else values.expand(len(filled), -1, -1)
        )
        for _, block in layers[STACK - self.below :]:
            values = block(values, scope)
        scores: Tensor = (stack.finish(values) * own * blanks[:, None]).sum((-1, -2))
        return scores


def layers(folder: Path, seeds: int) -> dict[str, Any]:
    """KL of the joint distribution of four blanks, by the layer at which candidates enter."""
    chosen = [c for c in country_table() if len(c.country_zh) == 2 and len(c.capital_zh) == 2][
        :COUNTRIES
    ]
    texts = [f"{c.country_zh}的首都是{c.capital_zh}" for c in chosen]
    letters = sorted(set("".join(texts)))
    ids = torch.tensor([[5 + letters.index(letter) for letter in text] for text in texts])
    blanks = torch.tensor([1.0, 1, 0, 0, 0, 0, 1, 1])
    template = torch.where(blanks.bool(), 4, ids[0])
    positions = blanks.nonzero()[:, 0]
    every = torch.cartesian_prod(*(ids[:, position] for position in positions))
    divergences: dict[str, list[float]] = {}
    for below in range(STACK + 1):
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = LateCandidates(5 + len(letters), below)
            _fit(model, template, blanks, ids, every, positions)
            with torch.no_grad():
                scores = torch.cat(
                    [
                        model(template, blanks, _fill(template, positions, part))
                        for part in every.split(4096)
                    ]
                )
                log_z = scores.logsumexp(0)
                own = model(template, blanks, ids) - log_z
            # The truth gives each of the twelve sentences 1/12.
            divergences.setdefault(str(below), []).append(
                float(-torch.tensor(len(texts)).log() - own.mean())
            )
        print("layers", below, divergences[str(below)], flush=True)
    return {"kl": divergences, "fillings": len(every)}


def _fill(template: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    filled = template.repeat(len(tokens), 1)
    filled[:, positions] = tokens
    return filled


def _fit(
    model: LateCandidates,
    template: Tensor,
    blanks: Tensor,
    ids: Tensor,
    every: Tensor,
    positions: Tensor,
) -> None:
    """Softmax of the true filling among uniform ones; the optimum is the true distribution."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        others = every[torch.randint(len(every), (NEGATIVES,))]
        scores = model(template, blanks, torch.cat([ids, _fill(template, positions, others)]))
        true, other = scores[: len(ids)], scores[len(ids) :]
        loss = -(true - torch.logaddexp(true, other.logsumexp(0))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
