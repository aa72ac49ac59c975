"""One table over all systems: bits per byte after three minutes of training on bytes.

    python benchmarks/yardstick.py --check [--only TEXT] [--size tiny]
    python benchmarks/yardstick.py --measure lstm --corpus multi30k --data DATA [--runs runs]
    python benchmarks/run_queue.py --run --only yardstick --data DATA      # all that is missing
    python benchmarks/yardstick.py --write docs/yardstick.md --figure docs/images/yardstick.svg

Rows are the systems of the catalogue that score text (size small), on multi30k (English) and on
WordNet's glosses, texts of at most 120 bytes as bytes; a new system has a row by itself. A training
takes 3 minutes of CPU time of its process (setting clock=cpu), validations included, on one thread,
so a busy machine does not change the result. Its recipe is chosen by validation loss among at most
three trials of half a minute on multi30k, and used on both corpora; n-grams are counted with each
order up to 12. Every training and every scoring is a process of its own. A row can be killed and
begun again; on SIGTERM it saves a checkpoint. Records are in benchmarks/results/yardstick/.

--check trains every system for two steps on bytes, and scores texts and pairs by it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from cells import Processes
from experiment import RESULTS, Experiment, Folders
from yardstick_check import check
from yardstick_corpora import SPECS
from yardstick_rows import (
    FOLDER,
    MINUTES,
    TRIAL_MINUTES,
    TUNED_ON,
    StoppedError,
    has_trials,
    measure_row,
    row_name,
)
from yardstick_systems import ORDERS, measured_systems, systems_left_out

from lmlab.core.card import Card

START_MINUTES = 0.1
"""Start of a process, and encoding of the corpus."""
SCORING_MINUTES = {"pseudo": 4.0, "estimate": 2.0}
"""Expected minutes of scoring by kind; half a minute for others."""


def experiments() -> list[Experiment]:
    """The rows of both corpora for `run_queue.py`."""
    return [experiment(card, corpus) for corpus in SPECS for card in measured_systems()]


def experiment(card: Card, corpus: str) -> Experiment:
    """A row as the queue sees it."""
    needs = [f"{FOLDER}.{row_name(corpus, card.base)}"] if card.base else []
    if not has_trials(card, corpus):
        needs.append(f"{FOLDER}.{row_name(TUNED_ON, card.name)}")
    row = row_name(corpus, card.name)
    return Experiment(
        name=f"{FOLDER}.{row}",
        group=FOLDER,
        command=(
            *("benchmarks/yardstick.py", "--measure", card.name, "--corpus", corpus),
            *("--data", "{data}", "--runs", "{runs}", "--records", "{records}"),
        ),
        minutes=expected_minutes(card, corpus),
        record=f"{FOLDER}/{row}.json",
        needs=tuple(needs),
    )


def expected_minutes(card: Card, corpus: str) -> float:
    """Trials, training and scoring on one core."""
    scoring = SCORING_MINUTES.get(card.kind, 0.5) + START_MINUTES
    if card.fitting == "counting":
        return scoring + 2 * START_MINUTES * len(ORDERS)
    trials = 3 if has_trials(card, corpus) and card.fitting != "em" else 0
    return trials * (TRIAL_MINUTES + START_MINUTES) + MINUTES + START_MINUTES + scoring


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="train each system for two steps")
    parser.add_argument("--measure", metavar="SYSTEM", help="measure one row")
    parser.add_argument("--corpus", choices=list(SPECS), default=TUNED_ON)
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="check only systems whose name contains this")
    parser.add_argument("--size", default="tiny", help="size of the systems that are checked")
    parser.add_argument("--write", type=Path, help="write the page")
    parser.add_argument("--figure", type=Path, help="write the picture")
    options = parser.parse_args()
    if options.check:
        sys.exit(f"{failures} fail" if (failures := check(options.only, options.size)) else 0)
    folders = Folders(runs=options.runs, records=options.records, data=options.data)
    if options.measure:
        if folders.data is None and "{data}" in SPECS[options.corpus]:
            parser.error("the data folder is missing; give --data or set LMLAB_DATA")
        if reason := systems_left_out().get(options.measure):
            parser.error(f"{options.measure} has no row: {reason}")
        processes = Processes()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, processes.stop)
        try:
            measure_row(options.measure, options.corpus, folders, processes)
        except StoppedError:
            sys.exit("stopped; the same command continues.")
    if options.write:
        from yardstick_page import write_page

        write_page(options.write, folders)
    if options.figure:
        from yardstick_figure import write_picture

        write_picture(options.figure, folders)


if __name__ == "__main__":
    main()
