"""Model comparison on runs whose every number can be recomputed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.score import summarise
from lmlab.core.system import System
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.scoring.comparison_tables import markdown
from lmlab.scoring.metrics.train_seconds import training_seconds
from lmlab.scoring.model_comparison import compare_models
from lmlab.scoring.scorer import Scorer


class Uniform:
    """Uniform distribution over a list of texts."""

    expected_tokens = 7.0

    def __init__(self, texts):
        self.texts = texts

    @property
    def entropy(self):
        return math.log(len(self.texts))

    def log_prob(self, text):
        return -math.log(len(self.texts)) if text in self.texts else -math.inf


@pytest.fixture
def corpus(sentences):
    texts = sentences * 6
    return Corpus(
        name="tiny_corpus",
        splits={
            part: Split.from_list(texts, identity=part, name=part) for part in ("train", "test")
        },
        truth=Uniform(sentences),
    )


@pytest.fixture
def runs(word_tokenizer, tiny_recurrent, fake_model):
    """Two seeds of one system, and another system."""
    systems = [tiny_recurrent(word_tokenizer.vocabulary, seed=seed) for seed in range(3)]
    return [
        fake_model("lstm", "lstm-seed0", systems[0], word_tokenizer, seed=0),
        fake_model("lstm", "lstm-seed1", systems[1], word_tokenizer, seed=1),
        fake_model("gru", "gru-a", systems[2], word_tokenizer),
    ]


def summary_of(model, corpus):
    scorer = Scorer(model.system, model.tokenizer, model.layout)
    return summarise(scorer.score(e.text for e in corpus.split("test")))


def test_rows_average_over_seeds(runs, corpus):
    comparison = compare_models(runs, corpus)
    assert {row.name for row in comparison.rows} == {"lstm", "gru"}
    row = comparison.row("lstm")
    nats = [summary_of(model, corpus).nats_per_token for model in runs[:2]]
    assert row.nats_per_token == pytest.approx(sum(nats) / 2)
    # Two values a and b have the standard deviation |a - b| / √2.
    assert row["seed_std"] == pytest.approx(abs(nats[0] - nats[1]) / math.sqrt(2))
    assert row["perplexity"] == pytest.approx(math.exp(sum(nats) / 2))
    assert (row.seeds, len(row.runs)) == ((0, 1), 2)
    single = summary_of(runs[2], corpus)
    alone = comparison.row("gru")
    assert alone["seed_std"] is None
    assert alone.nats_per_token == pytest.approx(single.nats_per_token)
    assert alone["bits_per_character"] == pytest.approx(single.bits_per_character)
    assert alone["bits_per_byte"] == pytest.approx(single.bits_per_byte)
    assert alone["bits_per_byte"] == alone["bits_per_character"], "the texts are ASCII"
    assert (alone.tokens, alone.characters) == (single.tokens, single.characters)
    assert (alone.sequences, alone.unknown) == (24, 0)
    ordered = [each.nats_per_token for each in comparison.rows]
    assert ordered == sorted(ordered)


def test_entropy_floor_and_regret(runs, corpus, sentences):
    comparison = compare_models(runs, corpus)
    tokens = 6 * sum(len(text.split()) + 1 for text in sentences)
    floor = 24 * math.log(4) / tokens
    for row in comparison.rows:
        assert row["floor"] == pytest.approx(floor)
        assert row["regret"] == pytest.approx(row.nats_per_token - floor)
    assert comparison.floor.entropy == pytest.approx(math.log(4))
    assert comparison.floor.entropy_per_token == pytest.approx(math.log(4) / 7)
    assert comparison.floor.nats_per_text == pytest.approx(math.log(4))
    total = sum(len(text.encode()) for text in sentences)
    assert comparison.floor.bits_per_byte == pytest.approx(2 * len(sentences) / total)
    cut = compare_models(runs, replace(corpus, layout=Layout(cut=4)))
    assert all(row["floor"] is None and row.convention.max_length == 4 for row in cut.rows)
    assert any("lower bound only where whole texts" in note for note in cut.notes)


def test_differences_are_paired_with_better_model_first(runs, corpus):
    comparison = compare_models(runs, corpus, seed=3)
    (difference,) = comparison.differences
    first, second = (comparison.row(name) for name in (difference.first, difference.second))
    assert difference.value == pytest.approx(first.nats_per_token - second.nats_per_token)
    assert difference.value < 0 and difference.low <= difference.value <= difference.high
    assert difference.unit == "token" and difference.nats_per_token == difference.value
    assert 0 < difference.p_value <= 1
    assert compare_models(runs, corpus, seed=3).differences == comparison.differences
    # Per-sentence totals are stored, and sum to the row.
    assert -comparison.totals["gru"].sum() / comparison.row("gru").tokens == pytest.approx(
        comparison.row("gru").nats_per_token
    )


def test_different_tokenizers_compare_per_character(
    runs, corpus, char_tokenizer, tiny_recurrent, fake_model
):
    spelling = fake_model("rnn", "rnn", tiny_recurrent(char_tokenizer.vocabulary), char_tokenizer)
    comparison = compare_models([*runs, spelling], corpus)
    mixed = [each for each in comparison.differences if "rnn" in (each.first, each.second)]
    assert len(mixed) == 2 and all(each.unit == "character" for each in mixed)
    for each in mixed:
        bits = (
            comparison.row(each.first)["bits_per_character"]
            - comparison.row(each.second)["bits_per_character"]
        )
        assert each.value == pytest.approx(bits * math.log(2))
        assert each.nats_per_token is None
    assert any("different tokens" in note for note in comparison.notes)


class Unnormalised(System):
    """Another system's scores, declared unnormalised."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.vocabulary = inner, inner.vocabulary

    def log_prob(self, batch, *, state=None, generator=None):
        return LogProbs(per_token=self.inner.log_prob(batch).per_token, kind="unnormalised")


