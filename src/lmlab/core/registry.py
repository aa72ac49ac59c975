"""Model registry: list, search and import systems of the zoo, of plug-ins and of given files.

`zoo/lstm_sphere.py` is the system `lstm-sphere`; a plug-in's is named by its entry point, a file's
by the file. Cards are read from the files' syntax trees, so that listing, searching and checking a
name never import torch or a plug-in; only `system_module` imports.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from lmlab.core.card import Card, read_card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.plugins import SYSTEMS, Plugin, plugins, resolve_names, warn_problems
from lmlab.core.system_origin import PackageOrigin, SystemOrigin

ZOO = Path(__file__).parent.parent / "zoo"
REQUIRED_NAMES = ("CARD", "Config", "SIZES", "build")
"""Names that every file of a system declares."""
SIZES = ("tiny", "small", "base")
SYSTEM_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True, kw_only=True, eq=False)
class RegisteredSystem:
    """A system's card, and where its module comes from."""

    card: Card
    file: Path
    """Its source."""
    origin: SystemOrigin | None
    """None for lmlab's own."""
    load: Callable[[], ModuleType]

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases, in lower case."""
        return (self.card.name, *(alias.lower() for alias in self.card.aliases))


@dataclass(frozen=True, kw_only=True, eq=False)
class InstalledSystems:
    """The systems of plug-ins, and why others can't be used."""

    systems: Mapping[str, RegisteredSystem]
    problems: Mapping[str, str]
    """A sentence by name."""


_given: dict[str, RegisteredSystem] = {}
"""The systems of files and modules that were given in this process."""


@cache
def _builtin() -> dict[str, RegisteredSystem]:
    """The zoo."""
    files = sorted(path for path in ZOO.glob("*.py") if not path.name.startswith("_"))
    return {
        system_name(path.stem): RegisteredSystem(
            card=read_card(path, system_name(path.stem)),
            file=path,
            origin=None,
            load=partial(importlib.import_module, f"lmlab.zoo.{path.stem}"),
        )
        for path in files
    }


@cache
def _installed(entries: tuple[Plugin, ...]) -> InstalledSystems:
    """The systems of plug-ins; the entry points are the key of the cache."""
    systems: dict[Plugin, RegisteredSystem] = {}
    problems: dict[str, str] = {}
    for plugin in entries:
        try:
            systems[plugin] = _plugin_system(plugin)
        except UserError as error:
            problems[system_name(plugin.name)] = str(error)
    reserved = {name for system in _builtin().values() for name in system.names}
    names = resolve_names("system", systems, reserved, lambda plugin: systems[plugin].names)
    usable = {systems[plugin].card.name: systems[plugin] for plugin in names.usable.values()}
    return InstalledSystems(systems=usable, problems=problems | dict(names.problems))


def _plugin_system(plugin: Plugin) -> RegisteredSystem:
    name = system_name(plugin.name)
    if not SYSTEM_NAME.fullmatch(name):
        raise plugin.error(f"the name of the system {plugin.name!r} is invalid")
    if plugin.target != plugin.module:
        raise plugin.error(f"the entry point of the system {name} must be a module")
    file = plugin.source_file()
    try:
        card = read_card(file, name, package=plugin.label)
    except UserError as error:
        raise plugin.error(str(error).rstrip(".")) from error
    return RegisteredSystem(
        card=card,
        file=file,
        origin=PackageOrigin(package=plugin.package, version=plugin.version),
        load=plugin.load,
    )


def system_name(stem: str) -> str:
    """The system's name of a file's or an entry point's: `lstm_sphere` is `lstm-sphere`."""
    return stem.lower().replace("_", "-")


def registered_systems() -> dict[str, RegisteredSystem]:
    """Every system by name, sorted: the zoo's, those of plug-ins, those of given files."""
    systems = {**_builtin(), **_installed(plugins(SYSTEMS)).systems, **_given}
    return dict(sorted(systems.items()))


