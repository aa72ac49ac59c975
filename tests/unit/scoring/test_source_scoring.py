"""Texts scored conditioned on sources, with two small untrained translation models."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, islice

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.readers import Example
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.model_comparison import compare_models
from lmlab.scoring.source_scoring import SourceScorer, check_takes_source, pair_with_sources
from lmlab.training.system_building import build_system, build_tiny

PAIRS = Layout(kind="pairs")


@pytest.fixture(scope="module")
def transformer(word_tokenizer):
    return build_tiny("transformer", word_tokenizer.vocabulary).eval()


@pytest.fixture(scope="module")
def pairs(sentences):
    """Sources and texts of many lengths, with one text conditioned on several sources."""
    texts = ["a cat", *sentences, "the mat"]
    return [*zip(sentences, texts, strict=False), *((s, "a dog") for s in [*sentences, ""])]


def scorer(system, tokenizer, **options):
    return SourceScorer(system, tokenizer, tokenizer, PAIRS, **options)


def test_scores_are_conditioned_on_the_source(word_tokenizer, transformer, pairs):
    """Small batches, in order; each score equals that of a batch of its own."""
    scores = list(scorer(transformer, word_tokenizer, tokens_per_batch=24).score(pairs))
    assert [(each.source, each.text) for each in scores] == pairs
    vocabulary = word_tokenizer.vocabulary
    for each in scores:
        source, text = (
            [vocabulary.start, *word_tokenizer.encode(side), vocabulary.end]
            for side in (each.source, each.text)
        )
        condition = Batch.collate([source], vocabulary.pad)
        batch = Batch.collate([text], vocabulary.pad, condition=condition)
        with torch.no_grad():
            expected = transformer.log_prob(batch).per_token[0].tolist()
        assert [t.log_prob for t in each.per_token] == pytest.approx(expected, abs=1e-5)
        assert each.total == pytest.approx(sum(expected), abs=1e-4)
        assert (each.characters, each.tokens) == (len(each.text), len(text) - 1)
        assert each.convention.source and each.convention.end and each.convention.window is None
    conditional_totals = [each.total for each in scores if each.text == "a dog"]
    assert len(set(conditional_totals)) == 5, "the source must count"


def test_token_budget_holds_for_source_and_target(word_tokenizer, transformer, pairs, monkeypatch):
    largest, own = [], transformer.log_prob

    def spy(batch, **options):
        largest.append(max(batch.tokens.numel(), batch.condition.tokens.numel()))
        return own(batch, **options)

    monkeypatch.setattr(transformer, "log_prob", spy)
    whole = list(
        scorer(transformer, word_tokenizer, tokens_per_batch=24).score(pairs, per_token=False)
    )
    assert max(largest) <= 24 and len(largest) > 2
    assert all(score.per_token == () and score.tokens > 1 for score in whole)


def test_endless_pairs_are_scored_lazily(word_tokenizer, transformer, monkeypatch):
    monkeypatch.setattr("lmlab.scoring.scorer.CHUNK_TEXTS", 8)
    sources = ("the cat sat" for _ in count())
    texts = ("a dog" for _ in count())
    (alone,) = scorer(transformer, word_tokenizer).score([("the cat sat", "a dog")])
    scores = scorer(transformer, word_tokenizer).score(
        pair_with_sources(sources, texts), per_token=False
    )
    totals = [score.total for score in islice(scores, 20)]
    assert totals == pytest.approx([alone.total] * 20, abs=1e-5)


def test_source_may_have_its_own_tokenizer(word_tokenizer):
    """Ids outside the target vocabulary, and another kind of tokenizer."""
    letters = train_tokenizer("char", ["ein hund", "eine katze sitzt da", "groß und klein"])
    assert letters.vocabulary.size > word_tokenizer.vocabulary.size
    system = build_system(
        "seq2seq", {}, word_tokenizer.vocabulary, seed=0, source=letters.vocabulary
    )
    source_scorer = SourceScorer(system.eval(), word_tokenizer, letters, PAIRS)
    first, second = source_scorer.score([("ein hund", "a dog"), ("eine katze", "a dog")])
    assert first.tokens == second.tokens == 3 and first.total != second.total


def test_first_source_token_is_encoded_without_start_token(word_tokenizer):
    """T5's vocabulary has none: the end token precedes a source, as in training."""
    vocabulary = Vocabulary(size=word_tokenizer.vocabulary.size, start=None)

    class Startless:
        kind = "word"

        def __init__(self):
            self.vocabulary = vocabulary

        def __getattr__(self, name):
            return getattr(word_tokenizer, name)

    source_scorer = scorer(build_tiny("t5", vocabulary).eval(), Startless())
    first, second = source_scorer.score([("cat sat on", "a dog"), ("dog sat on", "a dog")])
    assert first.total != second.total


