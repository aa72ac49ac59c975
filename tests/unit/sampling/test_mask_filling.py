"""Mask filling: mask parsing, single and joint filling, infilling and candidates."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.sampling.infill_search import generated_log_probs
from lmlab.sampling.mask_filling import MaskFiller
from lmlab.sampling.prompts import parse_masked_text

LINES = ["the cat sees a dog", "a dog sees the cat", "the dog sleeps"] * 3
WORDS = train_tokenizer("word", LINES)


def build(name: str, vocabulary: Vocabulary):
    torch.manual_seed(0)
    module = system_module(name)
    return module.build(module.SIZES["tiny"], vocabulary).eval()


@pytest.fixture(scope="module")
def hmm():
    return build("hmm", WORDS.vocabulary)


@pytest.fixture(scope="module")
def span_joint():
    return build("span-joint", WORDS.vocabulary)


@pytest.fixture(scope="module")
def glm():
    return build("glm", WORDS.vocabulary)


def filler(system, tokenizer=WORDS, **options) -> MaskFiller:
    return MaskFiller(system=system, tokenizer=tokenizer, layout=Layout(), **options)


# Masks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", ["<mask>", "[MASK]"])
@pytest.mark.parametrize("kind", ["word", "char", "wordpiece", "bpe"])
def test_mask_is_one_position_and_the_rest_tokenizes_as_usual(kind, symbol):
    tokenizer = train_tokenizer(kind, LINES, size=300 if kind == "bpe" else None)
    parsed = parse_masked_text(f"the {symbol} sees a {symbol}", tokenizer)
    assert parsed.spans == ((4, 10), (18, 24))
    # A mask replaces a word with its space; only the char tokenizer has a token for spaces.
    before, between = ("the ", " sees a ") if kind == "char" else ("the", "sees a")
    assert list(parsed.ids) == [*tokenizer.encode(before), None, *tokenizer.encode(between), None]
    assert parsed.filled(["cat", "dog"]) == "the cat sees a dog"


def test_full_stop_after_a_mask_tokenizes_as_after_a_word():
    """BPE adds a space at the start of a text; a full stop after a mask is not at the start."""
    tokenizer = train_tokenizer("bpe", ["the cat sees a dog."] * 9, size=300)
    stop = tokenizer.encode("the dog.")[-1]
    assert tokenizer.encode(".") != [stop]
    assert list(parse_masked_text("the <mask>.", tokenizer).ids) == [
        *tokenizer.encode("the"),
        None,
        stop,
    ]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_word_initial_and_continuation_pieces_differ(kind):
    """Options with the same text but other pieces; a continuation piece joins the word."""
    tokenizer = train_tokenizer(kind, [*LINES, "as dogs", "s ass"] * 3, size=320)
    mark = {"bpe": ("\u0120s", "s"), "wordpiece": ("s", "##s")}[kind]
    system = build("roberta", tokenizer.vocabulary)
    [filled] = filler(system, tokenizer, top=320).tokens(["the dog <mask>"])
    alike = [o for o in filled.masks[0].options if o.text in ("s", "##s")]
    assert sorted(option.pieces[0] for option in alike) == sorted(mark)
    [filled] = filler(system, tokenizer, top=320, beam=320).fill_jointly(["the dog <mask>"])
    texts = {option.pieces: option.text for option in filled.candidates}
    assert texts[((mark[0],),)] == "the dog s" and texts[((mark[1],),)] == "the dogs"


def test_tokenizer_with_its_own_mask_token():
    inner = HfTokenizer.from_str(train_tokenizer("wordpiece", LINES)._inner.to_str())
    inner.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer = Tokenizer(inner)
    assert tokenizer.vocabulary.mask in tokenizer.encode("the <mask> sees")
    expected = [*tokenizer.encode("the"), None, *tokenizer.encode("sees")]
    assert list(parse_masked_text("the [MASK] sees", tokenizer).ids) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the cat sees", r"has none; insert <mask> or \[MASK\] where"),
        ("the <maks> sees", r"'<maks>' is no mask token.*did you mean '<mask>'"),
        ("the [mask] sees", r"did you mean '\[MASK\]'"),
        ("the <mask> and <mask", "did you mean '<mask>'"),
        ("the <MASK> sees", "did you mean '<mask>'"),
    ],
)
def test_missing_or_misspelt_mask_is_reported(text, message):
    with pytest.raises(UserError, match=message):
        parse_masked_text(text, WORDS)


def test_unknown_words_and_other_brackets_are_unchanged():
    parsed = parse_masked_text("[note] the <unk> zebra <mask>", WORDS)
    unknown = WORDS.vocabulary.unknown
    assert list(parsed.ids) == [unknown, *WORDS.encode("the"), unknown, unknown, None]
    assert parsed.unknown == ("[note]", "<unk>", "zebra")
    assert "'zebra'" in (parsed.note or "")


# Tokens -----------------------------------------------------------------------------------------


def joint(hmm, text: str) -> torch.Tensor:
    """log p(a | text) for all fillings of two masks, by enumeration: (V, V)."""
    vocabulary = WORDS.vocabulary
    size = vocabulary.size
    parsed = parse_masked_text(text, WORDS)
    rows = []
    for pair in itertools.product(range(size), repeat=2):
        answers = iter(pair)
        body = [next(answers) if id is None else id for id in parsed.ids]
        rows.append([vocabulary.start, *body, vocabulary.end])
    with torch.no_grad():
        totals = hmm.log_prob(Batch.collate(rows, pad=vocabulary.pad)).totals.double()
    return torch.log_softmax(totals, 0).view(size, size)


def without_end(table: torch.Tensor) -> torch.Tensor:
    """Exclude the end token, which is no filling; the other log-probabilities are unchanged."""
    for axis in range(table.dim()):
        table = table.index_fill(axis, torch.tensor([WORDS.vocabulary.end]), -math.inf)
    return table


def test_single_mask_fill_is_the_posterior_marginal(hmm):
    """Bayes by enumeration: each mask's probabilities with the other summed out."""
    text = "the <mask> sees <mask>"
    [filled] = filler(hmm, top=4).tokens([text])
    table = joint(hmm, text)
    for gap, other in ((0, 1), (1, 0)):
        best = without_end(torch.logsumexp(table, other)).topk(4)
        options = filled.masks[gap].options
        assert [ranked_option.text for ranked_option in options] == [
            WORDS.token(i) for i in best.indices.tolist()
        ]
        for option, expected in zip(options, best.values.tolist(), strict=True):
            assert option.log_prob == pytest.approx(expected, abs=1e-4)
            assert option.probability == pytest.approx(math.exp(expected), abs=1e-4)


