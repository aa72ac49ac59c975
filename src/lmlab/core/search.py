"""Search the laboratory for an idea: BM25 over names, docstrings, settings, glossary and docs.

    score(x, z) = Σ_{w ∈ x} idf(w) tf / (tf + k (1 - b + b |z| / mean length))

where a word in the name counts NAME times and one in the summary SUMMARY times; entries with all
words of the query, with the phrase itself, or named so come first.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lmlab.core.registry import ZOO, registered_systems
from lmlab.core.verb_search import verb_text

EntryKind = Literal["system", "verb", "setting", "term", "class", "function", "module", "docs"]
PACKAGE = Path(__file__).parent.parent
DOCS = PACKAGE.parent.parent / "docs"
GLOSSARY = PACKAGE / "core" / "glossary.md"
SETTINGS = ("Config", "Settings")
"""Name suffixes of the classes whose fields are settings."""
COMMAND = re.compile(r'\b(?:(\w+)_)?app\.command\("([\w-]+)"\)\((\w+)\.(\w+)\)')
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TextFilter = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class SearchEntry:
    """One searchable entry."""

    kind: EntryKind
    name: str
    where: str
    """File and line, below the package's folder or the checkout's."""
    text: str
    """Its description; the first sentence is the summary."""


def entries(wanted: TextFilter) -> Iterator[SearchEntry]:
    """All entries, of source files only if their text is `wanted` (has a word of the query)."""
    yield from system_entries()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.parent.name == "cli" or wanted(source):  # its verbs' options stand elsewhere
            yield from source_entries(path, source)
    yield from glossary_entries(GLOSSARY)
    if (PACKAGE.parent.parent / "pyproject.toml").is_file():
        for path in sorted(DOCS.glob("*.md")):
            yield from page_entries(path)


def system_entries() -> Iterator[SearchEntry]:
    """Every system with its card and the docstring of its file."""
    for system in registered_systems().values():
        card, path = system.card, system.file
        docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        more = (*card.aliases, card.family, card.paper, *card.objectives, card.package)
        text = f"{docstring}\n\n{', '.join(filter(None, more))}."
        where = _where(path) if system.origin is None else f"{card.package}: {path.name}"
        yield SearchEntry(kind="system", name=card.name, where=where, text=text)


@cache
def verbs() -> dict[tuple[str, str], str]:
    """The commands by module and function: ("index", "build") is index build."""
    source = (PACKAGE / "cli" / "main.py").read_text(encoding="utf-8")
    return {
        (module, function): f"lmlab {group} {verb}" if group else f"lmlab {verb}"
        for group, verb, module, function in COMMAND.findall(source)
    }


def source_entries(path: Path, source: str) -> Iterator[SearchEntry]:
    """The module of a file and its public classes, methods, functions and settings."""
    tree = ast.parse(source)
    is_system = path.parent == ZOO and not path.name.startswith("_")
    docstring = ast.get_docstring(tree)
    if docstring and not is_system and path.parent.name != "cli":
        yield SearchEntry(kind="module", name=path.stem, where=_where(path), text=docstring)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _function(path, node)
        elif isinstance(node, ast.ClassDef):
            yield from _class(path, node)


def _function(path: Path, node: ast.FunctionDef) -> Iterator[SearchEntry]:
    docstring = ast.get_docstring(node) or ""
    verb = verbs().get((path.stem, node.name)) if path.parent.name == "cli" else None
    if verb is not None:
        text = verb_text(path, node)
        yield SearchEntry(kind="verb", name=verb, where=_where(path, node), text=text)
    elif docstring and not node.name.startswith("_"):
        yield SearchEntry(kind="function", name=node.name, where=_where(path, node), text=docstring)


def _class(path: Path, node: ast.ClassDef) -> Iterator[SearchEntry]:
    docstring = ast.get_docstring(node)
    if docstring and not node.name.startswith("_"):
        yield SearchEntry(kind="class", name=node.name, where=_where(path, node), text=docstring)
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            text = ast.get_docstring(inner)
            if text:
                name = f"{node.name}.{inner.name}"
                yield SearchEntry(kind="function", name=name, where=_where(path, inner), text=text)
    if node.name.endswith(SETTINGS):
        yield from _fields(path, node)


def _fields(path: Path, node: ast.ClassDef) -> Iterator[SearchEntry]:
    """The settings of a config: its fields with the docstring under each."""
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield SearchEntry(kind="setting", name=name, where=_where(path, field), text=text)


def glossary_entries(path: Path) -> Iterator[SearchEntry]:
    """The rows of the glossary's tables."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and not set(cells[1]) <= set("-"):
            where = f"{_where(path)}:{number}"
            yield SearchEntry(
                kind="term", name=cells[0].replace("`", ""), where=where, text=cells[1]
            )


