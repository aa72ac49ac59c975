"""BERT's masked language modelling and its family: views, losses and settings."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import train_tokenizer
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import IndependentMasking, MaskReplacement

VOCABULARY = Vocabulary(size=30)
FAMILY = ("bert", "roberta", "albert", "bert-wwm", "ernie", "spanbert")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_batch(rows: int, words: int) -> Batch:
    tokens = torch.randint(5, 30, (rows, words), generator=seeded()).tolist()
    return Batch.collate([[2, *row, 3] for row in tokens], pad=0)


def build(name: str, vocabulary: Vocabulary = VOCABULARY, **settings):
    module = system_module(name)
    return module.build(replace(module.SIZES["tiny"], **settings), vocabulary)


def test_targets_are_the_masked_tokens_only():
    objective = BERTObjective(
        VOCABULARY, IndependentMasking(0.3), MaskReplacement(vocabulary=VOCABULARY)
    )
    batch = random_batch(20, 12)
    view = objective.view(batch, generator=seeded())
    is_target = view.targets != NO_TARGET
    assert isinstance(view.attention_mask, FullMask)
    assert torch.equal(view.targets[is_target], batch.tokens[is_target])
    assert torch.equal(view.inputs[~is_target], batch.tokens[~is_target])
    rows, positions = is_target.nonzero(as_tuple=True)
    assert torch.equal(view.clean_positions[rows, positions], positions)
    assert (view.clean_positions[~is_target] == -1).all()
    again = objective.view(batch, generator=seeded())
    assert torch.equal(again.inputs, view.inputs) and torch.equal(again.targets, view.targets)


def test_fill_view_masks_only_the_given_positions():
    objective = build("bert").objective
    batch = random_batch(2, 5)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, 2], masked[1, 4] = True, True
    view = objective.fill_view(batch, masked)
    assert torch.equal(view.inputs, batch.tokens.masked_fill(masked, 4))
    assert torch.equal(view.targets != NO_TARGET, masked)
    assert view.segments is None


@pytest.mark.parametrize("name", FAMILY)
def test_clean_positions_point_into_the_clean_text(name: str):
    """The target token is there, in its own row or in the row a pair's second part came from."""
    tokens = torch.arange(5, 5 + 8 * 20).view(8, 20).tolist()
    vocabulary = Vocabulary(size=200)
    batch = Batch.collate([[2, *row, 3] for row in tokens], pad=0)
    view = build(name, vocabulary).objective.view(batch, generator=seeded())
    is_target = view.targets != NO_TARGET
    assert is_target.any()
    # Token 5 + 20 r + i is at position 1 + i of row r.
    assert torch.equal(view.clean_positions[is_target], 1 + (view.targets[is_target] - 5) % 20)


@pytest.mark.parametrize("name", FAMILY)
def test_pair_encoding_does_not_depend_on_the_batch(name: str):
    """RoBERTa has no segment embeddings and accepts pairs as well."""
    system = build(name).eval()
    pair = Batch.collate([[2, 5, 6, 3, 7, 3], [2, 9, 3]], pad=0)
    alone = Batch.collate([[2, 9, 3]], pad=0)
    with torch.no_grad():
        vectors = system.encode(pair)
        assert vectors.shape == (2, system.backbone.width)
        torch.testing.assert_close(vectors[1:], system.encode(alone), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAMILY)
def test_static_masking_by_system(name: str):
    """BERT and derived systems mask statically, RoBERTa and SpanBERT dynamically."""
    settings = {"duplicates": 1, "pairs": "none", "segments": 0}
    objective, batch = build(name, **settings).objective, random_batch(6, 30)
    first = objective.view(batch, generator=seeded(0)).inputs
    second = objective.view(batch, generator=seeded(1)).inputs
    assert torch.equal(first, second) == (name not in ("roberta", "spanbert"))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("bert", "next sentence"),
        ("bert-wwm", "next sentence"),
        ("albert", "sentence order"),
        ("spanbert", "span boundary"),
        ("roberta", None),
        ("ernie", None),
    ],
)
def test_auxiliary_losses_by_system(name: str, part: str | None):
    system, batch = build(name), random_batch(4, 20)
    loss, _ = system.loss(batch, generator=seeded())
    assert set(loss.parts) == {"masked", *([part] if part else [])}
    torch.testing.assert_close(loss.total, sum(part.total for part in loss.parts.values()))


def test_tokenizer_reaches_whole_word_masking():
    """Without it every token is a word; with it the pieces of a word are masked together."""
    texts = ["unbelievable hippopotamus", "hippopotamus unbelievable"] * 20
    tokenizer = train_tokenizer("char", texts)
    vocabulary = tokenizer.vocabulary
    rows = [[vocabulary.start, *tokenizer.encode(text), vocabulary.end] for text in texts]
    batch = Batch.collate(rows, pad=vocabulary.pad)
    settings = {"pairs": "none", "masking": "dynamic", "rate": 0.5}
    system = build("bert-wwm", vocabulary, **settings)
    # Twelve letters each, a space between: 25 tokens.
    cut = partially_masked_rows(system, batch)
    assert cut == 40
    system.setup_tokenizer(tokenizer)
    assert partially_masked_rows(system, batch) == 0


def partially_masked_rows(system, batch: Batch) -> int:
    """Number of rows in which the first word, of twelve letters, is masked in part."""
    view = system.objective.view(batch, generator=seeded())
    masked_letters = (view.targets != NO_TARGET)[:, 1:13].sum(1)
    return int(((masked_letters > 0) & (masked_letters < 12)).sum())


def test_nezha_positions_are_relative():
    """Shifted by three positions, hidden states stay the same; learned positions differ."""
    for positions, same in (("nezha", True), ("learned", False)):
        torch.manual_seed(0)
        system = build("ernie", positions=positions, clip_distance=4).eval()
        batch = random_batch(1, 9)
        view = system.objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
        position_ids = torch.arange(batch.tokens.shape[1])[None]
        with torch.no_grad():
            here = system.hidden(replace(view, positions=position_ids)).values
            there = system.hidden(replace(view, positions=position_ids + 3)).values
            swapped = system.hidden(replace(view, positions=position_ids.flip(1))).values
        assert torch.allclose(here, there, atol=1e-5) == same
        assert not torch.allclose(here, swapped, atol=1e-3)
        learned = [name for name, _ in system.named_parameters() if "positions" in name]
        assert bool(learned) != same


def test_bert_family_has_the_settings_of_its_papers():
    for name in FAMILY:
        module = system_module(name)
        base = module.SIZES["base"]
        assert (base.width, base.layers, base.heads, base.length) == (768, 12, 12, 512)
        assert base.rate == 0.15
        assert not base.pre_norm
        assert {field.name for field in fields(base)} >= {"masking", "duplicates", "pairs"}
    albert, spanbert = (system_module(name).SIZES["base"] for name in ("albert", "spanbert"))
    assert (albert.embedding_width, albert.shared_layers, albert.max_span_length) == (128, True, 3)
    assert (spanbert.stop, spanbert.max_span_length) == (0.2, 10)
