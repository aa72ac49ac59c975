"""Registry of built-in corpora, discovered by module name.

Each module of `lmlab.data.languages` with a top-level `DESCRIPTION` and `corpus` is one, and so is
the package `lmlab.data.wordnet`. Discovery parses their source without importing them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from lmlab.core.errors import unknown_name
from lmlab.data.corpus import Corpus


def builtin_descriptions() -> dict[str, str]:
    """Name and one-line description of each built-in corpus, sorted by name."""
    return {name: description for name, (_, description) in sorted(_registered().items())}


def open_builtin(name: str, seed: int = 0) -> Corpus:
    """The built-in corpus of that name; `seed` determines the texts of the sampled ones."""
    registered = _registered()
    if name not in registered:
        raise unknown_name("built-in corpus", name, registered)
    make = importlib.import_module(registered[name][0]).corpus
    drawn = "seed" in inspect.signature(make).parameters
    made = make(seed=seed) if drawn else make()
    assert isinstance(made, Corpus), f"{name} made a {type(made).__name__}"
    return made


@cache
def _registered() -> dict[str, tuple[str, str]]:
    """Module and description by name."""
    room = resources.files("lmlab.data")
    modules: dict[str, Traversable] = {}
    languages = room / "languages"
    if languages.is_dir():
        for file in languages.iterdir():
            if file.name.endswith(".py") and not file.name.startswith("_"):
                modules[f"lmlab.data.languages.{file.name.removesuffix('.py')}"] = file
    wordnet = room / "wordnet" / "__init__.py"
    if wordnet.is_file():
        modules["lmlab.data.wordnet"] = wordnet
    found = {}
    for module, file in modules.items():
        description = _description(file.read_text(encoding="utf-8"))
        if description is not None:
            found[module.rpartition(".")[2].replace("_", "-")] = (module, description)
    return found


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