def page_entries(path: Path) -> Iterator[SearchEntry]:
    """The sections of a page of documentation, without its blocks of code."""
    page = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = list(HEADING.finditer(page))
    ends = [heading.start() for heading in headings[1:]] + [len(page)]
    for heading, end in zip(headings, ends, strict=True):
        text = page[heading.end() : end].strip()
        if text:
            yield SearchEntry(kind="docs", name=heading[1], where=f"docs/{path.name}", text=text)


def _where(path: Path, node: ast.stmt | None = None) -> str:
    line = "" if node is None else f":{node.lineno}"
    return f"lmlab/{path.relative_to(PACKAGE).as_posix()}{line}"


K, B = 1.2, 0.6
NAME, SUMMARY = 4, 2
PHRASE, NAMED = 1.6, 2.0
"""Factors of a score if the words are consecutive, and if they are the entry's name."""
PRIOR = {
    "system": 1.5,
    "verb": 1.3,
    "term": 1.25,
    "setting": 1.15,
    "class": 1.1,
    "module": 1.1,
    "function": 1.0,
    "docs": 0.9,
}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d])")
SUFFIXES = ("ations", "ation", "ences", "ence", "ents", "ent", "ings", "ing", "ers", "er", "ed")
STOP_WORDS = frozenset(
    "a an and are as by for from how in is it of on or that the to what with".split()
)
SHORTEST_STEM = 3
EXCERPT = 110
WEAK = 0.1
"""Hits with less than this share of the best score are dropped."""


@dataclass(frozen=True, kw_only=True)
class SearchHit:
    """One result of a search."""

    kind: str
    name: str
    where: str
    excerpt: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return asdict(self)


def search(query: str, limit: int = 10) -> list[SearchHit]:
    """The best entries for a query, best first."""
    words = query_stems(query)

    def wanted(source: str) -> bool:
        plain = _british(source.lower())
        return any(word in plain for word in words)

    return SearchIndex(entries(wanted)).search(query, limit)


def query_stems(query: str) -> list[str]:
    """The distinct words of a query, without stop words unless there are no others."""
    return list(dict.fromkeys(stems(query, stop=True) or stems(query)))


class SearchIndex:
    """Entries with their word counts."""

    def __init__(self, entries: Iterable[SearchEntry]) -> None:
        self.entries = [_IndexedEntry(entry) for entry in entries]
        self.mean = sum(indexed.length for indexed in self.entries) / len(self.entries)

    def search(self, query: str, limit: int = 10) -> list[SearchHit]:
        """The best entries for a query, best first."""
        words = query_stems(query)
        idf = {word: self._idf(word) for word in words}
        scored = [(indexed.score(words, idf, self.mean), indexed.entry) for indexed in self.entries]
        min_score = WEAK * max(score for score, _ in scored)
        best = sorted((pair for pair in scored if pair[0] > min_score), key=lambda pair: -pair[0])
        return _deduplicate([_hit(entry, score, words) for score, entry in best])[:limit]

    def _idf(self, word: str) -> float:
        """idf(w) = log(1 + (N - n_w + ½) / (n_w + ½)), with n_w of N entries that have the word."""
        matching = sum(word in indexed.counts for indexed in self.entries)
        return math.log1p((len(self.entries) - matching + 0.5) / (matching + 0.5))


