"""Byte tokenizer: lossless for any text, offsets of multi-byte characters, runs, Hub folders."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tokenizers as hf
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.score import summarise
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.objectives.masking.whole_word_masking import WORD_RULES
from lmlab.scoring.formatting import describe_summary
from lmlab.scoring.score_accumulator import TOKEN_CHUNK_CHARACTERS, token_chunks
from lmlab.scoring.scorer import Scorer

BYTES = train_tokenizer("byte", [])
TEXTS = [
    "",
    " a中é<s>\n\x00😀 ",
    "<unk><pad></s> <mask>[MASK]",
    "two  spaces\tand\x1ctabs\u00a0\u3000wide\ufeff\r\n",
    "e\u0301 \ufffd \U0010ffff \ud7ff\ue000\x7f\x80",
]
POEM = ["床前明月光", "疑是地上霜", "举头望明月", "低头思故乡"]


def test_ids_by_hand():
    """Byte b has the id 4 + b; 中 is E4 B8 AD in UTF-8."""
    assert BYTES.vocabulary == Vocabulary(size=260, pad=0, unknown=None, start=1, end=2, mask=3)
    assert BYTES.encode("a 中") == [4 + 0x61, 4 + 0x20, 4 + 0xE4, 4 + 0xB8, 4 + 0xAD]
    spelled = [BYTES.token(id) for id in (0, 1, 2, 3, *BYTES.encode("a 中"))]
    assert spelled[:4] == ["<pad>", "<s>", "</s>", "<mask>"]
    assert spelled[4:] == ["a", " ", "<0xE4>", "<0xB8>", "<0xAD>"]


def test_any_text_is_restored():
    every = "".join(chr(code) for code in range(0, 0x110000, 37) if not 0xD800 <= code < 0xE000)
    for text in [*TEXTS, every]:
        ids = BYTES.encode(text)
        assert BYTES.decode([1, *ids, 2, 0]) == text
        assert {0, 1, 2, 3}.isdisjoint(ids) and len(ids) == len(text.encode())


def test_ids_and_offsets_equal_the_tokenizers_library(tmp_path: Path):
    BYTES.save(tmp_path / "tokenizer.json")
    library = hf.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        encoding = library.encode(text)
        assert BYTES.encode_with_offsets(text) == (encoding.ids, encoding.offsets), text
        assert library.decode(encoding.ids) == text
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.fingerprint()) == ("byte", BYTES.fingerprint())
    # The spelling of a byte in a text is text.
    assert loaded.decode(loaded.encode("<0xE4>")) == "<0xE4>"


def test_all_bytes_of_a_character_have_its_offsets():
    assert BYTES.encode_with_offsets("a中b")[1] == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert [BYTES.characters_of("a中b", count) for count in range(7)] == [0, 1, 2, 2, 2, 3, 3]
    assert BYTES.words("ab 中é c") == [0, 0, 1, 2, 2, 2, 3, 3, 4, 5]


def test_incomplete_characters_are_shown_as_replacements():
    first, second, third = BYTES.encode("中")
    assert BYTES.decode([first, second]) == "\ufffd"
    assert BYTES.decode([101, third, 101]) == "a\ufffda"


def test_what_is_no_text_is_refused():
    with pytest.raises(UserError, match=r"'\\\\ud800' is not UTF-8"):
        BYTES.encode("\ud800")
    with pytest.raises(UserError, match="vocabulary_size does not apply to the tokenizer byte"):
        train_tokenizer("byte", ["a"], size=100)


def test_words_of_whole_word_masking():
    """Letters and bytes beyond ASCII continue a word; an ideograph's first byte begins one."""
    tokens = [BYTES.token(id) for id in BYTES.encode("a1 é中-")]
    begins, ends = WORD_RULES["byte"](tokens)
    assert tokens == ["a", "1", " ", "<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>", "<0xAD>", "-"]
    assert [i for i, begin in enumerate(begins) if begin] == [2, 5, 8]
    assert [i for i, end in enumerate(ends) if end] == [2, 8]


def test_long_texts_are_divided_without_effect():
    text = "中a" * TOKEN_CHUNK_CHARACTERS
    chunks = list(token_chunks(BYTES, text))
    assert len(chunks) == 2
    ids, spans = BYTES.encode_with_offsets(text)
    assert [id for chunk in chunks for id in chunk.ids] == ids
    assert [span for chunk in chunks for span in chunk.spans] == spans


def uniform_scorer(**options) -> Scorer:
    """Every byte and the end token equally probable: 1 of 257."""
    module = system_module("window")
    system = module.build(module.SIZES["tiny"], BYTES.vocabulary)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.zero_()
    return Scorer(system, BYTES, Layout(), **options)


def test_bits_per_byte_and_per_character_by_hand():
    """a中 has 4 bytes and an end, é has 2 and one: 8 times log₂ 257 bits, 6 bytes, 3 characters."""
    scores = list(uniform_scorer().score(["a中", "é"]))
    assert [(score.tokens, score.characters, score.utf8_bytes) for score in scores] == [
        (5, 2, 4),
        (3, 1, 2),
    ]
    summary = summarise(scores)
    assert summary.bits_per_byte == pytest.approx(8 * math.log2(257) / 6)
    assert summary.bits_per_character == pytest.approx(8 * math.log2(257) / 3)
    assert "; unknown words never occur; " in describe_summary(summary)


def test_a_cut_counts_the_bytes_of_what_is_scored():
    """Start token and two bytes: a and the first byte of 中, which counts as a whole character."""
    [score] = uniform_scorer(cut=3).score(["a中b"])
    assert (score.tokens, score.characters, score.utf8_bytes) == (2, 2, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "poem").mkdir()
    for split in ("train", "valid"):
        (folder / "poem" / f"{split}.txt").write_text("\n".join(POEM * 5) + "\n", "utf-8")
    lmlab.train(
        "gpt", data=folder / "poem", out=folder / "gpt", tokenizer="byte", size="tiny", steps=3
    )
    return folder / "gpt"


def test_run_scores_and_continues_any_text(run: Path):
    model = lmlab.load(run)
    [score] = model.score(["疑 <unk> Ω😀"])
    assert (score.unknown, score.tokens, score.utf8_bytes) == (0, 17, 16)
    assert [token.token for token in score.per_token[:4]] == ["疑", "疑", "疑", " "]
    for sample in model.sample(3, seed=0, prefix="床", max_length=12):
        assert sample.text.startswith("床")


def test_hub_folder_has_the_same_ids_and_scores(run: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    lmlab.export_hf(run, tmp_path / "hub")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    # A spelled-out special token is one to transformers, as with any tokenizer.
    for text in [TEXTS[1].replace("<s>", ""), *TEXTS[3:], *POEM]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == BYTES.encode(text)
        assert theirs.decode(BYTES.encode(text)) == text
    again = lmlab.import_hf(tmp_path / "hub", out=tmp_path / "again")
    [ours], [back] = (model.score(POEM[:1]) for model in (lmlab.load(run), again))
    assert back.total == pytest.approx(ours.total, abs=1e-4)
    assert [token.start for token in back.per_token] == [token.start for token in ours.per_token]
