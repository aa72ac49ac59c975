"""The Python API: lazy names of the package, and its functions and models."""

from __future__ import annotations

import doctest
import json
import math
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.score import summarise

VERBS = [
    import_module(f"lmlab.verbs.{path.stem}")
    for path in sorted((Path(lmlab.__file__).parent / "verbs").glob("[a-z]*.py"))
]
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


def test_public_names_exist_and_unknown_names_raise() -> None:
    for name in ("train", "load", "LanguageModel", "UserError"):
        assert getattr(lmlab, name) is not None
        assert name in dir(lmlab)
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        lmlab.trane  # noqa: B018


def test_systems_returns_cards() -> None:
    assert {"lstm", "ngram"} <= {card.name for card in lmlab.systems()}


def test_score_returns_one_record_per_text(model: lmlab.LanguageModel) -> None:
    scores = model.score(TEXTS)
    assert [score.text for score in scores] == TEXTS
    for score in scores:
        total = sum(token.log_prob for token in score.per_token)
        assert math.isclose(score.total, total, rel_tol=1e-9)
    assert model.summary(TEXTS) == summarise(scores)


def test_score_stream_is_lazy(model: lmlab.LanguageModel) -> None:
    def endless():
        while True:
            yield TEXTS[0]

    first = next(model.score_stream(endless(), per_token=False))
    assert math.isclose(first.total, model.score(TEXTS)[0].total, rel_tol=1e-6)
    assert first.per_token == ()


def test_single_string_is_refused(model: lmlab.LanguageModel) -> None:
    with pytest.raises(lmlab.UserError, match="put it in a list"):
        model.score(TEXTS[0])


def test_samples_are_determined_by_the_seed(model: lmlab.LanguageModel) -> None:
    samples = model.sample(3, seed=1)
    assert samples == model.sample(3, seed=1)
    assert len(samples) == 3
    for text in samples:
        if text.finished and "<unk>" not in text.text:
            [score] = model.score([text.text])
            assert text.log_prob is not None
            assert math.isclose(text.log_prob, score.total, rel_tol=1e-5)


