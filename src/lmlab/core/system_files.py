"""Systems in files of one's own: `lmlab train ./my_system.py`, without packaging.

A file is executed only when it is given; a run records its name and SHA-256, and does not name
what is executed when the run is loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from lmlab.core.card import Card, read_card
from lmlab.core.errors import UserError
from lmlab.core.registry import (
    SYSTEM_NAME,
    RegisteredSystem,
    add_system,
    find_system,
    registered_system,
    registered_systems,
    system_name,
)
from lmlab.core.system_origin import FileOrigin
from lmlab.core.untrusted_input import check_path


def is_system_file(system: str) -> bool:
    """Whether a string is the path of a system's file, as a user writes it, and no name."""
    return system.endswith(".py") or "/" in system or os.sep in system


def resolve_system(system: str | Path | ModuleType) -> Card:
    """The card of a system that the user gives: by name, as a file or as a module.

    Code that reads a run calls `recorded_system`, which takes no file.
    """
    is_file = isinstance(system, str) and is_system_file(system)
    if is_file or isinstance(system, (Path, ModuleType)):
        return register(system)
    return find_system(system)


def system_argument(card: Card) -> str:
    """What names a system to another process: its name, or the path of its file."""
    system = registered_system(card.name)
    return str(system.file) if isinstance(system.origin, FileOrigin) else card.name


def register(system: str | Path | ModuleType) -> Card:
    """Make the system of a Python file or an imported module known under the file's name.

    It is listed, trained and loaded like any other until this process ends; a later call with
    another version of the file replaces it. Runs record the file's SHA-256 and do not contain the
    file: register it again before they are loaded. A module's file must be as it was when imported.
    """
    if isinstance(system, ModuleType):
        if (known := _known_module(system)) is not None:
            return known
        path = Path(getattr(system, "__file__", None) or "")
        if path.suffix != ".py":
            raise UserError(
                f"the module {system.__name__} has no Python file, which a run would record; write "
                "it to a file."
            )
    else:
        check_path(system, "the file of a system")
        path = Path(system).expanduser()
    source, name = _read_file(path), system_name(path.stem)
    if not SYSTEM_NAME.fullmatch(name):
        raise UserError(
            f"the name of {path} would be the system's; rename it to letters, digits and _."
        )
    card = read_card(path, name, source=source, package=path.name)
    digest = hashlib.sha256(source).hexdigest()
    _check_free(card, path)
    if isinstance(system, ModuleType):
        load: Callable[[], ModuleType] = partial(_imported, system)
    else:
        load = partial(_execute, path.resolve(), source, digest)
    origin = FileOrigin(file=path.name, sha256=digest)
    add_system(RegisteredSystem(card=card, file=path.resolve(), origin=origin, load=load))
    return card


def _imported(module: ModuleType) -> ModuleType:
    return module


def _known_module(module: ModuleType) -> Card | None:
    """The card of a module of the zoo or of an installed package."""
    path = Path(getattr(module, "__file__", None) or "").resolve()
    for system in registered_systems().values():
        if not isinstance(system.origin, FileOrigin) and system.file.resolve() == path:
            return system.card
    return None


def _read_file(path: Path) -> bytes:
    if path.is_dir():
        raise UserError(f"{path} is a folder; a system is a name or a Python file.")
    if not path.exists():
        raise UserError(f"there is no file {path}; check the path.")
    if path.suffix != ".py":
        raise UserError(f"{path} is not a Python file; the file of a system ends in .py.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror or error}).") from error


def _check_free(card: Card, path: Path) -> None:
    """A UserError if a name of a file's system is taken."""
    names = {card.name, *(alias.lower() for alias in card.aliases)}
    for system in registered_systems().values():
        taken = names.intersection(system.names)
        if taken and (card.name != system.card.name or not isinstance(system.origin, FileOrigin)):
            owner = str(system.origin or "lmlab itself")
            raise UserError(
                f"{path} has the name {min(taken)!r} of a system of {owner}; rename the file or "
                "change its aliases."
            )


def _execute(path: Path, source: bytes, digest: str) -> ModuleType:
    """The module of a file, executed once from the bytes that were hashed."""
    name = f"lmlab_system_file_{path.stem}_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        hint = (
            "a system's file may import installed packages only"
            if isinstance(error, ImportError)
            else "correct the file"
        )
        raise UserError(f"{path} can't be run ({reason}); {hint}.") from error
    return module
