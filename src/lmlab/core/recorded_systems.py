"""The system that a run records: looked up among what is at hand; a run's word imports nothing."""

from __future__ import annotations

import warnings

from lmlab.core.card import Card
from lmlab.core.errors import LmlabWarning, UserError, unknown_name
from lmlab.core.manifest import verifies
from lmlab.core.plugins import normalised_package
from lmlab.core.registry import RegisteredSystem, registered_systems, system_name, system_problems
from lmlab.core.system_origin import FileOrigin, PackageOrigin, SystemOrigin


def recorded_system(name: str, origin: SystemOrigin | None, where: str) -> Card:
    """The card of the system that a run records; a UserError if it is not at hand.

    It is looked up among what is installed or was given in this process: nothing that a run names
    is imported or executed. `where` names the run.
    """
    what = f"{where} was trained with the system {name} of {origin or 'lmlab itself'}"
    normalised = system_name(name)
    system = next((s for s in registered_systems().values() if normalised in s.names), None)
    if system is None:
        raise _missing(name, origin, what)
    match origin, system.origin:
        case None, None:
            pass
        case PackageOrigin(), PackageOrigin() if _same_package(origin, system.origin):
            if origin.version != system.origin.version:
                _warn(f"{what}, and {system.origin.version} is installed; results may differ.")
        case FileOrigin(), FileOrigin():
            if origin.sha256 != system.origin.sha256:
                _check_insists(f"{what}, and {system.file} differs from it")
        case _:
            raise _other(name, what, system)
    return system.card


def _same_package(recorded: PackageOrigin, installed: PackageOrigin) -> bool:
    return normalised_package(recorded.package) == normalised_package(installed.package)


def _missing(name: str, origin: SystemOrigin | None, what: str) -> UserError:
    """The error for a recorded system that is not at hand."""
    problem = system_problems().get(system_name(name))
    match origin:
        case FileOrigin():
            return UserError(
                f"{what}, which a run does not contain; give it by --system-file {origin.file}, in "
                f"Python by lmlab.register({origin.file!r})."
            )
        case PackageOrigin() if problem is not None:
            return UserError(f"{what}, which can't be used: {problem}")
        case PackageOrigin():
            return UserError(f"{what}, which is not installed; pip install {origin.package}.")
    names = [known for system in registered_systems().values() for known in system.names]
    return unknown_name("system", name, names, "lmlab systems")


def _other(name: str, what: str, system: RegisteredSystem) -> UserError:
    """The error for a recorded system whose name is another's here."""
    return UserError(
        f"{what}, and here {name} is a system of {system.origin or 'lmlab itself'}; use an "
        "environment that has the one it was trained with."
    )


def _check_insists(sentence: str) -> None:
    """A UserError, or a warning if verification is switched off."""
    if verifies():
        raise UserError(f"{sentence}; give the original, or insist by --no-verify (verify=False).")
    _warn(f"{sentence}; results may differ.")


def _warn(sentence: str) -> None:
    warnings.warn(LmlabWarning(sentence), stacklevel=3)
