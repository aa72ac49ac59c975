"""Config fields: translation between lmlab settings and config.json, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmlab.core.errors import UserError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}
"""Our names of activations and theirs; some have several in transformers."""
OTHER_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_python": "gelu",
    "swish": "silu",
}


@dataclass(frozen=True)
class ConfigField:
    """A setting of ours and the config.json entry with the same meaning."""

    ours: str
    theirs: str
    default: Any
    """Value if config.json lacks the entry."""
    read: Callable[[Any], Any] = field(default=lambda value: value)
    """From their value to ours."""
    write: Callable[[Any], Any] = field(default=lambda value: value)
    """From our value to theirs."""

    def read_from(self, config: Mapping[str, Any]) -> Any:
        """Our value of the entry in their config.json."""
        value = config.get(self.theirs)
        value = self.default if value is None else value
        kinds = (int, float) if isinstance(self.default, float) else (type(self.default),)
        if type(value) not in kinds:
            raise UserError(
                f"{self.theirs} in the checkpoint's config.json must be a value such as "
                f"{self.default!r}, got {value!r}."
            )
        return self.read(value)


def read_whole_number(config: Mapping[str, Any], theirs: str, default: int) -> int:
    """An integer entry of their config.json."""
    return int(ConfigField(theirs, theirs, default).read_from(config))


def activation_field(theirs: str, default: str) -> ConfigField:
    """The activation of the feed-forward layers."""
    return ConfigField("activation", theirs, default, from_hf_activation, ACTIVATIONS.__getitem__)


def from_hf_activation(name: Any) -> str:
    known = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | OTHER_ACTIVATIONS
    if name not in known:
        raise UserError(
            f"the checkpoint's activation must be one of {', '.join(sorted(known))}, got {name!r}."
        )
    return known[name]


def resolve_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings: a default size, given as 0 or explicitly, gets one spelling."""
    width, found = settings["width"], dict(settings)
    found["ffn_width"] = settings["ffn_width"] or 4 * width
    if settings["head_width"] * settings["heads"] == width:
        found["head_width"] = 0
    if settings["embedding_width"] == width:
        found["embedding_width"] = 0
    return found


def to_json_value(value: Any) -> Any:
    """Convert to a JSON value (tuples become lists)."""
    return list(value) if isinstance(value, tuple) else value


def to_set_value(value: Any) -> str:
    """Format as a value for `--set`."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(to_set_value, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
