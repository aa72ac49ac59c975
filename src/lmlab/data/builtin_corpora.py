"""Corpora by name: the built-in ones and those of plug-ins; described without being imported."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.plugins import CORPORA, Plugin, plugins, resolve_names, warn_problems
from lmlab.data.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class NamedCorpus:
    """A corpus that has a name of its own."""

    description: str
    package: str = ""
    """The package of a plug-in; '' for lmlab's own."""
    load: Callable[[], Any]
    """Import the module that has `corpus`."""


def builtin_descriptions() -> dict[str, str]:
    """Name and one-line description of each corpus that has a name, sorted by name."""
    return {name: corpus.description for name, corpus in named_corpora().items()}


def named_corpora() -> dict[str, NamedCorpus]:
    """The built-in corpora and those of plug-ins, sorted by name; nothing is imported."""
    corpora = {**_own_corpora(), **_plugin_corpora(plugins(CORPORA))}
    return dict(sorted(corpora.items()))


def open_builtin(name: str, seed: int = 0) -> Corpus:
    """The corpus of that name; `seed` determines the texts of the sampled ones."""
    known = named_corpora()
    if name not in known:
        raise unknown_name("built-in corpus", name, known)
    make = known[name].load().corpus
    takes_seed = "seed" in inspect.signature(make).parameters
    corpus = make(seed=seed) if takes_seed else make()
    if not isinstance(corpus, Corpus):
        raise UserError(
            f"the corpus {name} of {known[name].package or 'lmlab'} must be an "
            f"lmlab.data.corpus.Corpus, got {type(corpus).__name__}; tell its authors."
        )
    return corpus


@cache
def _own_corpora() -> dict[str, NamedCorpus]:
    """Each module of `lmlab.data.languages` with a top-level `DESCRIPTION` and `corpus`, and the
    package `lmlab.data.wordnet`."""
    package = resources.files("lmlab.data")
    modules: dict[str, Traversable] = {}
    languages = package / "languages"
    if languages.is_dir():
        for file in languages.iterdir():
            if file.name.endswith(".py") and not file.name.startswith("_"):
                modules[f"lmlab.data.languages.{file.name.removesuffix('.py')}"] = file
    wordnet = package / "wordnet" / "__init__.py"
    if wordnet.is_file():
        modules["lmlab.data.wordnet"] = wordnet
    corpora = {}
    for module, file in modules.items():
        description = _description(file.read_text(encoding="utf-8"))
        if description is not None:
            corpora[module.rpartition(".")[2].replace("_", "-")] = NamedCorpus(
                description=description, load=partial(importlib.import_module, module)
            )
    return corpora


@cache
def _plugin_corpora(entries: tuple[Plugin, ...]) -> dict[str, NamedCorpus]:
    """The corpora of plug-ins; what is wrong with one is a warning."""
    names = resolve_names("corpus", entries, _own_corpora())
    warn_problems(names.problems.values())
    corpora = {}
    for name, plugin in names.usable.items():
        try:
            corpora[name] = NamedCorpus(
                description=_plugin_description(plugin), package=plugin.label, load=plugin.load
            )
        except UserError as error:
            warn_problems([str(error)])
    return corpora


def _plugin_description(plugin: Plugin) -> str:
    file = plugin.source_file()
    try:
        description = _description(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise plugin.error(f"{file} can't be read ({error})") from error
    if description is None:
        raise plugin.error(f"{file} must declare DESCRIPTION and corpus()")
    return description


def _description(source: str) -> str | None:
    """The module's DESCRIPTION if it also defines `corpus`, else None (a helper module)."""
    description, has_corpus = None, False
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="DESCRIPTION")], value=ast.Constant(value=value)):
                description = str(value)
            case ast.AnnAssign(target=ast.Name(id="DESCRIPTION"), value=ast.Constant(value=value)):
                description = str(value)
            case ast.FunctionDef(name="corpus"):
                has_corpus = True
            case ast.ImportFrom(names=names) if any(
                (alias.asname or alias.name) == "corpus" for alias in names
            ):
                has_corpus = True
    return description if has_corpus else None
