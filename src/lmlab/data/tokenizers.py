"""Tokenizers: word, character, byte, BPE and WordPiece, based on the `tokenizers` library.

All are saved as `tokenizer.json`, which Hugging Face's libraries load with the same ids. Ours have
the special tokens <pad> <unk> <s> </s> <mask> with ids 0 to 4. A literal "<unk>" in a text (as in
PTB) is the unknown token; the other special tokens cannot be spelled in a text: the word "<s>" is
unknown, and the other kinds see its characters. The ids of a third-party tokenizer.json are checked
first: the library lists every id up to the largest, so a damaged one would fill the memory.

The byte tokenizer has no unknown token: <pad> <s> </s> <mask> have ids 0 to 3, byte b has id 4 + b.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import tokenizers as hf

from lmlab.core.atomic_files import write_bytes
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import check_text, parse_json
from lmlab.core.vocabulary import END, MASK, PAD, START, UNKNOWN, Vocabulary
from lmlab.data.corpus import Corpus
from lmlab.data.text_codecs import ByteCodec, CharacterCodec, TextCodec, WordCodec
from lmlab.data.tokenizer_training import (
    BYTE_SPECIAL_TOKENS,
    NO_RULES,
    RESERVED_TOKENS,
    TRAINERS,
    TextRules,
    byte_level_tokenizer,
    train_kind,
    without_vocabulary,
)

SPARE = 10_000
"""Ids that a vocabulary may skip, in addition to as many as it has tokens."""


def check_tokenizer_json(document: Any) -> None:
    """Raise a ValueError if the ids of a tokenizer.json are implausible for its tokens."""
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, got {type(document).__name__}")
    check_ids([*_model_ids(document.get("model")), *_added_ids(document.get("added_tokens"))])


def check_ids(ids: Iterable[Any]) -> None:
    """Raise a ValueError if an id is not an integer or far beyond the number of tokens."""
    listed = list(ids)
    id_limit = 2 * len(listed) + SPARE
    for id in listed:
        if type(id) is not int or not 0 <= id < id_limit:
            raise ValueError(f"{str(id)[:40]} can't be the id of one of {len(listed):,} tokens")


def _model_ids(model: Any) -> Iterator[Any]:
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.values()
    elif isinstance(vocabulary, list):  # unigram model: the id is the index
        yield from range(len(vocabulary))


def _added_ids(tokens: Any) -> Iterator[Any]:
    if isinstance(tokens, list):
        yield from (token["id"] for token in tokens if isinstance(token, dict) and "id" in token)


SPECIAL_TOKEN_NAMES: dict[str, tuple[str, ...]] = {
    "pad": (PAD, "[PAD]", "<|pad|>", "<|padding|>"),
    "unknown": (UNKNOWN, "[UNK]"),
    "start": (START, "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "end": (END, "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "mask": (MASK, "[MASK]"),
}
"""Spellings of each special token in third-party tokenizers, in order of preference."""


class Tokenizer:
    """Tokenizer: text to ids and back, wrapping a `tokenizers.Tokenizer`."""

    def __init__(self, inner: hf.Tokenizer) -> None:
        # A copy, so that the caller's object keeps its padding and truncation.
        inner = hf.Tokenizer.from_str(inner.to_str())
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._settings: dict[str, Any] = json.loads(inner.to_str())
        self.kind = _kind(self._settings)
        """word, char, byte, bpe, wordpiece or unigram."""
        self.vocabulary = _vocabulary(inner, self._settings)
        self._codec = self._make_codec()
        self._dropped = {*self.vocabulary.unpredictable, self.vocabulary.end}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without start or end token."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without start or end token."""
        for text in texts:
            check_text(text)
        if self._codec is not None:
            return [self._codec.encode(text) for text in texts]
        with _library_errors():
            encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text, and the character span [start, end) of each token.

        Spans exclude surrounding white space.
        """
        check_text(text)
        if self._codec is not None:
            return self._codec.encode(text), self._codec.spans(text)
        with _library_errors():
            encoding = self._inner.encode(text, add_special_tokens=False)
        return encoding.ids, [_stripped(text, low, high) for low, high in encoding.offsets]

    def words(self, text: str) -> list[int]:
        """Word index, from 0, of each token of a text.

        Words are what the pre-tokenizer splits a text into (at white space and punctuation, say);
        for our character and byte tokenizers, runs between white space, each white space and each
        CJK character.
        """
        check_text(text)
        if self._codec is not None:
            return self._codec.words(text)
        # A token outside any word (a special token) gets a unique negative index.
        with _library_errors():
            word_ids = self._inner.encode(text, add_special_tokens=False).word_ids
        return [-1 - position if word is None else word for position, word in enumerate(word_ids)]

    def characters_of(self, text: str, count: int) -> int:
        """Number of characters covered by the first `count` tokens of a text."""
        spans = self.encode_with_offsets(text)[1][:count]
        return spans[-1][1] if spans else 0

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids into text: words joined by spaces, characters by nothing.

        Special tokens are dropped except <unk>, which is an outcome like the others. Bytes that
        spell no character become U+FFFD.
        """
        content = [i for i in map(int, ids) if i not in self._dropped]
        if isinstance(self._codec, ByteCodec) and max(content, default=0) < self._codec.end:
            return self._codec.decode(content)
        if self.kind in ("word", "char"):
            tokens = [self.token(i) for i in content]
            return (" " if self.kind == "word" else "").join(tokens)
        text = self._inner.decode(content, skip_special_tokens=False)
        # The unknown token of byte-level BPE swallows the preceding space; restore it.
        return text.replace(UNKNOWN, f" {UNKNOWN}").strip() if self.kind == "bpe" else text

    def token(self, id: int) -> str:
        """The token string of an id; <pad> for an id without one."""
        token: str | None = self._inner.id_to_token(int(id))
        return PAD if token is None else token

    @property
    def splits_at_spaces_alone(self) -> bool:
        """Whether its tokens are the words between white space, punctuation attached."""
        before = self._settings["pre_tokenizer"]
        return self.kind == "word" and before is not None and before["type"] == "WhitespaceSplit"

    @property
    def symbols(self) -> frozenset[int]:
        """Ids of the special tokens; <unk>, which stands for a word, is not among them."""
        special = {token["id"] for token in self._settings["added_tokens"] if token["special"]}
        known = {id for id in special | self._dropped if id is not None}
        # If the end token doubles as the unknown token (GPT-2), it is a special token.
        return frozenset(known - ({self.vocabulary.unknown} - {self.vocabulary.end}))

    def id(self, token: str) -> int | None:
        """The id of a token string, or None."""
        token_id: int | None = self._inner.token_to_id(token)
        return token_id

    def with_vocabulary(self, vocabulary: Vocabulary) -> Tokenizer:
        """The same tokenizer with other special tokens."""
        other = copy(self)
        other.vocabulary = vocabulary
        other._dropped = {*vocabulary.unpredictable, vocabulary.end}
        return other

    def save(self, path: Path | str) -> None:
        """Write `tokenizer.json` atomically."""
        write_bytes(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of `tokenizer.json`."""
        return str(self._inner.to_str(pretty=True)).encode()

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """Load a tokenizer from any `tokenizer.json`, ours or Hugging Face's.

        Special tokens of third-party tokenizers are identified by their usual names. If one token
        is both start and end (GPT-2), it is the end token and also precedes a text; without a
        padding token, an id beyond the vocabulary is used.
        """
        if not Path(path).exists():
            raise UserError(f"there is no file {path} with a tokenizer; check the path.")
        try:
            text = Path(path).read_text(encoding="utf-8")
            check_tokenizer_json(parse_json(text))
            inner = hf.Tokenizer.from_str(text)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot read the tokenizer {path}: {reason}.") from error
        except BaseException as error:  # the library raises bare Exceptions and Rust panics
            if not _is_failure(error):
                raise
            raise UserError(f"{path} is not a tokenizer.json: {error}.") from error
        try:
            return cls(inner)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is damaged ({type(error).__name__}: {error}); restore it."
            ) from error

    def fingerprint(self) -> str:
        """Hash of everything that determines the ids."""
        return hashlib.blake2b(self._inner.to_str().encode(), digest_size=16).hexdigest()

    def _make_codec(self) -> TextCodec | None:
        """The codec of our word, character and byte tokenizers: five times as fast.

        None unless the settings equal those of our own tokenizers, for which the results agree.
        """
        if self.kind == "byte":
            ours = json.loads(byte_level_tokenizer().to_str()) == self._settings
            return ByteCodec(len(BYTE_SPECIAL_TOKENS)) if ours else None
        if self.kind not in ("word", "char"):
            return None
        reference = json.loads(TRAINERS[self.kind].assemble({UNKNOWN: 0}).to_str())
        if without_vocabulary(reference) != without_vocabulary(self._settings):
            return None
        if UNKNOWN not in self._settings["model"]["vocab"]:
            return None
        ids = {
            token: number
            for token, number in self._settings["model"]["vocab"].items()
            if token not in RESERVED_TOKENS
        }
        return WordCodec(ids) if self.kind == "word" else CharacterCodec(ids)


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    *,
    min_count: int = 1,
    size: int | None = None,
    rules: TextRules = NO_RULES,
) -> Tokenizer:
    """Train a tokenizer of a kind (word, char, byte, bpe, wordpiece) on texts.

    `min_count`: rarer words or characters (for BPE and WordPiece, pairs) get no token of their own.
    `size`: maximum vocabulary size, special tokens included; 8,000 by default for BPE and
    WordPiece, unlimited for the others. Memory grows with the number of distinct words. Bytes need
    no training: the texts are not read, and both do not apply. `rules`: lower case, and punctuation
    marks as tokens of their own.
    """
    return Tokenizer(train_kind(kind, texts, min_count=min_count, size=size, rules=rules))


def tokenizer_for(
    corpus: Corpus,
    kind: str | None = None,
    *,
    min_count: int | None = None,
    size: int | None = None,
    rules: TextRules = NO_RULES,
    source: bool | None = None,
) -> Tokenizer:
    """Train a corpus's default tokenizer, or another kind, on the splits it names.

    `source`: for pairs, train on the sources only or the targets only; on both if None.
    """
    return train_tokenizer(
        kind or corpus.tokenizer,
        corpus.vocabulary_texts(source=source),
        min_count=corpus.min_count if min_count is None else min_count,
        size=size,
        rules=rules,
    )


def _is_failure(error: BaseException) -> bool:
    """Whether the `tokenizers` library failed; a Rust panic is no Exception in Python."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def _library_errors() -> Iterator[None]:
    """Turn library errors into a UserError: a damaged tokenizer fails only when used."""
    try:
        yield
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise UserError(
            f"the tokenizer can't encode this text ({error}); restore its tokenizer.json."
        ) from error


def _stripped(text: str, low: int, high: int) -> tuple[int, int]:
    """The span without surrounding white space; an empty one collapses to its end."""
    low += len(text[low:high]) - len(text[low:high].lstrip())
    return low, max(low, low + len(text[low:high].rstrip()))


def _kind(settings: dict[str, Any]) -> str:
    model: dict[str, Any] = settings["model"]
    kinds = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}
    if model["type"] == "BPE":
        # Our character and byte tokenizers have no merges and no pre-tokenizer.
        whole = "byte" if model["byte_fallback"] else "char"
        return "bpe" if model["merges"] or settings["pre_tokenizer"] else whole
    return kinds.get(str(model["type"]), str(model["type"]).lower())


def _unknown_token_name(model: dict[str, Any]) -> tuple[str, ...]:
    """The tokenizer's own unknown token, which may differ from the usual name.

    MPNet's vocabulary has a token <unk>, but its unknown token is [UNK].
    """
    if model.get("unk_token"):
        return (str(model["unk_token"]),)
    if model.get("unk_id") is not None:
        return (str(model["vocab"][model["unk_id"]][0]),)
    return ()


def _vocabulary(inner: hf.Tokenizer, settings: dict[str, Any]) -> Vocabulary:
    ids: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    unknown_names = _unknown_token_name(settings["model"])
    names = SPECIAL_TOKEN_NAMES | {"unknown": (*unknown_names, *SPECIAL_TOKEN_NAMES["unknown"])}
    special_ids = {
        role: next((ids[name] for name in spellings if name in ids), None)
        for role, spellings in names.items()
    }
    if special_ids["start"] == special_ids["end"]:
        special_ids["start"] = None
    size = max(ids.values()) + 1
    pad = special_ids.pop("pad")
    if pad is None:
        return Vocabulary(size=size + 1, pad=size, **special_ids)
    return Vocabulary(size=size, pad=pad, **special_ids)
