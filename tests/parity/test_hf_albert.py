"""ALBERT against transformers' with the same weights: masked tokens and sentence order."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import albert

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=39)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20, "embedding_width": 10},
    "deep": {"width": 16, "layers": 6, "heads": 2, "length": 13, "embedding_width": 8},
    "wide": {"width": 12, "layers": 3, "heads": 4, "length": 12, "embedding_width": 20},
    "gelu": {
        "width": 16,
        "layers": 1,
        "heads": 4,
        "length": 32,
        "embedding_width": 6,
        "activation": "gelu",
        "ffn_width": 24,
    },
}
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
NAMES = {
    "backbone.embedding.tokens": "albert.embeddings.word_embeddings",
    "backbone.embedding.positions.table": "albert.embeddings.position_embeddings",
    "backbone.embedding.segments": "albert.embeddings.token_type_embeddings",
    "backbone.embedding.norm": "albert.embeddings.LayerNorm",
    "backbone.embedding.projection": "albert.encoder.embedding_hidden_mapping_in",
    "backbone.stack.blocks.0.mixer.output": f"{LAYER}.attention.dense",
    "backbone.stack.blocks.0.mixer_connection.norm": f"{LAYER}.attention.LayerNorm",
    "backbone.stack.blocks.0.feed_forward.up_projection": f"{LAYER}.ffn",
    "backbone.stack.blocks.0.feed_forward.down_projection": f"{LAYER}.ffn_output",
    "backbone.stack.blocks.0.feed_forward_connection.norm": f"{LAYER}.full_layer_layer_norm",
    "emission": "predictions.decoder",
    "emission.transform.dense": "predictions.dense",
    "emission.transform.norm": "predictions.LayerNorm",
    "objective.pairs.pool": "albert.pooler",
    "objective.pairs.classify": "sop_classifier.classifier",
}


def build_pair(settings: dict):
    """Our system with the weights of a random ALBERT."""
    config = albert.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(
            vocab_size=VOCABULARY.size,
            embedding_size=config.embedding_width,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn_width or 4 * config.width,
            max_position_embeddings=config.length,
            hidden_act={"gelu": "gelu", "gelu-tanh": "gelu_new"}[config.activation],
        )
    ).eval()
    randomise_weights(theirs)
    ours = albert.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def randomise_weights(model: torch.nn.Module) -> None:
    """Random weights under which texts differ: matrices large, norms near one."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6 if parameter.ndim == 2 else 0.2)
        if "norm" in name.lower() and name.endswith("weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)


def our_names(theirs: dict, ours: dict) -> dict:
    """ALBERT's names by hand: one layer, however many there are."""
    converted = {}
    for name in ours:
        part, _, kind = name.rpartition(".")
        if part in NAMES:
            converted[name] = theirs[f"{NAMES[part]}.{kind}"]
        else:
            assert part == "backbone.stack.blocks.0.mixer.qkv_projection"
            parts = [theirs[f"{LAYER}.attention.{x}.{kind}"] for x in ("query", "key", "value")]
            converted[name] = torch.cat(parts)
    return converted


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_albert(settings: dict):
    """Of all tokens and of both orders, with padding and segment ids."""
    ours, theirs = build_pair(settings)
    tokens = torch.randint(5, VOCABULARY.size, (3, 11))
    lengths = torch.tensor([11, 7, 4])
    padding = (torch.arange(11) < lengths[:, None]).long()
    real, segments = padding.bool(), torch.randint(0, 2, (3, 11))
    with torch.no_grad():
        view = View(inputs=tokens, lengths=lengths, attention_mask=FullMask(), segments=segments)
        hidden = ours.hidden(view).values
        actual, answers = ours.emission.logits(hidden), ours.objective.pairs(hidden)
        expected = theirs(tokens, attention_mask=padding, token_type_ids=segments)
    assert expected.prediction_logits[real].std() > 1
    assert expected.prediction_logits[real].std(0).mean() > 0.02
    assert expected.sop_logits.std(0).min() > 0.1
    torch.testing.assert_close(actual[real], expected.prediction_logits[real], atol=1e-4, rtol=0)
    torch.testing.assert_close(answers, expected.sop_logits, atol=1e-4, rtol=0)


def test_parameter_count_with_shared_layers_by_hand():
    """Width 768, twelve layers, 30,000 tokens: 11.8 million numbers, as the paper has 12.

    Embedding 30,000·128 = 3.84 M, positions 512·128, segments 2·128, widening 768·128 + 768;
    a layer 4·768² + 4·768 and 2·768·3072 + 3072 + 768, norms 4·768: 7.09 M; prediction head
    768·128 + 128 + 2·128, bias 30,000; pairs 768² + 768 + 2·768 + 2; embedding norm 2·128.
    """
    narrow, wide = 128, 768
    layer = 4 * (wide**2 + wide) + 2 * wide * 3072 + 3072 + wide + 4 * wide
    embedding = (30_000 + 512 + 2) * narrow + 2 * narrow + wide * narrow + wide
    heads = wide * narrow + narrow + 2 * narrow + 30_000 + wide**2 + wide + 2 * wide + 2
    built = albert.build(albert.SIZES["base"], Vocabulary(size=30_000))
    assert built.parameter_count == layer + embedding + heads
