"""Training configuration: fields with ranges, recipes, budgets; parsing of `--set key=value`."""

from __future__ import annotations

import math
import types
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lmlab.core.compute_options import DistributedName, PrecisionName
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.switches import parse_switches
from lmlab.core.untrusted_input import check_type
from lmlab.training.compression_config import DistillationConfig, ModuleReplacingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    system_recipes: Mapping[str, Mapping[str, Any]] = getattr(module, "RECIPES", {})
    if name is not None and name not in GENERAL_RECIPES and name not in system_recipes:
        raise unknown_name("recipe", name, {*GENERAL_RECIPES, *system_recipes})
    settings: dict[str, Any] = {}
    for layer in ("default", name or "default"):
        settings |= {**GENERAL_RECIPES.get(layer, {}), **system_recipes.get(layer, {})}
    return settings


OptimizerName = Literal["adamw", "adam", "adafactor", "sgd", "rmsprop"]
ScheduleName = Literal["constant", "linear", "cosine", "inverse-square-root", "plateau"]
ClockName = Literal["wall", "cpu"]
BUDGETS = ("epochs", "steps", "minutes")
TOKENIZER_SETTINGS = ("min_count", "vocabulary_size", "lowercase", "punctuation")
"""Training settings that only a new tokenizer reads."""

