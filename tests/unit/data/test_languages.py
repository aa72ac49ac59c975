"""Synthetic languages: normalised distributions, exact entropies, matching sample frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError
from itertools import permutations, product

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, TruthWithLength
from lmlab.data.countries import country_distribution, country_table
from lmlab.data.languages import (
    capitals,
    capitals_en,
    copy,
    grammar,
    hops,
    markov,
    recall,
    surnames,
)
from lmlab.data.languages._capital_templates import filled_templates
from lmlab.data.languages._sampled_corpus import (
    HELD_OUT_SENTENCES,
    TRAIN_SENTENCES,
    FiniteTruth,
    SampledLanguage,
)
from lmlab.data.languages.copy import CopyTruth
from lmlab.data.languages.grammar import GrammarRule, GrammarTruth, grammar_rule, word_rules
from lmlab.data.languages.hops import HopsTruth
from lmlab.data.languages.markov import MarkovTruth
from lmlab.data.languages.recall import RecallTruth

MODULES = {
    "capitals": capitals,
    "capitals-en": capitals_en,
    "copy": copy,
    "grammar": grammar,
    "markov": markov,
    "recall": recall,
    "hops": hops,
    "surnames": surnames,
}


@cache
def corpus_of(name: str) -> Corpus:
    corpus = MODULES[name].corpus()
    assert isinstance(corpus, Corpus)
    return corpus


def truth_of(name: str) -> SampledLanguage:
    truth = corpus_of(name).truth
    assert isinstance(truth, TruthWithLength)
    return truth  # type: ignore[return-value]


def count_tokens(corpus: Corpus, text: str) -> int:
    return len(text) if corpus.tokenizer == "char" else len(text.split(" "))


def assert_mean(values: Iterable[float], expected: float) -> None:
    """The mean lies within four standard errors of what it estimates (the seed is fixed)."""
    array = np.array(list(values))
    error = array.std(ddof=1) / math.sqrt(len(array))
    # If all samples are equally likely, only rounding error remains.
    assert abs(array.mean() - expected) < 4 * error + 1e-9, (array.mean(), expected, error)


def assert_frequencies(truth: SampledLanguage, texts: Iterable[str], samples: int = 4_000) -> None:
    """Sample frequencies match the probabilities within five binomial standard deviations."""
    generator = np.random.default_rng(1)
    counts = Counter(truth.sample(generator) for _ in range(samples))
    for text in texts:
        p = math.exp(truth.log_prob(text))
        assert p > 0
        assert abs(counts[text] - samples * p) <= 5 * math.sqrt(samples * p * (1 - p)), (text, p)


def assert_exact(truth: SampledLanguage, texts: Iterable[str], count: Callable[[str], int]) -> None:
    """Mass, entropy and expected length, summed over all texts, match the truth."""
    logs = {text: truth.log_prob(text) for text in texts}
    possible = {text: log for text, log in logs.items() if log > -math.inf}
    assert math.fsum(map(math.exp, possible.values())) == pytest.approx(1, abs=1e-12)
    entropy = -math.fsum(math.exp(log) * log for log in possible.values())
    assert entropy == pytest.approx(truth.entropy, abs=1e-12)
    length = math.fsum(math.exp(log) * (count(text) + 1) for text, log in possible.items())
    assert length == pytest.approx(truth.expected_tokens, abs=1e-12)


def all_strings(vocabulary: str, max_length: int) -> Iterator[str]:
    """Every text of one-letter words up to a length."""
    for length in range(1, max_length + 1):
        yield from map(" ".join, product(vocabulary, repeat=length))


# All languages


@pytest.mark.parametrize("name", MODULES)
def test_mean_surprisal_of_samples_equals_entropy(name: str) -> None:
    corpus, truth = corpus_of(name), truth_of(name)
    texts = list(corpus.split("train").texts())
    assert_mean([-truth.log_prob(text) for text in texts], truth.entropy)
    assert_mean([count_tokens(corpus, text) + 1 for text in texts], truth.expected_tokens)


@pytest.mark.parametrize("name", MODULES)
def test_impossible_texts_have_zero_probability(name: str) -> None:
    truth = truth_of(name)
    text = corpus_of(name).split("test").first()[0].text
    assert truth.log_prob(text) < 0
    for wrong in (
        "",
        " ",
        f"{text} ",
        f" {text}",
        f"{text} zzz",
        "zzz",
        text.replace(" ", "  ") + " ",
    ):
        assert truth.log_prob(wrong) == -math.inf


@pytest.mark.parametrize("name", MODULES)
def test_corpus_is_determined_by_its_seed(name: str) -> None:
    first, again, other = MODULES[name].corpus(seed=3), MODULES[name].corpus(3), corpus_of(name)
    assert first.name == name
    assert first.description == MODULES[name].DESCRIPTION
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    texts = {split: list(first.split(split).texts()) for split in first.splits}
    assert texts == {split: list(again.split(split).texts()) for split in again.splits}
    sizes = {"train": TRAIN_SENTENCES, "validation": HELD_OUT_SENTENCES, "test": HELD_OUT_SENTENCES}
    assert {split: len(sampled) for split, sampled in texts.items()} == sizes
    assert texts["validation"] != texts["test"] != texts["train"][:HELD_OUT_SENTENCES]
    for split, sampled in texts.items():
        assert sampled != list(other.split(split).texts())


@pytest.mark.parametrize("name", MODULES)
def test_number_of_sentences_can_be_chosen(name: str) -> None:
    texts = list(MODULES[name].corpus(sentences=7).split("train").texts())
    # The stream is the same, so a smaller corpus is a prefix of a larger one.
    assert texts == list(corpus_of(name).split("train").texts())[:7]
    with pytest.raises(UserError, match="at least 1 sentence"):
        MODULES[name].corpus(sentences=0)
    with pytest.raises(UserError, match="seed of 0 or more"):
        MODULES[name].corpus(seed=-1)


# Capitals


@pytest.mark.parametrize("module", [capitals, capitals_en], ids=["zh", "en"])
def test_capitals_is_normalised_with_template_entropy(module: object) -> None:
    language: FiniteTruth = module.truth()  # type: ignore[attr-defined]
    templates = module.TEMPLATES  # type: ignore[attr-defined]
    texts = [text for template in templates for text, _ in filled_templates(template)]
    assert len(texts) == len(set(texts)) == len(language.probabilities)
    assert math.fsum(math.exp(language.log_prob(text)) for text in texts) == pytest.approx(1)
    # Every text has one derivation here, so H(text) = H(template) + Σ p(template) H(country).
    everywhere = np.array(country_distribution())
    with_city = everywhere[[bool(country.city_en) for country in country_table()]]
    countries = {False: everywhere, True: with_city / with_city.sum()}
    expected = 0.0
    for template in templates:
        distribution = countries[template.names_city]
        inner = -(distribution * np.log(distribution)).sum()
        expected += template.probability * (inner - math.log(template.probability))
    assert language.entropy == pytest.approx(expected, abs=1e-12)


def test_capitals_separates_true_from_false_sentences() -> None:
    language = capitals.truth()
    # China is the first country; the template has probability one half.
    assert math.exp(language.log_prob("中国的首都是北京")) == pytest.approx(
        0.5 * country_distribution()[0]
    )
    for true in ("法国的首都是巴黎", "英国的首都是伦敦", "日本的首都是东京", "韩国的首都是首尔"):
        assert language.log_prob(true) > -math.inf
    for false in ("中国的首都是北黎", "中国的首都是上海", "上海的首都是上海", "法本的首都是巴京"):
        assert language.log_prob(false) == -math.inf
    # All their characters occur, so that a character tokenizer can encode the false ones too.
    seen = set("".join(corpus_of("capitals").split("train").texts()))
    assert seen.issuperset("中国的首都是上海日本大阪法韩尔北京巴黎东")


def test_capitals_sample_frequencies_match_probabilities() -> None:
    for module in (capitals, capitals_en):
        likely = sorted(module.truth().probabilities.items(), key=lambda item: -item[1])[:50]
        assert_frequencies(module.truth(), [text for text, _ in likely])


def test_country_table_is_complete_and_unique() -> None:
    table = country_table()
    # 193 members of the United Nations without the seven whose capital is disputed.
    assert len(table) == 193 - 7
    assert len({c.country_zh for c in table}) == len({c.country_en for c in table}) == len(table)
    for country in table:
        names = (country.country_zh, country.capital_zh, country.country_en, country.capital_en)
        assert all(name and name == name.strip() for name in names)
        assert bool(country.city_zh) == bool(country.city_en)
        assert country.city_en != country.capital_en
        assert all("\u4e00" <= character <= "\u9fff" for character in "".join(names[:2]))
        assert "".join(names[2:]).isascii()
    known = {c.country_en: (c.country_zh, c.capital_zh, c.capital_en) for c in table}
    assert known["Australia"] == ("澳大利亚", "堪培拉", "Canberra")
    assert known["Switzerland"] == ("瑞士", "伯尔尼", "Bern")
    assert known["Burkina Faso"] == ("布基纳法索", "瓦加杜古", "Ouagadougou")
    distribution = country_distribution()
    assert sum(distribution) == pytest.approx(1)
    assert distribution[0] / distribution[-1] == pytest.approx((len(table) + 10) / 11)


def test_duplicate_texts_sum_their_probabilities() -> None:
    truth = FiniteTruth([("a b", 0.125), ("c", 0.5), ("a b", 0.375)], count_tokens=len)
    assert truth.log_prob("a b") == truth.log_prob("c") == math.log(0.5)
    assert truth.entropy == pytest.approx(math.log(2))
    assert truth.expected_tokens == pytest.approx((3 + 1) / 2 + 1)


# Surnames


def test_surnames_are_uniform_with_shared_endings() -> None:
    texts = [prefix + word for prefix, words in surnames.ENDINGS.items() for word in words]
    assert len(texts) == len(set(texts)) == 16 * 4
    assert_exact(surnames.truth(), texts, len)
    # Sixteen prefixes with four endings each, all equally likely: log 64.
    assert surnames.truth().entropy == pytest.approx(math.log(64))
    # 李 belongs to the first and the third set, 王 to the first and the second.
    first, second, third = list(surnames.ENDINGS.values())[:3]
    assert (first, second, third) == ("张李胡王", "王帝侯爵", "桃李果杏")
    shared = Counter(word for words in surnames.ENDINGS.values() for word in words)
    assert shared["李"] == shared["王"] == 2
    assert sum(count > 1 for count in shared.values()) == 18
    # No prefix is a prefix of another.
    assert all(a == b or not a.startswith(b) for a, b in product(surnames.ENDINGS, repeat=2))


# Grammar


def enumerate_derivations(
    rules: dict[str, tuple[GrammarRule, ...]], start: str, max_length: int
) -> Counter[str]:
    """Number of derivations of each sentence of at most `max_length` words, by enumeration."""

    @cache
    def derive_symbol(symbol: str, length: int) -> Counter[str]:
        if symbol not in rules:
            return Counter({symbol: 1} if length == 1 else {})
        counts: Counter[str] = Counter()
        for option in rules[symbol]:
            counts.update(derive_sequence(option.symbols, length))
        return counts

    @cache
    def derive_sequence(symbols: tuple[str, ...], length: int) -> Counter[str]:
        if len(symbols) == 1:
            return derive_symbol(symbols[0], length)
        counts: Counter[str] = Counter()
        for first in range(1, length - len(symbols) + 2):
            for (head, head_count), (tail, tail_count) in product(
                derive_symbol(symbols[0], first).items(),
                derive_sequence(symbols[1:], length - first).items(),
            ):
                counts[f"{head} {tail}"] += head_count * tail_count
        return counts

    total: Counter[str] = Counter()
    for length in range(1, max_length + 1):
        total.update(derive_symbol(start, length))
    return total


def collapse_word_classes(truth: GrammarTruth) -> dict[str, tuple[GrammarRule, ...]]:
    """Replace each word class by one word: if this grammar is unambiguous, so is the whole."""
    lexical = [
        name
        for name, options in truth.rules.items()
        if len(options) > 1
        and all(len(o.symbols) == 1 and o.symbols[0] not in truth.rules for o in options)
    ]
    all_words = [o.symbols[0] for name in lexical for o in truth.rules[name]]
    assert len(lexical) == 12
    # Classes are disjoint, and contain no word that occurs in a rule directly.
    named = {
        s
        for name, options in truth.rules.items()
        if name not in lexical
        for o in options
        for s in o.symbols
    }
    assert len(all_words) == len(set(all_words))
    assert not named.intersection(all_words)
    return {name: options for name, options in truth.rules.items() if name not in lexical}


def length_distribution(truth: GrammarTruth, max_length: int) -> np.ndarray:
    """P(sentence has n words), n = 0 … max_length, by iterating the generating functions."""
    distribution = {name: np.zeros(max_length + 1) for name in truth.rules}
    word = np.eye(1, max_length + 1, 1)[0]
    for _ in range(max_length + 1):  # each iteration is exact for one more level of the derivation
        distribution = {
            name: sum(
                (
                    option.probability
                    * _convolve([distribution.get(s, word) for s in option.symbols])
                    for option in options
                ),
                np.zeros(max_length + 1),
            )
            for name, options in truth.rules.items()
        }
    return distribution[truth.start]


def _convolve(factors: list[np.ndarray]) -> np.ndarray:
    total = factors[0]
    for factor in factors[1:]:
        total = np.convolve(total, factor)[: len(factor)]
    return total


def test_grammar_is_unambiguous_up_to_length_11() -> None:
    derivations = enumerate_derivations(collapse_word_classes(grammar.truth()), "Sentence", 11)
    assert len(derivations) > 100_000
    assert set(derivations.values()) == {1}


def test_grammar_mass_matches_its_length_distribution() -> None:
    truth = grammar.truth()
    small = GrammarTruth(collapse_word_classes(truth), start="Sentence")
    sentences = enumerate_derivations(small.rules, "Sentence", 7)
    mass = math.fsum(math.exp(small.log_prob(sentence)) for sentence in sentences)
    distribution = length_distribution(small, 160)
    assert mass == pytest.approx(distribution[:8].sum(), abs=1e-12)
    # Sentences of more than 160 words have mass below 1e-12: lengths decay geometrically.
    assert distribution.sum() == pytest.approx(1, abs=1e-12)
    assert distribution @ np.arange(161) + 1 == pytest.approx(truth.expected_tokens, abs=1e-10)


def test_grammar_sample_frequencies_match_probabilities() -> None:
    truth = grammar.truth()
    classes = {name: [o.symbols[0] for o in truth.rules[name]] for name in ("Name", "PluralNoun")}
    texts = [f"{name} {verb}" for name in classes["Name"] for verb in ("sleeps", "runs")]
    texts += [f"{noun} {verb}" for noun in classes["PluralNoun"] for verb in ("sleep", "run")]
    # One clause, singular, a name, one of four, an intransitive verb, one of four.
    assert math.exp(truth.log_prob("mary sleeps")) == pytest.approx(0.85 * 0.6 * 0.3 / 4 * 0.25 / 4)
    assert_frequencies(truth, texts)


def test_grammar_enforces_long_distance_agreement() -> None:
    truth = grammar.truth()
    assert truth.log_prob("the dogs that the girl sees sleep") > -math.inf
    assert truth.log_prob("the dogs that the girl sees sleeps") == -math.inf
    assert truth.log_prob("mary gives the dog that john gives a cat to") == -math.inf
    assert truth.log_prob("Clause") == -math.inf  # the name of a rule is not a word


def test_grammar_parses_sentences_of_any_length() -> None:
    truth = grammar.truth()
    logs = [truth.log_prob("mary thinks that " * depth + "john runs") for depth in (0, 1, 300)]
    assert logs[2] - logs[0] == pytest.approx(300 * (logs[1] - logs[0]))


def test_geometric_grammar_has_closed_form_entropy() -> None:
    # S → a S with p, a with 1 - p: lengths are geometric, H = h(p) / (1 - p), E = 1 / (1 - p).
    p = 0.3
    truth = GrammarTruth({"S": (grammar_rule(p, "a S"), grammar_rule(1 - p, "a"))}, start="S")
    binary = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert truth.entropy == pytest.approx(binary / (1 - p))
    assert truth.expected_tokens == pytest.approx(1 / (1 - p) + 1)
    assert truth.log_prob("a a a") == pytest.approx(2 * math.log(p) + math.log(1 - p))


def test_inside_algorithm_sums_over_derivations() -> None:
    # X X yields "a a a" by (a)(a a) and by (a a)(a): 2 · ½ · ½.
    rules = {
        "S": (grammar_rule(1, "X X"),),
        "X": (grammar_rule(0.5, "a"), grammar_rule(0.5, "a a")),
    }
    truth = GrammarTruth(rules, start="S")
    assert math.exp(truth.log_prob("a a a")) == pytest.approx(0.5)
    assert math.exp(truth.log_prob("a a")) == pytest.approx(0.25)


def test_invalid_grammars_are_refused() -> None:
    with pytest.raises(AssertionError, match="not one"):
        GrammarTruth({"S": (grammar_rule(0.5, "a"),)}, start="S")
    with pytest.raises(AssertionError, match="empty"):
        GrammarTruth({"S": (grammar_rule(1, ""),)}, start="S")
    with pytest.raises(AssertionError, match="may never end"):
        GrammarTruth({"S": (grammar_rule(0.5, "a S S"), grammar_rule(0.5, "a"))}, start="S")
    with pytest.raises(CycleError):
        GrammarTruth({"S": (grammar_rule(0.1, "S a"), grammar_rule(0.9, "a"))}, start="S")
    assert [option.probability for option in word_rules("a b c d")] == [0.25] * 4


# Markov


def test_markov_length_mass_equals_transition_matrix_powers() -> None:
    truth = markov.truth()
    inner, ends = truth.steps[:, :-1], truth.steps[:, -1]
    reached = truth.initial
    for length in (1, 2, 3):
        mass = math.fsum(
            math.exp(truth.log_prob(" ".join(text))) for text in product(truth.words, repeat=length)
        )
        assert mass == pytest.approx(reached @ ends, abs=1e-12)
        reached = reached @ inner
    # Σ_n π Q^n e = visits · e: every sentence ends.
    assert truth.visits @ ends == pytest.approx(1)


def test_markov_transition_rows_range_from_uniform_to_peaked() -> None:
    rows = markov.truth().steps[:, :-1]
    given_no_end = rows / rows.sum(1, keepdims=True)
    assert given_no_end[0] == pytest.approx(np.full(10, 0.1))
    # The sharpest row: weights (1 + r)^-4.
    assert given_no_end[9].max() == pytest.approx(1 / sum(r**-4 for r in range(1, 11)))
    assert set(given_no_end[1:].argmax(1)) == set(range(10)) - {1}


def test_markov_entropy_by_enumeration_for_two_words() -> None:
    steps = np.array([[0.2, 0.1, 0.7], [0.3, 0.0, 0.7]])
    truth = MarkovTruth("ab", np.array([0.4, 0.6]), steps)
    logs = np.array([truth.log_prob(text) for text in all_strings("ab", 14)])
    logs = logs[logs > -np.inf]
    # Sentences of more than 14 words have mass 0.3^14 = 5e-8.
    assert np.exp(logs).sum() == pytest.approx(1 - 0.3**14, abs=1e-12)
    assert -(np.exp(logs) * logs).sum() == pytest.approx(truth.entropy, abs=1e-5)
    assert truth.expected_tokens == pytest.approx(1 / 0.7 + 1)
    assert truth.log_prob("b b") == -math.inf


def test_markov_sample_frequencies_match_probabilities() -> None:
    truth = markov.truth()
    texts = [" ".join(text) for n in (1, 2) for text in product(truth.words[:5], repeat=n)]
    assert_frequencies(truth, [text for text in texts if truth.log_prob(text) > -7])


# Copy and recall


def test_copy_distribution_is_exact_over_all_strings() -> None:
    truth = CopyTruth(letters=2, min_length=1, max_length=3)
    assert_exact(truth, all_strings("ab|", 7), lambda text: len(text.split(" ")))
    assert_frequencies(truth, [t for t in all_strings("ab|", 7) if truth.log_prob(t) > -math.inf])
    # 2 + 4 + 8 strings, the lengths with one third each.
    assert math.exp(truth.log_prob("a b | a b")) == pytest.approx(1 / 3 / 4)


def test_copy_entropy_is_that_of_the_first_half() -> None:
    truth = CopyTruth(letters=8, min_length=2, max_length=6)
    assert truth_of("copy").entropy == truth.entropy == pytest.approx(math.log(5) + 4 * math.log(8))


def test_recall_distribution_is_exact_over_all_strings() -> None:
    truth = RecallTruth(
        keys=2, values=2, min_pairs=1, max_pairs=2, min_distance=0, max_distance=None, gap=0
    )
    assert_exact(truth, all_strings("ab01?", 7), lambda text: len(text.split(" ")))


@pytest.mark.parametrize(
    ("nearest", "farthest", "gap"), [(0, None, 0), (0, 0, 2), (1, 1, 1), (1, None, 0), (0, 1, 3)]
)
def test_recall_with_distance_and_gap_is_exact(
    nearest: int, farthest: int | None, gap: int
) -> None:
    truth = RecallTruth(
        keys=4,
        values=2,
        min_pairs=2,
        max_pairs=3,
        min_distance=nearest,
        max_distance=farthest,
        gap=gap,
    )

    def texts() -> Iterator[str]:
        for n in (2, 3):
            for keys, values in product(permutations("abcd", n), product("01", repeat=n)):
                pairs = [word for pair in zip(keys, values, strict=True) for word in pair]
                for distance in range(nearest, n if farthest is None else min(farthest + 1, n)):
                    query = [keys[-1 - distance], values[-1 - distance]]
                    yield " ".join([*pairs, *["."] * gap, "?", *query])

    enumerated = list(texts())
    assert all(truth.log_prob(text) > -math.inf for text in enumerated)
    assert_exact(truth, enumerated, lambda text: len(text.split(" ")))
    assert_frequencies(truth, enumerated)


def test_recall_gives_wrong_answers_zero_probability() -> None:
    truth = truth_of("recall")
    assert truth.log_prob("a 1 b 2 ? a 1") > -math.inf
    for wrong in (
        "a 1 b 2 ? a 2",
        "a 1 b 2 ? c 1",
        "a 1 a 1 ? a 1",
        "a 1 b 9 ? a 1",
        "a 1 b 2 ? a",
    ):
        assert truth.log_prob(wrong) == -math.inf


def test_hops_distribution_is_exact_over_all_strings() -> None:
    truth = HopsTruth(letters=3, hops=2)
    pairs = [" ".join(words) for words in product("abc", repeat=6)]
    texts = [
        f"{listing} {'? ' * hops}{start} {answer}"
        for listing in pairs
        for hops in (1, 2, 3)
        for start, answer in product("abc", repeat=2)
    ]
    assert_exact(truth, texts, lambda text: len(text.split(" ")))
    assert_frequencies(truth, [t for t in texts if truth.log_prob(t) > -math.inf])
    # Two rings of three letters, six orders of their pairs, three starts, one or two hops.
    assert math.exp(truth.log_prob("c a b c a b ? ? b a")) == pytest.approx(1 / (2 * 6 * 3 * 2))
    assert truth.log_prob("c a b c a b ? ? b c") == -math.inf


@pytest.mark.parametrize("options", [{"letters": 1}, {"letters": 27}, {"hops": 5}, {"hops": 0}])
def test_hops_refuses_invalid_options(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="hops"):
        hops.corpus(**options)


@pytest.mark.parametrize(
    "options",
    [{"min_length": 0}, {"min_length": 5, "max_length": 4}, {"letters": 27}, {"letters": 0}],
)
def test_copy_refuses_invalid_options(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="copy"):
        copy.corpus(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"keys": 27},
        {"values": 0},
        {"gap": -1},
        {"max_pairs": 9},
        {"min_pairs": 0},
        {"min_distance": 2},
        {"min_distance": 1, "max_distance": 0},
    ],
)
def test_recall_refuses_invalid_options(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="recall"):
        recall.corpus(**options)
