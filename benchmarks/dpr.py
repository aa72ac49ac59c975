"""DPR on WordNet beside BM25: how often is the right gloss among the first found?

    python benchmarks/dpr.py [--seeds 1] [--steps 1000] [--runs DIR] [--out FILE] [--set NAME=VALUE]

Questions are examples of WordNet with their word left out, of synsets that no training question
asked for; the document to be found is the synset's gloss, after the words that it defines. `dpr` is
trained on pairs of questions and glosses (`wordnet-examples`), `dpr, inverse cloze` on WordNet's
texts alone, cut in two; both by the recipe `glosses`, as far as --steps go, with words in pieces.
`dpr, hard negatives` is set one of BM25 for each question too; `dpr, one step` is the control: its
vectors are as good as random. Figures: share of the test questions whose gloss is among the first
1, 5 and 20, of all 117,659 glosses, and of the 1,000 that the first test questions ask for. With
--runs the trainings are kept, and gone on with; rows are written to --out as they come, and not
measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finishing import finished
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.data.corpus import open_corpus
from lmlab.data.readers import Example
from lmlab.retrieval.documents import Documents, gloss_documents
from lmlab.retrieval.lexical import LexicalIndex
from lmlab.retrieval.memory import DocumentMemory
from lmlab.training.runs import load_run
from lmlab.training.train import train

FIRST = (1, 5, 20)
FEW = 1000
"""Documents of the smaller choice."""
LONGEST = 64
"""Tokens of a gloss that are read."""
CORPORA = {
    "dpr": "wordnet-examples",
    "dpr, inverse cloze": "wordnet",
    "dpr, hard negatives": "wordnet-examples",
    "dpr, one step": "wordnet-examples",
}
OWN = {"dpr, hard negatives": {"hard_negatives": "1"}}
"""Settings of a way alone."""

Find = Callable[[list[str], int], NDArray[np.int64]]
"""Questions to the numbers of the documents found, (questions, k)."""


def recalls(find: Find, documents: Documents, questions: list[Example]) -> dict[str, float]:
    """The share of questions whose document is among the first k."""
    right = np.array([documents.numbers[str(each.name)] for each in questions])
    found = find([str(each.condition) for each in questions], max(FIRST))
    return {f"recall@{k}": float((found[:, :k] == right[:, None]).any(1).mean()) for k in FIRST}


def lexical(documents: Documents) -> Find:
    """BM25."""
    index = LexicalIndex.build([document.text for document in documents])
    return lambda texts, k: index.search(texts, k)[1]


def dense(run: Path, documents: Documents) -> Find:
    """A run's encoders, all documents compared."""
    model = load_run(run)
    system: Any = model.system
    with torch.no_grad():
        width = system.encode(Batch.from_sequences([[system.vocabulary.opening]], 0)).shape[1]
    memory = DocumentMemory(documents, system.vocabulary, width=width, longest=LONGEST)
    memory.meet_tokenizer(model.tokenizer)
    memory.embed(system.encode)

    @torch.no_grad()
    def find(texts: list[str], k: int) -> NDArray[np.int64]:
        symbols = system.vocabulary
        rows = [[symbols.start, *model.tokenizer.encode(t), symbols.end] for t in texts]
        parts = [
            memory.search(system.encode_queries(Batch.from_sequences(rows[i : i + 256], 0)), k)
            for i in range(0, len(rows), 256)
        ]
        return torch.cat(parts).numpy()

    return find


def figures(
    make: Callable[[Documents], Find], every: Documents, questions: list[Example]
) -> dict[str, Any]:
    """Recall among all documents, and among those of the first questions."""
    names = list(dict.fromkeys(str(each.name) for each in questions))[:FEW]
    few = Documents(every[every.numbers[name]] for name in names)
    asked = [each for each in questions if each.name in few.numbers]
    return {
        "of all": recalls(make(every), every, questions),
        f"of {len(few)}": recalls(make(few), few, asked),
    }


def trained(name: str, seed: int, given: argparse.Namespace, folder: Path) -> tuple[Path, float]:
    """The run of a seed, trained as far as asked, and its seconds this time."""
    run, began = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}", time.perf_counter()
    finished(
        train(
            "dpr",
            data=CORPORA[name],
            tokenizer="wordpiece",
            out=run,
            recipe="glosses",
            settings=dict(each.split("=", 1) for each in given.set) | OWN.get(name, {}),
            steps=steps_of(name, given),
            seed=seed,
            resume=run.exists(),
            quiet=True,
        )
    )
    return run, time.perf_counter() - began


def steps_of(name: str, given: argparse.Namespace) -> int:
    return 1 if name == "dpr, one step" else int(given.steps)


def begun(given: argparse.Namespace, questions: int) -> dict[str, Any]:
    """What was measured before with the same settings, to go on with."""
    record: dict[str, Any] = {"questions": questions, "settings": given.set, "rows": []}
    if given.out is None or not given.out.exists():
        return record
    before: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8"))
    if before["settings"] != given.set:
        raise SystemExit(f"{given.out} was measured with {before['settings']}; choose another.")
    return before


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=list(CORPORA), choices=list(CORPORA))
    parser.add_argument("--set", nargs="*", default=[], help="settings of dpr or its training")
    parser.add_argument("--runs", type=Path, help="where the trainings are kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    every, questions = gloss_documents(), list(open_corpus("wordnet-examples").splits["test"])
    record = begun(given, len(questions))
    done = {(row["way"], row.get("seed"), row.get("steps")) for row in record["rows"]}

    def keep(row: dict[str, Any]) -> None:
        record["rows"].append(row)
        print(row, flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    if ("bm25", None, None) not in done:
        keep({"way": "bm25", **figures(lexical, every, questions)})
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.runs or Path(temporary)
        for name in given.only:
            for seed in range(given.seeds):
                steps = steps_of(name, given)
                if (name, seed, steps) in done:
                    continue
                run, seconds = trained(name, seed, given, folder)
                found = figures(partial(dense, run), every, questions)
                row = {"way": name, "seed": seed, "steps": steps, **found}
                keep({**row, "training seconds": seconds})


if __name__ == "__main__":
    main()
