"""Score formatting in one line: counts, summaries (perplexity)."""

from __future__ import annotations

from lmlab.core.score import NORMALISED_KINDS, Summary
from lmlab.core.score_descriptions import KIND_DESCRIPTIONS, describe_convention


def format_count(count: int, noun: str) -> str:
    """`1 token`, `2,000 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def describe_summary(summary: Summary) -> str:
    """A summary of scores in one line: perplexity where it is defined, kind and conventions."""
    texts = "text" if summary.sequences == 1 else "texts"
    unknown = f" ({summary.unknown:,} unknown)" if summary.unknown else ""
    perplexity = (
        f"perplexity {summary.perplexity:.4f}"
        if summary.kind in NORMALISED_KINDS
        else f"no perplexity, as the scores are {summary.kind}"
    )
    if summary.kind in NORMALISED_KINDS and summary.perplexity_interval is not None:
        best, worst = summary.perplexity_interval
        perplexity += f" (between {best:.4f} and {worst:.4f})"
    per_character, per_byte = summary.bits_per_character, summary.bits_per_byte
    bits = "no bits/character"
    if per_character is not None and per_byte is not None:
        bits = f"{per_character:.4f} bits/character, {per_byte:.4f} bits/byte"
    return (
        f"{summary.sequences:,} {texts}, {format_count(summary.tokens, 'token')}{unknown}, "
        f"{summary.characters:,} characters: {perplexity}, "
        f"{summary.nats_per_token:.4f} nats/token, {bits}; "
        f"kind {summary.kind} ({KIND_DESCRIPTIONS[summary.kind]}); "
        f"{describe_convention(summary.convention)}"
    )
