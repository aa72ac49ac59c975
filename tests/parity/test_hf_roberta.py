"""RoBERTa against transformers' with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import roberta

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=43, start=0, pad=1, end=2, unknown=3, mask=42)
"""The ids of the published tokenizer: <s> <pad> </s> <unk> … <mask>."""
OFFSET = VOCABULARY.pad + 1
"""Rows of their table of positions that no text uses."""
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {"width": 16, "layers": 5, "heads": 2, "length": 13, "ffn_width": 40},
    "flat": {"width": 16, "layers": 1, "heads": 4, "length": 32, "ffn_width": 12},
}
OUTSIDE = {
    "backbone.embedding.tokens": "roberta.embeddings.word_embeddings",
    "backbone.embedding.segments": "roberta.embeddings.token_type_embeddings",
    "backbone.embedding.norm": "roberta.embeddings.LayerNorm",
    "emission": "lm_head.decoder",
    "emission.transform.dense": "lm_head.dense",
    "emission.transform.norm": "lm_head.layer_norm",
}
INSIDE = {
    "mixer.output": "attention.output.dense",
    "mixer_connection.norm": "attention.output.LayerNorm",
    "feed_forward.up_projection": "intermediate.dense",
    "feed_forward.down_projection": "output.dense",
    "feed_forward_connection.norm": "output.LayerNorm",
}


def build_pair(settings: dict):
    """Our system with the weights of a random RoBERTa."""
    config = roberta.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            vocab_size=VOCABULARY.size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn_width or 4 * config.width,
            max_position_embeddings=config.length + OFFSET,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            pad_token_id=VOCABULARY.pad,
        )
    ).eval()
    randomise_weights(theirs)
    ours = roberta.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def randomise_weights(model: torch.nn.Module) -> None:
    """Random weights under which texts differ: matrices large, norms near one."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6 if parameter.ndim == 2 else 0.2)
        if "norm" in name.lower() and name.endswith("weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)


def our_names(theirs: dict, ours: dict) -> dict:
    """RoBERTa's names by hand; our table of positions has no unused rows."""
    converted = {}
    for name in ours:
        part, _, kind = name.rpartition(".")
        if part == "backbone.embedding.positions.table":
            converted[name] = theirs["roberta.embeddings.position_embeddings.weight"][OFFSET:]
            continue
        if part in OUTSIDE:
            converted[name] = theirs[f"{OUTSIDE[part]}.{kind}"]
            continue
        layer, _, inner = part.removeprefix("backbone.stack.blocks.").partition(".")
        where = f"roberta.encoder.layer.{layer}"
        if inner == "mixer.qkv_projection":
            parts = [
                theirs[f"{where}.attention.self.{x}.{kind}"] for x in ("query", "key", "value")
            ]
            converted[name] = torch.cat(parts)
        else:
            converted[name] = theirs[f"{where}.{INSIDE[inner]}.{kind}"]
    return converted


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_roberta(settings: dict):
    """With padding, whose ids decide their positions; at masked positions and at all others."""
    ours, theirs = build_pair(settings)
    generator = torch.Generator().manual_seed(2)
    draws = [torch.randint(3, 42, (n,), generator=generator).tolist() for n in (9, 5, 2)]
    batch = Batch.collate([[0, *draw, 2] for draw in draws], pad=VOCABULARY.pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, 3], masked[0, 6], masked[1, 2] = True, True, True
    view = ours.objective.fill_view(batch, masked)
    real = batch.mask()
    with torch.no_grad():
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(view.inputs, attention_mask=real.long()).logits
    assert expected[real].std() > 1
    assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)
