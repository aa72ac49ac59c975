"""What `lmlab find` searches: systems, verbs, settings, docstrings, glossary and documentation.

Source files are read with `ast`, so nothing is imported. The pages of `docs/` are part of a
checkout and not of the installed package; everything else is searched in both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from lmlab.core.registry import ZOO, catalogue

Kind = Literal["system", "verb", "setting", "term", "class", "function", "module", "docs"]
PACKAGE = Path(__file__).parent.parent
DOCS = PACKAGE.parent.parent / "docs"
GLOSSARY = PACKAGE / "core" / "glossary.md"
SETTINGS = ("Config", "Settings")
"""How the names of classes end whose fields are settings."""
COMMAND = re.compile(r'\b(?:(\w+)_)?app\.command\("([\w-]+)"\)\((\w+)\.(\w+)\)')
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
Wanted = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that can be found."""

    kind: Kind
    name: str
    where: str
    """File and line, below the package's folder or the checkout's."""
    text: str
    """What is known of it, the first sentence being the summary."""


def entries(wanted: Wanted) -> Iterator[Entry]:
    """All entries, of source files only where their text is `wanted` (has a word of the query)."""
    yield from system_entries()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if wanted(source):
            yield from source_entries(path, source)
    yield from glossary_entries(GLOSSARY)
    if (PACKAGE.parent.parent / "pyproject.toml").is_file():
        for path in sorted(DOCS.glob("*.md")):
            yield from page_entries(path)


def system_entries() -> Iterator[Entry]:
    """Every system with its card and the docstring of its file."""
    for card in catalogue().values():
        path = ZOO / f"{card.name.replace('-', '_')}.py"
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        more = (*card.aliases, card.family, card.paper, *card.objectives)
        text = f"{docstring}\n\n{', '.join(more)}."
        yield Entry(kind="system", name=card.name, where=_where(path), text=text)


@cache
def verbs() -> dict[tuple[str, str], str]:
    """The verbs of the command line by module and function: ("index", "build") is index build."""
    source = (PACKAGE / "cli" / "main.py").read_text(encoding="utf-8")
    return {
        (module, function): f"lmlab {group} {verb}" if group else f"lmlab {verb}"
        for group, verb, module, function in COMMAND.findall(source)
    }


def source_entries(path: Path, source: str) -> Iterator[Entry]:
    """The module of a file and its public classes, methods, functions and settings."""
    tree = ast.parse(source)
    is_system = path.parent == ZOO and not path.name.startswith("_")
    docstring = ast.get_docstring(tree)
    if docstring and not is_system and path.parent.name != "cli":
        yield Entry(kind="module", name=path.stem, where=_where(path), text=docstring)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _function(path, node)
        elif isinstance(node, ast.ClassDef):
            yield from _class(path, node)


def _function(path: Path, node: ast.FunctionDef) -> Iterator[Entry]:
    docstring = ast.get_docstring(node) or ""
    verb = verbs().get((path.stem, node.name)) if path.parent.name == "cli" else None
    if verb is not None:
        text = "\n".join([docstring, *_option_helps(node)])
        yield Entry(kind="verb", name=verb, where=_where(path, node), text=text)
    elif docstring and not node.name.startswith("_"):
        yield Entry(kind="function", name=node.name, where=_where(path, node), text=docstring)


def _option_helps(node: ast.FunctionDef) -> Iterator[str]:
    """The help of each option of a verb, after the option's name."""
    for argument in node.args.args:
        for inner in ast.walk(argument):
            if isinstance(inner, ast.keyword) and inner.arg == "help":
                option = argument.arg.replace("_", "-")
                yield f"--{option}: {' '.join(_strings(inner.value))}"


def _strings(node: ast.AST) -> list[str]:
    found = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    return [value for value in found if isinstance(value, str)]


def _class(path: Path, node: ast.ClassDef) -> Iterator[Entry]:
    docstring = ast.get_docstring(node)
    if docstring and not node.name.startswith("_"):
        yield Entry(kind="class", name=node.name, where=_where(path, node), text=docstring)
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            text = ast.get_docstring(inner)
            if text:
                name = f"{node.name}.{inner.name}"
                yield Entry(kind="function", name=name, where=_where(path, inner), text=text)
    if node.name.endswith(SETTINGS):
        yield from _fields(path, node)


def _fields(path: Path, node: ast.ClassDef) -> Iterator[Entry]:
    """The settings of a config: its fields with the docstring under each."""
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield Entry(kind="setting", name=name, where=_where(path, field), text=text)


def glossary_entries(path: Path) -> Iterator[Entry]:
    """The rows of the glossary's tables."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and not set(cells[1]) <= set("-"):
            where = f"{_where(path)}:{number}"
            yield Entry(kind="term", name=cells[0].replace("`", ""), where=where, text=cells[1])


def page_entries(path: Path) -> Iterator[Entry]:
    """The sections of a page of documentation, without its blocks of code."""
    page = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = list(HEADING.finditer(page))
    ends = [heading.start() for heading in headings[1:]] + [len(page)]
    for heading, end in zip(headings, ends, strict=True):
        text = page[heading.end() : end].strip()
        if text:
            yield Entry(kind="docs", name=heading[1], where=f"docs/{path.name}", text=text)


def _where(path: Path, node: ast.stmt | None = None) -> str:
    line = "" if node is None else f":{node.lineno}"
    return f"lmlab/{path.relative_to(PACKAGE).as_posix()}{line}"