def system_problems() -> Mapping[str, str]:
    """Why systems of plug-ins can't be used: a sentence by name."""
    return _installed(plugins(SYSTEMS)).problems


def add_system(system: RegisteredSystem) -> None:
    """Add the system of a given file or module, or replace it; see `system_files.register`."""
    _given[system.card.name] = system


def remove_system(name: str) -> None:
    """Forget the system of a given file or module."""
    _given.pop(name, None)


def catalogue() -> dict[str, Card]:
    """The card of every system by name, sorted."""
    return {name: system.card for name, system in registered_systems().items()}


def registered_system(name: str) -> RegisteredSystem:
    """A system by its name or an alias, in any case; nothing is imported."""
    if not isinstance(name, str):
        raise UserError(
            "a system is given by its name, such as 'lstm', its file or its module, got "
            f"{type(name).__name__}; to use a torch module, see lmlab.wrap."
        )
    normalised = system_name(name)
    systems = registered_systems()
    problem = system_problems().get(normalised)
    for system in systems.values():
        if normalised in system.names:
            if problem is not None:
                warn_problems([problem])
            return system
    if problem is not None:
        raise UserError(problem)
    file = Path(f"{normalised.replace('-', '_')}.py")
    if SYSTEM_NAME.fullmatch(normalised) and file.is_file():
        raise UserError(f"there is no system called {name!r}; give that of the file as ./{file}.")
    names = [known for system in systems.values() for known in system.names]
    raise unknown_name("system", name, names, "lmlab systems")


def find_system(name: str) -> Card:
    """The card of a system, by its name or an alias, in any case."""
    return registered_system(name).card


def search_systems(text: str) -> list[Card]:
    """Cards that mention every word of a text, anywhere: name, alias, summary, paper, source."""
    words = text.lower().split()

    def haystack(card: Card) -> str:
        parts = (
            *(card.name, *card.aliases, card.family, card.summary),
            *(card.paper, card.source, card.package),
        )
        return " ".join(parts).lower()

    return [card for card in catalogue().values() if all(w in haystack(card) for w in words)]


def system_module(name: str) -> ModuleType:
    """The imported file of a system: its Config, SIZES and build."""
    system = registered_system(name)
    module = system.load()
    _check_module(module, system)
    return module


def imported_card(name: str) -> Card:
    """The card of a system as its imported file declares it, with what the registry sets."""
    card = find_system(name)
    module = system_module(name)
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    imported: Card = module.CARD
    return dataclasses.replace(imported, name=card.name, summary=summary, package=card.package)


def _check_module(module: ModuleType, system: RegisteredSystem) -> None:
    """A UserError if a module lacks what a system's must have."""

    def wrong(reason: str) -> UserError:
        return UserError(f"{system.file} {reason}; see docs/add-a-system.md.")

    missing = [required for required in REQUIRED_NAMES if not hasattr(module, required)]
    if missing:
        raise wrong(f"declares no {' and no '.join(missing)}")
    if system.origin is None:
        return
    if not isinstance(module.CARD, Card):
        raise wrong("declares a CARD that is no lmlab.core.card.Card")
    config = module.Config
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise wrong("declares a Config that is no dataclass")
    if not isinstance(module.SIZES, dict) or not set(SIZES) <= module.SIZES.keys():
        raise wrong(f"must declare SIZES with {', '.join(SIZES)}")
    others = [size for size, value in module.SIZES.items() if not isinstance(value, config)]
    if others:
        raise wrong(f"declares SIZES with {others[0]!r}, which is no Config")
    if not callable(module.build) or not _takes_two(module.build):
        raise wrong("must declare build(config, vocabulary)")
    from lmlab.core.protocols import PROTOCOLS  # needs torch, as the module does

    unknown = [name for name in system.card.protocols if name not in PROTOCOLS]
    if unknown:
        raise wrong(f"names the protocol {unknown[0]!r}, which does not exist")


def _takes_two(build: Callable[..., object]) -> bool:
    try:
        inspect.signature(build).bind_partial(None, None)
    except (TypeError, ValueError):
        return False
    return True
