"""Tokenizers: invariants of all kinds, and equal ids from the Hugging Face library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers as hf
import torch

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.data.tokenizers import Tokenizer, train_tokenizer

KINDS = ("word", "char", "bpe", "wordpiece")
TEXTS = [
    "the cat sat on the mat .",
    "the dogs sat on the cats , and the cat 's dog sat .",
    "schöne grüße aus 北京 😀 !",
    "mr. <unk> said <unk> N times .",
] * 3
ODD = [
    "a <s> b </s> c<mask>d <pad> e",
    "<s>",
    "</s></s>",
    "<unk><unk> x<unk>y <unk>",
    "two  spaces\tand\x1ctabs\u00a0\u3000wide",
    "unseen ☃ 字",
    "",
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, TEXTS, size=400)


def test_special_tokens_have_the_first_ids(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token(i) for i in range(5)] == list(SPECIAL_TOKENS)
    assert tokenizer.vocabulary == Vocabulary(size=tokenizer.vocabulary.size)
    assert tokenizer.vocabulary.size <= 400


def test_encode_decode_round_trip_on_seen_text(tokenizer: Tokenizer) -> None:
    # WordPiece separates ideographs, as BERT does.
    same = [text for text in TEXTS if tokenizer.kind != "wordpiece" or "北京" not in text]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in same] == same


def test_decode_omits_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([2, *ids, 4, 3, 0, 0]) == "the cat"


def test_text_never_encodes_to_special_tokens_except_unknown(tokenizer: Tokenizer) -> None:
    # Even if the special tokens are frequent strings in the training text.
    hostile = train_tokenizer(tokenizer.kind, [*TEXTS, *ODD * 50], size=500)
    for candidate in (tokenizer, hostile):
        for text in ODD:
            assert {0, 2, 3, 4}.isdisjoint(candidate.encode(text)), text


def test_literal_unk_encodes_to_the_unknown_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<unk>") == [1]
    ids = tokenizer.encode("the <unk> cat")
    assert ids.count(1) == 1
    assert tokenizer.decode(ids) == "the <unk> cat"


def test_offsets_cover_the_text(tokenizer: Tokenizer) -> None:
    for text in TEXTS[:4] + ODD:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text)
        assert all(0 <= low <= high <= len(text) for low, high in spans)
        assert spans == sorted(spans)
        covered = {index for low, high in spans for index in range(low, high)}
        visible = {index for index, character in enumerate(text) if not character.isspace()}
        assert visible <= covered


def test_fast_encoding_equals_the_tokenizers_library(tokenizer: Tokenizer) -> None:
    library = [encoding.ids for encoding in tokenizer._inner.encode_batch(TEXTS + ODD)]
    assert tokenizer.encode_batch(TEXTS + ODD) == library
    assert (tokenizer._codec is not None) == (tokenizer.kind in ("word", "char"))


def test_save_and_load_round_trip(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.vocabulary) == (tokenizer.kind, tokenizer.vocabulary)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode_batch(TEXTS + ODD) == tokenizer.encode_batch(TEXTS + ODD)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_transformers_loads_the_file_with_equal_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS + ODD:
        assert plain(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text), text
    named = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<mask>",
    )
    assert [named.pad_token_id, named.bos_token_id, named.eos_token_id] == [0, 2, 3]
    for text in TEXTS:
        assert named(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text), text


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    again = train_tokenizer(tokenizer.kind, iter(TEXTS), size=400)
    assert again.fingerprint() == tokenizer.fingerprint()


def test_characters_of_counts_the_first_tokens(tokenizer: Tokenizer) -> None:
    text = TEXTS[1]
    spans = tokenizer.encode_with_offsets(text)[1]
    for count in (0, 1, 3, len(spans), len(spans) + 5):
        first_spans = spans[:count]
        assert tokenizer.characters_of(text, count) == (first_spans[-1][1] if first_spans else 0)


def test_word_vocabulary_is_ordered_by_count_then_spelling() -> None:
    tokenizer = train_tokenizer("word", ["b a c c", "b d"])
    assert [tokenizer.token(i) for i in range(5, 9)] == ["b", "c", "a", "d"]
    assert tokenizer.encode("a b c d e") == [7, 5, 6, 8, 1]


def test_min_count_and_size_limit_the_vocabulary() -> None:
    texts = ["a a a b b c"]
    assert train_tokenizer("word", texts, min_count=2).encode("a b c") == [5, 6, 1]
    assert train_tokenizer("word", texts, size=6).encode("a b c") == [5, 1, 1]
    assert train_tokenizer("char", texts, min_count=3).encode("a b") == [6, 5, 1]  # space first


def test_byte_level_bpe_is_lossless() -> None:
    tokenizer = train_tokenizer("bpe", ["low lower lowest"] * 5, size=270)
    text = "ganz 新しい 🙂 lowest\x07"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 1 not in tokenizer.encode(text)
    merged = [tokenizer.token(i) for i in tokenizer.encode("lowest")]
    assert "".join(merged) == "Ġlowest"
    assert len(merged) < 7  # fewer than its bytes: merges were learned


def test_bpe_without_merges_keeps_its_kind(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bpe", ["ab"])
    tokenizer.save(tmp_path / "t.json")
    assert tokenizer.kind == Tokenizer.load(tmp_path / "t.json").kind == "bpe"


def test_wordpiece_marks_continuation_pieces() -> None:
    tokenizer = train_tokenizer("wordpiece", ["low lower slow er"] * 9, size=40)
    pieces = [tokenizer.token(i) for i in tokenizer.encode("lower")]
    assert pieces[0][:2] != "##"
    assert all(piece.startswith("##") for piece in pieces[1:])


def test_char_tokenizer_words_split_at_spaces_and_ideographs() -> None:
    """法国 is two words for a character model, as in BERT's tokenizer."""
    tokenizer = train_tokenizer("char", ["ab c法国"])
    assert tokenizer.words("ab c") == [0, 0, 1, 2]
    assert tokenizer.words("a法国b") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: train_tokenizer("words", ["a"]),
            "no tokenizer called 'words'; did you mean 'word'",
        ),
        (lambda: train_tokenizer("word", ["a"], min_count=0), "must be 1 or more, got 0"),
        (lambda: train_tokenizer("word", ["a"], size=5), "more than its 5 special tokens"),
        (lambda: train_tokenizer("bpe", ["a"], size=100), "at least 261 for BPE"),
        (lambda: train_tokenizer("word", ["a b"], min_count=2), "no word occurs at least 2 times"),
        (lambda: train_tokenizer("char", []), "no character occurs at least 1 times"),
        (lambda: Tokenizer.load("gone.json"), "there is no file gone.json with a tokenizer"),
    ],
)
def test_invalid_tokenizer_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_invalid_tokenizer_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match=r"t\.json is not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "t.json")