def test_overlong_or_mismatched_inputs_are_reported(word_tokenizer, transformer):
    source_scorer = scorer(transformer, word_tokenizer)
    long = " ".join(["cat"] * 80)
    for pairs, message in [
        ([("a", "a"), (long, "a")], r"^source 2: .* at most 64 tokens.* got 82"),
        ([("a", long)], r"^text 1: .* scored whole, at most 63 tokens.* has 81; shorten it\.$"),
    ]:
        with pytest.raises(UserError, match=message):
            list(source_scorer.score(pairs))
    for options, message in [
        ({"window": 8}, "window and stride do not apply"),
        ({"stride": 8}, "window and stride do not apply"),
    ]:
        with pytest.raises(UserError, match=message):
            scorer(transformer, word_tokenizer, **options)
    with pytest.raises(UserError, match="the method norm does not apply to texts with a source"):
        scorer(build_tiny("unilm", word_tokenizer.vocabulary), word_tokenizer, method="norm")
    with pytest.raises(UserError, match=r"as many texts as sources, got 1 and 2"):
        pair_with_sources(["a", "b"], ["a"])
    with pytest.raises(UserError, match="the sources ended after 1"):
        list(source_scorer.score(pair_with_sources(iter(["a"]), iter(["a", "b"]))))
    with pytest.raises(UserError, match=r"gpt scores texts without a source; remove"):
        check_takes_source(find_system("gpt"))
    with pytest.raises(UserError, match="'a cat' has none"):
        list(source_scorer.score_examples([Example("a dog", condition="a"), Example("a cat")]))


def test_conditional_models_are_compared_on_pairs(word_tokenizer, transformer, pairs, fake_model):
    examples = [Example(text, condition=source) for source, text in pairs if source]
    corpus = Corpus(
        name="both",
        splits={s: Split.from_list(examples, identity=s, name=s) for s in ("train", "test")},
        layout=PAIRS,
    )
    models = [
        replace(made, card=replace(made.card, conditional=True))
        for made in (
            fake_model("transformer", "one", transformer, word_tokenizer, layout=PAIRS),
            fake_model(
                "seq2seq", "two", build_tiny("seq2seq", word_tokenizer.vocabulary), word_tokenizer
            ),
        )
    ]
    comparison = compare_models(models, corpus)
    row = comparison.row("transformer")
    total = sum(
        score.total for score in scorer(transformer, word_tokenizer).score_examples(examples)
    )
    assert row.nats_per_token == pytest.approx(-total / row.tokens, abs=1e-6)
    assert row.characters == sum(len(example.text) for example in examples)
    assert row.convention.source and len(comparison.differences) == 1
    assert [each.source for each in comparison.sentences] == [e.condition for e in examples[:5]]
    alone = replace(corpus, layout=Layout())
    with pytest.raises(UserError, match=r"one \(transformer\) scores a text given its source"):
        compare_models(models[:1], alone)
    with pytest.raises(
        UserError, match=r"both holds pairs, and three \(gru\) scores texts without"
    ):
        compare_models([fake_model("gru", "three", transformer, word_tokenizer)], corpus)
