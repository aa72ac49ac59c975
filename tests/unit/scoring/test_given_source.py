"""Texts scored given sources, with two small translators that were never trained."""

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
from lmlab.training.run_folder import build_system, build_tiny

PAIRS = Layout(kind="pairs")


@pytest.fixture(scope="module")
def transformer(words):
    return build_tiny("transformer", words.vocabulary).eval()


@pytest.fixture(scope="module")
def pairs(sentences):
    """Sources and texts of many lengths, the same text beside several sources among them."""
    texts = ["a cat", *sentences, "the mat"]
    return [*zip(sentences, texts, strict=False), *((s, "a dog") for s in [*sentences, ""])]


def scorer(system, tokenizer, **options):
    return SourceScorer(system, tokenizer, tokenizer, PAIRS, **options)


def test_scores_are_log_probabilities_given_the_source(words, transformer, pairs):
    """By small batches, in their order, each as one batch of its own gives it."""
    found = list(scorer(transformer, words, tokens_per_batch=24).score(pairs))
    assert [(each.source, each.text) for each in found] == pairs
    vocabulary = words.vocabulary
    for each in found:
        source, text = (
            [vocabulary.start, *words.encode(side), vocabulary.end]
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
    beside = [each.total for each in found if each.text == "a dog"]
    assert len(set(beside)) == 5, "the source must count"


def test_a_batch_has_as_many_places_as_the_budget_on_either_side(
    words, transformer, pairs, monkeypatch
):
    largest, own = [], transformer.log_prob

    def spy(batch, **options):
        largest.append(max(batch.tokens.numel(), batch.condition.tokens.numel()))
        return own(batch, **options)

    monkeypatch.setattr(transformer, "log_prob", spy)
    whole = list(scorer(transformer, words, tokens_per_batch=24).score(pairs, per_token=False))
    assert max(largest) <= 24 and len(largest) > 2
    assert all(score.per_token == () and score.tokens > 1 for score in whole)


def test_pairs_without_end_are_scored_as_they_come(words, transformer, monkeypatch):
    monkeypatch.setattr("lmlab.scoring.scorer.CHUNK_TEXTS", 8)
    sources = ("the cat sat" for _ in count())
    texts = ("a dog" for _ in count())
    (alone,) = scorer(transformer, words).score([("the cat sat", "a dog")])
    found = scorer(transformer, words).score(pair_with_sources(sources, texts), per_token=False)
    totals = [score.total for score in islice(found, 20)]
    assert totals == pytest.approx([alone.total] * 20, abs=1e-5)


def test_sources_may_have_tokens_of_their_own(words):
    """Ids that the texts' vocabulary does not have, and another kind of tokeniser."""
    letters = train_tokenizer("char", ["ein hund", "eine katze sitzt da", "groß und klein"])
    assert letters.vocabulary.size > words.vocabulary.size
    system = build_system("seq2seq", {}, words.vocabulary, seed=0, source=letters.vocabulary)
    asked = SourceScorer(system.eval(), words, letters, PAIRS)
    first, second = asked.score([("ein hund", "a dog"), ("eine katze", "a dog")])
    assert first.tokens == second.tokens == 3 and first.total != second.total


def test_the_first_token_of_a_source_is_read_where_there_is_no_start_symbol(words):
    """T5's vocabulary has none: the end symbol stands before a source as it does in training."""
    vocabulary = Vocabulary(size=words.vocabulary.size, start=None)

    class Startless:
        kind = "word"

        def __init__(self):
            self.vocabulary = vocabulary

        def __getattr__(self, name):
            return getattr(words, name)

    asked = scorer(build_tiny("t5", vocabulary).eval(), Startless())
    first, second = asked.score([("cat sat on", "a dog"), ("dog sat on", "a dog")])
    assert first.total != second.total


def test_what_does_not_fit_is_told_in_a_sentence(words, transformer):
    asked = scorer(transformer, words)
    long = " ".join(["cat"] * 80)
    for pairs, said in [
        ([("a", "a"), (long, "a")], r"^source 2: .* at most 64 tokens.* got 82"),
        ([("a", long)], r"^text 1: .* scored whole, at most 63 tokens.* has 81; shorten it\.$"),
    ]:
        with pytest.raises(UserError, match=said):
            list(asked.score(pairs))
    for options, said in [
        ({"window": 8}, "window and stride do not apply"),
        ({"stride": 8}, "window and stride do not apply"),
    ]:
        with pytest.raises(UserError, match=said):
            scorer(transformer, words, **options)
    with pytest.raises(UserError, match="the method norm does not apply to texts with a source"):
        scorer(build_tiny("unilm", words.vocabulary), words, method="norm")
    with pytest.raises(UserError, match=r"as many texts as sources, got 1 and 2"):
        pair_with_sources(["a", "b"], ["a"])
    with pytest.raises(UserError, match="the sources ended after 1"):
        list(asked.score(pair_with_sources(iter(["a"]), iter(["a", "b"]))))
    with pytest.raises(UserError, match=r"gpt scores texts without a source; remove"):
        check_takes_source(find_system("gpt"))
    with pytest.raises(UserError, match="'a cat' has none"):
        list(asked.score_examples([Example("a dog", condition="a"), Example("a cat")]))


def test_translators_are_compared_on_pairs(words, transformer, pairs, fake_model):
    examples = [Example(text, condition=source) for source, text in pairs if source]
    corpus = Corpus(
        name="both",
        splits={s: Split.from_list(examples, identity=s, name=s) for s in ("train", "test")},
        layout=PAIRS,
    )
    models = [
        replace(made, card=replace(made.card, conditional=True))
        for made in (
            fake_model("transformer", "one", transformer, words, layout=PAIRS),
            fake_model("seq2seq", "two", build_tiny("seq2seq", words.vocabulary), words),
        )
    ]
    found = compare_models(models, corpus)
    row = found.row("transformer")
    total = sum(score.total for score in scorer(transformer, words).score_examples(examples))
    assert row.nats_per_token == pytest.approx(-total / row.tokens, abs=1e-6)
    assert row.characters == sum(len(example.text) for example in examples)
    assert row.convention.source and len(found.differences) == 1
    assert [each.source for each in found.sentences] == [e.condition for e in examples[:5]]
    alone = replace(corpus, layout=Layout())
    with pytest.raises(UserError, match=r"one \(transformer\) scores a text given its source"):
        compare_models(models[:1], alone)
    with pytest.raises(
        UserError, match=r"both holds pairs, and three \(gru\) scores texts without"
    ):
        compare_models([fake_model("gru", "three", transformer, words)], corpus)
