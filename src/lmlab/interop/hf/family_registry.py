"""Registry of checkpoint families: the files of `families/`, each named after its model type."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from lmlab.core.errors import UserError, unknown_name
from lmlab.interop.hf.family import CheckpointFamily


@cache
def families() -> dict[str, CheckpointFamily]:
    """All families, by model type."""
    here = Path(__file__).parent / "families"
    names = sorted(module.name for module in iter_modules([str(here)]) if module.name[0] != "_")
    found = {name: import_module(f"lmlab.interop.hf.families.{name}").FAMILY for name in names}
    assert all(name == family.model_type for name, family in found.items())
    return found


def family_of_checkpoint(model_type: object, asked: str | None) -> CheckpointFamily:
    """The family of a config.json's model_type; must be the requested one, if any."""
    if asked is not None and asked not in families():
        raise unknown_name("family of checkpoints", asked, families())
    if not isinstance(model_type, str) or model_type not in families():
        raise UserError(
            f"the checkpoint's model_type must be one of {', '.join(families())}, got "
            f"{model_type!r}."
        )
    if asked is not None and asked != model_type:
        raise UserError(f"expected a checkpoint of {asked}, got one of {model_type}.")
    return families()[model_type]


def family_of_system(name: str) -> CheckpointFamily:
    """The family that a system is exported as."""
    for family in families().values():
        if name in family.systems:
            return family
    able = sorted(system for family in families().values() for system in family.systems)
    raise UserError(
        f"{name} can't be stored in the Hub's format; systems that can: {', '.join(able)}."
    )
