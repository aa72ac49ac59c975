from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from lmlab.core.errors import UserError
from lmlab.training.config import (
    TrainingConfig,
    apply_settings,
    replace_budgets,
    split_settings,
    with_budget,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    width: int = 4
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    tied: bool = False
    cell: Literal["plain", "gated"] = "plain"
    name: str = ""
    depth: int | None = None
    kernel: tuple[int, ...] = (3, 3)


def test_strings_are_parsed_to_field_types() -> None:
    given = {
        "width": "12",
        "dropout": "0.25",
        "tied": "yes",
        "cell": "gated",
        "name": "12",
        "depth": "3",
        "kernel": "1, 2,3",
    }
    expected = Settings(
        width=12, dropout=0.25, tied=True, cell="gated", name="12", depth=3, kernel=(1, 2, 3)
    )
    assert apply_settings(Settings(), given) == expected


def test_none_clears_optional_field_without_mutation() -> None:
    original = Settings(depth=2)
    assert apply_settings(original, {"depth": "none"}).depth is None
    assert original.depth == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": "wide"}, "width must be a whole number, got 'wide'"),
        ({"width": "1.5"}, "width must be a whole number"),
        ({"tied": "perhaps"}, "tied must be true or false"),
        ({"dropout": "1"}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": "nan"}, "dropout must be"),
        ({"cell": "gatd"}, "did you mean 'gated'"),
        ({"widht": "3"}, "did you mean 'width'"),
        ({"depth": "x"}, "depth must be a whole number or none"),
    ],
)
def test_invalid_setting_is_reported(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_settings(Settings(), settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": "-1"},
        {"learning_rate": "0"},
        {"learning_rate": "inf"},
        {"epochs": "0"},
        {"grad_clip": "-0.1"},
        {"momentum": "1"},
        {"tokens_per_batch": "0"},
        {"optimizer": "adagrad"},
        {"schedule": "cosin"},
        {"warmup_steps": "-1"},
        {"grad_accumulation": "0"},
    ],
)
def test_out_of_range_training_settings_are_rejected(settings: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(settings)).replace("_", "[_ ]")):
        apply_settings(TrainingConfig(), settings)


def test_given_budgets_replace_the_defaults() -> None:
    with pytest.raises(UserError, match="needs a budget"):
        TrainingConfig(epochs=None)

    def budget(config: TrainingConfig) -> tuple[int | None, int | None, float | None]:
        return config.epochs, config.steps, config.minutes

    assert budget(with_budget(TrainingConfig(), epochs=None, minutes=2)) == (None, None, 2)
    assert budget(with_budget(TrainingConfig(), steps=3, minutes=1)) == (None, 3, 1)
    own = TrainingConfig(epochs=None, minutes=2)
    assert budget(with_budget(own, keep=["minutes"], steps=3)) == (None, 3, 2)
    assert with_budget(TrainingConfig(), steps=None) == TrainingConfig()
    assert budget(apply_settings(TrainingConfig(), replace_budgets({"steps": "3"}))) == (
        None,
        3,
        None,
    )
    assert replace_budgets({"grad_clip": 1}) == {"grad_clip": 1}


def test_settings_are_split_and_unknown_ones_get_suggestions() -> None:
    parts = split_settings({"width": "3", "learning-rate": "1"}, Settings(), TrainingConfig())
    assert parts == ({"width": "3"}, {"learning_rate": "1"})
    with pytest.raises(UserError, match="did you mean 'dropout'"):
        split_settings({"drop": "1"}, Settings(), TrainingConfig())
    with pytest.raises(UserError, match="did you mean 'momentum'"):
        split_settings({"momentm": "1"}, Settings(), TrainingConfig())
