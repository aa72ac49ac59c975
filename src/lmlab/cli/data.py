"""`lmlab data list` and `lmlab data describe CORPUS`: built-in corpora, corpus statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import CorpusArgument, ErrorsOption, JsonOption
from lmlab.cli.output import print, print_json, print_table

if TYPE_CHECKING:
    from lmlab.data.corpus_summary import CorpusSummary, SplitSummary

FILE_FORMS = {
    "contiguous:PATH": "A file or folder read as one stream that goes on over its lines.",
    "parallel:DE-EN:FOLDER": "Pairs for translating: train*.de beside train*.en, and so for "
    "val*|valid*|dev* and test*, with the names of any two languages.",
    "parallel:FILE,FILE": "Pairs for translating: sources a line, and their translations in the "
    "same lines of the other file; split as a file is.",
}
"""Corpus specs other than a plain file or folder."""
MAX_BAR_WIDTH = 30
"""Width of the longest histogram bar, in characters."""


def list_corpora(as_json: JsonOption = False) -> None:
    """List the built-in corpora and the protocols for data of your own."""
    from lmlab.data.load_corpus import builtin_descriptions
    from lmlab.data.standard_datasets import CORPUS_PROTOCOLS

    entries = [(name, "built-in", text) for name, text in builtin_descriptions().items()]
    entries += [(f"{name}:PATH", "protocol", p.description) for name, p in CORPUS_PROTOCOLS.items()]
    entries += [(name, "your files", text) for name, text in FILE_FORMS.items()]
    if as_json:
        print_json([{"name": n, "form": f, "description": d} for n, f, d in entries])
        return
    print_table(("corpus", "form", "what it is"), entries)
    print(
        "\nOr a file (a sentence a line, .jsonl, .fa, .tsv of pairs, any of them gzipped), or a "
        "folder with train*, val*|valid*|dev*, test* in it."
    )


def describe(
    corpus: CorpusArgument,
    as_json: JsonOption = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="word, char, bpe or wordpiece; the corpus's own.")
    ] = None,
    errors: ErrorsOption = "strict",
) -> None:
    """Describe a corpus: sizes, unknown words, duplicates, lengths, entropy if known."""
    from lmlab.data.corpus import open_corpus
    from lmlab.data.corpus_summary import summarise_corpus as describe_corpus

    summary = describe_corpus(open_corpus(corpus, errors=errors), tokenizer)
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
