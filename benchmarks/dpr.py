"""DPR against BM25 on WordNet: recall of the right gloss among the top retrieved.

    python benchmarks/dpr.py [--seeds 1] [--steps 1000] [--runs DIR] [--out FILE] [--set NAME=VALUE]
                             [--base RUN] [--choice few]

Questions are examples of WordNet with their word removed, of synsets that occur in no training
question; the target document is the synset's gloss, preceded by the words that it defines. `dpr` is
trained on pairs of questions and glosses (`wordnet-examples`), `dpr, inverse cloze` on WordNet's
texts alone; both by the recipe `glosses`, for --steps steps, with subwords. `dpr, hard negatives`
also has one BM25 negative per question; `dpr, one step` is the control, with nearly random vectors.
Reported is recall at 1, 5 and 20 over all 117,659 glosses, and over the 1,000 that the first test
questions ask for; --choice few skips the former, which takes a large encoder half an hour. With
--base, a run to start from, there are two more rows: `the base as it is`, and `dpr, from the base`,
which has its sizes and tokenizer and is trained as `dpr` is; `--only` without a name skips all
others. With --runs the training runs are kept and resumed; rows are written to --out as they are
measured, and not measured again.
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
from lmlab.retrieval.bm25 import LexicalIndex
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Documents, gloss_documents
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

FIRST = (1, 5, 20)
FEW = 1000
"""Documents of the smaller collection."""
LONGEST = 64
"""Maximum tokens of a gloss."""
CORPORA = {
    "dpr": "wordnet-examples",
    "dpr, inverse cloze": "wordnet",
    "dpr, hard negatives": "wordnet-examples",
    "dpr, one step": "wordnet-examples",
}
AS_IT_IS, FROM_BASE = "the base as it is", "dpr, from the base"
OWN = {"dpr, hard negatives": {"hard_negatives": "1"}}
"""Settings of single rows."""

Find = Callable[[list[str], int], NDArray[np.int64]]
"""Maps questions to the indices of the retrieved documents, (questions, k)."""


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
    """Exhaustive search with a run's encoders."""
    model = load_run(run)
    system: Any = model.system
    with torch.no_grad():
        width = system.encode(Batch.collate([[system.vocabulary.bos]], 0)).shape[1]
    memory = DocumentMemory(documents, system.vocabulary, width=width, max_document_length=LONGEST)
    memory.setup_tokenizer(model.tokenizer)
    memory.embed(system.encode)

    @torch.no_grad()
    def find(texts: list[str], k: int) -> NDArray[np.int64]:
        symbols = system.vocabulary
        rows = [[symbols.start, *model.tokenizer.encode(t), symbols.end] for t in texts]
        parts = [
            memory.search(system.encode_queries(Batch.collate(rows[i : i + 256], 0)), k)
            for i in range(0, len(rows), 256)
        ]
        return torch.cat(parts).numpy()

    return find


def figures(
    make: Callable[[Documents], Find], every: Documents, questions: list[Example], *, whole: bool
) -> dict[str, Any]:
    """Recall over all documents (if `whole`), and over those of the first questions."""
    names = list(dict.fromkeys(str(each.name) for each in questions))[:FEW]
    few = Documents(every[every.numbers[name]] for name in names)
    asked = [each for each in questions if each.name in few.numbers]
    found = {"of all": recalls(make(every), every, questions)} if whole else {}
    return found | {f"of {len(few)}": recalls(make(few), few, asked)}


def trained(name: str, seed: int, given: argparse.Namespace, folder: Path) -> tuple[Path, float]:
    """The run of a seed, trained or resumed, and its seconds this time."""
    base = given.base if name == FROM_BASE else None
    words = [*name.split(), *([] if base is None else [base.name]), str(seed)]
    run, began = folder / "-".join(words).replace(",", ""), time.perf_counter()
    finished(
        train(
            "dpr",
            data=CORPORA.get(name, "wordnet-examples"),
            tokenizer="wordpiece" if base is None else None,
            base=base,
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


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a row; rows of a base include the name of its folder."""
    return tuple(row.get(name) for name in ("way", "base", "seed", "steps"))


def planned(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The requested rows, without their figures."""
    rows: list[dict[str, Any]] = [{"way": "bm25"}]
    base = {} if given.base is None else {"base": given.base.name}
    rows += [{"way": AS_IT_IS, **base}] if base else []
    for name in [*given.only, *([FROM_BASE] if base else [])]:
        own = base if name == FROM_BASE else {}
        seeds = range(given.seeds)
        rows += [{"way": name, **own, "seed": n, "steps": steps_of(name, given)} for n in seeds]
    return rows


def measured(
    row: dict[str, Any],
    given: argparse.Namespace,
    folder: Path,
    every: Documents,
    questions: list[Example],
) -> dict[str, Any]:
    """A planned row with its figures; trains the model if needed."""
    count = partial(figures, every=every, questions=questions, whole=given.choice == "all")
    if row["way"] == "bm25":
        return {**row, **count(lexical)}
    if row["way"] == AS_IT_IS:
        return {**row, **count(partial(dense, given.base))}
    run, seconds = trained(row["way"], row["seed"], given, folder)
    return {**row, **count(partial(dense, run)), "training seconds": seconds}


def begun(given: argparse.Namespace, questions: int) -> dict[str, Any]:
    """Existing measurements with the same settings, to continue."""
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
    parser.add_argument("--base", type=Path, help="a run to begin with, such as import-hf makes")
    parser.add_argument("--choice", default="all", choices=["all", "few"])
    parser.add_argument("--runs", type=Path, help="folder of the training runs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    every, questions = gloss_documents(), list(open_corpus("wordnet-examples").splits["test"])
    record = begun(given, len(questions))
    # A row without the figures over all documents is measured again if they are requested.
    done = {key_of(row) for row in record["rows"] if given.choice == "few" or "of all" in row}
    with tempfile.TemporaryDirectory() as temporary:
        for row in planned(given):
            if key_of(row) in done:
                continue
            found = measured(row, given, given.runs or Path(temporary), every, questions)
            others = [each for each in record["rows"] if key_of(each) != key_of(row)]
            record["rows"] = [*others, found]
            print(found, flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
