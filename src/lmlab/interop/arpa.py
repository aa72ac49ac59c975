r"""ARPA files of backoff n-gram models (SRILM, KenLM): read, write, and import or export runs.

    \data\
    ngram 1=10002
    ngram 2=264990

    \1-grams:
    log10 P <tab> word <tab> log10 B
    …
    \end\
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from lmlab.core.atomic_files import new_file
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.core.untrusted_input import parse_integer
from lmlab.core.vocabulary import END, MASK, PAD, SPECIAL_TOKENS, START, UNKNOWN, Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.lines import bounded_lines
from lmlab.data.tokenizer_training import word_level_tokenizer
from lmlab.data.tokenizers import Tokenizer
from lmlab.emissions.ngram_table import NgramTable
from lmlab.inference.backoff import MOST_ORDER, BackoffTables, KeyIndex
from lmlab.models.causal_lm import NgramModel
from lmlab.training.config import TrainingConfig
from lmlab.training.distributed import lock_output
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel, load_run
from lmlab.training.run_records import unknown_corpus
from lmlab.training.system_building import build_system


def ngram_systems() -> list[str]:
    """The names of the n-gram systems."""
    return [card.name for card in catalogue().values() if "Countable" in card.protocols]


def export_arpa(run: Path | str, path: Path | str) -> None:
    """Export an n-gram run as an ARPA file; .gz compresses it."""
    model = load_run(run)
    if not isinstance(model.system, NgramModel):
        raise UserError(
            f"an ARPA file holds n-gram tables, but {run} is a run of {model.card.name}; systems "
            f"that have them: {', '.join(ngram_systems())}."
        )
    tokens = [model.tokenizer.token(i) for i in range(model.tokenizer.vocabulary.size)]
    write_arpa(path, model.system.emission.tables, tokens)


def import_arpa(path: Path | str, out: Path | str) -> TrainedModel:
    """Import an ARPA file as a run of the n-gram system; text is split on white space."""
    run = RunFolder(Path(out))
    with lock_output(run.path):
        _write_run(path, run)
    return load_run(out)


def _write_run(path: Path | str, run: RunFolder) -> None:
    if run.exists():
        raise UserError(f"{run.path} already holds a run; choose another --out.")
    tables, words = read_arpa(path)
    tokenizer = Tokenizer(word_level_tokenizer({word: i for i, word in enumerate(words)}))
    name, settings = ngram_systems()[0], {"order": tables.order}
    system = build_system(name, settings, tables.vocabulary, seed=0)
    emission = system.emission
    assert isinstance(emission, NgramTable)
    emission.set_tables(tables)
    run.write_description(
        RunConfig(
            system=name,
            size="small",
            system_config=settings,
            vocabulary=tables.vocabulary,
            tokenizer=tokenizer.kind,
            layout=Layout(),
            corpus=unknown_corpus(Path(path).name),
            training=TrainingConfig(),
        ),
        tokenizer,
        weights=system,
    )


LOG_10 = math.log(10.0)
LOG10_ZERO = -99.0
"""log10 of probability zero, by SRILM's convention."""
START_BYTES, END_BYTES, UNKNOWN_BYTES = START.encode(), END.encode(), UNKNOWN.encode()
RESERVED_TOKENS = (PAD.encode(), MASK.encode())


def write_arpa(path: Path | str, tables: BackoffTables, token_strings: Sequence[str]) -> None:
    """Write n-gram tables as an ARPA file, compressed if the name ends in .gz.

    token_strings[i] is the string of id i. Start, end and unknown tokens are written `<s>`, `</s>`
    and `<unk>` whatever their spelling, as other tools expect; padding and mask are left out. The
    file is written atomically.
    """
    path = Path(path)
    names = _names(tables.vocabulary, token_strings)
    with new_file(path) as file:
        if path.suffix != ".gz":
            file.writelines(_lines(tables, names))
            return
        # Without file name and timestamp, so that the output is deterministic.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            packed.writelines(_lines(tables, names))


