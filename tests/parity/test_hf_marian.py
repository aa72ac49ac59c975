"""The encoder-decoder against transformers' Marian with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import transformer

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
CONFIGS = {
    "as published": {"width": 24, "layers": 2, "heads": 3, "activation": "silu"},
    "relu, unscaled, odd sizes": {
        "width": 20,
        "layers": 3,
        "heads": 2,
        "ffn_width": 33,
        "activation": "relu",
        "scaled_embeddings": False,
    },
    "deep": {"width": 16, "layers": 4, "heads": 4, "activation": "gelu"},
}
EACH = pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)


def build_pair(settings: dict):
    """Our system with the weights of a random Marian."""
    config = transformer.Config(**settings)
    torch.manual_seed(0)
    inner = config.ffn_width or 4 * config.width
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=VOCABULARY.size,
            decoder_vocab_size=VOCABULARY.size,
            max_position_embeddings=64,
            d_model=config.width,
            encoder_layers=config.layers,
            decoder_layers=config.layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=inner,
            decoder_ffn_dim=inner,
            activation_function=config.activation,
            scale_embedding=config.scaled_embeddings,
            pad_token_id=VOCABULARY.pad,
            eos_token_id=VOCABULARY.end,
            decoder_start_token_id=VOCABULARY.start,
            forced_eos_token_id=None,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        if "embed_positions" not in name:
            # Norms around one, so that positions differ.
            norm = "layer_norm.weight" in name
            torch.nn.init.normal_(parameter, mean=float(norm), std=0.4)
    torch.nn.init.normal_(theirs.final_logits_bias)
    ours = transformer.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def our_names(theirs: dict, ours: dict) -> dict:
    """Marian's names by hand; queries, keys and values are one matrix here."""
    shared = theirs["model.shared.weight"]
    converted = {
        "emission.weight": shared,
        "emission.bias": theirs["final_logits_bias"][0],
        "backbone.encoder.embedding.tokens.weight": shared,
        "backbone.decoder.embedding.tokens.weight": shared,
    }
    parts = {
        "mixer.output": "self_attn.out_proj",
        "cross_attention.output": "encoder_attn.out_proj",
        "feed_forward.up_projection": "fc1",
        "feed_forward.down_projection": "fc2",
        "mixer_connection.norm": "self_attn_layer_norm",
        "cross_attention_connection.norm": "encoder_attn_layer_norm",
        "feed_forward_connection.norm": "final_layer_norm",
    }
    for name in ours:
        if ".stack.blocks." not in name:
            continue
        side, _, _, layer, rest = name.removeprefix("backbone.").split(".", 4)
        part, _, kind = rest.rpartition(".")
        position = f"model.{side}.layers.{layer}"
        if part.endswith("qkv_projection"):
            attention = "self_attn" if part == "mixer.qkv_projection" else "encoder_attn"
            each = [theirs[f"{position}.{attention}.{one}_proj.{kind}"] for one in "qkv"]
            converted[name] = torch.cat(each)
        else:
            converted[name] = theirs[f"{position}.{parts[part]}.{kind}"]
    return converted


def some_texts():
    """Sources and targets, of different lengths on both sides."""
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(5, VOCABULARY.size, (3, 13), generator=generator)
    targets = torch.randint(5, VOCABULARY.size, (3, 9), generator=generator)
    return sources, torch.tensor([13, 8, 2]), targets, torch.tensor([3, 9, 6])


def padding_mask(lengths: torch.Tensor, time: int) -> torch.Tensor:
    return torch.arange(time) < lengths[:, None]


@EACH
def test_logits_equal_marian_with_padding_on_both_sides(settings: dict):
    ours, theirs = build_pair(settings)
    sources, source_lengths, targets, target_lengths = some_texts()
    view = View(
        inputs=sources,
        lengths=source_lengths,
        attention_mask=FullMask(),
        decoder=View(inputs=targets, lengths=target_lengths, attention_mask=CausalMask()),
    )
    with torch.no_grad():
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(
            input_ids=sources,
            attention_mask=padding_mask(source_lengths, 13).long(),
            decoder_input_ids=targets,
            decoder_attention_mask=padding_mask(target_lengths, 9).long(),
        ).logits
    real = padding_mask(target_lengths, 9)
    assert expected[real].std() > 1
    assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)


@EACH
def test_cached_step_logits_equal_marian(settings: dict):
    ours, theirs = build_pair(settings)
    sources, lengths, targets, _ = some_texts()
    mask, cache = padding_mask(lengths, 13).long(), None
    with torch.no_grad():
        memory = ours.backbone.init_decoder(
            View(inputs=sources, lengths=lengths, attention_mask=FullMask())
        )
        encoded = theirs.get_encoder()(input_ids=sources, attention_mask=mask)
        for position in range(targets.shape[1]):
            here = targets[:, position : position + 1]
            view = View(inputs=here, lengths=torch.ones(3).long(), attention_mask=CausalMask())
            hidden = ours.hidden(view, memory)
            memory = hidden.state
            answer = theirs(
                encoder_outputs=encoded,
                attention_mask=mask,
                decoder_input_ids=here,
                past_key_values=cache,
                use_cache=True,
            )
            cache = answer.past_key_values
            logits = ours.emission.logits(hidden.values)
            torch.testing.assert_close(logits, answer.logits, atol=1e-4, rtol=0)


def test_pair_score_equals_marian_label_scores():
    """Marian's loss is the mean over labels; ours has no mass on <pad>, <s> and <mask>."""
    ours, theirs = build_pair(CONFIGS["as published"])
    source, text = [2, 9, 30, 12, 3], [7, 8, 40, 3]
    condition = Batch.collate([source], pad=0)
    batch = Batch.collate([[2, *text]], pad=0, condition=condition)
    with torch.no_grad():
        actual = ours.log_prob(batch).per_token[0]
        answer = theirs(input_ids=torch.tensor([source]), labels=torch.tensor([text]))
    logits = answer.logits[0]
    logits[:, list(VOCABULARY.unpredictable)] = float("-inf")
    expected = torch.log_softmax(logits, -1)[range(4), text]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
