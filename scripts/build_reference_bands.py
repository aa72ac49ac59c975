"""Build the reference bands of `lmlab doctor`: the range of held-out loss of healthy runs.

    python scripts/build_reference_bands.py [--work DIR] [--only CORPUS ...]

Trains the systems below with their default settings on the built-in corpora. For each corpus and
family, writes the lowest and highest held-out loss by number of training tokens to
src/lmlab/data/reference_bands.json. Finished runs in DIR are reused. Takes about an hour on one
core; between machines only the last digits differ.
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
from lmlab.diagnosis.findings import parse_training_history
from lmlab.diagnosis.run_evidence import ANY_FAMILY, REFERENCE_FILE
from lmlab.training.run_config import RunConfig
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
"""Strong and weak systems of each family, so that a band covers the range of its family."""
SIZES = ("tiny", "small")
EPOCHS = 5
LARGE = {"wordnet": ("ngram", "window", "lstm")}
"""Systems for large corpora: fewer of them, trained for part of an epoch, evaluated often."""
LARGE_BUDGET = {"steps": 200, "evaluate_every": 50}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A reference run: corpus, system and size."""

    corpus: str
    system: str
    size: str

    @property
    def folder(self) -> str:
        return f"{self.corpus}-{self.system}-{self.size}"


def references(corpora: list[str]) -> Iterator[Reference]:
    """The reference runs of the given corpora."""
    for corpus in corpora:
        for system in LARGE.get(corpus, SYSTEMS):
            for size in SIZES:
                yield Reference(corpus=corpus, system=system, size=size)


def train_reference(reference: Reference, work: Path) -> RunFolder:
    """Train a reference run, or resume it if its folder exists."""
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


def loss_curve(run: RunFolder) -> list[tuple[float, float]]:
    """Number of training tokens and lowest held-out loss so far, at each evaluation."""
    best, points = float("inf"), []
    for evaluation in parse_training_history(read_metrics(run.metrics)).held_out:
        best = min(best, evaluation.loss)
        points.append((evaluation.tokens, best))
    return points


def bands(curves: dict[Reference, list[tuple[float, float]]]) -> dict[str, Any]:
    """By family: systems and range of losses at each token count that all curves share."""
    by_family: dict[str, list[Reference]] = defaultdict(list)
    for reference in curves:
        by_family[find_system(reference.system).family].append(reference)
        by_family[ANY_FAMILY].append(reference)
    families = {}
    for family, members in sorted(by_family.items()):
        # A model fitted in one pass has one point and no curve: leave it out if others have one.
        with_curve = [member for member in members if len(curves[member]) > 1] or members
        token_counts = sorted(set.intersection(*({t for t, _ in curves[m]} for m in with_curve)))
        points = []
        for tokens in token_counts:
            losses = [dict(curves[member])[tokens] for member in with_curve]
            points.append([tokens, round(min(losses), 4), round(max(losses), 4)])
        systems = list(dict.fromkeys(member.system for member in with_curve))
        families[family] = {"systems": systems, "points": points}
    return families


def corpus_record(corpus: str, work: Path) -> dict[str, Any]:
    """Record of one corpus: tokenizer, vocabulary size and bands."""
    curves: dict[Reference, list[tuple[float, float]]] = {}
    config: RunConfig | None = None
    for reference in references([corpus]):
        print(reference.folder, flush=True)
        run = train_reference(reference, work)
        config, curves[reference] = run.read_config(), loss_curve(run)
    assert config is not None, "there are references"
    return {
        "tokenizer": config.tokenizer,
        "vocabulary": config.vocabulary.size,
        "families": bands(curves),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=Path("runs/reference"), help="folder of the runs"
    )
    parser.add_argument(
        "--only", nargs="*", default=list(builtin_descriptions()), help="corpora [default: all]"
    )
    options = parser.parse_args()
    for corpus in options.only:
        if corpus not in builtin_descriptions():
            raise UserError(
                f"unknown built-in corpus {corpus}; try {', '.join(builtin_descriptions())}."
            )
        record = corpus_record(corpus, options.work)
        previous = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
        corpora = {**previous.get("corpora", {}), corpus: record}
        content = {
            "made by": "python scripts/build_reference_bands.py",
            "points": "training tokens seen, lowest and highest held-out loss in nats per token",
            "corpora": dict(sorted(corpora.items())),
        }
        TARGET.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
