"""DPR on WordNet beside BM25: how often is the right gloss among the first found?

    python benchmarks/dpr.py [--seeds 1] [--steps 1000] [--runs DIR] [--out FILE] [--set NAME=VALUE]
                             [--base RUN] [--choice few]

Questions are examples of WordNet with their word left out, of synsets that no training question
asked for; the document to be found is the synset's gloss, after the words that it defines. `dpr` is
trained on pairs of questions and glosses (`wordnet-examples`), `dpr, inverse cloze` on WordNet's
texts alone, cut in two; both by the recipe `glosses`, as far as --steps go, with words in pieces.
`dpr, hard negatives` is set one of BM25 for each question too; `dpr, one step` is the control: its
vectors are as good as random. Figures: share of the test questions whose gloss is among the first
1, 5 and 20, of all 117,659 glosses, and of the 1,000 that the first test questions ask for;
--choice few leaves the first out, which costs a large encoder half an hour. With --base, a run to
begin with, there are two more ways: `the base as it is`, and `dpr, from the base`, which has its
sizes and its tokeniser and is trained as `dpr` is; `--only` without a name leaves all others out.
With --runs the trainings are kept, and gone on with; rows are written to --out as they come, and
not measured again.
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
"""Documents of the smaller choice."""
LONGEST = 64
"""Tokens of a gloss that are read."""
CORPORA = {
    "dpr": "wordnet-examples",
    "dpr, inverse cloze": "wordnet",
    "dpr, hard negatives": "wordnet-examples",
    "dpr, one step": "wordnet-examples",
}
AS_IT_IS, FROM_BASE = "the base as it is", "dpr, from the base"
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
        width = system.encode(Batch.collate([[system.vocabulary.bos]], 0)).shape[1]
    memory = DocumentMemory(documents, system.vocabulary, width=width, longest=LONGEST)
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
    """Recall among all documents (where `whole`), and among those of the first questions."""
    names = list(dict.fromkeys(str(each.name) for each in questions))[:FEW]
    few = Documents(every[every.numbers[name]] for name in names)
    asked = [each for each in questions if each.name in few.numbers]
    found = {"of all": recalls(make(every), every, questions)} if whole else {}
    return found | {f"of {len(few)}": recalls(make(few), few, asked)}


def trained(name: str, seed: int, given: argparse.Namespace, folder: Path) -> tuple[Path, float]:
    """The run of a seed, trained as far as asked, and its seconds this time."""
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
    """What tells a row from the others; rows of a base tell the name of its folder."""
    return tuple(row.get(name) for name in ("way", "base", "seed", "steps"))


def planned(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows that are asked for, without their figures."""
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
    """A planned row with its figures, after the training that it takes."""
    count = partial(figures, every=every, questions=questions, whole=given.choice == "all")
    if row["way"] == "bm25":
        return {**row, **count(lexical)}
    if row["way"] == AS_IT_IS:
        return {**row, **count(partial(dense, given.base))}
    run, seconds = trained(row["way"], row["seed"], given, folder)
    return {**row, **count(partial(dense, run)), "training seconds": seconds}


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
    parser.add_argument("--base", type=Path, help="a run to begin with, such as import-hf makes")
    parser.add_argument("--choice", default="all", choices=["all", "few"])
    parser.add_argument("--runs", type=Path, help="where the trainings are kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    every, questions = gloss_documents(), list(open_corpus("wordnet-examples").splits["test"])
    record = begun(given, len(questions))
    # A row without the figures over all documents is measured again where they are asked for.
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
