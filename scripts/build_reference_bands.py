"""Make the bands of `lmlab doctor`: where the loss of healthy runs is after so many tokens.

    python scripts/build_reference_bands.py [--work DIR] [--only CORPUS ...]

Trains the systems below with their default settings on the built-in corpora, and writes for each
corpus and family the lowest and the highest held-out loss by training tokens seen into
src/lmlab/data/reference_bands.json. A run that is there in DIR is not trained again. About an hour
on one core; nothing in it depends on the machine but its last digits.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.data.load_corpus import builtin_descriptions
from lmlab.diagnosis.run_evidence import ANY_FAMILY, REFERENCE_FILE
from lmlab.diagnosis.training_history import parse_training_history
from lmlab.training.run_folder import RunFolder
from lmlab.training.train import train
from lmlab.training.training_logs import read_metrics

TARGET = Path(__file__).resolve().parents[1] / "src" / "lmlab" / "data" / REFERENCE_FILE
SYSTEMS = (
    "ngram",
    "window",
    "window-remix-sphere",
    "remix",
    "parent-prior",
    "renewal",
    "hmm",
    "rnn",
    "lstm",
    "gru",
    "lstm-sphere",
    "gru-mixture",
)
"""Strong and weak ones of each family, so that a band holds what its family can do."""
SIZES = ("tiny", "small")
EPOCHS = 5
LARGE = {"wordnet": ("ngram", "window", "lstm")}
"""Corpora too large for so many runs: fewer systems, part of an epoch, looked at often."""
LARGE_BUDGET = {"steps": 200, "evaluate_every": 50}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One run that the bands are made from."""

    corpus: str
    system: str
    size: str

    @property
    def folder(self) -> str:
        return f"{self.corpus}-{self.system}-{self.size}"


def references(corpora: list[str]) -> Iterator[Reference]:
    """The runs of the given corpora."""
    for corpus in corpora:
        for system in LARGE.get(corpus, SYSTEMS):
            for size in SIZES:
                yield Reference(corpus=corpus, system=system, size=size)


def trained(reference: Reference, work: Path) -> RunFolder:
    """The finished run, trained now where it is not there."""
    out = work / reference.folder
    budget: dict[str, Any] = {"epochs": EPOCHS}
    if reference.corpus in LARGE and find_system(reference.system).fitting == "gradient":
        budget = LARGE_BUDGET
    train(
        reference.system,
        data=reference.corpus,
        out=out,
        size=reference.size,
        settings=budget,
        resume=out.exists(),
        quiet=True,
    )
    return RunFolder(out)


def curve(run: RunFolder) -> list[tuple[float, float]]:
    """Training tokens seen and held-out loss, best so far."""
    best, points = float("inf"), []
    for look in parse_training_history(read_metrics(run.metrics)).held_out:
        best = min(best, look.loss)
        points.append((look.tokens, best))
    return points


def bands(curves: dict[Reference, list[tuple[float, float]]]) -> dict[str, Any]:
    """By family: the systems, and for each moment that all curves have the span of their losses."""
    by_family: dict[str, list[Reference]] = defaultdict(list)
    for reference in curves:
        by_family[find_system(reference.system).family].append(reference)
        by_family[ANY_FAMILY].append(reference)
    made = {}
    for family, members in sorted(by_family.items()):
        # A model fitted in one pass has one figure, which says nothing of the way there.
        stepped = [member for member in members if len(curves[member]) > 1] or members
        moments = sorted(set.intersection(*({t for t, _ in curves[m]} for m in stepped)))
        points = []
        for moment in moments:
            losses = [dict(curves[member])[moment] for member in stepped]
            points.append([moment, round(min(losses), 4), round(max(losses), 4)])
        systems = list(dict.fromkeys(member.system for member in stepped))
        made[family] = {"systems": systems, "points": points}
    return made


def entry(corpus: str, work: Path) -> dict[str, Any]:
    """All that the file tells of a corpus."""
    curves: dict[Reference, list[tuple[float, float]]] = {}
    config: dict[str, Any] = {}
    for reference in references([corpus]):
        print(reference.folder, flush=True)
        run = trained(reference, work)
        config, curves[reference] = run.read_config(), curve(run)
    return {
        "tokenizer": config["tokenizer"],
        "vocabulary": config["vocabulary"]["size"],
        "families": bands(curves),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/reference"))
    parser.add_argument("--only", nargs="*", default=list(builtin_descriptions()))
    options = parser.parse_args()
    for corpus in options.only:
        if corpus not in builtin_descriptions():
            raise UserError(f"there is no built-in corpus {corpus}.")
        made = entry(corpus, options.work)
        known = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
        corpora = {**known.get("corpora", {}), corpus: made}
        content = {
            "made by": "python scripts/build_reference_bands.py",
            "points": "training tokens seen, lowest and highest held-out loss in nats per token",
            "corpora": dict(sorted(corpora.items())),
        }
        TARGET.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
