"""Open-domain question answering: exact match with retrieved documents and without.

    python benchmarks/open_questions.py [--corpus capitals-questions] [--seeds 3] [--out FILE.json]
    python benchmarks/open_questions.py --draw FILE.json --figure FILE.svg

On `capitals-questions` the answers to test questions were never answers in training, and occur in
the documents `capitals`; on `wordnet-questions` a word is removed from an example, and the
documents are glosses; `wordnet-few` are the questions about 4,300 synsets and their glosses, for a
retriever that is too slow for 117,659 (`lmlab import-hf` makes a --base of a published encoder);
`wordnet-definitions` asks for the words of the same synsets by their definitions, whose glosses
BM25 retrieves nearly always, so that only copying remains; `wordnet-taught` are the questions of
`wordnet-few`, and in training those definitions too, from which a decoder may learn to copy. Rows:

- rag-sequence, rag-token: both marginalisations over the retrieved documents; question encoder and
  decoder are trained (the decoder alone on `wordnet-few` and `wordnet-taught`);
- best document: RAG with one document, whose retriever gets no gradient and so stays as it was: the
  base, or without one BM25 on random projections (which among 117,659 glosses is noisy;
  benchmarks/realm.py has BM25 itself with a reader); `learned places` is the same with a decoder
  with learned absolute positions, as in BART, instead of relative ones;
- no documents: the same decoder with one empty document;
- realm: an answer is a span of a retrieved document, and both encoders are trained; `by default`,
  with documents embedded again as often as the system's default says.

Reported: exact match of the first answer on the test questions, and the share of questions whose
answer occurs in a retrieved document. Records are saved one by one; an interrupted run continues
with the missing ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finishing import finished

if TYPE_CHECKING:
    from lmlab.retrieval.documents import Document

RESULTS = Path(__file__).parent / "results"
WRITER = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 96,
    "document_length": 48,
    "dropout": 0.3,
    "attention_dropout": 0.1,
}
SIZES = ("width", "layers", "heads", "length", "document_length")
CORPORA: dict[str, dict[str, Any]] = {
    "capitals-questions": {
        "documents": "capitals",
        "budget": {"epochs": 12},
        "settings": {"length": 48, "document_length": 16, "retrieved": 3},
        "realm": {"refresh": 5, "background_refresh": False},
        "questions": 76,
    },
    "wordnet-questions": {
        "documents": "wordnet",
        # A fraction of an epoch over the 42,491 questions: a minute or two per row.
        "budget": {"steps": 150},
        # The longest question has 68 tokens with special tokens, plus a document of 48.
        "settings": {
            "length": 128,
            "layers": 1,
            "positions": "learned",
            "retrieved": 5,
            "learning_rate": 1e-3,
            "tokens_per_batch": 1024,
        },
        "realm": {},
        "questions": 500,
    },
    "wordnet-few": {
        "synsets": {"train": 3000, "validation": 300, "test": 1000},
        "budget": {"steps": 400},
        "settings": {
            "length": 128,
            "layers": 1,
            # Positions that hinder copying: `wordnet-taught` has better ones.
            "positions": "learned",
            "retrieved": 5,
            "learning_rate": 1e-3,
            "tokens_per_batch": 512,
            "warmup_steps": 40,
        },
        # The decoder is trained from scratch, with steps too large for a trained encoder.
        "rag": {"question_encoder": "fixed"},
        "realm": {},
        "questions": 1000,
    },
}
"""For each corpus what is looked up, how long is trained, how REALM embeds the documents anew, and
how many test questions are asked."""
COPYING = {
    **CORPORA["wordnet-few"]["settings"],
    "layers": 2,
    "positions": "rotary",
    "dropout": 0.1,
    "learning_rate": 2e-3,
}
"""Settings with which a decoder learns to copy from scratch."""
CORPORA["wordnet-taught"] = {
    **CORPORA["wordnet-few"],
    "asked": {"train": ("examples", "definitions")},
    "budget": {"steps": 500},
    "settings": COPYING,
}
CORPORA["wordnet-definitions"] = {
    **CORPORA["wordnet-few"],
    "asked": dict.fromkeys(("train", "validation", "test"), ("definitions",)),
    "settings": {**COPYING, "length": 160},
}
ROWS: dict[str, dict[str, Any]] = {
    "rag-sequence": {"system": "rag-sequence"},
    "rag-token": {"system": "rag-token"},
    "best document": {"system": "rag-sequence", "settings": {"retrieved": 1}},
    "learned places": {
        "system": "rag-sequence",
        "settings": {"retrieved": 1, "positions": "learned"},
    },
    "no documents": {"system": "rag-sequence", "settings": {"retrieved": 1}, "documents": "."},
    "realm": {"system": "realm", "settings": {"objective": "spans"}},
    "realm by default": {
        "system": "realm",
        "settings": {"objective": "spans", "refresh": 500, "background_refresh": True},
    },
}


def run_one(corpus: str, row: str, seed: int, base: str | None) -> dict[str, Any]:
    """Train one system and evaluate it on the test questions."""
    import torch

    import lmlab

    torch.set_num_threads(1)
    task, asked = CORPORA[corpus], ROWS[row]
    with tempfile.TemporaryDirectory() as folder:
        data, documents = corpus, task.get("documents")
        if "synsets" in task:
            data, documents = write_few(task["synsets"], task.get("asked", {}), Path(folder))
        if "documents" in asked:
            path = Path(folder) / "nothing.txt"
            path.write_text(asked["documents"] + "\n", encoding="utf-8")
            documents = str(path)
        started = time.process_time()
        result = finished(
            lmlab.train(
                asked["system"],
                data=data,
                tokenizer="wordpiece" if base is None and "synsets" in task else None,
                documents=documents,
                base=base,
                out=Path(folder) / "run",
                settings=settings_of(task, asked, base),
                seed=seed,
                quiet=True,
                **task["budget"],
            )
        )
        seconds = time.process_time() - started
        found = measure(lmlab.load(result.path), data, task["questions"])
    return {
        "corpus": corpus,
        "row": row,
        "seed": seed,
        "base": named(base),
        "parameters": result.parameters,
        "processor_seconds": round(seconds, 1),
        "validation_nats_per_token": None if math.isinf(result.best) else result.best,
        **found,
    }


def write_few(
    synsets: dict[str, int], asked: dict[str, tuple[str, ...]], folder: Path
) -> tuple[str, str]:
    """Questions about some synsets of each split, evenly spaced, and their glosses.

    `asked` are the kinds of questions of a split, by default examples.
    """
    from lmlab.data.corpus import open_corpus
    from lmlab.retrieval.documents import Documents, gloss_documents

    every, kept = gloss_documents(), []
    rows = folder / "rows"
    rows.mkdir()
    for split, count in synsets.items():
        questions = list(open_corpus("wordnet-questions").split(split))
        names = list(dict.fromkeys(str(each.name) for each in questions))
        chosen = names[:: max(1, len(names) // count)][:count]
        kept += chosen
        sorts = {
            "examples": [(q.condition, q.text) for q in questions if q.name in set(chosen)],
            "definitions": [defined(every[every.numbers[name]]) for name in chosen],
        }
        pairs = [pair for sort in asked.get(split, ("examples",)) for pair in sorts[sort]]
        lines = [json.dumps({"source": asks, "target": word}) + "\n" for asks, word in pairs]
        (rows / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    glosses = folder / "glosses.jsonl"
    documents = Documents(every[every.numbers[name]] for name in kept)
    glosses.write_bytes(gzip.decompress(documents.to_bytes()))
    return str(rows), str(glosses)


def defined(gloss: Document) -> tuple[str, str]:
    """The definition of a gloss document without its words, and the first of these."""
    words, _, definition = gloss.text.partition(" : ")
    return definition, words.split(" , ")[0]


def named(base: str | None) -> str | None:
    """The name of a base in a record: that of its folder."""
    return None if base is None else Path(base).name


def settings_of(task: dict[str, Any], asked: dict[str, Any], base: str | None) -> dict[str, Any]:
    """Settings of a row; REALM has the sizes of its base, whose weights it copies."""
    own = task.get("realm" if asked["system"] == "realm" else "rag", {})
    every = {**WRITER, **task["settings"], **own, **asked.get("settings", {})}
    bases = SIZES if base is not None and asked["system"] == "realm" else ()
    return {name: value for name, value in every.items() if name not in bases}


def measure(model: Any, corpus: str, questions: int) -> dict[str, Any]:
    """Exact match and retrieval recall of the answer on the test split."""
    from lmlab.data.corpus import open_corpus

    every = list(open_corpus(corpus).split("test"))
    rows = every[:: max(1, len(every) // questions)][:questions]
    asked = [str(row.condition) for row in rows]
    longest = {"max_length": 8} if hasattr(model.system, "decoding_methods") else {}
    answered = model.ask(asked, **longest)
    right = [each.text == row.text for each, row in zip(answered, rows, strict=True)]
    held = [
        any(f" {row.text} " in f" {document} " for document in documents)
        for row, documents in zip(rows, documents_found(model, asked), strict=True)
    ]
    return {
        "questions": len(rows),
        "exact_match": sum(right) / len(right),
        "document_found": sum(held) / len(held),
    }


def documents_found(model: Any, questions: list[str]) -> list[list[str]]:
    """The texts of all documents retrieved for each question."""
    import torch

    from lmlab.core.batch import Batch

    system, found = model.system, []
    symbols = system.vocabulary
    for question in questions:
        ids = [symbols.start, *model.tokenizer.encode(question), symbols.end]
        with torch.no_grad():
            numbers = system.retrieve(Batch.collate([ids], pad=symbols.pad)).numbers[0]
        found.append([system.documents[n].text for n in numbers.tolist() if n >= 0])
    return found


def summary(records: list[dict[str, Any]]) -> list[str]:
    """One line per row, corpus and base: mean and spread over seeds."""
    lines = []
    names = ("corpus", "row", "base")
    for key in dict.fromkeys(tuple(each[name] for name in names) for each in records):
        same = [each for each in records if tuple(each[name] for name in names) == key]
        corpus, row, base = key
        told = []
        for name in ("exact_match", "document_found"):
            values = [each[name] for each in same]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            told.append(f"{name} {statistics.mean(values):.3f}{spread}")
        on = "" if base is None else f" on {base}"
        lines.append(f"{corpus}, {row}{on} ({len(same)} seeds): {', '.join(told)}")
    return lines


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Plot exact match of each row, one point per seed, one panel per corpus."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    corpora = list(dict.fromkeys(each["corpus"] for each in records))
    figure, panels = plt.subplots(
        1, len(corpora), figsize=(5 * len(corpora), 2.6), squeeze=False, layout="constrained"
    )
    for panel, corpus in zip(panels[0], corpora, strict=True):
        same = [each for each in records if each["corpus"] == corpus]
        rows = list(dict.fromkeys(each["row"] for each in same))[::-1]
        for place, row in enumerate(rows):
            values = [each["exact_match"] for each in same if each["row"] == row]
            panel.plot(values, [place] * len(values), "o", color="#555555", alpha=0.6)
            panel.plot([statistics.mean(values)], [place], "|", color="black", markersize=18)
        panel.set_yticks(range(len(rows)), rows)
        panel.set_xlim(-0.02, 1.02)
        panel.set_xlabel(f"exact match on {corpus}, test")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="capitals-questions", choices=list(CORPORA))
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--base", help="a run of dpr, for the rows with retrieval")
    parser.add_argument("--out", type=Path, default=RESULTS / "open_questions.json")
    parser.add_argument("--draw", type=Path, help="plot a record instead")
    parser.add_argument("--figure", type=Path, default=RESULTS / "open_questions.svg")
    given = parser.parse_args()
    if given.draw is not None:
        draw(json.loads(given.draw.read_text(encoding="utf-8")), given.figure)
        return
    records = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else []
    done = {(r["corpus"], r["row"], r["seed"], r["base"]) for r in records}
    for seed in range(given.seeds):
        for row in given.rows.split(","):
            base = None if row == "no documents" else given.base
            if (given.corpus, row, seed, named(base)) in done:
                continue
            records.append(run_one(given.corpus, row, seed, base))
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    print("\n".join(summary(records)))


if __name__ == "__main__":
    main()
