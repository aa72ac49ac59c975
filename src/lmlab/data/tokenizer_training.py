"""Tokenizer training: word-level, character, byte, byte-level BPE and WordPiece."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.core.limits import check_limit
from lmlab.core.vocabulary import END, MASK, PAD, SPECIAL_TOKENS, START, UNKNOWN

RESERVED_TOKENS = frozenset({PAD, START, END, MASK})
"""Special tokens that cannot occur in a text."""
BYTE_SPECIAL_TOKENS = (PAD, START, END, MASK)
"""Special tokens of the byte tokenizer, in the order of their ids: no byte is unknown."""
SUBWORD_SIZE = 8000
SPECIAL_TOKEN_WORD = r"(?<!\S)<(?:pad|s|/s|mask)>(?!\S)"
SPECIAL_TOKEN_OPENING = r"<(?=(?:pad|s|/s|mask)>)"
CJK_PATTERN = r"[\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{3ffff}]"


LETTER = r"[\p{L}\p{N}]"
MARK = r"[!-/:-@\[-`{-~\p{P}]"
"""A punctuation mark: Unicode's, and ASCII's symbols, as in BERT."""
INNER_MARK = rf"(?<={LETTER})(?:['’‐‑.&_@/-](?={LETTER})|[,:](?=\p{{N}})(?<=\p{{N}}[,:]))"
"""A mark inside a word or number, which stays: don't, well-known, AT&T, 3.14, 10:30."""
PUNCTUATION = rf"{UNKNOWN}|(?!{INNER_MARK}){MARK}"
"""What `punctuation=split` makes tokens of their own; a literal <unk> stays whole."""


@dataclass(frozen=True, kw_only=True)
class TextRules:
    """What is done to a text before it is divided into tokens.

    A tokenizer with rules gives the tokens of the changed text, by its normaliser and its
    pre-tokenizer; so its tokenizer.json has them, and offsets are those of the original text.
    """

    lowercase: bool = False
    split_punctuation: bool = False
    """Whether marks at the edges of words are tokens of their own: `dog,` is `dog` and `,`."""

    def check(self, kind: str) -> None:
        """A UserError where a rule does not apply to a kind of tokenizer."""
        if self.lowercase and kind not in ("word", "wordpiece", "bpe"):
            raise UserError(
                f"lowercase applies to the tokenizers word, wordpiece and bpe, got {kind}; remove "
                "it."
            )
        if self.split_punctuation and kind not in ("word", "wordpiece"):
            raise UserError(
                f"punctuation=split does not apply to the tokenizer {kind}, whose tokens never "
                "join letters and punctuation; remove it."
            )

    def change(self, text: str) -> str:
        """A text in lower case, with spaces around its marks."""
        if self.lowercase:
            text = str(normalizers.Lowercase().normalize_str(text))
        if self.split_punctuation:
            text = " ".join(piece for piece, _ in _punctuation_split().pre_tokenize_str(text))
        return text

    def add_to(self, inner: HfTokenizer) -> HfTokenizer:
        """The tokenizer of changed texts, as one of original texts."""
        if self.lowercase:
            before = [] if inner.normalizer is None else [inner.normalizer]
            inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
        if self.split_punctuation:
            inner.pre_tokenizer = pre_tokenizers.Sequence(
                [_punctuation_split(), inner.pre_tokenizer]
            )
        return inner


NO_RULES = TextRules()


@cache
def _punctuation_split() -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(PUNCTUATION), "isolated")


@dataclass(frozen=True)
class TokenizerKind:
    """A tokenizer kind: how it is assembled and trained."""

    assemble: Callable[[Any], HfTokenizer]
    """From a vocabulary (or a trained model) to the tokenizer."""
    train: Callable[[Iterable[str], int, int | None], HfTokenizer]
    """From texts, minimum count and vocabulary size to the tokenizer."""


