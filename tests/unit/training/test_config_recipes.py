from __future__ import annotations

from types import ModuleType

import pytest

from lmlab.core.errors import UserError
from lmlab.training.config import GENERAL_RECIPES, TrainingConfig, apply_settings, recipe_settings


def zoo_file(**recipes: dict[str, object]) -> ModuleType:
    module = ModuleType("zoo_file")
    if recipes:
        module.RECIPES = recipes  # type: ignore[attr-defined]
    return module


def test_named_recipe_extends_the_default_recipe() -> None:
    module = zoo_file(default={"grad_clip": 0.5, "dropout": 0.2}, long={"dropout": 0.4})
    assert recipe_settings(module, None) == {"grad_clip": 0.5, "dropout": 0.2}
    assert recipe_settings(module, "long") == {"grad_clip": 0.5, "dropout": 0.4}


def test_system_recipe_extends_the_general_recipe() -> None:
    settings = recipe_settings(zoo_file(notes={"learning_rate": 0.5}), "notes")
    assert (settings["optimizer"], settings["eps"], settings["learning_rate"]) == (
        "rmsprop",
        0.01,
        0.5,
    )


def test_unknown_recipe_error_suggests_similar_names() -> None:
    with pytest.raises(UserError, match="did you mean 'notes'"):
        recipe_settings(zoo_file(), "nots")
    with pytest.raises(UserError, match="did you mean 'long'"):
        recipe_settings(zoo_file(long={}), "lon")


@pytest.mark.parametrize("name", GENERAL_RECIPES)
def test_general_recipes_are_valid_training_settings(name: str) -> None:
    changed = apply_settings(TrainingConfig(), GENERAL_RECIPES[name])
    assert all(getattr(changed, key) == value for key, value in GENERAL_RECIPES[name].items())
