"""Is attention an expectation that can't represent ambiguity (000), or a mixture (003)?

    python benchmarks/notes/expectation_mixture.py [--seeds 3]

Two of N entities stand in the context and either may be meant: the target is uniform over the two,
given all pairs. Both models have one vector of D numbers per entity, the same weights of attention
(a half each) and an output vector and bias per entity.

- expectation: softmax(W (v_a + v_b) / 2), one softmax of the mean, as attention has it;
- mixture: the mean of softmax(W v_a) and softmax(W v_b), as a model of a latent source has it.

Measured: KL from the target, in nats, after training by width D. The second part asks the same of
two answers at once (`parts=2`): an entity is a pair of letters, both letters are predicted, and
only the mixture can make them agree; the best product of independent letters is log 2 away.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
import torch.nn.functional as F
from claim_records import Record, measure_missing, parse_arguments, print_means
from torch import Tensor, nn

ENTITIES, STEPS, RATE = 16, 1500, 0.02
WIDTHS = (2, 4, 8, 16)
MODELS = ("expectation", "mixture")


class Reader(nn.Module):
    """A vector per entity, and `parts` linear output layers over it."""

    def __init__(self, width: int, parts: int, symbols: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(ENTITIES, width))
        self.outputs = nn.ModuleList(nn.Linear(width, symbols) for _ in range(parts))

    def log_joint(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of the targets (N, parts) given a state (N, width)."""
        log_probs = [output(hidden).log_softmax(-1) for output in self.outputs]
        picked = [p.gather(1, targets[:, i, None]) for i, p in enumerate(log_probs)]
        return torch.cat(picked, 1).sum(1)

    def log_prob(self, pairs: Tensor, targets: Tensor, model: str) -> Tensor:
        first, second = self.vectors[pairs[:, 0]], self.vectors[pairs[:, 1]]
        if model == "expectation":
            return self.log_joint((first + second) / 2, targets)
        both = torch.stack([self.log_joint(v, targets) for v in (first, second)])
        return both.logsumexp(0) - math.log(2)


def measure(model: str, parts: int, width: int, seed: int) -> Record:
    torch.manual_seed(seed)
    # With two parts an entity is a row and a column of a square; pairs that share one are left out.
    side = math.isqrt(ENTITIES)
    names = torch.arange(ENTITIES)[:, None]
    if parts == 2:
        names = torch.cat([names // side, names % side], 1)
    pairs = torch.tensor(
        [(a, b) for a, b in combinations(range(ENTITIES), 2) if bool((names[a] != names[b]).all())]
    )
    reader = Reader(width, parts, symbols=ENTITIES if parts == 1 else side)
    optimiser = torch.optim.Adam(reader.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)

    def divergence() -> Tensor:
        """KL(target || model): the target has entropy log 2."""
        sides = [reader.log_prob(pairs, names[pairs[:, i]], model) for i in (0, 1)]
        return -torch.stack(sides).mean() - math.log(2)

    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = divergence()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        mean_cosine = F.cosine_similarity(
            reader.vectors[pairs[:, 0]], reader.vectors[pairs[:, 1]]
        ).mean()
        return {"KL": float(divergence()), "mean cosine": float(mean_cosine)}


def main() -> None:
    options = parse_arguments(__doc__, "expectation-mixture")
    torch.set_num_threads(1)
    configurations = [
        {"model": model, "parts": parts, "width": width}
        for parts in (1, 2)
        for width in WIDTHS
        for model in MODELS
    ]
    settings: Record = {"entities": ENTITIES, "steps": STEPS, "learning_rate": RATE}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("model", "parts", "width"))


if __name__ == "__main__":
    main()