AnyConfig = TypeVar("AnyConfig")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(DistillationConfig, ModuleReplacingConfig):
    """Settings of the fitters. Field metadata hold the range: above, at_least, below, at_most."""

    optimizer: OptimizerName = "adamw"
    """adamw, adam, adafactor (steps relative to the parameter scale; T5's), sgd or rmsprop."""
    learning_rate: float = field(default=2e-3, metadata={"above": 0})
    """Peak learning rate, reached after the warm-up."""
    eps: float | None = field(default=None, metadata={"above": 0})
    """Epsilon in the denominator of Adam and RMSprop; None takes the optimiser's default."""
    weight_decay: float = field(default=0.0, metadata={"at_least": 0})
    """Weight decay: decoupled in adamw and adafactor, an L2 penalty in the others. Applies to
    matrices only, never to vectors."""
    momentum: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Momentum of sgd and rmsprop."""
    schedule: ScheduleName = "constant"
    """Learning rate schedule: constant, linear (to 0 over the budget), cosine (to 1 % over it),
    inverse-square-root, or plateau."""
    warmup_steps: int = field(default=0, metadata={"at_least": 0})
    """Warm-up steps, over which the learning rate rises linearly from zero."""
    plateau_factor: float = field(default=0.5, metadata={"above": 0, "below": 1})
    """Factor on the learning rate when the validation loss plateaus."""
    plateau_patience: int = field(default=1, metadata={"at_least": 1})
    """Validations without improvement after which plateau reduces the learning rate."""
    grad_clip: float = field(default=1.0, metadata={"at_least": 0})
    """Gradient clipping: the maximum global norm of the gradient; 0 for none."""
    tokens_per_batch: int = field(default=512, metadata={"at_least": 1})
    """Batch size in tokens, for batches of sentences; padding included."""
    stream_batch_size: int = field(default=20, metadata={"at_least": 1})
    """Batch size on contiguous text: parallel streams, each continued in the next batch."""
    bptt: int = field(default=35, metadata={"at_least": 1})
    """BPTT length: tokens per stream of contiguous text and batch (truncated backpropagation
    through time)."""
    precision: PrecisionName = "float32"
    """Precision inside Transformer and recurrent layers: float32, bfloat16 or, on a GPU, float16
    with a scaled loss. Weights, losses and log-probabilities are float32 always."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: compute the activations of a layer again in the backward pass instead
    of keeping them; less memory, about a third more time, the same gradients."""
    distributed: DistributedName = "ddp"
    """How several processes train one model: ddp (each has all weights; gradients are summed) or
    fsdp (each has a part of the weights; see docs/devices.md)."""
    compile: bool = False
    """Whether to use torch.compile: a minute or more at first, then faster steps on some machines;
    needs a C++ compiler."""
    grad_accumulation: int = field(default=1, metadata={"at_least": 1})
    """Gradient accumulation: batches whose gradients are summed before an optimiser step."""
    epochs: int | None = field(default=10, metadata={"at_least": 1})
    """Budget: passes over the training split."""
    steps: int | None = field(default=None, metadata={"at_least": 1})
    """Budget: optimiser steps. Of several budgets the first to run out ends training."""
    minutes: float | None = field(default=None, metadata={"above": 0})
    """Budget: minutes, by the `clock`."""
    clock: ClockName = "wall"
    """Clock of the budget and of all reported seconds and speeds: wall, or cpu (CPU time of the
    process, which other processes hardly change; not on a GPU)."""
    patience: int = field(default=0, metadata={"at_least": 0})
    """Early stopping: validations without improvement after which training stops; 0 for never."""
    select_by: Literal["loss", "bleu"] = "loss"
    """Model selection: keep the weights with the best validation loss, or with the best BLEU of
    greedy translations of the validation split, which is then reported too."""
    average: int = field(default=0, metadata={"at_least": 0})
    """Checkpoint averaging: average the weights of this many last validations at the end, and keep
    the average if it is better; 0 for none. A resumed training averages from there on."""
    evaluate_every: int = field(default=0, metadata={"at_least": 0})
    """Steps between validations; 0 for one after every epoch."""
    log_every: int = field(default=50, metadata={"at_least": 1})
    """Steps between training lines of metrics.jsonl, each with the mean loss since the last."""
    checkpoint_minutes: float = field(default=2.0, metadata={"above": 0})
    """Minutes between checkpoints; one more is written at the end and on Ctrl-C."""
    checkpoint_steps: int = field(default=0, metadata={"at_least": 0})
    """Steps between checkpoints, in addition to those by time; 0 for none."""
    snapshot_epochs: tuple[int, ...] = ()
    """Epochs after which the weights are kept as a run of their own, RUN/epochs/N (not by em and
    the fitters that count)."""
    max_length_ratio: float | None = field(default=None, metadata={"at_least": 1})
    """Maximum length ratio of a training pair, in words; longer ones are dropped and counted. None
    keeps all."""
    min_count: int | None = field(default=None, metadata={"at_least": 1})
    """Minimum count: rarer words become <unk>; None takes the corpus's own minimum."""
    vocabulary_size: int | None = field(default=None, metadata={"at_least": 6})
    """Maximum vocabulary size, special tokens included; None is no limit (8,000 for subwords)."""
    lowercase: bool = False
    """Whether a tokenizer of words or subwords changes texts to lower case; character offsets stay
    those of the text."""
    punctuation: Literal["attached", "split"] = "attached"
    """Punctuation of word and wordpiece tokenizers: attached to words as in the text, or split off
    their edges as tokens (dog, is dog and a comma); don't and 3.14 stay whole."""
    seed: int = field(default=0, metadata={"at_least": 0, "below": 2**31})
    """Random seed of the initial weights, the batch order and all randomness of training."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if all(getattr(self, name) is None for name in BUDGETS):
            raise UserError("a training needs a budget; give epochs, steps or minutes.")


def with_budget(
    config: TrainingConfig, *, keep: Collection[str] = (), **budget: float | None
) -> TrainingConfig:
    """The config with the given budgets, keeping of its own only those named in `keep`; unchanged
    where none is given."""
    given = {name: value for name, value in budget.items() if value is not None}
    if not given:
        return config
    dropped = [name for name in BUDGETS if name not in keep]
    changes: dict[str, Any] = {**dict.fromkeys(dropped), **given}
    return apply_settings(config, changes)


def replace_budgets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which any given budget replaces all earlier ones."""
    if any(settings.get(name) is not None for name in BUDGETS):
        return {**dict.fromkeys(BUDGETS), **settings}
    return dict(settings)


def check_ranges(config: Any) -> None:
    """Raise a UserError where a field is outside the range in its metadata, or not finite."""
    hints = _field_types(config.__class__)
    for spec in fields(config):
        value = getattr(config, spec.name)
        options = _literal_options(hints[spec.name])
        if options and value not in options:
            raise unknown_name(f"value of {spec.name}", str(value), map(str, options))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value) or not _in_range(spec, value):
            raise UserError(f"{spec.name} must be {_range_words(spec)}, got {value!r}.")


