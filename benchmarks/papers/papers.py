"""The papers' own ablations at small scale: each paper's sign beside ours, over three seeds.

    python benchmarks/papers/papers.py --data DATA [--only bart] [--seeds 3]
    python benchmarks/papers/papers.py --check --data DATA       # two steps of every variant
    python benchmarks/papers/papers.py --write docs/papers.md    # the table of what is recorded

`comparisons.py` declares what is compared, `protocols.py` how. Each comparison has one record in
benchmarks/results/papers/, saved variant by variant, so that it can be killed and begun again. The
queue runs them (`run_queue.py --only papers`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "notes"))

from claim_queue import SEEDS, ClaimRun
from claim_records import Record, measure_missing
from comparisons import COMPARISONS, Comparison, Finding
from experiment import RESULTS
from protocols import PROTOCOLS, Trial
from record_file import mean_and_half_range

HEADER = (
    *("paper", "what is ahead in the paper", "where", "measured here", "the two"),
    *("difference by seed", "ours"),
)
BEGIN, END = "<!-- papers -->", "<!-- end of papers -->"


def measure(
    comparison: Comparison, variant: str, seed: int, *, data: str, check: bool = False
) -> dict[str, float]:
    """Train and measure one variant."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(
            system=comparison.systems.get(variant, comparison.system),
            settings=settings_of(comparison, variant),
            seed=seed,
            folder=Path(folder),
            data=data,
            check=check,
        )
        return PROTOCOLS[comparison.protocol].measure(trial)


def settings_of(comparison: Comparison, variant: str) -> dict[str, Any]:
    """The settings in which a variant differs from its protocol's."""
    own = comparison.variants[variant]
    return dict(own) if variant in comparison.systems else {**comparison.common, **own}


def record_file(comparison: Comparison) -> str:
    return f"papers/{comparison.name}.json"


def run(comparison: Comparison, options: argparse.Namespace) -> list[Record]:
    """Measure what is missing of one comparison; all of its records."""
    options.out = options.records / record_file(comparison)
    described = {
        "paper": comparison.paper,
        "system": comparison.system,
        "protocol": comparison.protocol,
        "variants": {name: settings_of(comparison, name) for name in comparison.variants},
    }

    def measured(variant: str, seed: int) -> Record:
        return measure(comparison, variant, seed, data=str(options.data))

    return measure_missing(
        options, described, [{"variant": name} for name in comparison.variants], measured
    )


def check(comparisons: Sequence[Comparison], data: str) -> int:
    """Two steps of every variant; the number of those that fail."""
    failures = 0
    for comparison in comparisons:
        for variant in comparison.variants:
            try:
                found = str(measure(comparison, variant, 0, data=data, check=True))
            except Exception as error:  # what fails is reported, and the others are tried
                failures += 1
                found = f"FAILED: {type(error).__name__}: {error}"
            print(f"{comparison.name}, {variant}: {found}", flush=True)
    return failures


# Table -------------------------------------------------------------------------------------------


def differences(comparison: Comparison, finding: Finding, records: Sequence[Record]) -> list[float]:
    """By seed, how far the better variant is ahead of the worse one here."""
    protocol = PROTOCOLS[comparison.protocol]
    sign = 1 if protocol.higher_is_better else -1
    by_seed = {(r["variant"], r["seed"]): r[protocol.metric] for r in records}
    seeds = sorted({seed for _, seed in by_seed})
    return [
        sign * (by_seed[finding.better, seed] - by_seed[finding.worse, seed])
        for seed in seeds
        if (finding.better, seed) in by_seed and (finding.worse, seed) in by_seed
    ]


def verdict(found: Sequence[float]) -> str:
    """Ours against the paper's sign: all seeds must agree, and there must be three."""
    if len(found) < SEEDS:
        return "queued" if not found else f"{len(found)} of {SEEDS} seeds so far"
    if min(found) > 0:
        return "the same"
    return "the opposite" if max(found) < 0 else "within the spread"


def rows(records_folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each finding."""
    for comparison in COMPARISONS:
        records = read(records_folder / record_file(comparison))
        protocol = PROTOCOLS[comparison.protocol]
        for finding in comparison.findings:
            found = differences(comparison, finding, records)
            values = [
                mean_and_half_range(
                    [r[protocol.metric] for r in records if r["variant"] == variant]
                )
                for variant in (finding.better, finding.worse)
            ]
            yield (
                f"{comparison.paper}, `{comparison.system}`",
                f"{finding.better} > {finding.worse}",
                finding.where,
                protocol.description,
                ", ".join(filter(None, values)),
                ", ".join(f"{value:+.3f}" for value in found),
                verdict(found),
            )


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    records: list[Record] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return records


def table(records_folder: Path = RESULTS) -> str:
    """The table as Markdown, and what can't be compared."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(records_folder)]
    missing = [f"- {c.paper}: {c.missing}." for c in COMPARISONS if c.missing]
    return "\n".join([*lines, "", "Not compared:", "", *missing])


def write_into(page: Path, records: Path = RESULTS) -> None:
    """Replace the table in a page, if it has one."""
    before, marker, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if marker:
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n{table(records)}\n{END}{after}", encoding="utf-8")


def experiments() -> list[ClaimRun]:
    """One experiment per comparison, for `run_queue.py`."""
    return [
        ClaimRun(
            name=f"papers.{comparison.name}",
            group="papers",
            command=(
                "benchmarks/papers/papers.py",
                *("--data", "{data}", "--records", "{records}"),
                *("--only", f"^{comparison.name}$"),
            ),
            minutes=SEEDS * len(comparison.variants) * comparison.minutes,
            record=record_file(comparison),
            configurations=len(comparison.variants),
        )
        for comparison in COMPARISONS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("LMLAB_DATA", "DATA"))
    parser.add_argument("--only", default="", help="regular expression of comparisons")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--check", action="store_true", help="two steps of every variant")
    parser.add_argument("--table", action="store_true", help="print the table and exit")
    parser.add_argument("--write", type=Path, help="put the table into this page and exit")
    options = parser.parse_args()
    if options.table:
        print(table(options.records))
        return
    if options.write:
        write_into(options.write, options.records)
        return
    chosen = [item for item in COMPARISONS if re.search(options.only, item.name)]
    if options.check:
        sys.exit(min(check(chosen, str(options.data)), 1))
    comparisons, options.only, options.figure = chosen, "", None
    for comparison in comparisons:
        run(comparison, options)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main()
