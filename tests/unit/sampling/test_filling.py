"""Filling in: gaps as users write them, tokens alone and together, blanks and candidates."""

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
from lmlab.sampling.mask_filling import MaskFiller, generated_log_probs
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


# Gaps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", ["<mask>", "[MASK]"])
@pytest.mark.parametrize("kind", ["word", "char", "wordpiece", "bpe"])
def test_a_gap_is_one_place_and_the_rest_is_as_it_would_be_read(kind, symbol):
    tokenizer = train_tokenizer(kind, LINES, size=300 if kind == "bpe" else None)
    read = parse_masked_text(f"the {symbol} sees a {symbol}", tokenizer)
    assert read.spans == ((4, 10), (18, 24))
    # A gap stands for a word with its space; only among characters is a space one of its own.
    before, between = ("the ", " sees a ") if kind == "char" else ("the", "sees a")
    assert list(read.ids) == [*tokenizer.encode(before), None, *tokenizer.encode(between), None]
    assert read.filled(["cat", "dog"]) == "the cat sees a dog"


def test_a_full_stop_after_a_gap_is_read_as_after_a_word():
    """Byte pairs put a space before what begins a text; a stop behind a gap begins none."""
    tokenizer = train_tokenizer("bpe", ["the cat sees a dog."] * 9, size=300)
    stop = tokenizer.encode("the dog.")[-1]
    assert tokenizer.encode(".") != [stop]
    assert list(parse_masked_text("the <mask>.", tokenizer).ids) == [
        *tokenizer.encode("the"),
        None,
        stop,
    ]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_piece_that_begins_a_word_is_told_from_one_that_goes_on(kind):
    """The same text twice in a list, but other pieces; written together it is right behind."""
    tokenizer = train_tokenizer(kind, [*LINES, "as dogs", "s ass"] * 3, size=320)
    mark = {"bpe": ("\u0120s", "s"), "wordpiece": ("s", "##s")}[kind]
    system = build("roberta", tokenizer.vocabulary)
    [found] = filler(system, tokenizer, top=320).tokens(["the dog <mask>"])
    alike = [o for o in found.masks[0].options if o.text in ("s", "##s")]
    assert sorted(each.pieces[0] for each in alike) == sorted(mark)
    [found] = filler(system, tokenizer, top=320, beam=320).fill_jointly(["the dog <mask>"])
    texts = {each.pieces: each.text for each in found.candidates}
    assert texts[((mark[0],),)] == "the dog s" and texts[((mark[1],),)] == "the dogs"


def test_a_tokeniser_that_reads_its_own_symbol_is_left_to_do_so():
    inner = HfTokenizer.from_str(train_tokenizer("wordpiece", LINES)._inner.to_str())
    inner.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer = Tokenizer(inner)
    assert tokenizer.vocabulary.mask in tokenizer.encode("the <mask> sees")
    expected = [*tokenizer.encode("the"), None, *tokenizer.encode("sees")]
    assert list(parse_masked_text("the [MASK] sees", tokenizer).ids) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the cat sees", r"has none; insert <mask> or \[MASK\] where"),
        ("the <maks> sees", r"'<maks>' is no mask token.*did you mean '<mask>'"),
        ("the [mask] sees", r"did you mean '\[MASK\]'"),
        ("the <mask> and <mask", "did you mean '<mask>'"),
        ("the <MASK> sees", "did you mean '<mask>'"),
    ],
)
def test_a_text_without_a_gap_or_with_something_like_one_is_told(text, said):
    with pytest.raises(UserError, match=said):
        parse_masked_text(text, WORDS)


def test_unknown_words_and_other_brackets_are_left_alone():
    read = parse_masked_text("[note] the <unk> zebra <mask>", WORDS)
    unknown = WORDS.vocabulary.unknown
    assert list(read.ids) == [unknown, *WORDS.encode("the"), unknown, unknown, None]
    assert read.unknown == ("[note]", "<unk>", "zebra")
    assert "'zebra'" in (read.note or "")


# Tokens -----------------------------------------------------------------------------------------


def joint(hmm, text: str) -> torch.Tensor:
    """log p(a | text) for all answers to two gaps, by enumeration: (V, V)."""
    vocabulary = WORDS.vocabulary
    size = vocabulary.size
    read = parse_masked_text(text, WORDS)
    rows = []
    for pair in itertools.product(range(size), repeat=2):
        answers = iter(pair)
        body = [next(answers) if id is None else id for id in read.ids]
        rows.append([vocabulary.start, *body, vocabulary.end])
    with torch.no_grad():
        totals = hmm.log_prob(Batch.collate(rows, pad=vocabulary.pad)).totals.double()
    return torch.log_softmax(totals, 0).view(size, size)


def without_end(table: torch.Tensor) -> torch.Tensor:
    """The end is no filling, whatever a system gives it; the others are as they were."""
    for axis in range(table.dim()):
        table = table.index_fill(axis, torch.tensor([WORDS.vocabulary.end]), -math.inf)
    return table


