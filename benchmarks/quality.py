"""Test perplexity of the recurrent systems and the n-gram, by data protocol.

    python benchmarks/quality.py --data DATA [--only multi30k-l20] [--jobs 2] [--threads 1]

Each cell of the table is one training run by the `lmlab` command, recorded as a JSON file in
benchmarks/results/quality/ when finished; existing cells are not run again, and interrupted
ones resume. Results are nats per token on the test split after the last epoch, or after the best
epoch if the protocol has a validation split. `--table` prints them.
"""

from __future__ import annotations

import json
import statistics

from cells import RESULTS, Cell, arguments, read_records, run_cells, run_environment

RECORDS = RESULTS / "quality"

NOTES = ("--recipe", "notes", "--epochs", "20", "--set", "dropout=0")
TUNED = ("--recipe", "multi30k")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SWEEP = ("--recipe", "notes", "--epochs", "2", "--set", "dropout=0")
"""Learning-rate sweep: each system is trained with the best rate after two epochs."""


def best_rate(system: str) -> float | None:
    """The best learning rate of the sweep, or None while runs are missing."""
    rate_by_loss = {}
    for rate in RATES:
        record = RECORDS / f"multi30k-l20.{system}.notes-rate-{rate}.seed0.json"
        if not record.exists():
            return None
        rate_by_loss[json.loads(record.read_text(encoding="utf-8"))["row"]["nats_per_token"]] = rate
    return rate_by_loss[min(rate_by_loss)]


def sweep() -> list[Cell]:
    """The sweep: two epochs per system and learning rate."""
    return [
        Cell(
            protocol="multi30k-l20",
            system=system,
            variant=f"notes-rate-{rate}",
            seed=0,
            arguments=(*SWEEP, "--set", f"learning_rate={rate}"),
        )
        for system in ("lstm", "lstm-sphere")
        for rate in RATES
    ]


def cells() -> list[Cell]:
    """In order of execution: one seed of everything first, then the other seeds."""
    planned = [
        Cell(protocol="ptb-contiguous", system="ngram", variant="order-5", seed=0, arguments=()),
        Cell(protocol="ptb-sentence", system="ngram", variant="order-5", seed=0, arguments=()),
    ]
    for seed in (0, 1, 2):
        for system in ("lstm", "lstm-sphere"):
            tuned = Cell(
                protocol="multi30k-l20", system=system, variant="tuned", seed=seed, arguments=TUNED
            )
            planned.append(tuned)
            if (rate := best_rate(system)) is not None:
                notes = Cell(
                    protocol="multi30k-l20",
                    system=system,
                    variant="notes",
                    seed=seed,
                    arguments=(*NOTES, "--set", f"learning_rate={rate}"),
                )
                planned.append(notes)
        if seed == 0:
            window = ("--recipe", "multi30k", "--set", "size=5")
            planned.append(
                Cell(
                    protocol="multi30k-l20",
                    system="window",
                    variant="tuned",
                    seed=0,
                    arguments=window,
                )
            )
    ptb = ("--recipe", "ptb")
    planned.append(
        Cell(protocol="ptb-contiguous", system="lstm", variant="200", seed=0, arguments=ptb)
    )
    return planned


def print_table() -> None:
    """Markdown table: mean and standard deviation over seeds by protocol, system, variant."""
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for result in read_records(RECORDS):
        key = (result["protocol"], result["system"], result["variant"])
        groups.setdefault(key, []).append(result)
    print("| protocol | system | variant | seeds | nats per token | perplexity | minutes |")
    print("|---|---|---|---|---|---|---|")
    for (protocol, system, variant), results in groups.items():
        nats = [result["row"]["nats_per_token"] for result in results]
        spread = f" ± {statistics.stdev(nats):.3f}" if len(nats) > 1 else ""
        seconds = [result["row"].get("train_seconds") or 0.0 for result in results]
        perplexity = statistics.mean(result["row"]["perplexity"] for result in results)
        print(
            f"| {protocol} | {system} | {variant} | {len(nats)} "
            f"| {statistics.mean(nats):.3f}{spread} | {perplexity:.1f} "
            f"| {statistics.mean(seconds) / 60:.1f} |"
        )


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/quality")
    options = parser.parse_args()
    if options.table:
        print_table()
        return
    environment = run_environment(options, parser, "quality")
    for stage in (sweep, cells):  # the cells use the best rates of the sweep
        selected = [cell for cell in stage() if options.only in cell.name]
        run_cells(selected, environment, options.jobs)


if __name__ == "__main__":
    main()
