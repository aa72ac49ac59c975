"""Which systems the yardstick measures, and by which settings; read from the catalogue's cards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue, system_module

SIZE = "small"
TOKENIZER = "byte"
FIRST = ("ngram", "lstm", "gpt", "gru", "window", "hmm", "transformer-xl", "bert", "gru-vae")
"""Measured before the others, which follow by name."""
SECTIONS = {
    "exact": ("exact", "bound"),
    "estimate": ("estimate",),
    "pseudo": ("pseudo",),
    "reconstruction": ("reconstruction",),
    "unnormalised": ("unnormalised",),
}
"""The sections of the table: kinds of score that are ranked together."""
LENGTH_SETTINGS = ("length", "max_length")
LENGTH_STEP = 64
"""Lengths are multiples of this."""
WIDE = 128
"""A system of more width is also tried with this one, as it sees more text in the time."""
ORDERS = range(2, 13)
"""Orders of n-grams."""


def reason_left_out(card: Card) -> str | None:
    """Why the yardstick can't measure a system; None if it can."""
    if "LogProb" not in card.protocols:
        return f"gives no score of a text: it has {', '.join(card.protocols)} alone"
    external = [name for name in ("knowledge", "documents") if name in card.needs]
    if external:
        described = {"knowledge": "entities and facts", "documents": "documents to retrieve from"}
        return f"needs {' and '.join(described[name] for name in external)}"
    if card.conditional and "source" in card.exempt:
        return card.exempt["source"]
    if card.components:
        return "is made of other runs by `lmlab mix`, whose rows are here, and not trained itself"
    return None


def own_cards() -> list[Card]:
    """The cards of lmlab's own systems; those of plug-ins have no page to link to."""
    return [card for card in catalogue().values() if not card.package]


def measured_systems() -> list[Card]:
    """The cards of all systems that are measured, in the order in which they are."""
    cards = [card for card in own_cards() if reason_left_out(card) is None]
    rank = {name: index for index, name in enumerate(FIRST)}
    return sorted(cards, key=lambda card: (rank.get(card.name, len(FIRST)), card.name))


def systems_left_out() -> dict[str, str]:
    """The reason of each system that is not measured."""
    reasons = {card.name: reason_left_out(card) for card in own_cards()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def length_settings(name: str, size: str, tokens: int) -> dict[str, Any]:
    """The setting without which a system does not read so many tokens, <s> and </s> included."""
    from lmlab.data.tokenizers import train_tokenizer
    from lmlab.training.system_building import build_system

    config, card = system_module(name).SIZES[size], catalogue()[name]
    available = [key for key in LENGTH_SETTINGS if hasattr(config, key)]
    enough = -(-tokens // LENGTH_STEP) * LENGTH_STEP
    if card.base:  # built on a trained system: what it reads is known without building it
        return {key: enough for key in available if getattr(config, key) < tokens}
    vocabulary = train_tokenizer(TOKENIZER, []).vocabulary
    for settings in ({}, *({key: enough} for key in available)):
        try:
            built = build_system(name, asdict(config) | settings, vocabulary, seed=0)
            built.check_length(tokens)
        except UserError:
            continue
        return settings
    raise UserError(f"{name} of size {size} can't read {tokens} tokens, whatever its length.")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training for a recipe: its settings and its validation loss, None if it failed."""

    settings: dict[str, Any]
    loss: float | None = None

    @property
    def rank(self) -> float:
        return float("inf") if self.loss is None else self.loss


def base_settings(card: Card) -> dict[str, Any]:
    """Settings of every training of a system, before what its trials change."""
    if card.fitting in ("counting", "em"):
        return {"clock": "cpu"}
    config = system_module(card.name).SIZES[SIZE]
    # In three minutes no text is seen often enough to be learnt by heart.
    common: dict[str, Any] = {"clock": "cpu", "checkpoint_minutes": 0.5}
    common |= {key: 0.0 for key in ("dropout", "attention_dropout") if hasattr(config, key)}
    if card.fitting == "words":
        return common | {"threads": 1}
    return common | {"schedule": "cosine", "warmup_steps": 20, "tokens_per_batch": 1024}


def next_trial(card: Card, trials: list[Trial]) -> dict[str, Any] | None:
    """The settings of the next trial, given those made; None if there are enough.

    Three of learning rates: the system's own, three times that, and by the better of the two
    another third or three times; a system wider than WIDE is tried with that width instead, at the
    better rate. An n-gram is counted with each order; what EM fits has nothing to try.
    """
    if card.fitting == "counting":
        return {"order": ORDERS[len(trials)]} if len(trials) < len(ORDERS) else None
    if card.fitting == "em" or len(trials) == 3:
        return None
    rate = learning_rate(card)
    if len(trials) < 2:
        return {"learning_rate": (rate, 3 * rate)[len(trials)]}
    better = min(trials, key=lambda trial: trial.rank).settings["learning_rate"]
    if getattr(system_module(card.name).SIZES[SIZE], "width", 0) > WIDE:
        return {"learning_rate": better, "width": WIDE}
    return {"learning_rate": float(f"{9 * rate if better > rate else rate / 3:.6g}")}


def learning_rate(card: Card) -> float:
    """The learning rate of a system's default recipe."""
    from lmlab.training.config import TrainingConfig, recipe_settings

    recipe = recipe_settings(system_module(card.name), None)
    return float(recipe.get("learning_rate", TrainingConfig().learning_rate))


def chosen_settings(trials: list[Trial]) -> dict[str, Any]:
    """The settings of the trial with the lowest validation loss; none if there was no trial."""
    return min(trials, key=lambda trial: trial.rank).settings if trials else {}
