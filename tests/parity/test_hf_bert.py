"""BERT against transformers' with the same weights: masked tokens and next sentence."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import bert

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {"width": 16, "layers": 5, "heads": 2, "length": 13, "ffn_width": 40},
    "relu": {"width": 16, "layers": 1, "heads": 4, "length": 32, "activation": "relu"},
    "segments": {"width": 12, "layers": 2, "heads": 2, "length": 14, "segments": 3},
}


def build_pair(settings: dict):
    """Our system with the weights of a random BERT."""
    config = bert.Config(**settings)
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCABULARY.size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn_width or 4 * config.width,
            max_position_embeddings=config.length,
            type_vocab_size=config.segments,
            hidden_act=config.activation,
        )
    ).eval()
    randomise_weights(theirs)
    ours = bert.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


OUTSIDE = {
    "backbone.embedding.tokens": "bert.embeddings.word_embeddings",
    "backbone.embedding.positions.table": "bert.embeddings.position_embeddings",
    "backbone.embedding.segments": "bert.embeddings.token_type_embeddings",
    "backbone.embedding.norm": "bert.embeddings.LayerNorm",
    "emission": "cls.predictions.decoder",
    "emission.transform.dense": "cls.predictions.transform.dense",
    "emission.transform.norm": "cls.predictions.transform.LayerNorm",
    "objective.pairs.pool": "bert.pooler.dense",
    "objective.pairs.classify": "cls.seq_relationship",
}
INSIDE = {
    "mixer.output": "attention.output.dense",
    "mixer_connection.norm": "attention.output.LayerNorm",
    "feed_forward.up_projection": "intermediate.dense",
    "feed_forward.down_projection": "output.dense",
    "feed_forward_connection.norm": "output.LayerNorm",
}


def randomise_weights(model: torch.nn.Module) -> None:
    """Random weights under which texts differ: matrices large, norms near one."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6 if parameter.ndim == 2 else 0.2)
        if "norm" in name.lower() and name.endswith("weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)


def our_names(theirs: dict, ours: dict) -> dict:
    """BERT's names by hand; our queries, keys and values are one matrix."""
    converted = {}
    for name in ours:
        part, _, kind = name.rpartition(".")
        if part in OUTSIDE:
            converted[name] = theirs[f"{OUTSIDE[part]}.{kind}"]
            continue
        layer, _, inner = part.removeprefix("backbone.stack.blocks.").partition(".")
        where = f"bert.encoder.layer.{layer}"
        if inner == "mixer.qkv_projection":
            parts = [
                theirs[f"{where}.attention.self.{x}.{kind}"] for x in ("query", "key", "value")
            ]
            converted[name] = torch.cat(parts)
        else:
            converted[name] = theirs[f"{where}.{INSIDE[inner]}.{kind}"]
    return converted


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_bert(settings: dict):
    """Of all tokens and of both answers, with padding, with segment ids and without."""
    ours, theirs = build_pair(settings)
    tokens = torch.randint(5, VOCABULARY.size, (3, 11))
    lengths = torch.tensor([11, 7, 4])
    padding = (torch.arange(11) < lengths[:, None]).long()
    real = padding.bool()
    for segments in (
        None,
        torch.randint(0, ours.backbone.embedding.segments.num_embeddings, (3, 11)),
    ):
        with torch.no_grad():
            view = View(
                inputs=tokens, lengths=lengths, attention_mask=FullMask(), segments=segments
            )
            hidden = ours.hidden(view).values
            actual = ours.emission.logits(hidden)
            answers = ours.objective.pairs(hidden)
            expected = theirs(tokens, attention_mask=padding, token_type_ids=segments)
        assert expected.prediction_logits[real].std() > 1
        assert expected.prediction_logits[real].std(0).mean() > 0.02
        assert expected.seq_relationship_logits.std(0).min() > 0.1
        torch.testing.assert_close(
            actual[real], expected.prediction_logits[real], atol=1e-4, rtol=0
        )
        torch.testing.assert_close(answers, expected.seq_relationship_logits, atol=1e-4, rtol=0)


def test_batch_loss_equals_bert():
    """Cross-entropy of the masked tokens, and of each pair as often as its row has such tokens.

    Theirs has no probability zero for <pad>, <s> and <mask>, so they get a bias that gives it.
    """
    ours, theirs = build_pair(CONFIGS["small"])
    never = list(VOCABULARY.unpredictable)
    with torch.no_grad():
        theirs.cls.predictions.decoder.bias[never] = -1e9
    generator = torch.Generator().manual_seed(1)
    sequences = [[2, *torch.randint(5, 41, (12,), generator=generator).tolist(), 3] for _ in "1234"]
    batch = Batch.collate(sequences, pad=0)
    with torch.no_grad():
        loss, _ = ours.loss(batch, generator=torch.Generator().manual_seed(1))
        view = ours.objective.view(batch, generator=torch.Generator().manual_seed(1))
        padding = torch.arange(view.inputs.shape[1]) < view.lengths[:, None]
        logits = theirs(view.inputs, attention_mask=padding.long(), token_type_ids=view.segments)
        is_target = view.targets != NO_TARGET
        tokens = torch.nn.functional.cross_entropy(
            logits.prediction_logits[is_target], view.targets[is_target], reduction="sum"
        )
        each = torch.nn.functional.cross_entropy(
            logits.seq_relationship_logits, view.labels, reduction="none"
        )
    assert loss.count == is_target.sum()
    expected = tokens + (each * is_target.sum(1)).sum()
    torch.testing.assert_close(loss.total, expected, atol=1e-3, rtol=1e-5)
    assert sum(part.total for part in loss.parts.values()) == pytest.approx(float(loss.total))