def test_many_samples_are_generated_in_batches(
    model: lmlab.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with n; one random generator is used for all batches, so they differ."""
    from lmlab.sampling import text_sampling

    rows = []

    def counted(system: object, count: int, **options: Any) -> Any:
        rows.append(count)
        return sample_sequences(system, count, **options)

    sample_sequences = text_sampling.sample_sequences
    whole = [text.text for text in model.sample(8, max_length=8, seed=3)]
    monkeypatch.setattr(text_sampling, "sample_sequences", counted)
    monkeypatch.setattr(text_sampling, "TOKENS_AT_ONCE", 24)
    batched = [text.text for text in model.sample(8, max_length=8, seed=3)]
    assert rows == [3, 3, 2]
    assert batched == [text.text for text in model.sample(8, max_length=8, seed=3)]
    assert batched[:3] != batched[3:6] and len(whole) == len(batched) == 8
    assert len(model.sample(5, max_length=100, method="greedy")) == 5


def test_capture_internals_has_attention_and_hidden_states(tmp_path: Path) -> None:
    """A masked LM sees the whole text: its last hidden states are those of encode_tokens."""
    lmlab.train("bert", data="grammar", out=tmp_path / "bert", size="tiny", steps=2, quiet=True)
    bert = lmlab.load(tmp_path / "bert")
    before = torch.get_rng_state()
    captured = bert.capture_internals("the dog sleeps")
    assert torch.equal(torch.get_rng_state(), before)
    attention = captured["layer 1 attention"]
    assert attention.axes == ("batch", "head", "time", "source")
    assert attention.values.shape == (1, 2, 5, 5)
    torch.testing.assert_close(attention.values.sum(-1), torch.ones(1, 2, 5))
    vocabulary = bert.tokenizer.vocabulary
    row = [vocabulary.start, *bert.tokenizer.encode("the dog sleeps"), vocabulary.end]
    with torch.no_grad():
        encoded = bert.system.encode_tokens(Batch.collate([row], vocabulary.pad))
    torch.testing.assert_close(captured["layer 2 hidden"].values, encoded, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="tokens"):
        bert.capture_internals("the dog " * 100)


def test_pairs_accuracy_follows_the_scores(model: lmlab.LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"sentence_good": "the dog sleeps", "sentence_bad": "dog sleeps the the"}\n')
    good, bad = model.score(["the dog sleeps", "dog sleeps the the"])
    assert model.pairs(file).overall.right == int(good.total > bad.total)


def test_pairs_of_runs_in_folders_of_one_name_are_named_by_their_paths(
    run: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "pairs.jsonl", tmp_path / "other" / run.name
    file.write_text('{"sentence_good": "the dog sleeps", "sentence_bad": "dog the sleeps"}\n')
    shutil.copytree(run, other)
    comparison = lmlab.pairs([run, other], [file])
    assert list(comparison.reports) == [str(run), str(other)]
    assert [d.interval.value for d in comparison.differences] == [0.0]
    with pytest.raises(UserError, match=f"the run {run} is given twice"):
        lmlab.pairs([run, run], [file])


def test_compare_accepts_runs_and_loaded_models(model: lmlab.LanguageModel, run: Path) -> None:
    by_path = lmlab.compare([run])
    by_model = lmlab.compare([model], data="grammar")
    assert by_path.rows == by_model.rows
    with pytest.raises(lmlab.UserError, match="put it in a list"):
        lmlab.compare(run)  # type: ignore[arg-type]


def test_model_has_repr_card_and_config(model: lmlab.LanguageModel, run: Path) -> None:
    assert repr(model) == f"LanguageModel(ngram, {str(run)!r})"
    assert model.card.name == "ngram"
    assert model.config.corpus.name == "grammar"


def test_docstring_examples_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for system, budget in (("ngram", {}), ("window", {"steps": 2})):
        out = tmp_path / "runs" / system
        lmlab.train(system, data="grammar", out=out, size="tiny", quiet=True, **budget)
    results = [
        doctest.testmod(module, extraglobs={"lmlab": lmlab, "json": json}) for module in VERBS
    ]
    assert [result.failed for result in results] == [0] * len(VERBS)
    assert sum(result.attempted for result in results) >= 70


A_RUN = "a run must be a path, got int"
A_FILE = "the file of a system must be a path, got "
WRONG_TYPES = {
    "train out": (
        lambda: lmlab.train("ngram", data="grammar", out=3),
        "out must be a path, got int",
    ),
    "load": (lambda: lmlab.load(3), A_RUN),
    "load system": (lambda: lmlab.load("x", system=3), A_FILE + "int"),
    "register": (lambda: lmlab.register(None), A_FILE + "NoneType"),
    "find": (lambda: lmlab.find(3), "find takes a text, got int"),
    "checks": (lambda: lmlab.conformance("ngram", checks="card"), "put it in a list"),
    "compare": (lambda: lmlab.compare([3]), A_RUN),
    "inspect": (lambda: lmlab.inspect(3), "runs of inspect must be a list, got int"),
    "pairs": (lambda: lmlab.pairs([3], ["pairs.jsonl"]), A_RUN),
    "doctor": (lambda: lmlab.doctor(3), A_RUN),
    "finetune": (lambda: lmlab.finetune(3, task="classify", data="x", out="y"), A_RUN),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_type_is_a_user_error(name: str) -> None:
    call, sentence = WRONG_TYPES[name]
    with pytest.raises(lmlab.UserError, match=sentence):
        call()


def test_unknown_option_of_a_method_names_it(model: lmlab.LanguageModel) -> None:
    with pytest.raises(TypeError, match=r"score\(\): got an unexpected keyword argument 'foo'"):
        model.score(TEXTS, foo=1)