def test_lone_surrogate_is_reported() -> None:
    tokenizer = train_tokenizer("bpe", ["a b"])
    with pytest.raises(UserError, match=r"is not UTF-8"):
        tokenizer.encode("a \ud800")


def test_bert_special_tokens_are_recognised(tmp_path: Path) -> None:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "##b": 6}
    inner = hf.Tokenizer(hf.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    inner.post_processor = hf.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    inner.enable_truncation(2)
    inner.enable_padding()
    inner.save(str(tmp_path / "t.json"))
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert loaded.vocabulary == Vocabulary(size=7)
    assert loaded.encode("ab a a") == [5, 6, 5, 5]  # no [CLS], not truncated


def test_wrapping_does_not_modify_the_given_tokenizer() -> None:
    inner = hf.Tokenizer(hf.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    inner.enable_truncation(2)
    Tokenizer(inner)
    assert inner.truncation is not None


def test_decode_accepts_tensors_and_arrays(tokenizer: Tokenizer) -> None:
    ids = np.array([2, *tokenizer.encode("the cat"), 3], dtype=np.uint16)
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(torch.from_numpy(ids.astype(np.int64))) == "the cat"


def test_gpt2_special_tokens_are_recognised(tmp_path: Path) -> None:
    inner = hf.Tokenizer(hf.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    inner.add_special_tokens(["<|endoftext|>"])
    inner.save(str(tmp_path / "t.json"))
    loaded = Tokenizer.load(tmp_path / "t.json")
    # The one special token is the end, which must stay predictable; padding gets its own id.
    expected = Vocabulary(size=5, pad=4, unknown=None, start=None, end=3, mask=None)
    assert loaded.vocabulary == expected
    assert loaded.encode("aba") == [2, 0]
    assert "<|endoftext|>" not in loaded.decode([0, 2, 3, 4])


def test_unknown_token_is_the_one_the_model_emits(tmp_path: Path) -> None:
    """MPNet's vocabulary also has RoBERTa's <unk>, which its WordPiece never emits."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "the", "[UNK]", "<mask>"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    inner = hf.Tokenizer(hf.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(inner)
    assert tokenizer.vocabulary.unknown == 5
    assert tokenizer.encode("the zebra") == [4, 5]


def test_unigram_unknown_token_is_read_by_id() -> None:
    """XLNet, ALBERT and T5 give its id, not its string."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("[?]", 0.0), ("a", -1.0), ("<unk>", -2.0)]
    tokenizer = Tokenizer(hf.Tokenizer(hf.models.Unigram(pieces, unk_id=2)))
    assert tokenizer.vocabulary.unknown == 2
    assert tokenizer.encode("z") == [2]


def test_with_vocabulary_replaces_special_tokens() -> None:
    tokenizer = train_tokenizer("word", ["a b c"])
    ids = tokenizer.encode("a b c")
    other = tokenizer.with_vocabulary(replace(tokenizer.vocabulary, end=ids[2]))
    assert other.decode(ids) == "a b"
    assert tokenizer.decode(ids) == "a b c"