def test_scores_of_different_kinds_are_not_compared(runs, corpus, word_tokenizer, fake_model):
    energy = fake_model("energy", "energy", Unnormalised(runs[0].system), word_tokenizer)
    comparison = compare_models([*runs, energy], corpus)
    row = comparison.row("energy")
    assert row.kind == "unnormalised" and row["perplexity"] is None
    assert row["bits_per_character"] is None
    cells = next(line for line in markdown(comparison).splitlines() if line.startswith("| energy"))
    # After the name: kind, parameters, seeds, nats per token; then perplexity and bits.
    assert [cell.strip() for cell in cells.split("|")][6:8] == ["–", "–"]
    assert comparison.rows[-1] == row, "exact rows come first, whatever their nats"
    assert all("energy" not in (each.first, each.second) for each in comparison.differences)
    assert any("different kinds (exact, unnormalised)" in note for note in comparison.notes)


def test_different_settings_give_distinct_rows_and_names(
    runs, corpus, word_tokenizer, tiny_recurrent, fake_model
):
    wide = fake_model(
        "lstm",
        "lstm-wide",
        tiny_recurrent(word_tokenizer.vocabulary, seed=5),
        word_tokenizer,
        set={"width": 9},
    )
    comparison = compare_models([*runs, wide], corpus)
    assert {row.name: row.system for row in comparison.rows} == {
        "lstm": "lstm",
        "lstm-wide": "lstm",
        "gru": "gru",
    }


def test_differing_conventions_and_unknown_rate_are_noted(
    word_tokenizer, tiny_recurrent, fake_model, sentences
):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    texts = [*sentences, "the zebra"]
    splits = {part: Split.from_list(texts, identity=part, name=part) for part in ("train", "test")}
    corpus = Corpus(name="animals", splits=splits)
    stream = fake_model("rnn", "rnn", system, word_tokenizer, layout=Layout(kind="contiguous"))
    comparison = compare_models([fake_model("gru", "gru", system, word_tokenizer), stream], corpus)
    assert any("different conventions (start, state_carried)" in note for note in comparison.notes)
    # 6 + 6 + 5 + 8 + 2 words and five ends.
    assert any("1 of 32 tokens (3.1%) are unknown" in note for note in comparison.notes)
    assert comparison.floor is None and comparison.rows[0]["regret"] is None
    assert comparison.row("rnn").convention.state_carried


def test_example_sentences_carry_token_scores(runs, corpus, sentences):
    comparison = compare_models(runs, corpus)
    assert [each.text for each in comparison.sentences] == sentences
    tokens = comparison.sentences[0].tokens["gru"]
    scorer = Scorer(runs[2].system, runs[2].tokenizer, Layout())
    expected = scorer.score_one(sentences[0]).per_token
    assert [token.token for token in tokens] == [token.token for token in expected]
    assert [t.log_prob for t in tokens] == pytest.approx([t.log_prob for t in expected], abs=1e-9)


def test_zero_probability_is_noted_and_not_compared(runs, corpus, word_tokenizer, fake_model):
    class Impossible(Unnormalised):
        def log_prob(self, batch, *, state=None, generator=None):
            per_token = torch.full((len(batch), batch.tokens.shape[1] - 1), -math.inf)
            return LogProbs(per_token=per_token, kind="exact")

    never = fake_model("never", "never", Impossible(runs[0].system), word_tokenizer)
    comparison = compare_models([*runs, never], corpus)
    assert comparison.row("never")["perplexity"] == math.inf
    assert any("probability zero" in note for note in comparison.notes)
    assert all("never" not in (each.first, each.second) for each in comparison.differences)
    assert len(comparison.differences) == 1


def test_empty_or_duplicate_runs_are_errors(runs, corpus):
    with pytest.raises(UserError, match="nothing to compare"):
        compare_models([], corpus)
    with pytest.raises(UserError, match="given twice"):
        compare_models([runs[0], runs[0]], corpus)


def test_progress_reports_every_token(runs, corpus):
    reported = []
    comparison = compare_models(
        runs[2:], corpus, progress=lambda name, tokens: reported.append((name, tokens))
    )
    assert {name for name, _ in reported} == {"gru-a"}
    assert sum(tokens for _, tokens in reported) == comparison.rows[0].tokens


def test_training_time_is_read_from_metrics_file(tmp_path):
    assert training_seconds(tmp_path) is None
    lines = [{"step": 1, "seconds": 2.5}, {"step": 2, "seconds": 7.25}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert training_seconds(tmp_path) == 7.25


def test_sentence_totals_are_averaged_over_seeds(runs, corpus):
    comparison = compare_models(runs, corpus)
    totals_per_seed = [
        [score.total for score in Scorer(m.system, m.tokenizer, Layout()).score(texts)]
        for m in runs[:2]
        for texts in [[e.text for e in corpus.split("test")]]
    ]
    assert comparison.totals["lstm"] == pytest.approx(np.mean(totals_per_seed, axis=0))