def read_arpa(path: Path | str) -> tuple[BackoffTables, list[str]]:
    """Read an ARPA file, compressed if its name ends in .gz: the tables, and the string of each id.

    Ids 0 to 4 are the special tokens of `core.vocabulary`, the others follow in file order. `<s>`
    is never predicted, whatever its probability in the file (KenLM writes 1, SRILM 0); a special
    token missing from the file has probability 0.
    """
    path = Path(path)
    try:
        with _open(path) as file:
            return _Reader(path, file).read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} can't be read: {reason}.") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _names(vocabulary: Vocabulary, token_strings: Sequence[str]) -> list[bytes | None]:
    """Spelling of each id in the file; None for ids that are left out."""
    if len(token_strings) != vocabulary.size:
        raise UserError(
            f"expected the strings of {vocabulary.size} tokens, got {len(token_strings)}; give "
            "those of the model's own tokenizer."
        )
    names: list[bytes | None] = [text.encode() for text in token_strings]
    for token_id, name in (
        *((i, None) for i in vocabulary.unpredictable),
        (vocabulary.start, START_BYTES),
        (vocabulary.end, END_BYTES),
        (vocabulary.unknown, UNKNOWN_BYTES),
    ):
        if token_id is not None:
            names[token_id] = name
    first: dict[bytes, int] = {}
    for i, name in enumerate(names):
        if name is None:
            continue
        if name.split() != [name] or b"\0" in name:
            raise UserError(
                f"token {i} is {token_strings[i]!r}, but an ARPA file can't hold a token that is "
                "empty or contains white space; give it another string."
            )
        if first.setdefault(name, i) != i:
            raise UserError(
                f"tokens {first[name]} and {i} would both be written as {name.decode()!r}; give "
                "one of them another string."
            )
    return names


def _lines(tables: BackoffTables, names: list[bytes | None]) -> Iterator[bytes]:
    # KenLM rejects files without <s> and </s>, so they are written even if the vocabulary has none.
    missing = [name for name in (START_BYTES, END_BYTES) if name not in names]
    unigrams = len(names) - names.count(None) + len(missing)
    yield b"\\data\\\n"
    for words, end in enumerate(tables.level_ends.tolist(), start=1):
        count = unigrams if words == 1 else end - int(tables.level_ends[words - 2])
        yield b"ngram %d=%d\n" % (words, count)
    texts = names
    for words in range(1, tables.order + 1):
        if words > 1:
            contexts, last = np.divmod(tables.keys_of(words), tables.vocabulary.size)
            contexts -= tables.level(words - 1).start
            pairs = zip(contexts.tolist(), last.tolist(), strict=True)
            texts = [b"%b %b" % (texts[context], names[word]) for context, word in pairs]
        yield b"\n\\%d-grams:\n" % words
        if words == 1:
            yield from (b"%g\t%b\t0\n" % (LOG10_ZERO, name) for name in missing)
        yield from _entries(tables, words, texts)
    yield b"\n\\end\\\n"


