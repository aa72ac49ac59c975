"""Cloze accuracy against the same queries one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.scoring.cloze import cloze_accuracy

TEXTS = ["a b a b", "b a", "a a b b a", "b b b", "a"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lmlab.LanguageModel]:
    folder: Path = tmp_path_factory.mktemp("cloze")
    (folder / "text.txt").write_text("a b a b\nb a b a\na b\nb a\n" * 20, encoding="utf-8")
    made = {}
    for name in ("gpt", "bert", "t5", "bart", "lstm"):
        settings = {"length": "20"} if name != "lstm" else {}
        lmlab.train(
            name, data=folder / "text.txt", out=folder / name, size="tiny", steps=10,
            settings=settings, quiet=True,
        )  # fmt: skip
        made[name] = lmlab.load(folder / name)
    return made


def test_fill_cloze_equals_one_by_one_filling(models):
    model = models["bert"]
    result = cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=3)
    assert (result.method, result.texts, result.skipped) == ("fill", 5, 0)
    right, nats, generator = 0, 0.0, np.random.default_rng(3)
    for text in TEXTS:
        ids = [2, *model.tokenizer.encode(text), 3]
        # All tokens are known: one of them, uniformly.
        position = 1 + int(generator.random() * (len(ids) - 2))
        masked = torch.zeros(1, len(ids), dtype=torch.bool)
        masked[0, position] = True
        with torch.no_grad():
            log_probs = model.system.fill(Batch.collate([ids], pad=0), masked).log_probs[0]
        right += int(log_probs.argmax()) == ids[position]
        nats -= float(log_probs[ids[position]])
    assert result.accuracy == right / 5
    assert result.nats == pytest.approx(nats / 5, abs=1e-5)
    expected = math.sqrt(result.accuracy * (1 - result.accuracy) / 5)
    assert result.standard_error == pytest.approx(expected)


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_left_to_right_cloze_equals_token_score(name: str, models):
    """One text with one token: the masked token is known, and its score is the scorer's."""
    model = models[name]
    result = cloze_accuracy(model.system, model.tokenizer, ["a"])
    assert result.method == "left"
    score = model.score(["a"])[0].per_token[0].log_prob
    assert result.nats == pytest.approx(-score, abs=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_infill_cloze_scores_one_decoder_step(name: str, models):
    """The mean over masked tokens is finite and equals one of the decoder's step scores."""
    model = models[name]
    result = cloze_accuracy(model.system, model.tokenizer, ["a b a b"], seed=1)
    assert result.method == "infill" and math.isfinite(result.nats)
    ids = [2, *model.tokenizer.encode("a b a b"), 3]
    possible = []
    for position in range(1, 5):
        masked = [4 if at == position else token for at, token in enumerate(ids)]
        with torch.no_grad():
            decoder = model.system.infill_decoder(Batch.collate([masked], pad=0))
            filling = decoder.linearise_fillings(0, [[ids[position]]])
            state = decoder.start(1)
            for token in filling:
                log_prob = float(decoder.peek(state).log_probs[0, token])
                possible.append(-log_prob)
                state = decoder.advance(state, torch.tensor([token]))
    assert any(result.nats == pytest.approx(value, abs=1e-4) for value in possible)


def test_same_seed_masks_the_same_tokens(models):
    model = models["bert"]
    first = cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=1)
    assert first == cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=1)
    assert first != cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=2)


def test_unknown_and_overlong_texts_are_skipped(models):
    model = models["bert"]
    result = cloze_accuracy(model.system, model.tokenizer, ["zzz", "a " * 40, "a b"])
    assert (result.texts, result.skipped) == (1, 2)
    with pytest.raises(UserError, match="no text with a known token"):
        cloze_accuracy(model.system, model.tokenizer, ["zzz"])
