"""Hugging Face tokenizer files: read whichever a folder has, write all that transformers needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers as hf
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from lmlab.core.atomic_files import write_json, write_text
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.text_codecs import CHARACTER_KINDS
from lmlab.data.tokenizers import Tokenizer, check_ids, check_tokenizer_json
from lmlab.interop.hf.checkpoint_files import read_json

SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")
SPECIAL_TOKEN_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
WORDPIECE_SPECIAL_TOKENS = {
    role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")
}


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a checkpoint's tokenizer: tokenizer.json, else built from its vocabulary files."""
    if (folder / "tokenizer.json").exists():
        return Tokenizer.load(folder / "tokenizer.json")
    if (folder / "vocab.txt").exists():
        return Tokenizer(_word_pieces(folder))
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return Tokenizer(_byte_pairs(folder))
    for name in SENTENCEPIECE_FILES:
        if (folder / name).exists():
            raise UserError(
                f"{folder} has its tokenizer as {name} only, which lmlab does not read; write a "
                "tokenizer.json beside it with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
            )
    raise UserError(
        f"{folder} has no tokenizer (tokenizer.json, vocab.txt, or vocab.json with merges.txt), "
        "and a checkpoint needs the one it was trained with; fetch it too."
    )


def check_tokenizer_file(folder: Path) -> None:
    """Raise a UserError if the ids of a folder's tokenizer.json, if any, are implausible."""
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            check_tokenizer_json(read_json(path))
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); fetch it again.") from error


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; empty if there is none."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else {}


def _word_pieces(folder: Path) -> hf.Tokenizer:
    """BERT's WordPiece tokenizer from a vocab.txt, one piece per line."""
    settings = read_tokenizer_config(folder)
    lines = _read(folder / "vocab.txt").split("\n")
    pieces = [line.rstrip("\r") for line in lines[: -1 if lines[-1] == "" else None]]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    usual = {role: token for role, token in WORDPIECE_SPECIAL_TOKENS.items() if token in vocabulary}
    special = usual | read_special_tokens(folder)
    if special.get("unk") not in vocabulary:
        raise UserError(f"{folder / 'vocab.txt'} lacks the token [UNK]; fetch it again.")
    accents = settings.get("strip_accents")
    inner = hf.Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    _add_special_tokens(inner, special)
    if {"cls", "sep"} <= special.keys():
        inner.post_processor = processors.BertProcessing(
            _token_with_id(inner, special["sep"]), _token_with_id(inner, special["cls"])
        )
    return inner


