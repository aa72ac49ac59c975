"""The verbs in Python, and the lazy names of the package."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
import lmlab.api
import lmlab.language_model
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.score import summarise

TEXTS = ["the dog sleeps", "a cat sees the dog"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("api") / "ngram"
    result = lmlab.train("ngram", data="grammar", out=out, size="tiny", quiet=True)
    assert result.path == out
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> lmlab.LanguageModel:
    return lmlab.load(run)


def test_public_names_are_there_and_others_are_not() -> None:
    for name in lmlab.__all__:
        assert getattr(lmlab, name) is not None
        assert name in dir(lmlab)
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        lmlab.trane  # noqa: B018


def test_systems_are_cards() -> None:
    assert {"lstm", "ngram"} <= {card.name for card in lmlab.systems()}


def test_score_gives_a_record_for_each_text(model: lmlab.LanguageModel) -> None:
    scores = model.score(TEXTS)
    assert [score.text for score in scores] == TEXTS
    for score in scores:
        total = sum(token.log_prob for token in score.per_token)
        assert math.isclose(score.total, total, rel_tol=1e-9)
    assert model.summary(TEXTS) == summarise(scores)


def test_scores_stream(model: lmlab.LanguageModel) -> None:
    def endless():
        while True:
            yield TEXTS[0]

    first = next(model.score_stream(endless(), per_token=False))
    assert math.isclose(first.total, model.score(TEXTS)[0].total, rel_tol=1e-6)
    assert first.per_token == ()


def test_one_text_by_itself_is_a_mistake_that_is_told(model: lmlab.LanguageModel) -> None:
    with pytest.raises(lmlab.UserError, match="put it in a list"):
        model.score(TEXTS[0])


def test_samples_are_decided_by_the_seed(model: lmlab.LanguageModel) -> None:
    drawn = model.sample(3, seed=1)
    assert drawn == model.sample(3, seed=1)
    assert len(drawn) == 3
    for text in drawn:
        if text.finished and "<unk>" not in text.text:
            [score] = model.score([text.text])
            assert text.log_prob is not None
            assert math.isclose(text.log_prob, score.total, rel_tol=1e-5)


def test_many_samples_are_drawn_some_at_a_time(
    model: lmlab.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded whatever n, and one generator draws all groups: they differ."""
    from lmlab import language_model

    rows = []

    def counted(system: object, count: int, **options: Any) -> Any:
        rows.append(count)
        return draw(system, count, **options)

    draw = language_model.draw
    whole = [text.text for text in model.sample(8, max_length=8, seed=3)]
    monkeypatch.setattr(language_model, "draw", counted)
    monkeypatch.setattr(language_model, "TOKENS_AT_ONCE", 24)
    parted = [text.text for text in model.sample(8, max_length=8, seed=3)]
    assert rows == [3, 3, 2]
    assert parted == [text.text for text in model.sample(8, max_length=8, seed=3)]
    assert parted[:3] != parted[3:6] and len(whole) == len(parted) == 8
    assert len(model.sample(5, max_length=100, method="greedy")) == 5


def test_reveal_gives_what_goes_on_inside_on_a_text(tmp_path: Path) -> None:
    """A masked model sees the text whole: its last hidden states are those that it encodes by."""
    lmlab.train("bert", data="grammar", out=tmp_path / "bert", size="tiny", steps=2, quiet=True)
    bert = lmlab.load(tmp_path / "bert")
    before = torch.get_rng_state()
    found = bert.capture_internals("the dog sleeps")
    assert torch.equal(torch.get_rng_state(), before)
    attention = found["layer 1 attention"]
    assert attention.axes == ("batch", "head", "time", "source")
    assert attention.values.shape == (1, 2, 5, 5)
    torch.testing.assert_close(attention.values.sum(-1), torch.ones(1, 2, 5))
    vocabulary = bert.tokenizer.vocabulary
    row = [vocabulary.start, *bert.tokenizer.encode("the dog sleeps"), vocabulary.end]
    with torch.no_grad():
        encoded = bert.system.encode_tokens(Batch.collate([row], vocabulary.pad))
    torch.testing.assert_close(found["layer 2 hidden"].values, encoded, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="tokens"):
        bert.capture_internals("the dog " * 100)


def test_pairs(model: lmlab.LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"sentence_good": "the dog sleeps", "sentence_bad": "dog sleeps the the"}\n')
    good, bad = model.score(["the dog sleeps", "dog sleeps the the"])
    assert model.pairs(file).overall.right == int(good.total > bad.total)


def test_compare_takes_runs_and_loaded_models(model: lmlab.LanguageModel, run: Path) -> None:
    by_path = lmlab.compare([run])
    by_model = lmlab.compare([model], data="grammar")
    assert by_path.rows == by_model.rows
    with pytest.raises(lmlab.UserError, match="put it in a list"):
        lmlab.compare(run)  # type: ignore[arg-type]


def test_a_model_says_what_it_is(model: lmlab.LanguageModel, run: Path) -> None:
    assert repr(model) == f"LanguageModel(ngram, {str(run)!r})"
    assert model.card.name == "ngram"
    assert model.config["corpus"]["name"] == "grammar"


def test_the_examples_in_the_docstrings_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for system, budget in (("ngram", {}), ("window", {"steps": 2})):
        out = tmp_path / "runs" / system
        lmlab.train(system, data="grammar", out=out, size="tiny", quiet=True, **budget)
    every = [
        doctest.testmod(module, extraglobs={"lmlab": lmlab, "json": json})
        for module in (lmlab.api, lmlab.language_model)
    ]
    assert [found.failed for found in every] == [0, 0]
    assert min(found.attempted for found in every) >= 10
