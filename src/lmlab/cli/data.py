"""`lmlab data list` and `lmlab data describe CORPUS`: built-in corpora, corpus statistics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, print_table
from lmlab.cli.terminal import terminal
from lmlab.verbs import resources as verbs

if TYPE_CHECKING:
    from lmlab.data.corpus_summary import CorpusSummary, SplitSummary

MAX_BAR_WIDTH = 30
"""Width of the longest histogram bar, in characters."""


@terminal(verbs.data_list)
def list_corpora(as_json: JsonOption = False) -> None:
    entries = verbs.data_list()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    rows = [(entry.name, entry.form, entry.description) for entry in entries]
    print_table(("corpus", "form", "what it is"), rows)
    print(
        "\nOr a file (a sentence a line, .jsonl, .fa, .tsv of pairs, any of them gzipped), or a "
        "folder with train*, val*|valid*|dev*, test* in it."
    )


@terminal(verbs.data_describe)
def describe(as_json: JsonOption = False, **options: Any) -> None:
    summary = verbs.data_describe(**options)
    if as_json:
        print_json(summary.as_dict())
    else:
        print_description(summary)


def print_description(summary: CorpusSummary) -> None:
    """Print the statistics of a corpus."""
    about = "" if summary.duplicates_exact else " (duplicates estimated from a sample)"
    print(f"{summary.name}: {summary.description}{about}")
    print(f"layout: {_layout(summary)}")
    print(f"tokenizer: {summary.tokenizer}, {summary.vocabulary:,} tokens in its vocabulary")
    if summary.entropy is not None:
        mean = summary.entropy_per_token
        per_token = "" if mean is None else f", {mean:.4f} nats per token"
        print(f"entropy: {summary.entropy:.4f} nats per text{per_token} (exact)")
    print()
    header = ("split", "examples", "tokens", "characters", "unknown", "repeated", "seen in train")
    print_table(header, [_row(name, split) for name, split in summary.splits.items()])
    for name, split in summary.splits.items():
        read = split.report.summary() if split.report.files else f"{split.examples:,} examples"
        print(f"\n{name}: {read}")
        print_histogram(split)


def _layout(summary: CorpusSummary) -> str:
    parts: list[str] = [summary.layout.kind]
    parts += [f"cut at {summary.layout.cut} tokens"] if summary.layout.cut else []
    parts += [] if summary.layout.end else ["no end symbol"]
    return ", ".join(parts)


def _row(name: str, split: SplitSummary) -> tuple[str, ...]:
    seen = "" if split.seen_in_train is None else f"{split.seen_in_train:,}"
    unknown = f"{split.unknown:,} ({split.unknown_rate:.2%})"
    return (
        name,
        f"{split.examples:,}",
        f"{split.tokens:,}",
        f"{split.characters:,}",
        unknown,
        f"{split.duplicates:,}",
        seen,
    )


def print_histogram(split: SplitSummary) -> None:
    """Print a histogram of example lengths in tokens."""
    max_examples = max((bar.examples for bar in split.histogram), default=1) or 1
    for bar in split.histogram:
        span = str(bar.low) if bar.low == bar.high else f"{bar.low}-{bar.high}"
        blocks = "█" * round(MAX_BAR_WIDTH * bar.examples / max_examples)
        print(f"  {span:>12} tokens  {blocks:<{MAX_BAR_WIDTH}}  {bar.examples:,}")
