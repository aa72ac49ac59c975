"""PEGASUS against transformers' PegasusForConditionalGeneration with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import pegasus

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {
        "width": 16,
        "layers": 2,
        "decoder_layers": 4,
        "heads": 2,
        "length": 16,
        "ffn_width": 40,
    },
    "gelu, unscaled": {
        "width": 16,
        "layers": 1,
        "heads": 4,
        "length": 32,
        "activation": "gelu",
        "scaled_embeddings": False,
    },
}
PARTS = {
    "mixer.output": "self_attn.out_proj",
    "mixer_connection.norm": "self_attn_layer_norm",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_connection.norm": "encoder_attn_layer_norm",
    "feed_forward.up_projection": "fc1",
    "feed_forward.down_projection": "fc2",
    "feed_forward_connection.norm": "final_layer_norm",
}
"""Our parts of a layer, and theirs."""


def build_pair(settings: dict):
    """Our system with the weights of a random Pegasus."""
    config = pegasus.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.PegasusForConditionalGeneration(
        transformers.PegasusConfig(
            vocab_size=VOCABULARY.size,
            max_position_embeddings=config.length,
            d_model=config.width,
            encoder_layers=config.layers,
            decoder_layers=config.decoder_layers or config.layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.ffn_width or 4 * config.width,
            decoder_ffn_dim=config.ffn_width or 4 * config.width,
            activation_function=config.activation,
            scale_embedding=config.scaled_embeddings,
            pad_token_id=VOCABULARY.pad,
            eos_token_id=VOCABULARY.end,
            decoder_start_token_id=VOCABULARY.pad,
        )
    ).eval()
    randomise_weights(theirs)
    torch.nn.init.normal_(theirs.final_logits_bias, std=0.6)
    ours = pegasus.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def randomise_weights(model: torch.nn.Module) -> None:
    """Large enough that logits spread, not so large that one sublayer drowns the others."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # sinusoids
        if "norm" in name and name.endswith("weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        else:
            torch.nn.init.normal_(parameter, std=1.0 if "shared" in name else 0.25)


def our_names(theirs: dict, ours: dict) -> dict:
    """Pegasus's names by hand; queries, keys and values are one matrix here, and three there."""
    converted = {
        "emission.weight": theirs["model.shared.weight"],
        "emission.bias": theirs["final_logits_bias"][0],
    }
    for side in ("encoder", "decoder"):
        here, there = f"backbone.{side}", f"model.{side}"
        converted |= {
            f"{here}.embedding.tokens.weight": theirs["model.shared.weight"],
            f"{here}.stack.norm.weight": theirs[f"{there}.layer_norm.weight"],
            f"{here}.stack.norm.bias": theirs[f"{there}.layer_norm.bias"],
        }
    for name in ours:
        if ".stack.blocks." in name:
            converted[name] = in_layer(name, theirs)
    return converted


def in_layer(name: str, theirs: dict) -> torch.Tensor:
    """Their parameter that corresponds to one of our layer parameters."""
    _, side, _, _, layer, *part, kind = name.split(".")
    body = f"model.{side}.layers.{layer}"
    if part[-1] != "qkv_projection":
        return theirs[f"{body}.{PARTS['.'.join(part)]}.{kind}"]
    attention = {"mixer": "self_attn", "cross_attention": "encoder_attn"}[part[0]]
    return torch.cat([theirs[f"{body}.{attention}.{each}_proj.{kind}"] for each in "qkv"])


def padded(*lengths: int, ends: tuple[int, ...] = ()) -> Batch:
    tokens = [torch.randint(5, VOCABULARY.size, (length,)).tolist() for length in lengths]
    return Batch.collate([[*row, *ends] for row in tokens], VOCABULARY.pad)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_pegasus(settings: dict):
    """With padding in the source and in the text."""
    ours, theirs = build_pair(settings)
    source, text = padded(11, 6, 3), padded(5, 9, 7)
    with torch.no_grad():
        decoder = View(inputs=text.tokens, lengths=text.lengths, attention_mask=CausalMask())
        view = View(
            inputs=source.tokens, lengths=source.lengths, attention_mask=FullMask(), decoder=decoder
        )
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(
            input_ids=source.tokens,
            attention_mask=source.mask().long(),
            decoder_input_ids=text.tokens,
            decoder_attention_mask=text.mask().long(),
        ).logits
    real = text.mask()
    assert expected[real].std(0).mean() > 1, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)


def test_cached_step_logits_equal_pegasus():
    """Started as they start: <pad>; a source ends with </s> and has no start token."""
    conventions = {"decoder_prefix": (VOCABULARY.pad,), "source_has_start": False}
    ours, theirs = build_pair({**CONFIGS["small"], **conventions})
    theirs_source = padded(8, 5, ends=(VOCABULARY.end,))
    rows = theirs_source.tokens.tolist()
    lengths = theirs_source.lengths.tolist()
    condition = Batch.collate(
        [[VOCABULARY.start, *row[:length]] for row, length in zip(rows, lengths, strict=True)],
        VOCABULARY.pad,
    )
    text = torch.randint(5, VOCABULARY.size, (2, 9))
    cache, token = None, torch.full((2, 1), VOCABULARY.pad)
    with torch.no_grad():
        state = ours.start(2, condition=condition)
        seen = theirs_source.mask().long()
        memory = theirs.get_encoder()(theirs_source.tokens, attention_mask=seen)
        for position in range(9):
            answer = theirs(
                encoder_outputs=memory,
                attention_mask=seen,
                decoder_input_ids=token,
                past_key_values=cache,
                use_cache=True,
            )
            cache = answer.past_key_values
            logits = ours.emission.logits(state.values)
            torch.testing.assert_close(logits, answer.logits[:, 0], atol=1e-4, rtol=0)
            token = text[:, position : position + 1]
            state = ours.advance(state, token[:, 0])
