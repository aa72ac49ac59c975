"""T5 against transformers' T5 with the same weights, of both versions."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import t5

transformers = pytest.importorskip("transformers")

# As T5's: <pad> 0, </s> 1, <unk> 2, no start and no mask; the last ten ids are sentinels.
VOCABULARY = Vocabulary(size=60, pad=0, end=1, unknown=2, start=None, mask=None)
SENTINELS = {"sentinels": 10, "first_sentinel": 59, "sentinel_step": -1, "decoder_start": 0}
VERSION_1_1 = t5.RECIPES["v1.1"]
CONFIGS = {
    "v1.0": {"width": 24, "layers": 2, "heads": 3},
    "v1.0 wide heads, few buckets": {
        "width": 16,
        "layers": 3,
        "heads": 2,
        "head_width": 12,
        "ffn_width": 40,
        "buckets": 8,
        "max_distance": 12,
    },
    "v1.1": {"width": 24, "layers": 2, "heads": 4, "ffn_width": 50, **VERSION_1_1},
    "v1.1 tied": {"width": 16, "layers": 1, "heads": 2, **VERSION_1_1, "tied": True},
}
SPREADS = {"shared": 2.0, "norm": 1.0, "lm_head": 0.1}
BOTH = pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)


def build_pair(settings: dict):
    """Our system with the weights of a random T5."""
    config = t5.Config(**settings, **SENTINELS)
    torch.manual_seed(0)
    gated = "gated-gelu" if config.gated_ffn else "relu"
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY.size,
            d_model=config.width,
            d_kv=config.head_width or config.width // config.heads,
            d_ff=config.ffn_width or 4 * config.width,
            num_layers=config.layers,
            num_heads=config.heads,
            relative_attention_num_buckets=config.buckets,
            relative_attention_max_distance=config.max_distance,
            feed_forward_proj=gated,
            tie_word_embeddings=config.tied,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        # Large enough for a spread of the logits; scores are not divided by anything.
        spread = [value for part, value in SPREADS.items() if part in name]
        norm = "layer_norm.weight" in name
        torch.nn.init.normal_(parameter, mean=float(norm), std=[*spread, 0.4][0])
    ours = t5.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), config))
    return ours, theirs


def our_names(theirs: dict, config: t5.Config) -> dict:
    """T5's names by hand; queries, keys and values are one matrix here."""
    output = theirs["shared.weight"] if config.tied else theirs["lm_head.weight"]
    converted = {"emission.weight": output}
    for side, before in (("encoder", False), ("decoder", True)):
        ours = f"backbone.{side}"
        converted[f"{ours}.embedding.tokens.weight"] = theirs["shared.weight"]
        converted[f"{ours}.stack.norm.weight"] = theirs[f"{side}.final_layer_norm.weight"]
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        converted[f"{ours}.stack.bias.table.weight"] = theirs[table]
        for layer in range(config.layers):
            block, here = f"{ours}.stack.blocks.{layer}", f"{side}.block.{layer}.layer"
            sublayers = [("mixer", "mixer_connection", f"{here}.0", "SelfAttention")]
            if before:
                sublayers += [
                    (
                        "cross_attention",
                        "cross_attention_connection",
                        f"{here}.1",
                        "EncDecAttention",
                    )
                ]
            for name, around, position, their_name in sublayers:
                parts = [theirs[f"{position}.{their_name}.{part}.weight"] for part in "qkv"]
                converted[f"{block}.{name}.qkv_projection.weight"] = torch.cat(parts)
                converted[f"{block}.{name}.output.weight"] = theirs[
                    f"{position}.{their_name}.o.weight"
                ]
                converted[f"{block}.{around}.norm.weight"] = theirs[f"{position}.layer_norm.weight"]
            position = f"{here}.{2 if before else 1}"
            inner = f"{position}.DenseReluDense"
            units = (
                {"wi_0": "up_projection", "wi_1": "gate"}
                if config.gated_ffn
                else {"wi": "up_projection"}
            )
            for their_name, name in {**units, "wo": "down_projection"}.items():
                weight = theirs[f"{inner}.{their_name}.weight"]
                converted[f"{block}.feed_forward.{name}.weight"] = weight
            norm = theirs[f"{position}.layer_norm.weight"]
            converted[f"{block}.feed_forward_connection.norm.weight"] = norm
    return converted


def some_texts():
    """Sources and targets, of different lengths on both sides."""
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(3, VOCABULARY.size, (3, 17), generator=generator)
    targets = torch.randint(3, VOCABULARY.size, (3, 11), generator=generator)
    return sources, torch.tensor([17, 9, 3]), targets, torch.tensor([4, 11, 7])


def padding_mask(lengths: torch.Tensor, time: int) -> torch.Tensor:
    return torch.arange(time) < lengths[:, None]


@BOTH
def test_logits_equal_t5_with_padding_on_both_sides(settings: dict):
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
            attention_mask=padding_mask(source_lengths, 17).long(),
            decoder_input_ids=targets,
            decoder_attention_mask=padding_mask(target_lengths, 11).long(),
        ).logits
    real = padding_mask(target_lengths, 11)
    assert expected[real].std() > 1
    assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)


@BOTH
def test_cached_step_logits_equal_t5(settings: dict):
    ours, theirs = build_pair(settings)
    sources, lengths, targets, _ = some_texts()
    mask, cache = padding_mask(lengths, 17).long(), None
    with torch.no_grad():
        memory = ours.backbone.init_decoder(
            View(inputs=sources, lengths=lengths, attention_mask=FullMask())
        )
        encoded = theirs.encoder(input_ids=sources, attention_mask=mask)
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


def test_pair_score_equals_t5_label_scores():
    """Text to text: source w … </s>, labels w … </s>, T5's loss is the mean over labels.

    Ours has no mass on <pad>, and the sentinels' mass at the end: both are put right here.
    """
    ours, theirs = build_pair(CONFIGS["v1.0"])
    source, text = [5, 9, 30, 12, 1], [7, 8, 41, 1]
    condition = Batch.collate([[0, *source]], pad=0)
    batch = Batch.collate([[0, *text]], pad=0, condition=condition)
    with torch.no_grad():
        actual = ours.log_prob(batch).per_token[0]
        logits = theirs(input_ids=torch.tensor([source]), labels=torch.tensor([text])).logits[0]
    logits[:, 0] = float("-inf")
    expected = torch.log_softmax(logits, -1)
    closing = expected[-1, [1, *range(50, 60)]].logsumexp(0)
    each = torch.stack([*expected[range(3), text[:3]], closing])
    torch.testing.assert_close(actual, each, atol=1e-4, rtol=0)


def test_unconditional_score_equals_t5_with_one_sentinel():
    """Unconditional: <extra_id_0> </s> is encoded; <pad> <extra_id_0> and the text decoded."""
    ours, theirs = build_pair(CONFIGS["v1.1"])
    text = [7, 8, 41]
    with torch.no_grad():
        actual = ours.log_prob(Batch.collate([[0, *text]], pad=0)).per_token[0]
        logits = theirs(
            input_ids=torch.tensor([[59, 1]]), decoder_input_ids=torch.tensor([[0, 59, *text[:-1]]])
        ).logits[0, 1:]
    logits[:, 0] = float("-inf")
    expected = torch.log_softmax(logits, -1)[range(3), text]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
