"""Training recipes: named groups of settings, general ones and those of a system's zoo file."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from lmlab.core.errors import unknown_name

GENERAL_RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    # RMSprop with eps 0.01, batches of 280 sentences of 15 tokens (multi30k truncated at 20).
    "notes": {
        "optimizer": "rmsprop",
        "eps": 0.01,
        "learning_rate": 1e-3,
        "tokens_per_batch": 280 * 15,
        "grad_clip": 0.0,
        "epochs": 30,
    },
}


def recipe_settings(module: ModuleType, name: str | None) -> dict[str, Any]:
    """The settings of a recipe; `default` is always applied, the named one on top of it."""
    own: Mapping[str, Mapping[str, Any]] = getattr(module, "RECIPES", {})
    if name is not None and name not in GENERAL_RECIPES and name not in own:
        raise unknown_name("recipe", name, {*GENERAL_RECIPES, *own})
    settings: dict[str, Any] = {}
    for layer in ("default", name or "default"):
        settings |= {**GENERAL_RECIPES.get(layer, {}), **own.get(layer, {})}
    return settings
