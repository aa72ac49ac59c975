"""Cloze against the same questions asked one by one."""

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
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lmlab.api.LanguageModel]:
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


def test_what_is_filled_in(models):
    model = models["bert"]
    found = cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=3)
    assert (found.method, found.texts, found.skipped) == ("fill", 5, 0)
    right, nats, generator = 0, 0.0, np.random.default_rng(3)
    for text in TEXTS:
        ids = [2, *model.tokenizer.encode(text), 3]
        # All tokens are known: one of them, evenly.
        place = 1 + int(generator.random() * (len(ids) - 2))
        masked = torch.zeros(1, len(ids), dtype=torch.bool)
        masked[0, place] = True
        with torch.no_grad():
            log_probs = model.system.fill(Batch.collate([ids], pad=0), masked).log_probs[0]
        right += int(log_probs.argmax()) == ids[place]
        nats -= float(log_probs[ids[place]])
    assert found.accuracy == right / 5
    assert found.nats == pytest.approx(nats / 5, abs=1e-5)
    expected = math.sqrt(found.accuracy * (1 - found.accuracy) / 5)
    assert found.standard_error == pytest.approx(expected)


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_from_the_left_it_is_the_score_of_the_token(name: str, models):
    """One text with one token: the hidden one is known, and its score is that of scoring."""
    model = models[name]
    found = cloze_accuracy(model.system, model.tokenizer, ["a"])
    assert found.method == "left"
    score = model.score(["a"])[0].per_token[0].log_prob
    assert found.nats == pytest.approx(-score, abs=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_blank_is_asked_for_its_first_token(name: str, models):
    """The mean over hidden tokens is finite, and that of the writer's own steps, one by one."""
    model = models[name]
    found = cloze_accuracy(model.system, model.tokenizer, ["a b a b"], seed=1)
    assert found.method == "infill" and math.isfinite(found.nats)
    ids = [2, *model.tokenizer.encode("a b a b"), 3]
    possible = []
    for place in range(1, 5):
        hidden = [4 if at == place else token for at, token in enumerate(ids)]
        with torch.no_grad():
            writer = model.system.infill_decoder(Batch.collate([hidden], pad=0))
            written = writer.linearise_fillings(0, [[ids[place]]])
            state = writer.start(1)
            for token in written:
                log_prob = float(writer.peek(state).log_probs[0, token])
                possible.append(-log_prob)
                state = writer.advance(state, torch.tensor([token]))
    assert any(found.nats == pytest.approx(value, abs=1e-4) for value in possible)


def test_the_same_seed_hides_the_same_tokens(models):
    model = models["bert"]
    first = cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=1)
    assert first == cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=1)
    assert first != cloze_accuracy(model.system, model.tokenizer, TEXTS, seed=2)


def test_unknown_and_too_long_texts_are_left_out(models):
    model = models["bert"]
    found = cloze_accuracy(model.system, model.tokenizer, ["zzz", "a " * 40, "a b"])
    assert (found.texts, found.skipped) == (1, 2)
    with pytest.raises(UserError, match="no text with a known token"):
        cloze_accuracy(model.system, model.tokenizer, ["zzz"])