def test_a_gap_by_itself_is_the_marginal_over_the_others(hmm):
    """Bayes by enumeration: the first gap's probabilities with the second summed out."""
    text = "the <mask> sees <mask>"
    [found] = filler(hmm, top=4).tokens([text])
    table = joint(hmm, text)
    for gap, other in ((0, 1), (1, 0)):
        best = without_end(torch.logsumexp(table, other)).topk(4)
        options = found.masks[gap].options
        assert [each.text for each in options] == [WORDS.token(i) for i in best.indices.tolist()]
        for option, expected in zip(options, best.values.tolist(), strict=True):
            assert option.log_prob == pytest.approx(expected, abs=1e-4)
            assert option.probability == pytest.approx(math.exp(expected), abs=1e-4)


def test_gaps_together_are_the_joint_posterior(hmm):
    """By the chain rule, each given those before; a beam as wide as the space misses none."""
    text = "the <mask> sees <mask>"
    [found] = filler(hmm, top=5, beam=WORDS.vocabulary.size).fill_jointly([text])
    assert found.kind == "exact"
    best = without_end(joint(hmm, text)).flatten().topk(5)
    size = WORDS.vocabulary.size
    for filling, place, expected in zip(
        found.candidates, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert filling.answers == (WORDS.token(place // size), WORDS.token(place % size))
        assert filling.log_prob == pytest.approx(expected, abs=1e-4)
        assert filling.text == f"the {filling.answers[0]} sees {filling.answers[1]}"


def test_a_system_with_a_joint_of_its_own_is_asked_for_it(span_joint):
    """All fillings by its log_prob, in order; the chain rule's own passes would give others."""
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
    [found] = filler(span_joint, top=5).fill_jointly([text])
    assert found.note is None
    for filling, place, value in zip(
        found.candidates, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert filling.answers == tuple(WORDS.token(id) for id in pairs[place])
        assert filling.log_prob == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("name", ["hmm", "span_joint"])
def test_tokens_drawn_together_come_as_often_as_they_should(name, request):
    """By the chain rule and by a joint: the likeliest filling within five deviations.

    Draws with the end are drawn again, so that the others share its probability.
    """
    system, draws = request.getfixturevalue(name), 2000
    generator = torch.Generator().manual_seed(0)
    options = {"joint": True, "generator": generator}
    [found] = filler(system, top=draws).fill(["the <mask> sees <mask>"], **options)
    [ranked] = filler(system, top=WORDS.vocabulary.size**2).fill_jointly(["the <mask> sees <mask>"])
    best = ranked.candidates[0]
    assert not any("</s>" in filling.answers for filling in (*found.candidates, *ranked.candidates))
    assert len(found.candidates) == draws
    count = sum(filling.answers == best.answers for filling in found.candidates)
    p = math.exp(best.log_prob) / sum(math.exp(each.log_prob) for each in ranked.candidates)
    assert abs(count - draws * p) < 5 * math.sqrt(draws * p * (1 - p))
    same = [f.log_prob for f in found.candidates if f.answers == best.answers]
    assert same == pytest.approx([best.log_prob] * count, abs=1e-4)


def test_candidates_share_their_probability(hmm):
    [free] = filler(hmm, top=20).tokens(["the <mask> sees"])
    [found] = filler(hmm).tokens(["the <mask> sees"], among=["cat", "dog", "sleeps"])
    by_text = {option.text: option for option in free.masks[0].options}
    options = found.masks[0].options
    assert sum(option.share for option in options) == pytest.approx(1.0)
    assert [o.log_prob for o in options] == sorted((o.log_prob for o in options), reverse=True)
    total = sum(by_text[option.text].probability for option in options)
    for option in options:
        expected = by_text[option.text]
        assert option.log_prob == pytest.approx(expected.log_prob)
        assert option.probability == pytest.approx(expected.probability)
        assert option.share == pytest.approx(expected.probability / total)


@pytest.mark.parametrize(("candidate", "said"), [("the cat", "2 tokens"), ("zebra", "unknown")])
def test_a_candidate_for_a_token_is_one_known_token(hmm, candidate, said):
    with pytest.raises(UserError, match=f"one token of the vocabulary.*{said}"):
        list(filler(hmm).tokens(["the <mask>"], among=[candidate]))


# Blanks -----------------------------------------------------------------------------------------


def test_the_best_of_a_blank_is_the_best_of_all_answers(glm):
    """All answers of at most two tokens, each forced; the beam finds the same ones in order."""
    vocabulary = WORDS.vocabulary
    inner = [
        i for i in range(vocabulary.size) if i not in (*vocabulary.unpredictable, vocabulary.end)
    ]
    answers = [each for size in range(3) for each in itertools.product(inner, repeat=size)]
    row = [vocabulary.start, *WORDS.encode("the"), vocabulary.mask, vocabulary.end]
    with torch.no_grad():
        writer = glm.infill_decoder(Batch.collate([row] * len(answers), pad=0))
        log_probs = generated_log_probs(writer, answers)
    ranked = sorted(zip(log_probs, answers, strict=True), reverse=True)[:3]
    [found] = filler(glm, top=3, beam=200, max_length=2).infill(["the <mask>"])
    for filling, (log_prob, answer) in zip(found.candidates, ranked, strict=True):
        assert filling.answers == (WORDS.decode(answer),)
        assert filling.log_prob == pytest.approx(log_prob, abs=1e-4)
        assert filling.finished and filling.tokens == len(answer)


def test_drawn_blanks_depend_on_the_generator_alone(glm):
    def drawn(seed: int) -> list[tuple[str, ...]]:
        generator = torch.Generator().manual_seed(seed)
        [found] = filler(glm, top=6).infill(["the <mask> sees <mask>"], generator=generator)
        assert len(found.candidates) == 6
        return [filling.answers for filling in found.candidates]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert all(len(answers) == 2 for answers in drawn(1))


def test_the_log_probability_of_what_is_drawn_is_that_of_writing_it(glm):
    """Two blanks of different lengths, forced against what sampling told."""
    generator = torch.Generator().manual_seed(3)
    text = "the <mask> sees <mask>"
    [found] = filler(glm, top=4, max_length=60).infill([text], generator=generator)
    vocabulary = WORDS.vocabulary
    row = [
        vocabulary.start,
        *parse_masked_text(text, WORDS).with_mask(vocabulary.mask),
        vocabulary.end,
    ]
    for filling in found.candidates:
        assert filling.finished
        answers = [WORDS.encode(answer) for answer in filling.answers]
        with torch.no_grad():
            writer = glm.infill_decoder(Batch.collate([row], pad=vocabulary.pad))
            [expected] = generated_log_probs(writer, [writer.linearise_fillings(0, answers)])
        assert filling.log_prob == pytest.approx(expected, abs=1e-4)


def test_a_class_may_be_a_word_of_several_tokens(glm):
    """Classification as a cloze: candidates of different lengths, judged as they are written."""
    [found] = filler(glm).rank_infills(["the dog <mask>"], ["sleeps", "sees the cat"])
    options = found.masks[0].options
    assert {option.text for option in options} == {"sleeps", "sees the cat"}
    assert sum(option.share for option in options) == pytest.approx(1.0)
    ratio = math.exp(options[1].log_prob - options[0].log_prob)
    assert options[1].share / options[0].share == pytest.approx(ratio)
    assert options[0].probability == pytest.approx(math.exp(options[0].log_prob))
    with pytest.raises(UserError, match="texts with one blank, got one with 2"):
        list(filler(glm).rank_infills(["<mask> dog <mask>"], ["a"]))


def test_answers_that_were_all_cut_off_are_told(glm):
    with torch.no_grad():
        # An end that hardly ever comes.
        bias = glm.emission.bias[WORDS.vocabulary.end]
        before = bias.item()
        bias.fill_(-30.0)
        generator = torch.Generator().manual_seed(0)
        [found] = filler(glm, top=2, max_length=2).infill(["the <mask>"], generator=generator)
        bias.fill_(before)
    # As long as answers may be, and one more where the end should have come.
    assert [(filling.tokens, filling.finished) for filling in found.candidates] == [(3, False)] * 2
    assert found.note is not None and "--max-length" in found.note


# Which way --------------------------------------------------------------------------------------


def test_tokens_where_the_system_has_them_else_blanks(hmm, glm):
    [tokens] = filler(hmm).fill(["the <mask>"])
    assert tokens.masks and not tokens.candidates
    [together] = filler(hmm).fill(["the <mask>"], joint=True)
    assert together.candidates and not together.masks
    [blanks] = filler(glm).fill(["the <mask>"])
    assert blanks.candidates and not blanks.masks
    [cloze] = filler(glm).fill(["the <mask>"], among=["cat", "dog"])
    assert len(cloze.masks[0].options) == 2


def test_a_system_that_can_not_is_told_which_can(hmm):
    with pytest.raises(UserError, match=r"does not fill in masks; it continues a text.*bert"):
        list(filler(build("lstm", WORDS.vocabulary)).fill(["the <mask>"]))
    with pytest.raises(UserError, match=r"blanks of unknown length needs.*glm"):
        list(filler(hmm).fill(["the <mask>"], blanks=True))


def test_what_does_not_go_together_is_told(hmm):
    with pytest.raises(UserError, match="do not apply to joint filling"):
        filler(hmm).fill(["the <mask>"], joint=True, among=["cat"])
    with pytest.raises(UserError, match="candidates do not apply to sampling"):
        filler(hmm).fill(["the <mask>"], among=["cat"], generator=torch.Generator())
    with pytest.raises(UserError, match="number of fillings must be 1 or more"):
        filler(hmm, top=0)


def test_a_text_too_long_is_told(glm):
    with pytest.raises(UserError, match="must have at most 64 tokens"):
        list(filler(glm).fill([" ".join(["the"] * 80) + " <mask>"]))
