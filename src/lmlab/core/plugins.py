"""Plug-ins: what installed packages add to lmlab by entry points; listed without importing them.

    [project.entry-points."lmlab.systems"]
    echo = "echo_lm.echo"

A package that can't be read or imported breaks nothing else: the sentence that names it is a
warning where plug-ins are listed, and an error where its name is used.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from lmlab.core.errors import LmlabWarning, UserError

SYSTEMS = "lmlab.systems"
"""A module like a file of the zoo; the entry point's name is the system's."""
CORPORA = "lmlab.corpora"
"""A module like a file of `data/languages`."""
TASKS = "lmlab.tasks"
"""A subclass of `tasks.task.Task`."""
METRICS = "lmlab.metrics"
"""A `Metric` of `lmlab compare`."""
VERBS = "lmlab.verbs"
"""A function that is a command."""
HF_FAMILIES = "lmlab.hf_families"
"""A module like a file of `interop/hf/families`."""
GROUPS = (SYSTEMS, CORPORA, TASKS, METRICS, VERBS, HF_FAMILIES)

TARGET = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)?")
"""A module, or a module and an object of it."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One entry point of an installed package."""

    group: str
    name: str
    target: str
    """`module` or `module:object`."""
    package: str
    """Name of the distribution."""
    version: str
    site: str = ""
    """The folder that it is installed in."""

    @property
    def label(self) -> str:
        """Name and version of the package."""
        return f"{self.package} {self.version}"

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def source_file(self) -> Path:
        """The module's source, found without importing the module or its parents."""
        path = None if TARGET.fullmatch(self.target) is None else _source_file(self.module)
        if path is None:
            raise self.error(f"the source of {self.target} can't be found")
        return path

    def load(self) -> Any:
        """Import the module and return what the entry point names."""
        if TARGET.fullmatch(self.target) is None:
            raise self.error(f"its entry point {self.name} = {self.target!r} is invalid")
        _, _, attributes = self.target.partition(":")
        try:
            module: Any = importlib.import_module(self.module)
            return functools.reduce(getattr, filter(None, attributes.split(".")), module)
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise self.error(f"{self.target} can't be imported ({reason})") from error

    def error(self, reason: str) -> UserError:
        """The error for something wrong with the package."""
        return UserError(f"in the package {self.label}, {reason}; fix or uninstall the package.")


def plugins(group: str) -> tuple[Plugin, ...]:
    """The entry points of a group in installed packages, by name; nothing is imported."""
    # The current folder may be anybody's, such as that of a run: nothing is installed there.
    here = {"", ".", str(Path.cwd())}
    search_path = tuple(folder for folder in sys.path if folder not in here)
    return tuple(plugin for plugin in _installed(search_path) if plugin.group == group)