def _byte_pairs(folder: Path) -> hf.Tokenizer:
    """GPT-2's BPE tokenizer from vocab.json and merges.txt, also of RoBERTa and BART."""
    settings = read_tokenizer_config(folder)
    vocabulary = read_json(folder / "vocab.json")
    rules = [line for line in _read(folder / "merges.txt").split("\n") if line.strip()]
    split_rules = [line.partition(" ") for line in rules if not line.startswith("#version")]
    merges = [(first, second) for first, _, second in split_rules]
    special = read_special_tokens(folder)
    if not special:
        end = "<|endoftext|>"
        usual = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
        special = {"bos": end, "eos": end} if end in vocabulary else usual
        special = {role: token for role, token in special.items() if token in vocabulary}
    try:
        check_ids(vocabulary.values())
        inner = hf.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(
            f"{folder / 'vocab.json'} and merges.txt do not belong together ({error}); fetch them "
            "again."
        ) from error
    space = bool(settings.get("add_prefix_space", False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    inner.decoder = decoders.ByteLevel()
    _add_special_tokens(inner, special)
    if {"bos", "eos"} <= special.keys() and special["bos"] != special["eos"]:
        inner.post_processor = processors.RobertaProcessing(
            _token_with_id(inner, special["eos"]),
            _token_with_id(inner, special["bos"]),
            add_prefix_space=space,
        )
    return inner


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{path} can't be read ({reason}); fetch it again.") from error


def read_special_tokens(folder: Path) -> dict[str, str]:
    """The folder's special tokens by role; a token may be given as an object."""
    path = folder / "special_tokens_map.json"
    settings = {**read_tokenizer_config(folder), **(read_json(path) if path.exists() else {})}
    special_tokens = {}
    for role in SPECIAL_TOKEN_ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special_tokens[role] = token
    return special_tokens


def _token_with_id(inner: hf.Tokenizer, token: str) -> tuple[str, int]:
    """A special token with its id, which must exist."""
    number = inner.token_to_id(token)
    assert number is not None
    return token, number


def _add_special_tokens(inner: hf.Tokenizer, tokens: Mapping[str, str]) -> None:
    """Add special tokens that texts may contain; <mask> strips the space before it, by custom."""
    masks = [token for role, token in tokens.items() if role == "mask" and token.startswith("<")]
    inner.add_special_tokens(
        [
            AddedToken(token, lstrip=token in masks, special=True)
            for token in dict.fromkeys(tokens.values())
        ]
    )


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    extra: Sequence[str],
    template: str,
    settings: Mapping[str, Any],
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    `extra` are the system's own special tokens, whose ids follow the tokenizer's; `template` is the
    input template if the tokenizer has none; `settings` goes into tokenizer_config.json.
    """
    tokenizer.save(folder / "tokenizer.json")
    inner = hf.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens([AddedToken(token, special=True) for token in extra])
    _add_mask_token(inner, tokenizer)
    if inner.post_processor is None and template:
        inner.post_processor = _template_processor(template, tokenizer)
    write_text(folder / "tokenizer.json", inner.to_str(pretty=True))
    named = {f"{role}_token": token for role, token in special_token_spellings(tokenizer).items()}
    roles = {f"{role}_token" for role in SPECIAL_TOKEN_ROLES}
    # A third-party tokenizer names its own special tokens.
    named = {name: settings[name] for name in settings if name in roles} or named
    additional = {"additional_special_tokens": list(extra)} if extra else {}
    write_json(
        folder / "tokenizer_config.json",
        # This class uses tokenizer.json as it is; others rebuild parts of it.
        {**named, **additional, **settings, "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    write_json(folder / "special_tokens_map.json", {**named, **additional})


def _add_mask_token(inner: hf.Tokenizer, tokenizer: Tokenizer) -> None:
    """Let a text contain the mask token, with the same ids around it as in our masked filling.

    As in RoBERTa, the mask strips the white space before it, except where spaces are tokens
    (characters, bytes).
    """
    mask = tokenizer.vocabulary.mask
    if mask is None or mask in inner.get_added_tokens_decoder():
        return
    token = tokenizer.token(mask)
    spaced = _adds_prefix_space(inner)
    if spaced:
        # A prefix space before every segment between special tokens would put one before the full
        # stop of "the <mask>."; so only the first gets it, before masks are matched.
        inner.normalizer = normalizers.Sequence(
            [
                normalizers.Prepend(" "),
                normalizers.Replace(Regex(r"\A  "), " "),
                # The library also normalises the mask's spelling, which has no space.
                normalizers.Replace(Regex(rf"\A +{re.escape(token)}"), token),
            ]
        )
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    strip = tokenizer.kind not in CHARACTER_KINDS
    inner.add_special_tokens([AddedToken(token, lstrip=strip, normalized=spaced, special=True)])


def _adds_prefix_space(inner: hf.Tokenizer) -> bool:
    """Whether it is plain byte-level BPE that adds a prefix space."""
    before = inner.pre_tokenizer
    plain = isinstance(before, pre_tokenizers.ByteLevel) and inner.normalizer is None
    return plain and bool(before.add_prefix_space)


def special_token_spellings(tokenizer: Tokenizer) -> dict[str, str]:
    """The spelling of each special token, by its role in transformers."""
    vocabulary = tokenizer.vocabulary
    start = vocabulary.end if vocabulary.start is None else vocabulary.start
    ids = {
        "bos": start,
        "eos": vocabulary.end,
        "unk": vocabulary.unknown,
        "sep": vocabulary.end,
        "pad": vocabulary.pad if has_pad(tokenizer) else None,
        "cls": start,
        "mask": vocabulary.mask,
    }
    return {role: tokenizer.token(number) for role, number in ids.items() if number is not None}


def with_swapped_ids(path: Path, first: int, second: int) -> Tokenizer:
    """The tokenizer of a run with the ids of two tokens swapped."""
    settings = read_json(path)
    swap = {first: second, second: first}
    vocabulary: dict[str, int] = settings["model"]["vocab"]
    swapped = {token: swap.get(number, number) for token, number in vocabulary.items()}
    settings["model"]["vocab"] = dict(sorted(swapped.items(), key=lambda item: item[1]))
    for token in settings["added_tokens"]:
        token["id"] = swap.get(token["id"], token["id"])
    return Tokenizer(hf.Tokenizer.from_str(json.dumps(settings)))


def has_pad(tokenizer: Tokenizer) -> bool:
    """Whether padding is a real token rather than an id beyond the vocabulary."""
    vocabulary: Vocabulary = tokenizer.vocabulary
    return tokenizer.id(tokenizer.token(vocabulary.pad)) == vocabulary.pad


def _template_processor(template: str, tokenizer: Tokenizer) -> Any:
    """`start text end` as the library's TemplateProcessing; a second text has segment 1."""
    spellings = special_token_spellings(tokenizer)
    spelled = {"start": spellings.get("bos"), "text": "$A", "end": spellings.get("eos")}
    single = [spelled[word] for word in template.split() if spelled[word]]
    second = [f"{word}:1" for word in ("$B", spelled["end"]) if word]
    used = {str(spelled[word]) for word in ("start", "end") if spelled[word]}
    return processors.TemplateProcessing(
        single=" ".join(map(str, single)),
        pair=" ".join(map(str, [*single, *second])),
        special_tokens=[(token, tokenizer.id(token)) for token in sorted(used)],
    )
