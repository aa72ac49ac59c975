"""ELECTRA's two networks against transformers' ElectraForPreTraining and ElectraForMaskedLM."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.replaced_token_detection import discriminator_view
from lmlab.zoo import electra

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=37)
CONFIGS = {
    "same width": {"width": 24, "layers": 2, "heads": 3, "generator_width": 24},
    "narrow generator": {"width": 32, "layers": 3, "heads": 4, "generator_layers": 2},
    "narrow embedding": {
        "width": 24,
        "embedding_width": 10,
        "layers": 1,
        "heads": 2,
        "generator_width": 12,
        "generator_heads": 3,
        "generator_ffn_width": 20,
    },
}
LAYER = {
    "mixer.output": "attention.output.dense",
    "mixer_connection.norm": "attention.output.LayerNorm",
    "feed_forward.up_projection": "intermediate.dense",
    "feed_forward.down_projection": "output.dense",
    "feed_forward_connection.norm": "output.LayerNorm",
}


def hf_config(config: electra.Config):
    return transformers.ElectraConfig(
        vocab_size=VOCABULARY.size,
        embedding_size=config.embedding_width or config.width,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.ffn_width or 4 * config.width,
        max_position_embeddings=config.length,
        type_vocab_size=config.segments,
        pad_token_id=VOCABULARY.pad,
    )


def build_trio(settings: dict):
    """Our system, and both of theirs with random weights over one embedding."""
    config = electra.Config(length=20, segments=2, **settings)
    torch.manual_seed(0)
    detector = transformers.ElectraForPreTraining(hf_config(config)).eval()
    generator = transformers.ElectraForMaskedLM(hf_config(config.generator)).eval()
    for model in (detector, generator):
        for name, parameter in model.named_parameters():
            # Norms around one, so that positions still differ after all layers.
            norm = name.endswith("LayerNorm.weight")
            torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)
    generator.electra.embeddings.load_state_dict(detector.electra.embeddings.state_dict())
    ours = electra.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(detector.state_dict(), generator.state_dict()))
    return ours, detector, generator


def our_names(detector: dict, generator: dict) -> dict:
    inner = "objective.generator."
    converted = {
        **encoder(detector, "backbone."),
        **encoder(generator, f"{inner}backbone."),
        f"{inner}emission.weight": generator["electra.embeddings.word_embeddings.weight"],
        f"{inner}emission.bias": generator["generator_lm_head.bias"],
    }
    for kind in ("weight", "bias"):
        head = f"{inner}emission.transform"
        converted[f"emission.dense.{kind}"] = detector[f"discriminator_predictions.dense.{kind}"]
        score = detector[f"discriminator_predictions.dense_prediction.{kind}"]
        converted[f"emission.score.{kind}"] = score
        converted[f"{head}.dense.{kind}"] = generator[f"generator_predictions.dense.{kind}"]
        converted[f"{head}.norm.{kind}"] = generator[f"generator_predictions.LayerNorm.{kind}"]
    return converted


def encoder(theirs: dict, prefix: str) -> dict:
    """The names of one network; queries, keys and values are one matrix here."""
    given = "electra.embeddings."
    converted = {
        f"{prefix}embedding.tokens.weight": theirs[f"{given}word_embeddings.weight"],
        f"{prefix}embedding.positions.table.weight": theirs[f"{given}position_embeddings.weight"],
        f"{prefix}embedding.segments.weight": theirs[f"{given}token_type_embeddings.weight"],
    }
    for kind in ("weight", "bias"):
        converted[f"{prefix}embedding.norm.{kind}"] = theirs[f"{given}LayerNorm.{kind}"]
        if f"electra.embeddings_project.{kind}" in theirs:
            widened = theirs[f"electra.embeddings_project.{kind}"]
            converted[f"{prefix}embedding.projection.{kind}"] = widened
        layer = 0
        while f"electra.encoder.layer.{layer}.output.dense.{kind}" in theirs:
            there, here = f"electra.encoder.layer.{layer}.", f"{prefix}stack.blocks.{layer}."
            parts = [theirs[f"{there}attention.self.{n}.{kind}"] for n in ("query", "key", "value")]
            converted[f"{here}mixer.qkv_projection.{kind}"] = torch.cat(parts)
            for our_part, their_part in LAYER.items():
                converted[f"{here}{our_part}.{kind}"] = theirs[f"{there}{their_part}.{kind}"]
            layer += 1
    return converted


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([11, 7, 4])
    return {
        "tokens": torch.randint(5, VOCABULARY.size, (3, 11), generator=generator),
        "lengths": lengths,
        "segments": torch.randint(0, 2, (3, 11), generator=generator),
        "real": torch.arange(11) < lengths[:, None],
    }


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_logits_of_both_networks_equal_transformers(settings: dict):
    ours, detector, generator = build_trio(settings)
    given = inputs()
    view = View(
        inputs=given["tokens"],
        lengths=given["lengths"],
        segments=given["segments"],
        attention_mask=FullMask(),
    )
    theirs = {
        "input_ids": given["tokens"],
        "attention_mask": given["real"].long(),
        "token_type_ids": given["segments"],
    }
    real, decoder = given["real"], ours.objective.generator
    pairs = [
        (ours.emission.log_odds(ours.hidden(view).values), detector(**theirs).logits),
        (decoder.emission.logits(decoder.hidden(view).values), generator(**theirs).logits),
    ]
    for actual, expected in pairs:
        assert expected[real].std() > 1
        assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
        torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)


@torch.no_grad()
def test_detection_and_loss_equal_transformers():
    """Log-odds at every unpadded position; the mean cross-entropy of the labels over those."""
    ours, detector, _ = build_trio(CONFIGS["narrow generator"])
    given = inputs()
    real = given["real"]
    tokens = given["tokens"].masked_fill(~real, VOCABULARY.pad)
    batch = Batch(tokens=tokens, lengths=given["lengths"], rows=torch.arange(3))
    changed = tokens.clone()
    changed[0, 3], changed[1, 1] = 6, 7
    labels = (changed != tokens).long()
    answer = detector(input_ids=changed, attention_mask=real.long(), labels=labels)
    view = discriminator_view(batch, changed)
    assert view.targets is not None
    assert view.targets.tolist() == labels.masked_fill(~real, NO_TARGET).tolist()
    lost = -ours.target_log_probs(view).log_probs.mean()
    torch.testing.assert_close(lost, answer.loss, atol=1e-5, rtol=0)
    odds = ours.detect(Batch(tokens=changed, lengths=given["lengths"], rows=torch.arange(3)))
    torch.testing.assert_close(odds[real], answer.logits[real], atol=1e-4, rtol=0)
    assert odds[~real].tolist() == [float("-inf")] * int((~real).sum())


@torch.no_grad()
def test_detector_encodes_two_texts_as_two_segments():
    """<s> a … </s> b … </s>: the second text and its end are segment 1."""
    ours, detector, _ = build_trio(CONFIGS["narrow embedding"])
    batch = Batch.collate([[2, 9, 17, 3, 30, 8, 3]], pad=VOCABULARY.pad)
    expected = detector.electra(
        input_ids=batch.tokens, token_type_ids=torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    ).last_hidden_state
    torch.testing.assert_close(ours.encode_tokens(batch), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.encode(batch), expected[:, 0], atol=1e-4, rtol=0)


@torch.no_grad()
def test_generator_scores_and_fills_equal_transformers():
    """log p at a masked position; <pad>, <s> and <mask> are never predicted here and left out."""
    ours, _, generator = build_trio(CONFIGS["narrow embedding"])
    sentence = [2, 9, 17, 30, 8, 3]
    batch = Batch.collate([sentence], pad=VOCABULARY.pad)
    never = list(VOCABULARY.unpredictable)
    actual = ours.log_prob(batch)
    assert actual.kind == "pseudo"
    for position in range(1, 5):
        masked = batch.tokens.clone()
        masked[0, position] = VOCABULARY.mask
        logits = generator(input_ids=masked).logits[0, position]
        logits[never] = float("-inf")
        expected = F.log_softmax(logits, -1)
        hidden = masked == VOCABULARY.mask
        filled = ours.fill(batch, hidden).log_probs[0]
        torch.testing.assert_close(filled, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(
            actual.per_token[0, position - 1], expected[sentence[position]], atol=1e-4, rtol=0
        )
    assert actual.per_token[0, -1] == 0  # the end of a text whose length is given