@cache
def _installed(search_path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """All entry points of lmlab's groups on the search path, which is the key of the cache."""
    by_package: dict[str, list[Plugin]] = {}
    for distribution in distributions(path=list(search_path)):
        # The first one of a name is the one that is imported.
        found = list(_entry_points(distribution))
        if found:
            by_package.setdefault(normalised_package(found[0].package), found)
    entries = (plugin for found in by_package.values() for plugin in found)
    return tuple(sorted(entries, key=lambda entry: (entry.group, entry.name, entry.package)))


def _entry_points(distribution: Distribution) -> Iterator[Plugin]:
    try:
        text = distribution.read_text("entry_points.txt") or ""
        if "lmlab." not in text:
            return
        name, version = distribution.name, distribution.version
        entries = [entry for entry in distribution.entry_points if entry.group in GROUPS]
    except Exception as error:  # the metadata of a package may be damaged in any way
        warnings.warn(
            LmlabWarning(f"the entry points of a package can't be read ({error})."), stacklevel=2
        )
        return
    for entry in entries:
        yield Plugin(
            group=entry.group,
            name=entry.name,
            target=entry.value.replace(" ", ""),
            package=str(name),
            version=str(version),
            site=str(distribution.locate_file("")),
        )


def normalised_package(name: str) -> str:
    """A package's name as pip compares it: `Foo_Pkg` is `foo-pkg`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _source_file(module: str) -> Path | None:
    """The file of a module, resolved folder by folder below its top-level package.

    `importlib.util.find_spec("package.module")` would import the package.
    """
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not parts:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for location in spec.submodule_search_locations or ():
        inner = Path(location).joinpath(*parts)
        for path in (inner / "__init__.py", inner.with_name(f"{parts[-1]}.py")):
            if path.is_file():
                return path
    return None


@dataclass(frozen=True, kw_only=True)
class PluginNames:
    """The plug-ins of a group that can be used, and why the others can't."""

    usable: Mapping[str, Plugin]
    problems: Mapping[str, str]
    """A sentence by name."""


def resolve_names(
    kind: str,
    entries: Collection[Plugin],
    builtin: Collection[str],
    names: Callable[[Plugin], Collection[str]] = lambda plugin: (plugin.name,),
) -> PluginNames:
    """Plug-ins by name; one whose names clash with lmlab's own or with another's is refused.

    `kind` says what they are (system, task …), `names` gives a plug-in's name and its aliases.
    """
    owners: dict[str, list[Plugin]] = defaultdict(list)
    for plugin in entries:
        for name in names(plugin):
            owners[name].append(plugin)
    problems: dict[str, str] = {}
    refused: set[Plugin] = set()
    for name, claimants in owners.items():
        if name in builtin:
            labels = " and ".join(plugin.label for plugin in claimants)
            problems[name] = (
                f"{name!r} is a {kind} of lmlab itself, which is used, and not that of the "
                f"package {labels}; its authors must rename it."
            )
        elif len(claimants) > 1:
            labels = " and ".join(plugin.label for plugin in claimants)
            problems[name] = (
                f"the packages {labels} each have a {kind} called {name!r}, so neither is used; "
                "uninstall one of them."
            )
        else:
            continue
        refused.update(claimants)
    usable = {plugin.name: plugin for plugin in entries if plugin not in refused}
    return PluginNames(usable=usable, problems=problems)


def load_plugins(
    kind: str,
    entries: Collection[Plugin],
    builtin: Collection[str],
    check: Callable[[Plugin, Any], Any],
) -> dict[str, Any]:
    """What the plug-ins of one group provide, by name; what is wrong with one is a warning.

    `check` returns what is used of a loaded object, or raises `plugin.error`.
    """
    names = resolve_names(kind, entries, builtin)
    warn_problems(names.problems.values())
    loaded = {}
    for name, plugin in names.usable.items():
        try:
            loaded[name] = check(plugin, plugin.load())
        except UserError as error:
            warn_problems([str(error)])
    return loaded


def warn_problems(sentences: Iterable[str]) -> None:
    """Warn of plug-ins that can't be used."""
    for sentence in sentences:
        warnings.warn(LmlabWarning(sentence), stacklevel=3)


def plugin_verbs(builtin: Collection[str]) -> PluginNames:
    """The verbs of plug-ins by name; nothing is imported."""
    return resolve_names("verb", plugins(VERBS), builtin)


def plugin_summary(plugin: Plugin) -> str:
    """The first line of a verb's docstring, read from its source; '' if that can't be read."""
    _, _, function = plugin.target.partition(":")
    try:
        tree = ast.parse(plugin.source_file().read_bytes())
    except (UserError, OSError, SyntaxError, ValueError):
        return ""  # it is reported when the verb is run
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def load_verb(plugin: Plugin) -> Callable[..., Any]:
    """Import the function of a verb."""
    function: Callable[..., Any] = plugin.load()
    if not callable(function):
        raise plugin.error(f"{plugin.target} must be a function")
    return function


def find_plugin_verb(name: str, builtin: Collection[str]) -> Callable[..., Any] | None:
    """The verb of a plug-in by its name in Python, `my_verb` for `my-verb`, if there is one."""
    for verb, plugin in plugin_verbs(builtin).usable.items():
        if verb.replace("-", "_") == name:
            return load_verb(plugin)
    return None