def _entries(tables: BackoffTables, words: int, texts: Sequence[bytes | None]) -> Iterator[bytes]:
    level = tables.level(words)
    log_probs = np.maximum(tables.log_probs[level] / LOG_10, LOG10_ZERO).tolist()
    if words == tables.order:
        yield from (
            b"%.9g\t%b\n" % (log_prob, text)
            for log_prob, text in zip(log_probs, texts, strict=True)
            if text is not None
        )
        return
    log_backoffs = (tables.log_backoffs[level] / LOG_10).tolist()
    yield from (
        b"%.9g\t%b\t%.9g\n" % (log_prob, text, log_backoff)
        for log_prob, text, log_backoff in zip(log_probs, texts, log_backoffs, strict=True)
        if text is not None
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Section:
    """The n-grams of one order, in file order."""

    ids: np.ndarray
    """(count, words)"""
    log_probs: np.ndarray
    log_backoffs: np.ndarray
    first_line: int


class _Reader:
    """Line-by-line parser, with the ids of the words."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.lines = bounded_lines(file, str(path))
        self.line = 0
        self.ids = {name.encode(): i for i, name in enumerate(SPECIAL_TOKENS)}

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        raise UserError(f"{self.path}, line {self.line if line is None else line}: {message}.")

    def read(self) -> tuple[BackoffTables, list[str]]:
        counts = self.header()
        sections = [self.section(words, count) for words, count in enumerate(counts, start=1)]
        if self.next_filled() != b"\\end\\":
            self.fail(f"expected \\end\\ after {counts[-1]} {len(counts)}-grams")
        return self.tables(sections), [name.decode() for name in self.ids]

    def next_filled(self) -> bytes:
        """The next non-empty line, stripped; empty at the end of the file."""
        for line in self.lines:
            self.line += 1
            if line.strip():
                return line.strip()
        return b""

    def header(self) -> list[int]:
        """The n-gram counts of each order."""
        while (line := self.next_filled()) != b"\\data\\":  # comments may precede it
            if not line:
                self.fail("expected a line \\data\\, with which ARPA files begin, but found none")
        counts: list[int] = []
        for line in self.lines:
            self.line += 1
            if not line.strip():
                break
            match = re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line.strip())
            count = None if match is None else parse_integer(match[2])
            if match is None or count is None or parse_integer(match[1]) != len(counts) + 1:
                self.fail(f"expected 'ngram {len(counts) + 1}=' and a count, or an empty line")
            counts.append(count)
        if not counts:
            self.fail("expected counts ('ngram 1=…') after \\data\\")
        if len(counts) > MOST_ORDER:
            self.fail(f"n-grams must have at most {MOST_ORDER} words, got {len(counts)}")
        return counts

    def section(self, words: int, count: int) -> _Section:
        if self.next_filled() != b"\\%d-grams:" % words:
            self.fail(f"expected \\{words}-grams: here")
        first_line = self.line + 1
        log_probs, log_backoffs, ids = array("d"), array("d"), array("q")
        ids_by_word = self.ids
        try:
            for line in islice(self.lines, count):
                self.line += 1
                fields = line.split()
                if not words < len(fields) <= words + 2:
                    raise ValueError
                log_probs.append(float(fields[0]))
                log_backoffs.append(float(fields[-1]) if len(fields) == words + 2 else 0.0)
                if words == 1:
                    self.add_word(fields[1])
                ids.extend([ids_by_word[name] for name in fields[1 : words + 1]])
        except ValueError:
            self.fail(f"expected log10 P, {'a word' if words == 1 else f'{words} words'}, log10 B")
        except KeyError as error:
            self.fail(f"{error.args[0].decode(errors='replace')!r} is not among the 1-grams")
        if len(log_probs) < count:
            self.fail(f"the file ends after {len(log_probs)} of {count} {words}-grams")
        section = _Section(
            ids=np.array(ids, dtype=np.int64).reshape(-1, words),
            log_probs=np.array(log_probs),
            log_backoffs=np.array(log_backoffs),
            first_line=first_line,
        )
        for row in np.flatnonzero(~((section.log_probs <= 0) & (section.log_backoffs < np.inf))):
            numbers = f"{log_probs[row]:g} and {log_backoffs[row]:g}"
            self.fail(f"{numbers} can't be log10 P and log10 B", first_line + int(row))
        return section

    def add_word(self, name: bytes) -> None:
        """Assign an id to a word: the next one unless it is a special token."""
        if name in RESERVED_TOKENS:
            self.fail("padding and mask are never predicted here; rename this word in the file")
        try:
            name.decode()
        except UnicodeDecodeError:
            self.fail("this word is not UTF-8; convert the file")
        self.ids.setdefault(name, len(self.ids))

    def tables(self, sections: list[_Section]) -> BackoffTables:
        """Number the n-grams as trie nodes, level by level."""
        vocabulary = Vocabulary(size=len(self.ids))
        levels: list[tuple[int, KeyIndex]] = []
        log_probs = [np.full(vocabulary.size, LOG10_ZERO)]
        log_backoffs = [np.zeros(vocabulary.size)]
        unigrams = sections[0]
        self.check_distinct(unigrams, unigrams.ids[:, 0])
        log_probs[0][unigrams.ids[:, 0]] = unigrams.log_probs
        log_probs[0][self.ids[START_BYTES]] = LOG10_ZERO
        log_backoffs[0][unigrams.ids[:, 0]] = unigrams.log_backoffs
        level_ends = [vocabulary.size]
        for section in sections[1:]:
            keys = self.contexts(section, levels) * vocabulary.size + section.ids[:, -1]
            self.check_distinct(section, keys)
            order = np.argsort(keys)
            levels.append((level_ends[-1], KeyIndex(keys[order])))
            log_probs.append(section.log_probs[order])
            log_backoffs.append(section.log_backoffs[order])
            level_ends.append(level_ends[-1] + len(keys))
        nothing = np.empty(0, dtype=np.int64)
        joined = np.concatenate(log_probs)
        return BackoffTables(
            vocabulary=vocabulary,
            level_ends=np.array(level_ends),
            keys=np.concatenate([nothing, *(index.keys for _, index in levels)]),
            log_probs=np.where(joined <= LOG10_ZERO, -np.inf, joined * LOG_10),
            log_backoffs=np.concatenate([np.empty(0), *log_backoffs[:-1]]) * LOG_10,
        )

    def contexts(self, section: _Section, levels: list[tuple[int, KeyIndex]]) -> np.ndarray:
        """(count,) the node of each n-gram's context: all words but the last."""
        nodes, size = section.ids[:, 0], len(self.ids)
        for column, (first_node, index) in enumerate(levels, start=1):
            indices = index.find(nodes * size + section.ids[:, column])
            missing = np.flatnonzero(indices < 0)
            if len(missing):
                self.fail(
                    f"its first {column + 1} words are not among the {column + 1}-grams",
                    section.first_line + int(missing[0]),
                )
            nodes = first_node + indices
        return nodes

    def check_distinct(self, section: _Section, keys: np.ndarray) -> None:
        order = np.argsort(keys, kind="stable")
        duplicates = order[1:][keys[order[1:]] == keys[order[:-1]]]
        if len(duplicates):
            self.fail("this n-gram is a duplicate", section.first_line + int(duplicates.min()))
