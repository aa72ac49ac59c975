"""Scores as HTML: tokens shaded by surprisal, with the kind of score and the convention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lmlab.core.html import Html, join_html, plain_table, tag, visible_text
from lmlab.core.score_descriptions import KIND_DESCRIPTIONS, describe_convention

if TYPE_CHECKING:
    from lmlab.core.score import Convention, Score, ScoreKind, Summary, TokenScore

SURPRISAL_SCALE = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Surprisals, in nats, in the colour legend."""
INTERVAL = ("perplexity_low", "perplexity_high")


def token_html(token: TokenScore) -> Html:
    """A token on a background of its surprisal."""
    nats = 0.0 - token.log_prob
    unknown = ", unknown to the model" if token.unknown else ""
    return tag(
        "span",
        visible_text(token.token) if token.token.strip() else "␣" * len(token.token),
        class_="token unknown" if token.unknown else "token",
        style=surprisal_style(nats),
        title=f"{nats:.3f} nats, p = {math.exp(token.log_prob):.3g}{unknown}",
    )


def surprisal_style(nats: float) -> str:
    """Opacity by surprisal s: 1 - e^(-s/3)."""
    return f"--s:{1 - math.exp(-max(nats, 0.0) / 3):.3f}"


def surprisal_legend() -> Html:
    """How to read the shading."""
    key = [
        tag("span", f"{nats:g}", class_="token", style=surprisal_style(nats))
        for nats in SURPRISAL_SCALE
    ]
    return join_html(
        [
            "−log p of each token, in nats: ",
            tag("span", *key, class_="scale"),
            "; point at one for its figure; unknown ones are underlined.",
        ]
    )


def score_html(score: Score) -> Html:
    """A text with its tokens shaded, and its log-probability."""
    figure = f"{score.figure:.4f}".replace("-", "−")
    unit = "nats in the mean" if score.convention.mean else "nats"
    interval = "" if score.low is None else f" (from {score.low:.4f} to {score.high:.4f})"
    count = f"{score.tokens:,} {'token' if score.tokens == 1 else 'tokens'}"
    source = [] if score.source is None else [tag("div", visible_text(score.source))]
    tokens: list[str] = [token_html(token) for token in score.per_token]
    tokens = tokens or [visible_text(score.text)]
    head = [tag("b", score.kind), f" {figure} {unit}{interval}, {count}"]
    return tag(
        "div", tag("div", *head, class_="faint"), *source, tag("div", *tokens), class_="score"
    )


def score_notes(kind: ScoreKind, convention: Convention) -> tuple[str, ...]:
    """What the figures are, once for all scores that share it."""
    return (f"{kind}: {KIND_DESCRIPTIONS[kind]}.", f"{describe_convention(convention)}.")


def summary_html(summary: Summary) -> Html:
    """The figures of a summary, one below the other."""
    figures = summary_figures(summary)
    low, high = (figures.pop(name, None) for name in INTERVAL)
    rows = [
        (name.replace("_", " "), f"{value:,.4f}" if isinstance(value, float) else f"{value:,}")
        for name, value in figures.items()
        if value is not None
    ]
    if low is not None:
        rows.insert(1, ("perplexity, interval", f"{low:,.4f} to {high:,.4f}"))
    rows.insert(0, ("kind", summary.kind))
    return plain_table([f"{summary.sequences:,} texts", ""], rows, numbers=(False, True))


def summary_figures(summary: Summary) -> dict[str, float | int | None]:
    """The figures of a summary by name; None where undefined."""
    from lmlab.core.score import NORMALISED_KINDS

    normalised = summary.kind in NORMALISED_KINDS
    interval = summary.perplexity_interval if normalised else None
    return {
        "perplexity": summary.perplexity if normalised else None,
        **({} if interval is None else dict(zip(INTERVAL, interval, strict=True))),
        "nats_per_token": summary.nats_per_token,
        "bits_per_character": summary.bits_per_character,
        "bits_per_byte": summary.bits_per_byte,
        "tokens": summary.tokens,
        "unknown": summary.unknown,
    }