@cache
def _field_types(config: type) -> Mapping[str, Any]:
    """The evaluated annotations of a config, which take a millisecond."""
    return get_type_hints(config)


def _in_range(spec: Field[Any], value: float) -> bool:
    bounds: Mapping[str, float] = spec.metadata
    return (
        value > bounds.get("above", -math.inf)
        and value >= bounds.get("at_least", -math.inf)
        and value < bounds.get("below", math.inf)
        and value <= bounds.get("at_most", math.inf)
    )


def _range_words(spec: Field[Any]) -> str:
    words = [
        f"{name.replace('_', ' ')} {spec.metadata[name]}"
        for name in ("above", "at_least", "below", "at_most")
        if name in spec.metadata
    ]
    return " and ".join(words) or "a finite number"


def apply_settings(
    config: AnyConfig, settings: Mapping[str, Any], see: str = "lmlab settings"
) -> AnyConfig:
    """A copy of a config with some fields set, each from a value or a `--set` string.

    `see` is the command that lists the settings, for the error on an unknown one.
    """
    assert is_dataclass(config) and not isinstance(config, type)
    hints = _field_types(type(config))
    switches = {s.name: s.metadata["switches"] for s in fields(config) if "switches" in s.metadata}
    parsed = {}
    for key, value in settings.items():
        if key not in hints:
            raise unknown_name("setting", key, hints, see)
        if key in switches:
            value = parse_switches(value, switches[key])
        parsed[key] = _parse(key, value, hints[key]) if isinstance(value, str) else value
    try:
        for key, value in parsed.items():
            if not _literal_options(hints[key]):  # check_ranges suggests the nearest of these
                check_type(key, value, hints[key])
        result = replace(config, **parsed)
    except ValueError as error:  # from the type, or from a config's own __post_init__
        raise UserError(f"{str(error).rstrip('.')}.") from error
    check_ranges(result)
    return result


def split_settings(
    settings: Mapping[str, Any],
    system: DataclassInstance,
    training: TrainingConfig,
    see: str = "lmlab settings",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into the system's and the training's; an unknown one raises with suggestions.

    `see` is the command that lists the settings, for that error.
    """
    of_system = {spec.name for spec in fields(system)}
    of_training = {spec.name for spec in fields(training)}
    shared = of_system & of_training
    assert not shared, f"{type(system).__module__} and TrainingConfig share the settings {shared}"
    normalised = {key.strip().replace("-", "_"): value for key, value in settings.items()}
    for key in normalised:
        if key not in of_system | of_training:
            raise unknown_name("setting", key, of_system | of_training, see)
    return (
        {key: value for key, value in normalised.items() if key in of_system},
        {key: value for key, value in normalised.items() if key in of_training},
    )


def _literal_options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _parse(key: str, text: str, hint: Any) -> Any:
    """Parse a string as its field's type: bool, int, float, str, a choice, a tuple, or none."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in options and text.lower() in ("none", "null"):
        return None
    for option in options:
        if option is type(None):
            continue
        try:
            return _parse_as(text.strip(), option)
        except ValueError:
            continue
    raise UserError(f"{key} must be {_type_words(hint)}, got {text!r}.")


def _parse_as(text: str, hint: Any) -> Any:
    choices = _literal_options(hint)
    if choices:
        matches = [choice for choice in choices if str(choice) == text]
        return matches[0] if matches else text  # check_ranges suggests the nearest choices
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(_parse_as(part.strip(), inner) for part in text.split(",") if part.strip())
    if hint is bool:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise ValueError(text)
    if hint in (int, float, str):
        return hint(text)
    raise ValueError(text)


def _type_words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_words(option) for option in get_args(hint))
    if _literal_options(hint):
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return "values separated by commas, each " + _type_words(get_args(hint)[0])
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(hint, "none" if hint is type(None) else "set in Python, not by a string")
