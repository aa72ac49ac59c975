"""Copies a pretrained encoder's weights into a Transformer of the same architecture (checked)."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.core.assembly import ComposedSystem
from lmlab.core.errors import UserError
from lmlab.core.system import System

COMPARED_TYPES = (bool, int, float, str, tuple, frozenset, FunctionType, BuiltinFunctionType)
"""Types of the settings compared between two modules of one class."""
IGNORED_SETTINGS = frozenset({"training", "p", "dropout"})
"""Settings that may differ: dropout is not part of the learned function."""


@torch.no_grad()
def copy_encoder_weights(target: Transformer, encoder: System) -> None:
    """Copy the weights of the encoder's backbone, whose architecture must equal that of `own`.

    The attention mask may differ: `own` uses that of its objective, so a causal model can
    initialise a bidirectional one.
    """
    source = encoder.backbone if isinstance(encoder, ComposedSystem) else None
    if not isinstance(source, Transformer):
        raise UserError(
            "--encoder must be a run of a Transformer encoder trained on single texts, and this "
            "run is not one; train one first (lmlab train roberta …) and give its folder by "
            "--encoder."
        )
    target_settings, source_settings = _architecture(target), _architecture(source)
    for name in sorted(target_settings.keys() | source_settings.keys()):
        expected, actual = (
            target_settings.get(name, "missing"),
            source_settings.get(name, "missing"),
        )
        if expected != actual:
            raise UserError(
                f"the encoder has a different architecture ({name} is {actual} there and "
                f"{expected} here); remove the encoder's settings from --set, or train an encoder "
                "that has them."
            )
    for parameter, trained in zip(target.parameters(), source.parameters(), strict=True):
        parameter.copy_(trained)


def _architecture(module: nn.Module) -> dict[str, Any]:
    """A module's architecture: parameter shapes, and the classes and settings of its parts."""
    settings: dict[str, Any] = {k: tuple(p.shape) for k, p in module.named_parameters()}
    for path, part in module.named_modules():
        settings[f"{path} itself".lstrip()] = type(part).__name__
        for name, value in vars(part).items():
            if (
                isinstance(value, COMPARED_TYPES)
                and name not in IGNORED_SETTINGS
                and name[0] != "_"
            ):
                settings[f"{path}.{name}".lstrip(".")] = getattr(value, "__name__", value)
    return settings
