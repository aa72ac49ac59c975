"""BART against transformers' BartForConditionalGeneration with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import bart, palm

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
OFFSET = 2
"""Rows of their position tables before that of position 0."""
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {
        "width": 16,
        "layers": 4,
        "decoder_layers": 3,
        "heads": 2,
        "length": 16,
        "ffn_width": 40,
    },
    "relu, scaled": {
        "width": 16,
        "layers": 1,
        "heads": 4,
        "length": 32,
        "activation": "relu",
        "scaled_embeddings": True,
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
    """Our system with the weights of a random BART."""
    config = bart.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.BartForConditionalGeneration(
        transformers.BartConfig(
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
            bos_token_id=VOCABULARY.start,
            eos_token_id=VOCABULARY.end,
            decoder_start_token_id=VOCABULARY.end,
        )
    ).eval()
    randomise_weights(theirs)
    torch.nn.init.normal_(theirs.final_logits_bias, std=0.6)
    ours = bart.build(config, VOCABULARY).eval()
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
    """BART's names by hand; queries, keys and values are one matrix here, and three there."""
    converted = {
        "emission.weight": theirs["model.shared.weight"],
        "emission.bias": theirs["final_logits_bias"][0],
    }
    for side in ("encoder", "decoder"):
        here, there = f"backbone.{side}", f"model.{side}"
        converted |= {
            f"{here}.embedding.tokens.weight": theirs["model.shared.weight"],
            f"{here}.embedding.positions.table.weight": theirs[f"{there}.embed_positions.weight"][
                OFFSET:
            ],
            f"{here}.embedding.norm.weight": theirs[f"{there}.layernorm_embedding.weight"],
            f"{here}.embedding.norm.bias": theirs[f"{there}.layernorm_embedding.bias"],
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


def padded(*lengths: int) -> Batch:
    tokens = [torch.randint(5, VOCABULARY.size, (length,)).tolist() for length in lengths]
    return Batch.collate(tokens, VOCABULARY.pad)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_bart(settings: dict):
    """With padding in the source and in the text, and one masked position in a source."""
    ours, theirs = build_pair(settings)
    source, text = padded(11, 6, 3), padded(5, 9, 7)
    source.tokens[0, 2] = VOCABULARY.mask
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


def test_cached_step_logits_equal_bart():
    """Started as they start: </s>, then the text."""
    ours, theirs = build_pair({**CONFIGS["small"], "decoder_prefix": (VOCABULARY.end,)})
    body, text = padded(8, 5), torch.randint(5, VOCABULARY.size, (2, 9))
    source = Batch.collate(
        [
            [VOCABULARY.start, *row[:length], VOCABULARY.end]
            for row, length in zip(body.tokens.tolist(), body.lengths.tolist(), strict=True)
        ],
        VOCABULARY.pad,
    )
    cache, token = None, torch.full((2, 1), VOCABULARY.end)
    with torch.no_grad():
        state = ours.start(2, condition=source)
        memory = theirs.get_encoder()(source.tokens, attention_mask=source.mask().long())
        for position in range(9):
            answer = theirs(
                encoder_outputs=memory,
                attention_mask=source.mask().long(),
                decoder_input_ids=token,
                past_key_values=cache,
                use_cache=True,
            )
            cache = answer.past_key_values
            logits = ours.emission.logits(state.values)
            torch.testing.assert_close(logits, answer.logits[:, 0], atol=1e-4, rtol=0)
            token = text[:, position : position + 1]
            state = ours.advance(state, token[:, 0])


def test_text_score_equals_bart_given_one_mask():
    """log p(text | <s> <mask> </s>) from their logits, tokens that we never predict left out."""
    ours, theirs = build_pair(
        {**CONFIGS["small"], "decoder_prefix": (VOCABULARY.end, VOCABULARY.start)}
    )
    text = [VOCABULARY.start, 9, 17, 5, 33, VOCABULARY.end]
    with torch.no_grad():
        actual = ours.log_prob(Batch.collate([text], VOCABULARY.pad)).per_token[0]
        logits = theirs(
            input_ids=torch.tensor([[VOCABULARY.start, VOCABULARY.mask, VOCABULARY.end]]),
            decoder_input_ids=torch.tensor([[VOCABULARY.end, *text[:-1]]]),
        ).logits[0, 1:]
    logits[:, list(VOCABULARY.unpredictable)] = float("-inf")
    expected = torch.log_softmax(logits, -1)[torch.arange(5), torch.tensor(text[1:])]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_palm_without_copying_equals_bart():
    """Conditioned on a source; PALM's own encoder head is left out."""
    prefix = (VOCABULARY.end, VOCABULARY.start)
    _, theirs = build_pair({**CONFIGS["deep"], "decoder_prefix": prefix})
    ours = palm.build(
        palm.Config(**CONFIGS["deep"], decoder_prefix=prefix, copy_mechanism=False), VOCABULARY
    ).eval()
    here = {name: each for name, each in ours.state_dict().items() if "objective." not in name}
    ours.load_state_dict(our_names(theirs.state_dict(), here), strict=False)
    source = [VOCABULARY.start, 7, 30, 7, 12, VOCABULARY.end]
    text = [VOCABULARY.start, 9, 17, 5, 33, VOCABULARY.end]
    with torch.no_grad():
        condition = Batch.collate([source], VOCABULARY.pad)
        batch = Batch.collate([text], VOCABULARY.pad, condition=condition)
        actual = ours.log_prob(batch).per_token[0]
        logits = theirs(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[VOCABULARY.end, *text[:-1]]]),
        ).logits[0, 1:]
    logits[:, list(VOCABULARY.unpredictable)] = float("-inf")
    expected = torch.log_softmax(logits, -1)[torch.arange(5), torch.tensor(text[1:])]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