def _hit(entry: SearchEntry, score: float, words: Sequence[str]) -> SearchHit:
    return SearchHit(
        kind=entry.kind,
        name=entry.name,
        where=entry.where,
        # A term is shown whole: it says where its implementation is.
        excerpt=entry.text if entry.kind == "term" else excerpt(entry.text, words),
        score=round(score, 3),
    )


class _IndexedEntry:
    """An entry with its stems counted."""

    def __init__(self, entry: SearchEntry) -> None:
        self.entry = entry
        summary, _, rest = entry.text.partition("\n\n")
        self.name = stems(entry.name)
        first, further = stems(summary), stems(rest)
        self.counts = Counter(further)
        for word in first:
            self.counts[word] += SUMMARY
        for word in self.name:
            self.counts[word] += NAME
        self.length = len(self.name) + len(first) + len(further)
        self.running = [*self.name, "", *first, "", *further]

    def score(self, words: Sequence[str], idf: dict[str, float], mean: float) -> float:
        """BM25 of the query's words, times the factors of kind, phrase and name."""
        damping = K * (1 - B + B * self.length / mean)
        parts = {w: idf[w] * self.counts[w] / (self.counts[w] + damping) for w in words}
        total = sum(idf.values())
        share = sum(idf[w] for w in words if self.counts[w]) / total if total else 0.0
        score = sum(parts.values()) * share**2 * PRIOR[self.entry.kind]
        if len(words) > 1 and _contains_phrase(words, self.running):
            score *= PHRASE
        return score * NAMED if self._is_named(words) else score

    def _is_named(self, words: Sequence[str]) -> bool:
        """Whether the words are its name, or one of several separated by commas."""
        return any(sorted(stems(name)) == sorted(words) for name in self.entry.name.split(","))


def _contains_phrase(words: Sequence[str], text: Sequence[str]) -> bool:
    """Whether the words are consecutive in the text."""
    size = len(words)
    return any(
        text[start] == words[0] and list(text[start : start + size]) == list(words)
        for start in range(len(text) - size + 1)
    )


def _deduplicate(hits: Sequence[SearchHit]) -> list[SearchHit]:
    """Hits without those that repeat an earlier one: the same setting of several configs."""
    unique: dict[tuple[str, str, str], SearchHit] = {}
    for hit in hits:
        unique.setdefault((hit.kind, hit.name, hit.excerpt), hit)
    return list(unique.values())


def stems(text: str, stop: bool = False) -> list[str]:
    """The stems of a text's words in lower case; `stop` removes stop words."""
    words = [word.lower() for word in WORD.findall(text)]
    return [stem(word) for word in words if not (stop and word in STOP_WORDS)]


def stem(word: str) -> str:
    """A word without its ending, always a prefix of it but for British spelling.

    >>> [stem(word) for word in ("sampling", "samples", "entities", "entity", "normalization")]
    ['sampl', 'sampl', 'entit', 'entit', 'normalis']
    """
    word = _british(word)
    if word.endswith("s") and not word.endswith("ss") and len(word) > SHORTEST_STEM:
        word = word[:-1]
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= SHORTEST_STEM:
            word = word.removesuffix(suffix)
            break
    while word[-1:] in ("e", "y", "i") and len(word) > SHORTEST_STEM:
        word = word[:-1]
    return word


def _british(text: str) -> str:
    return text.replace("iz", "is")


def excerpt(text: str, words: Sequence[str]) -> str:
    """The sentence of a text with most words of the query, the first of several."""
    sentences = SENTENCE.split(" ".join(text.replace("`", "").split()))
    best = max(sentences, key=lambda sentence: len(set(stems(sentence)) & set(words)))
    return best if len(best) <= EXCERPT else best[: EXCERPT - 1].rstrip() + "…"
