"""XLM against transformers' with the same weights: single sentences and pairs of translations."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import xlm

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
LANGUAGES = ("de", "en", "fr")
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {"width": 16, "layers": 5, "heads": 2, "length": 13},
    "relu": {"width": 16, "layers": 1, "heads": 4, "length": 32, "activation": "relu"},
}
OUTSIDE = {
    "backbone.embedding.tokens": "transformer.embeddings",
    "backbone.embedding.positions.table": "transformer.position_embeddings",
    "backbone.embedding.segments": "transformer.lang_embeddings",
    "backbone.embedding.norm": "transformer.layer_norm_emb",
    "emission": "pred_layer.proj",
}
INSIDE = {
    "mixer.output": "attentions.{}.out_lin",
    "mixer_connection.norm": "layer_norm1.{}",
    "feed_forward.up_projection": "ffns.{}.lin1",
    "feed_forward.down_projection": "ffns.{}.lin2",
    "feed_forward_connection.norm": "layer_norm2.{}",
}


def our_names(theirs: dict, ours: dict) -> dict:
    """XLM's names by hand; our queries, keys and values are one matrix."""
    converted = {}
    for name in ours:
        part, _, kind = name.rpartition(".")
        if part in OUTSIDE:
            converted[name] = theirs[f"{OUTSIDE[part]}.{kind}"]
            continue
        layer, _, inner = part.removeprefix("backbone.stack.blocks.").partition(".")
        if inner == "mixer.qkv_projection":
            attention = f"transformer.attentions.{layer}"
            parts = [theirs[f"{attention}.{x}_lin.{kind}"] for x in "qkv"]
            converted[name] = torch.cat(parts)
        else:
            converted[name] = theirs[f"transformer.{INSIDE[inner].format(layer)}.{kind}"]
    return converted


def build_pair(settings: dict):
    """Our system with the weights of a random XLM."""
    config = xlm.Config(**settings, languages=LANGUAGES)
    torch.manual_seed(0)
    theirs = transformers.XLMWithLMHeadModel(
        transformers.XLMConfig(
            vocab_size=VOCABULARY.size,
            emb_dim=config.width,
            n_layers=config.layers,
            n_heads=config.heads,
            max_position_embeddings=config.length,
            n_langs=len(LANGUAGES),
            gelu_activation=config.activation == "gelu",
            pad_index=VOCABULARY.pad,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6 if parameter.ndim == 2 else 0.2)
        if "norm" in name and name.endswith("weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    ours = xlm.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def models(request):
    return build_pair(request.param)


def texts(*lengths: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [2, *torch.randint(5, VOCABULARY.size, (n - 2,), generator=generator).tolist(), 3]
        for n in lengths
    ]


def without_never_predicted(logits: torch.Tensor) -> torch.Tensor:
    """log-softmax with the probability zero that our emission gives to <pad>, <s> and <mask>."""
    never = list(VOCABULARY.unpredictable)
    return logits.index_fill(-1, torch.tensor(never), -torch.inf).log_softmax(-1)


@pytest.mark.parametrize("language", LANGUAGES)
@torch.no_grad()
def test_single_sentences_equal_xlm(models, language: str):
    """The distribution at every masked position, in each language, with padding."""
    ours, theirs = models
    batch = Batch.collate(texts(11, 7, 4, seed=1), pad=0)
    masked = batch.targets_mask() & (torch.arange(11) % 3 == 1)
    ours.use_language(language)
    actual = ours.fill(batch, masked).log_probs
    expected = theirs(
        batch.tokens.masked_fill(masked, 4),
        attention_mask=batch.mask().long(),
        langs=torch.full_like(batch.tokens, LANGUAGES.index(language)),
    ).logits[masked]
    assert expected.std(0).mean() > 0.02
    torch.testing.assert_close(actual, without_never_predicted(expected), atol=1e-4, rtol=0)


@torch.no_grad()
def test_pairs_equal_xlm_with_source_first(models):
    """As the paper writes a pair: the source, then the text, whose positions start again at 0."""
    ours, theirs = models
    source, text = texts(6, seed=2)[0], texts(9, seed=3)[0]
    batch = Batch.collate([text], pad=0, condition=Batch.collate([source], pad=0))
    masked = torch.zeros(1, 9, dtype=torch.bool)
    masked[0, [1, 4, 7]] = True
    actual = ours.fill(batch, masked).log_probs
    inputs = torch.tensor([[*source, *batch.tokens.masked_fill(masked, 4)[0].tolist()]])
    expected = theirs(
        inputs,
        langs=torch.tensor([[0] * 6 + [1] * 9]),
        position_ids=torch.tensor([[*range(6), *range(9)]]),
    ).logits[0, 6:][masked[0]]
    torch.testing.assert_close(actual, without_never_predicted(expected), atol=1e-4, rtol=0)
    alone = ours.fill(Batch.collate([text], pad=0), masked).log_probs
    assert (alone - actual).abs()[actual > -torch.inf].max() > 0.01


@torch.no_grad()
def test_hidden_states_equal_xlm(models):
    ours, theirs = models
    ours.use_language("fr")
    batch = Batch.collate(texts(11, 8, seed=4), pad=0)
    actual = ours.encode_tokens(batch)
    expected = theirs.transformer(
        batch.tokens, attention_mask=batch.mask().long(), langs=torch.full_like(batch.tokens, 2)
    ).last_hidden_state
    torch.testing.assert_close(actual[batch.mask()], expected[batch.mask()], atol=1e-4, rtol=0)


@torch.no_grad()
def test_loss_of_pairs_equals_xlm():
    """Cross-entropy of the masked tokens of both sides of pairs, and of single sides."""
    ours, theirs = build_pair(CONFIGS["small"])
    rows = 12
    batch = Batch.collate(
        texts(*[9] * rows, seed=5), pad=0, condition=Batch.collate(texts(*[6] * rows, seed=6), 0)
    )
    loss, _ = ours.loss(batch, generator=torch.Generator().manual_seed(1))
    view = ours.objective.view(batch, generator=torch.Generator().manual_seed(1))
    kinds = {(s.min().item(), s.max().item()) for s in map(trimmed, view.segments, view.lengths)}
    assert kinds == {(0, 0), (1, 1), (0, 1)}
    logits = theirs(
        view.inputs,
        attention_mask=(torch.arange(view.inputs.shape[1]) < view.lengths[:, None]).long(),
        langs=view.segments,
        position_ids=view.positions,
    ).logits
    expected = torch.nn.functional.cross_entropy(
        without_never_predicted(logits).flatten(0, 1), view.targets.flatten(), reduction="sum"
    )
    torch.testing.assert_close(loss.total, expected, atol=1e-3, rtol=1e-5)


def trimmed(values: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return values[: int(length)]