def test_joint_fill_is_the_joint_posterior(hmm):
    """By the chain rule, each given those before; a beam as wide as the space is exhaustive."""
    text = "the <mask> sees <mask>"
    [filled] = filler(hmm, top=5, beam=WORDS.vocabulary.size).fill_jointly([text])
    assert filled.kind == "exact"
    best = without_end(joint(hmm, text)).flatten().topk(5)
    size = WORDS.vocabulary.size
    for filling, position, expected in zip(
        filled.candidates, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert filling.answers == (WORDS.token(position // size), WORDS.token(position % size))
        assert filling.log_prob == pytest.approx(expected, abs=1e-4)
        assert filling.text == f"the {filling.answers[0]} sees {filling.answers[1]}"


def test_joint_fill_uses_the_systems_own_joint(span_joint):
    """All fillings ranked by its log_prob; the chain rule would give other values."""
    text, vocabulary = "the <mask> sees <mask>", WORDS.vocabulary
    row = [
        vocabulary.start,
        *parse_masked_text(text, WORDS).with_mask(vocabulary.mask),
        vocabulary.end,
    ]
    pairs = list(itertools.product(range(vocabulary.size), repeat=2))
    batch = Batch.collate([row] * len(pairs), pad=vocabulary.pad)
    with torch.no_grad():
        table = span_joint.joint_fill(batch, batch.tokens == vocabulary.mask)
        log_probs = table.log_prob(torch.tensor(pairs).flatten())
    size = vocabulary.size
    assert log_probs.view(size, size)[:, vocabulary.end].exp().sum() > 0.05
    best = without_end(log_probs.view(size, size)).flatten().topk(5)
    [filled] = filler(span_joint, top=5).fill_jointly([text])
    assert filled.note is None
    for filling, position, value in zip(
        filled.candidates, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert filling.answers == tuple(WORDS.token(id) for id in pairs[position])
        assert filling.log_prob == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("name", ["hmm", "span_joint"])
def test_joint_samples_follow_the_joint_distribution(name, request):
    """By the chain rule and by a joint: the likeliest filling within five deviations.

    Samples with the end token are rejected, so that the others share its probability.
    """
    system, draws = request.getfixturevalue(name), 2000
    generator = torch.Generator().manual_seed(0)
    options = {"joint": True, "generator": generator}
    [filled] = filler(system, top=draws).fill(["the <mask> sees <mask>"], **options)
    [ranked] = filler(system, top=WORDS.vocabulary.size**2).fill_jointly(["the <mask> sees <mask>"])
    best = ranked.candidates[0]
    assert not any(
        "</s>" in filling.answers for filling in (*filled.candidates, *ranked.candidates)
    )
    assert len(filled.candidates) == draws
    count = sum(filling.answers == best.answers for filling in filled.candidates)
    p = math.exp(best.log_prob) / sum(
        math.exp(candidate.log_prob) for candidate in ranked.candidates
    )
    assert abs(count - draws * p) < 5 * math.sqrt(draws * p * (1 - p))
    same = [f.log_prob for f in filled.candidates if f.answers == best.answers]
    assert same == pytest.approx([best.log_prob] * count, abs=1e-4)


def test_candidate_shares_are_normalised_probabilities(hmm):
    [free] = filler(hmm, top=20).tokens(["the <mask> sees"])
    [filled] = filler(hmm).tokens(["the <mask> sees"], among=["cat", "dog", "sleeps"])
    by_text = {option.text: option for option in free.masks[0].options}
    options = filled.masks[0].options
    assert sum(option.share for option in options) == pytest.approx(1.0)
    assert [o.log_prob for o in options] == sorted((o.log_prob for o in options), reverse=True)
    total = sum(by_text[option.text].probability for option in options)
    for option in options:
        expected = by_text[option.text]
        assert option.log_prob == pytest.approx(expected.log_prob)
        assert option.probability == pytest.approx(expected.probability)
        assert option.share == pytest.approx(expected.probability / total)


@pytest.mark.parametrize(("candidate", "message"), [("the cat", "2 tokens"), ("zebra", "unknown")])
def test_token_candidate_must_be_one_known_token(hmm, candidate, message):
    with pytest.raises(UserError, match=f"one token of the vocabulary.*{message}"):
        list(filler(hmm).tokens(["the <mask>"], among=[candidate]))


# Blanks -----------------------------------------------------------------------------------------


def test_infill_beam_finds_the_best_answers(glm):
    """All answers of at most two tokens by forced decoding; the beam ranks them the same."""
    vocabulary = WORDS.vocabulary
    inner = [
        i for i in range(vocabulary.size) if i not in (*vocabulary.unpredictable, vocabulary.end)
    ]
    answers = [
        answer_ids for size in range(3) for answer_ids in itertools.product(inner, repeat=size)
    ]
    row = [vocabulary.start, *WORDS.encode("the"), vocabulary.mask, vocabulary.end]
    with torch.no_grad():
        decoder = glm.infill_decoder(Batch.collate([row] * len(answers), pad=0))
        log_probs = generated_log_probs(decoder, answers)
    ranked = sorted(zip(log_probs, answers, strict=True), reverse=True)[:3]
    [filled] = filler(glm, top=3, beam=200, max_length=2).infill(["the <mask>"])
    for filling, (log_prob, answer) in zip(filled.candidates, ranked, strict=True):
        assert filling.answers == (WORDS.decode(answer),)
        assert filling.log_prob == pytest.approx(log_prob, abs=1e-4)
        assert filling.finished and filling.tokens == len(answer)


def test_sampled_infills_depend_on_the_generator_only(glm):
    def sampled_answers(seed: int) -> list[tuple[str, ...]]:
        generator = torch.Generator().manual_seed(seed)
        [filled] = filler(glm, top=6).infill(["the <mask> sees <mask>"], generator=generator)
        assert len(filled.candidates) == 6
        return [filling.answers for filling in filled.candidates]

    assert sampled_answers(1) == sampled_answers(1)
    assert sampled_answers(1) != sampled_answers(2)
    assert all(len(answers) == 2 for answers in sampled_answers(1))


def test_sampled_infill_log_prob_equals_forced_decoding(glm):
    """Two blanks of different lengths: forced decoding against the sampled log-probability."""
    generator = torch.Generator().manual_seed(3)
    text = "the <mask> sees <mask>"
    [filled] = filler(glm, top=4, max_length=60).infill([text], generator=generator)
    vocabulary = WORDS.vocabulary
    row = [
        vocabulary.start,
        *parse_masked_text(text, WORDS).with_mask(vocabulary.mask),
        vocabulary.end,
    ]
    for filling in filled.candidates:
        assert filling.finished
        answers = [WORDS.encode(answer) for answer in filling.answers]
        with torch.no_grad():
            decoder = glm.infill_decoder(Batch.collate([row], pad=vocabulary.pad))
            [expected] = generated_log_probs(decoder, [decoder.linearise_fillings(0, answers)])
        assert filling.log_prob == pytest.approx(expected, abs=1e-4)


def test_cloze_candidates_may_have_several_tokens(glm):
    """Classification as a cloze: candidates of different lengths, scored by forced decoding."""
    [filled] = filler(glm).rank_infills(["the dog <mask>"], ["sleeps", "sees the cat"])
    options = filled.masks[0].options
    assert {option.text for option in options} == {"sleeps", "sees the cat"}
    assert sum(option.share for option in options) == pytest.approx(1.0)
    ratio = math.exp(options[1].log_prob - options[0].log_prob)
    assert options[1].share / options[0].share == pytest.approx(ratio)
    assert options[0].probability == pytest.approx(math.exp(options[0].log_prob))
    with pytest.raises(UserError, match="texts with one blank, got one with 2"):
        list(filler(glm).rank_infills(["<mask> dog <mask>"], ["a"]))


def test_truncated_infills_are_reported(glm):
    with torch.no_grad():
        # Make the end token very unlikely.
        bias = glm.emission.bias[WORDS.vocabulary.end]
        before = bias.item()
        bias.fill_(-30.0)
        generator = torch.Generator().manual_seed(0)
        [filled] = filler(glm, top=2, max_length=2).infill(["the <mask>"], generator=generator)
        bias.fill_(before)
    # The maximum length, and one more token instead of the end.
    assert [(filling.tokens, filling.finished) for filling in filled.candidates] == [(3, False)] * 2
    assert filled.note is not None and "--max-length" in filled.note


# Choice of method --------------------------------------------------------------------------------


def test_fill_uses_tokens_if_supported_else_infilling(hmm, glm):
    [tokens] = filler(hmm).fill(["the <mask>"])
    assert tokens.masks and not tokens.candidates
    [together] = filler(hmm).fill(["the <mask>"], joint=True)
    assert together.candidates and not together.masks
    [blanks] = filler(glm).fill(["the <mask>"])
    assert blanks.candidates and not blanks.masks
    [cloze] = filler(glm).fill(["the <mask>"], among=["cat", "dog"])
    assert len(cloze.masks[0].options) == 2


def test_unsupported_system_is_reported_with_alternatives(hmm):
    with pytest.raises(UserError, match=r"does not fill in masks; it continues a text.*bert"):
        list(filler(build("lstm", WORDS.vocabulary)).fill(["the <mask>"]))
    with pytest.raises(UserError, match=r"blanks of unknown length needs.*glm"):
        list(filler(hmm).fill(["the <mask>"], blanks=True))


def test_incompatible_options_are_reported(hmm):
    with pytest.raises(UserError, match="do not apply to joint filling"):
        filler(hmm).fill(["the <mask>"], joint=True, among=["cat"])
    with pytest.raises(UserError, match="candidates do not apply to sampling"):
        filler(hmm).fill(["the <mask>"], among=["cat"], generator=torch.Generator())
    with pytest.raises(UserError, match="number of fillings must be 1 or more"):
        filler(hmm, top=0)


def test_too_long_text_is_reported(glm):
    with pytest.raises(UserError, match="must have at most 64 tokens"):
        list(filler(glm).fill([" ".join(["the"] * 80) + " <mask>"]))
