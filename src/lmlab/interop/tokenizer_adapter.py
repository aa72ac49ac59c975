"""Tokenizer adapter: any tokenizer behind lmlab's interface (ids, texts, offsets, special tokens).

Accepts ours, those of `tokenizers` and transformers, and any object with encode, decode and a size.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers as hf

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.vocabulary import PAD, Vocabulary
from lmlab.data.text_codecs import REPLACEMENT_CHARACTER
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.tokenizer_files import SPECIAL_TOKEN_ROLES, has_pad

SPECIAL_TOKEN_ARGUMENTS = ("start", "end", "unknown", "mask", "pad")
SpecialToken = str | int | None
"""A special token by its spelling or id; None if there is none."""
ROLES_BY_KIND = {
    "causal": {"start": ("bos", "cls"), "end": ("eos", "sep")},
    "masked": {"start": ("cls", "bos"), "end": ("sep", "eos")},
}
"""Which of transformers' roles frame a text; the first that a tokenizer has."""
OTHER_ROLES = {"unknown": "unk", "mask": "mask", "pad": "pad"}
SIZE_ATTRIBUTES = ("vocab_size", "n_vocab", "get_vocab_size", "get_piece_size", "__len__")
"""Attributes or methods that give a tokenizer's vocabulary size."""
FINGERPRINT_TOKENS = 1000
"""Number of ids whose spelling goes into a fingerprint."""
LOOKAHEAD_CHARACTERS = 64
"""Maximum number of characters between two tokens."""


