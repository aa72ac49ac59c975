"""MPNet against transformers' MPNet with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import mpnet

transformers = pytest.importorskip("transformers")

OFFSET = 2
"""Their positions of tokens start here: 0 is unused and 1 is the padding's."""
THEIR_PADDING = 1
VOCABULARY = Vocabulary(size=41, pad=THEIR_PADDING, unknown=0)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 40},
    "deep": {"width": 16, "layers": 4, "heads": 2, "length": 200, "ffn_width": 40},
    "shallow": {"width": 16, "layers": 1, "heads": 4, "length": 40, "norm_epsilon": 1e-5},
}


def build_pair(settings: dict):
    """Our system with the weights of a random MPNet."""
    config = mpnet.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.MPNetForMaskedLM(
        transformers.MPNetConfig(
            vocab_size=VOCABULARY.size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn_width or 4 * config.width,
            max_position_embeddings=config.length + OFFSET,
            layer_norm_eps=config.norm_epsilon,
            relative_attention_num_buckets=config.buckets,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, std=0.4)
        if "norm.weight" in name.lower():
            parameter.data += 1
    ours = mpnet.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def our_names(theirs: dict, ours: dict) -> dict:
    """MPNet's names by hand; queries, keys and values are one map of ours."""
    body = "backbone.stack.blocks"
    inputs, head = "mpnet.embeddings", "lm_head"
    converted = {
        "backbone.embedding.tokens.weight": theirs[f"{inputs}.word_embeddings.weight"],
        "backbone.embedding.positions.table.weight": theirs[f"{inputs}.position_embeddings.weight"][
            OFFSET:
        ],
        "backbone.embedding.norm.weight": theirs[f"{inputs}.LayerNorm.weight"],
        "backbone.embedding.norm.bias": theirs[f"{inputs}.LayerNorm.bias"],
        "backbone.stack.bias.table.weight": theirs["mpnet.encoder.relative_attention_bias.weight"],
        "emission.weight": theirs[f"{head}.decoder.weight"],
        "emission.bias": theirs[f"{head}.bias"],
        "emission.transform.dense.weight": theirs[f"{head}.dense.weight"],
        "emission.transform.dense.bias": theirs[f"{head}.dense.bias"],
        "emission.transform.norm.weight": theirs[f"{head}.layer_norm.weight"],
        "emission.transform.norm.bias": theirs[f"{head}.layer_norm.bias"],
    }
    parts = {
        "mixer.output": "attention.attn.o",
        "feed_forward.up_projection": "intermediate.dense",
        "feed_forward.down_projection": "output.dense",
        "mixer_connection.norm": "attention.LayerNorm",
        "feed_forward_connection.norm": "output.LayerNorm",
    }
    for name in ours:
        if not name.startswith(body):
            continue
        layer, _, rest = name.removeprefix(f"{body}.").partition(".")
        part, _, kind = rest.rpartition(".")
        at = f"mpnet.encoder.layer.{layer}"
        if part == "mixer.qkv_projection":
            maps = [theirs[f"{at}.attention.attn.{each}.{kind}"] for each in "qkv"]
            converted[name] = torch.cat(maps)
        else:
            converted[name] = theirs[f"{at}.{parts[part]}.{kind}"]
    return converted


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_mpnet(settings: dict):
    """Texts long enough for buckets that hold many distances; they pad by the token."""
    ours, theirs = build_pair(settings)
    time = ours.window + 1
    lengths = torch.tensor([time, time // 2, 4])
    real = torch.arange(time) < lengths[:, None]
    tokens = torch.randint(5, VOCABULARY.size, (3, time)).masked_fill(~real, THEIR_PADDING)
    with torch.no_grad():
        view = View(inputs=tokens, lengths=lengths, attention_mask=FullMask())
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(tokens, attention_mask=real.long()).logits
    assert expected[real].std() > 1
    assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)
