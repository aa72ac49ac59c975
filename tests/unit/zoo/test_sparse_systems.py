"""Sparse attention as a setting of every Transformer of the zoo."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProb
from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers import sparse_pattern
from lmlab.layers.sparse_pattern import SparsePattern
from lmlab.zoo._transformer_config import TransformerConfig

PATTERN = "window:3+global:1"
REFUSE = {"glm", "mpnet", "set-transformer", "transformer-xl", "xlnet"}
VOCABULARY = Vocabulary(size=12, mask=4)


def transformers() -> list[str]:
    """The systems whose settings are a Transformer's."""
    return [
        name
        for name in catalogue()
        if isinstance(getattr(system_module(name), "SIZES", {}).get("tiny"), TransformerConfig)
    ]


TRANSFORMERS = transformers()


def test_the_zoo_has_no_others() -> None:
    assert set(TRANSFORMERS) >= REFUSE | {"gpt", "bert", "t5", "bart", "unilm", "vit", "rag-token"}


@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if name in REFUSE])
def test_some_say_why_they_cannot(name: str) -> None:
    with pytest.raises(UserError, match=f"attention={PATTERN[:6]}.* does not apply here, since"):
        replace(system_module(name).SIZES["tiny"], attention=PATTERN)


@pytest.mark.parametrize(
    "name",
    ["gpt", "bert", "albert", "t5", "bart", "mass", "palm", "unilm", "spanbert", "hybrid", "llama"],
)
def test_scores_equal_dense_attention_under_the_same_mask(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups, and densely with the pattern as a mask; a longer window gives other scores."""
    monkeypatch.setattr(sparse_pattern, "MIN_BLOCK", 4)
    batch = Batch.collate([[2, *([5, 6, 7, 8, 9, 10] * 6), 3], [2, *([11, 6, 5] * 5), 3]], pad=0)

    def totals(attention: str) -> torch.Tensor:
        torch.manual_seed(0)
        module = system_module(name)
        config = replace(module.SIZES["tiny"], attention=attention)
        system = module.build(config, VOCABULARY).eval()
        for parameter in system.parameters():
            if parameter.ndim > 1:  # norms as they are, or nothing passes them
                torch.nn.init.normal_(parameter, std=0.5)
        assert isinstance(system, LogProb)
        with torch.no_grad():
            return system.log_prob(batch).totals

    in_groups = totals(PATTERN)
    monkeypatch.setattr(SparsePattern, "is_worthwhile", lambda self, time: False)
    torch.testing.assert_close(in_groups, totals(PATTERN), atol=1e-4, rtol=1e-5)
    assert (totals("dense") - in_groups).abs().max() > 1e-2
