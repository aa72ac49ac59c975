"""Lower case and split punctuation: tokens of the changed text, offsets of the original."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.raw_text import examine_raw_text, raw_text_warning
from lmlab.data.tokenizer_training import TextRules
from lmlab.data.tokenizers import Tokenizer, train_tokenizer

BOTH = TextRules(lowercase=True, split_punctuation=True)
TEXTS = [
    'The dog, the "cat" and AT&T don\'t sleep.',
    "Don't (ever) pay 3.14 or 1,000,000 at 10:30; well-known... U.S. law!",
    "ΣΊΣΥΦΟΣ, Straße — ÉTÉ?",
    "我爱北京，天安门。",
]
SPLIT = [
    'the dog , the " cat " and at&t don\'t sleep .',
    "don't ( ever ) pay 3.14 or 1,000,000 at 10:30 ; well-known . . . u.s . law !",
    "σίσυφοσ , straße — été ?",  # character by character: no final sigma
    "我爱北京 ， 天安门 。",
]
"""By hand."""


@pytest.mark.parametrize(("text", "split"), list(zip(TEXTS, SPLIT, strict=True)))
def test_words_and_offsets_by_hand(text: str, split: str) -> None:
    tokenizer = train_tokenizer("word", TEXTS, rules=BOTH)
    ids, spans = tokenizer.encode_with_offsets(text)
    assert [tokenizer.token(id) for id in ids] == split.split()
    # Offsets are those of the original text, whose characters they cover but for white space.
    assert [text[a:b].lower().replace("ς", "σ") for a, b in spans] == split.split()
    assert tokenizer.encode_batch([text]) == [ids]


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_a_tokenizer_with_rules_gives_the_tokens_of_the_changed_text(kind: str) -> None:
    """On random strings: the tokenizer without rules, trained on changed texts, is the oracle."""
    ruled = train_tokenizer(kind, TEXTS, rules=BOTH)
    plain = train_tokenizer(kind, SPLIT)
    random_source = random.Random(0)
    alphabet = "aBé,.-'()19 İß。我<>&\t"
    for _ in range(300):
        text = "".join(random_source.choices(alphabet, k=12))
        assert ruled.encode(text) == plain.encode(BOTH.change(text)), text
        for start, end in ruled.encode_with_offsets(text)[1]:
            assert 0 <= start < end <= len(text)


def test_lowercase_alone_keeps_punctuation() -> None:
    tokenizer = train_tokenizer("word", TEXTS, rules=TextRules(lowercase=True))
    assert [tokenizer.token(id) for id in tokenizer.encode(TEXTS[0])][:2] == ["the", "dog,"]
    subwords = train_tokenizer("bpe", TEXTS, rules=TextRules(lowercase=True))
    assert subwords.encode("THE DOG") == subwords.encode("the dog")
    assert subwords.encode_with_offsets("THE")[1][-1][1] == 3


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_no_special_token_can_be_spelled(kind: str) -> None:
    tokenizer = train_tokenizer(kind, [*TEXTS, "< > s / pad mask"], rules=BOTH)
    reserved = {*tokenizer.vocabulary.unpredictable, tokenizer.vocabulary.end}
    for name in ("<s>", "</s>", "<pad>", "<mask>", "<S>", "<MASK>"):
        for text in (name, f"a{name}b", f"({name})", f"a {name} b"):
            assert not reserved & set(tokenizer.encode(text)), text
    unknown = tokenizer.vocabulary.unknown
    assert tokenizer.encode("the <unk>, dog").count(unknown) == 1


def test_rules_are_kept_in_the_file(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("word", TEXTS, rules=BOTH)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert loaded.encode(text) == ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert loaded.kind == "word"


@pytest.mark.parametrize(
    ("kind", "rules", "message"),
    [
        ("byte", TextRules(lowercase=True), "lowercase applies to the tokenizers word"),
        ("char", TextRules(lowercase=True), "lowercase applies to the tokenizers word"),
        ("bpe", BOTH, "punctuation=split does not apply to the tokenizer bpe"),
    ],
)
def test_rules_that_do_not_apply_are_refused(kind: str, rules: TextRules, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_tokenizer(kind, TEXTS, rules=rules)


RAW = ["The dog sleeps, and the cat too.", "A dog sees (a cat).", "Who is it?"] * 10
TOKENISED = ["the dog sleeps , and mr. smith too .", "a dog sees n't -lrb- a cat -rrb- ."] * 15


def test_raw_text_is_found_with_examples() -> None:
    raw = examine_raw_text(RAW)
    assert (raw.texts, raw.attached, raw.capitals) == (30, 30, 20)
    sentence = raw.warning(lowercase=False)
    assert "100% of the texts have punctuation attached to words ('sleeps,', 'too.'" in sentence
    assert "67% begin with a capital letter ('The' beside 'the', 'A' beside 'a')" in sentence
    assert "--set punctuation=split lowercase=true" in sentence
    assert "lowercase" not in raw.warning(lowercase=True)
    assert examine_raw_text(TOKENISED).warning(lowercase=False) == ""
    assert examine_raw_text([]).warning(lowercase=False) == ""


def test_only_a_tokenizer_that_splits_at_spaces_is_warned_of() -> None:
    warned = {
        (kind, rules.split_punctuation): bool(
            raw_text_warning(RAW, train_tokenizer(kind, RAW, rules=rules), lowercase=False)
        )
        for kind, rules in [
            ("word", TextRules()),
            ("word", BOTH),
            ("wordpiece", TextRules()),
            ("char", TextRules()),
        ]
    }
    assert warned == {
        ("word", False): True,
        ("word", True): False,
        ("wordpiece", False): False,
        ("char", False): False,
    }


def test_training_warns_and_the_run_keeps_its_rules(tmp_path: Path, capfd) -> None:
    import lmlab

    (tmp_path / "raw.txt").write_text("\n".join(RAW) + "\n")
    options = {"data": tmp_path / "raw.txt", "size": "tiny"}
    lmlab.train("ngram", out=tmp_path / "raw", **options)
    assert "the corpus looks raw" in capfd.readouterr().err
    rules = {"lowercase": True, "punctuation": "split"}
    lmlab.train("ngram", out=tmp_path / "split", settings=rules, **options)
    assert "raw" not in re.sub(r"\S*/\S*", "", capfd.readouterr().err)
    model = lmlab.load(tmp_path / "split")
    [score] = model.score(["The DOG sleeps."])
    assert [token.token for token in score.per_token] == ["The", "DOG", "sleeps", ".", "</s>"]
    assert score.unknown == 0
    with pytest.raises(UserError, match="for a new tokenizer"):
        lmlab.train(
            "ngram",
            out=tmp_path / "again",
            tokenizer=str(tmp_path / "raw" / "tokenizer.json"),
            settings=rules,
            **options,
        )