def train_kind(
    kind: str,
    texts: Iterable[str],
    *,
    min_count: int,
    size: int | None,
    rules: TextRules = NO_RULES,
) -> HfTokenizer:
    """Train a tokenizer of that kind, in one pass over the texts."""
    if kind not in TRAINERS:
        raise unknown_name_or_path("tokenizer", kind, [*TRAINERS, "a tokenizer.json"])
    if min_count < 1:
        raise UserError(f"min_count must be 1 or more, got {min_count}; try 1.")
    if size is not None and size <= len(SPECIAL_TOKENS):
        raise UserError(
            f"vocabulary_size must be more than its {len(SPECIAL_TOKENS)} special tokens, got "
            f"{size}."
        )
    if kind in ("bpe", "wordpiece"):  # the library allocates the whole size at once
        check_limit("vocabulary", size or 0, called="vocabulary_size")
    rules.check(kind)
    if rules != NO_RULES:
        texts = map(rules.change, texts)
    try:
        return rules.add_to(TRAINERS[kind].train(texts, min_count, size))
    except UnicodeEncodeError:
        raise UserError("a text holds half of a surrogate pair, which is no character.") from None


def without_vocabulary(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a tokenizer without its learned vocabulary, for comparison."""
    bare = copy.copy(settings)
    bare["model"] = {key: value for key, value in settings["model"].items() if key != "vocab"}
    bare["added_tokens"] = [
        {key: value for key, value in token.items() if key != "id"}
        for token in settings["added_tokens"]
    ]
    return bare


def word_level_tokenizer(vocabulary: dict[str, int]) -> HfTokenizer:
    """Word-level tokenizer: splits on white space; spelled-out special tokens become <unk>."""
    inner = HfTokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # Rust does not count the separators 1c to 1f as white space, Python does.
    inner.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"[\x1c-\x1f]"), " "),
            normalizers.Replace(Regex(SPECIAL_TOKEN_WORD), UNKNOWN),
        ]
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


def _train_words(texts: Iterable[str], min_count: int, size: int | None) -> HfTokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
        check_limit("words", len(counts), called="the number of different words")
    return word_level_tokenizer(_rank_by_count(counts, min_count, size, "word"))


def _character_tokenizer(vocabulary: dict[str, int]) -> HfTokenizer:
    # BPE without merges: one token per character, and much faster than splitting into words first.
    inner = HfTokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(UNKNOWN, normalized=False, special=True)])
    return inner


def _train_characters(texts: Iterable[str], min_count: int, size: int | None) -> HfTokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.replace(UNKNOWN, ""))
    return _character_tokenizer(_rank_by_count(counts, min_count, size, "character"))


def _rank_by_count(
    counts: Counter[str], min_count: int, size: int | None, unit: str
) -> dict[str, int]:
    """Vocabulary: special tokens first, then tokens by falling count, ties by code point."""
    frequent = [
        token for token in counts if counts[token] >= min_count and token not in SPECIAL_TOKENS
    ]
    if not frequent:
        raise UserError(
            f"no {unit} occurs at least {min_count:,} times, so the vocabulary is empty; lower "
            "min_count or give more text."
        )
    frequent.sort(key=lambda token: (-counts[token], token))
    if size is None:
        check_limit("vocabulary", len(frequent), called=f"the number of different {unit}s")
    max_tokens = None if size is None else size - len(SPECIAL_TOKENS)
    return {token: number for number, token in enumerate([*SPECIAL_TOKENS, *frequent[:max_tokens]])}


def byte_spelling(byte: int) -> str:
    """The token of a byte: an ASCII character as it is, others as <0xE4>."""
    return chr(byte) if byte < 0x80 else f"<0x{byte:02X}>"


def byte_level_tokenizer() -> HfTokenizer:
    """Byte tokenizer: byte b of a text in UTF-8 has the id 4 + b, after the special tokens.

    As in ByT5 (Xue et al. 2022) nothing is unknown and any text is restored exactly, a spelled-out
    special token included. BPE without merges, whose byte fallback encodes what is not ASCII.
    """
    tokens = [*BYTE_SPECIAL_TOKENS, *map(byte_spelling, range(256))]
    ids = {token: id for id, token in enumerate(tokens)}
    inner = HfTokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return inner


def _no_training(texts: Iterable[str], min_count: int, size: int | None) -> HfTokenizer:
    if size is not None:
        raise UserError(
            "vocabulary_size does not apply to the tokenizer byte, which always has "
            f"{len(BYTE_SPECIAL_TOKENS) + 256} tokens; remove it."
        )
    return byte_level_tokenizer()


def _bpe_tokenizer(model: models.BPE) -> HfTokenizer:
    # Byte-level BPE (Radford et al. 2019): lossless, and nothing is unknown. Letters never merge
    # with punctuation, so no merge can spell a special token.
    inner = HfTokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(UNKNOWN, lstrip=True, normalized=False, special=True)])
    return inner


def _train_byte_pairs(texts: Iterable[str], min_count: int, size: int | None) -> HfTokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    min_size = len(SPECIAL_TOKENS) + len(alphabet)
    if size is not None and size < min_size:
        raise UserError(
            f"vocabulary_size must be at least {min_size} for BPE (special tokens and bytes), got "
            f"{size}."
        )
    trainer = BpeTrainer(
        vocab_size=size or SUBWORD_SIZE,
        min_frequency=max(2, min_count),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    draft = _bpe_tokenizer(models.BPE())
    draft.train_from_iterator(_chunks(texts), trainer=trainer)
    return _bpe_tokenizer(draft.model)


def _wordpiece_tokenizer(model: models.WordPiece) -> HfTokenizer:
    # Split at white space only, so that decoding restores the text; each CJK character is a word,
    # as in BERT, because such sentences have no spaces.
    inner = HfTokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(CJK_PATTERN), "isolated"),
            pre_tokenizers.Split(Regex(SPECIAL_TOKEN_OPENING), "isolated"),
        ]
    )
    inner.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    inner.add_special_tokens([AddedToken(UNKNOWN, normalized=False, special=True)])
    return inner


def _train_word_pieces(texts: Iterable[str], min_count: int, size: int | None) -> HfTokenizer:
    size = size or SUBWORD_SIZE
    draft = _wordpiece_tokenizer(models.WordPiece(unk_token=UNKNOWN))
    words = _count_pretokens(draft, texts)
    characters: Counter[str] = Counter()
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    ranked = sorted(characters, key=lambda c: (-characters[c], c))
    alphabet = ranked[: max(1, (size - len(SPECIAL_TOKENS)) // 2)]
    # The library numbers its initial alphabet in hash-table order, which differs from run to run,
    # and breaks ties by number. Passing it as special tokens fixes the order and so the result.
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=max(2, min_count),
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *_continuations(words, frozenset(alphabet))],
        show_progress=False,
    )
    spellable = {word: count for word, count in words.items() if set(word) <= set(alphabet)}
    draft.train_from_iterator(_repeat_by_count(spellable), trainer=trainer)
    return _wordpiece_tokenizer(draft.model)


def _count_pretokens(draft: HfTokenizer, texts: Iterable[str]) -> dict[str, int]:
    """Word counts, with words as the tokenizer's pre-tokenizer splits them."""
    spaced: Counter[str] = Counter()
    for text in texts:
        spaced.update(text.replace(UNKNOWN, " ").split())
        check_limit("words", len(spaced), called="the number of different words")
    words: Counter[str] = Counter()
    for chunk, count in spaced.items():
        for word, _ in draft.pre_tokenizer.pre_tokenize_str(chunk):
            words[word] += count
    return words


def _continuations(words: Iterable[str], alphabet: frozenset[str]) -> list[str]:
    """The characters that occur inside words, with WordPiece's continuation prefix."""
    inside = {character for word in words for character in word[1:]}
    return [f"##{character}" for character in sorted(inside & alphabet)]


def _repeat_by_count(counts: dict[str, int], chunk_size: int = 1000) -> Iterator[list[str]]:
    """Repeat each word as often as it was counted."""
    for word, count in counts.items():
        for low in range(0, count, chunk_size):
            yield [word] * min(chunk_size, count - low)


def _chunks(texts: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    """Texts in lists: crossing into the library for each text costs more than the work."""
    remaining = iter(texts)
    while chunk := [text.replace(UNKNOWN, " ") for text in islice(remaining, size)]:
        yield chunk


TRAINERS: dict[str, TokenizerKind] = {
    "word": TokenizerKind(word_level_tokenizer, _train_words),
    "char": TokenizerKind(_character_tokenizer, _train_characters),
    "byte": TokenizerKind(lambda vocabulary: byte_level_tokenizer(), _no_training),
    "bpe": TokenizerKind(_bpe_tokenizer, _train_byte_pairs),
    "wordpiece": TokenizerKind(_wordpiece_tokenizer, _train_word_pieces),
}