class TokenizerAdapter:
    """Adapter of any object with encode and decode to our tokenizer interface.

    If it gives no offsets, each decoded token is searched for in the text from left to right; a
    token that is not found gets an empty span at the current position.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._encode = _encoder(inner)
        self.kind = type(inner).__name__
        """The name of its class."""
        self._count = _size(inner)
        self.vocabulary = _empty_vocabulary(self._count)
        if framed := self.encode(""):
            raise UserError(
                f"the tokenizer encodes an empty text as {framed}, but lmlab adds the special "
                "tokens itself; give one whose encode adds none."
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without start or end token."""
        try:
            encoding = self._encode(text)
        except (LookupError, ValueError) as error:  # raised by a table for an unknown character
            raise UserError(
                f"the tokenizer can't encode {text[:40]!r} ({type(error).__name__}: {error}); "
                "leave such texts out, or give it an unknown token."
            ) from error
        return [int(id) for id in getattr(encoding, "ids", encoding)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without start or end token."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text, and the character span [start, end) of each token."""
        ids, spans, reached = self.encode(text), list[tuple[int, int]](), 0
        while len(spans) < len(ids):
            # A character's bytes may be spread over several tokens: join as many as complete it.
            piece_count = next(
                (
                    n
                    for n in range(1, 5)
                    if REPLACEMENT_CHARACTER not in self._spelled(ids[len(spans) :][:n])
                ),
                1,
            )
            start, reached = _span(self._spelled(ids[len(spans) :][:piece_count]), text, reached)
            spans += [(start, reached)] * min(piece_count, len(ids) - len(spans))
        return ids, spans

    def characters_of(self, text: str, count: int) -> int:
        """Number of characters covered by the first `count` tokens of a text."""
        spans = self.encode_with_offsets(text)[1][:count]
        return spans[-1][1] if spans else 0

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids into text; special tokens are dropped except the unknown token."""
        dropped = {*self.vocabulary.unpredictable, self.vocabulary.end}
        return self._spelled([id for id in map(int, ids) if id not in dropped])

    @property
    def symbols(self) -> frozenset[int]:
        """Ids of the special tokens, as far as known."""
        special_ids = {*getattr(self._inner, "all_special_ids", ()), self.vocabulary.end}
        # If the end token doubles as the unknown token (GPT-2), it is a special token.
        words = {self.vocabulary.unknown} - {self.vocabulary.end}
        return frozenset((special_ids | {*self.vocabulary.unpredictable}) - words - {None})

    def token(self, id: int) -> str:
        """The token string of an id; that of padding for an id without one (tiktoken)."""
        try:
            return self._spelled([int(id)]) if int(id) < self._count else PAD
        except Exception:  # third-party code may raise anything
            return PAD

    def id(self, token: str) -> int | None:
        """The id of a token, or None."""
        if self._table is not None:
            token_id = self._table.get(token)
            return None if token_id is None else int(token_id)
        try:
            ids = self.encode(token)
        except UserError:
            return None
        return ids[0] if len(ids) == 1 and self._spelled(ids) == token else None

    def with_vocabulary(self, vocabulary: Vocabulary) -> TokenizerAdapter:
        """The same tokenizer with other special tokens."""
        adapter = TokenizerAdapter(self._inner)
        adapter.vocabulary = vocabulary
        return adapter

    def fingerprint(self) -> str:
        """Hash of its class, its size and the spelling of tokens spread over the vocabulary."""
        sampled_ids = range(0, self._count, max(1, self._count // FINGERPRINT_TOKENS))
        spelled = [self.token(id) for id in sampled_ids]
        content = repr((self.kind, self._count, spelled)).encode(errors="backslashreplace")
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def _spelled(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids))

    @cached_property
    def _table(self) -> Mapping[str, int] | None:
        """Vocabulary from spelling to id, if it provides one."""
        get = getattr(self._inner, "get_vocab", None)
        return get() if callable(get) else None


AnyTokenizer = Tokenizer | TokenizerAdapter


def adapt_tokenizer(
    tokenizer: Any,
    *,
    kind: str,
    special_tokens: Mapping[str, SpecialToken],
    roles: Mapping[str, str] | None = None,
) -> AnyTokenizer:
    """Adapt any tokenizer, with the given special tokens or else its own.

    `roles` spell its special tokens by transformers' roles (bos, eos, …), if it has none itself.
    """
    for name in special_tokens:
        if name not in SPECIAL_TOKEN_ARGUMENTS:
            raise unknown_name("symbol", name, SPECIAL_TOKEN_ARGUMENTS)
    adapted = _as_tokenizer(tokenizer)
    roles = _roles(tokenizer) if roles is None else roles
    ids = _by_role(adapted, kind, roles) | {
        name: _id(adapted, name, special_token) for name, special_token in special_tokens.items()
    }
    return adapted.with_vocabulary(_vocabulary(token_count(adapted), ids))


def token_count(tokenizer: AnyTokenizer) -> int:
    """Number of real ids; padding may have one beyond them."""
    vocabulary = tokenizer.vocabulary
    if isinstance(tokenizer, Tokenizer):
        return vocabulary.size - (0 if has_pad(tokenizer) else 1)
    return vocabulary.size - (1 if vocabulary.pad == vocabulary.size - 1 else 0)


def _as_tokenizer(tokenizer: Any) -> AnyTokenizer:
    if isinstance(tokenizer, (Tokenizer, TokenizerAdapter)):
        return tokenizer
    if isinstance(tokenizer, hf.Tokenizer):
        return Tokenizer(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)  # transformers' fast tokenizers
    if isinstance(backend, hf.Tokenizer):
        return Tokenizer(backend)
    if not callable(getattr(tokenizer, "encode", None)) or not callable(
        getattr(tokenizer, "decode", None)
    ):
        raise UserError(
            f"a tokenizer must have encode and decode, got {type(tokenizer).__name__}; give one "
            "of lmlab, tokenizers or transformers, or an object with both and a vocab_size."
        )
    return TokenizerAdapter(tokenizer)


def _roles(tokenizer: Any) -> dict[str, str]:
    """The spelling of a transformers tokenizer's special tokens, by role."""
    spellings = {role: getattr(tokenizer, f"{role}_token", None) for role in SPECIAL_TOKEN_ROLES}
    return {role: str(token) for role, token in spellings.items() if token is not None}


def _by_role(tokenizer: AnyTokenizer, kind: str, roles: Mapping[str, str]) -> dict[str, int | None]:
    """Ids of the special tokens by declared role, else by their usual names."""
    ids: dict[str, int | None] = {
        name: getattr(tokenizer.vocabulary, name) for name in SPECIAL_TOKEN_ARGUMENTS
    }
    if tokenizer.vocabulary.pad >= token_count(tokenizer):
        ids["pad"] = None
    for name, role in OTHER_ROLES.items():
        if role in roles and (name != "unknown" or ids["unknown"] is None):
            ids[name] = tokenizer.id(roles[role])
    framing = ROLES_BY_KIND[kind]
    if any(role in roles for order in framing.values() for role in order):
        for name, order in framing.items():
            spelled = [roles[role] for role in order if role in roles]
            ids[name] = tokenizer.id(spelled[0]) if spelled else None
    return ids


def _id(tokenizer: AnyTokenizer, name: str, special_token: SpecialToken) -> int | None:
    if special_token is None:
        return None
    count = token_count(tokenizer)
    id = tokenizer.id(special_token) if isinstance(special_token, str) else int(special_token)
    if id is None or not 0 <= id < count:
        raise UserError(
            f"{name} is {special_token!r}, which is none of the {count} tokens of the tokenizer; "
            "give another, or None if there is none."
        )
    return id


def _vocabulary(count: int, ids: Mapping[str, int | None]) -> Vocabulary:
    """Build the vocabulary; missing or shared padding gets an id beyond the tokenizer's."""
    special_ids = dict(ids)
    if special_ids["start"] == special_ids["end"]:
        special_ids["start"] = None
    pad = special_ids.pop("pad")
    if pad is None or pad in special_ids.values():
        return Vocabulary(size=count + 1, pad=count, **special_ids)
    return Vocabulary(size=count, pad=pad, **special_ids)


def _empty_vocabulary(count: int) -> Vocabulary:
    return Vocabulary(size=count + 1, pad=count, unknown=None, start=None, end=None, mask=None)


def _encoder(inner: Any) -> Callable[[str], Any]:
    """Its function to encode a text without special tokens."""
    if hasattr(inner, "encode_ordinary"):  # tiktoken, which otherwise rejects special tokens
        ordinary: Callable[[str], Any] = inner.encode_ordinary
        return ordinary
    try:
        has_option = "add_special_tokens" in inspect.signature(inner.encode).parameters
    except (TypeError, ValueError):  # compiled code has no signature
        has_option = False
    if has_option:
        return lambda text: inner.encode(text, add_special_tokens=False)
    encode: Callable[[str], Any] = inner.encode
    return encode


def _size(inner: Any) -> int:
    for name in (
        ("__len__", *SIZE_ATTRIBUTES)
        if hasattr(inner, "convert_ids_to_tokens")
        else SIZE_ATTRIBUTES
    ):
        size = getattr(inner, name, None)
        size = size() if callable(size) else size
        if isinstance(size, int) and size > 0:
            return size
    raise UserError(
        f"the tokenizer, a {type(inner).__name__}, does not declare its number of ids; give it a "
        "vocab_size."
    )


def _span(piece: str, text: str, reached: int) -> tuple[int, int]:
    """Span of a token string in the rest of a text, without surrounding white space.

    An empty span at `reached` if it is not found; case may differ.
    """
    bare = piece.strip()
    if piece and text.startswith(piece, reached):
        end = reached + len(piece.rstrip() if bare else piece)
        return end - len(bare), end
    window = text[reached : reached + len(bare) + LOOKAHEAD_CHARACTERS]
    offset = window.find(bare)
    offset = window.lower().find(bare.lower()) if offset < 0 else offset
    if not bare or offset < 0:
        return reached, reached
    return reached + offset, reached + offset + len(bare)
