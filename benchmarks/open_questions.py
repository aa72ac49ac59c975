"""Open-domain question answering: exact match with retrieved documents and without.

    python benchmarks/open_questions.py [--corpus capitals-questions] [--seeds 3] [--out FILE.json]
    python benchmarks/open_questions.py --draw FILE.json --figure FILE.svg

On `capitals-questions` the answers to test questions were never answers in training, and occur in
the documents `capitals`; on `wordnet-questions` a word is removed from an example, and the
documents are glosses; `wordnet-few` are the questions about 4,300 synsets and their glosses, for a
retriever that is too slow for 117,659 (`lmlab import-hf` makes a --base of a published encoder);
in `wordnet-definitions` the question is the definition of one of these synsets and the answer its
word; BM25 nearly always retrieves the gloss, so that only copying remains; `wordnet-taught` are the
questions of `wordnet-few`, with those definitions as additional training data, from which a decoder
may learn to copy. Rows:

- rag-sequence, rag-token: both marginalisations over the retrieved documents; question encoder and
  decoder are trained (the decoder alone on `wordnet-few` and `wordnet-taught`);
- best document: RAG with one document, so that the retriever gets no gradient: it is the base, or
  without one BM25 on random projections (noisy with 117,659 glosses; benchmarks/realm.py has exact
  BM25 with a reader); `learned places` is the same with learned absolute positional embeddings in
  the decoder, as in BART, instead of relative ones;
- no documents: the same decoder with one empty document;
- realm: an answer is a span of a retrieved document, and both encoders are trained; `by default`
  re-embeds the documents as often as the system's default settings say.

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
DECODER = {
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
        # A fraction of an epoch (42,491 questions): a minute or two per row.
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
"""By corpus: document store, training budget, model settings, REALM's index refresh, and number of
test questions."""
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
    "question_kinds": {"train": ("examples", "definitions")},
    "budget": {"steps": 500},
    "settings": COPYING,
}
CORPORA["wordnet-definitions"] = {
    **CORPORA["wordnet-few"],
    "question_kinds": dict.fromkeys(("train", "validation", "test"), ("definitions",)),
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
    task, row_spec = CORPORA[corpus], ROWS[row]
    with tempfile.TemporaryDirectory() as folder:
        data, documents = corpus, task.get("documents")
        if "synsets" in task:
            data, documents = write_subset(
                task["synsets"], task.get("question_kinds", {}), Path(folder)
            )
        if "documents" in row_spec:
            path = Path(folder) / "nothing.txt"
            path.write_text(row_spec["documents"] + "\n", encoding="utf-8")
            documents = str(path)
        started = time.process_time()
        result = finished(
            lmlab.train(
                row_spec["system"],
                data=data,
                tokenizer="wordpiece" if base is None and "synsets" in task else None,
                documents=documents,
                base=base,
                out=Path(folder) / "run",
                settings=settings_of(task, row_spec, base),
                seed=seed,
                quiet=True,
                **task["budget"],
            )
        )
        seconds = time.process_time() - started
        metrics = measure(lmlab.load(result.path), data, task["questions"])
    return {
        "corpus": corpus,
        "row": row,
        "seed": seed,
        "base": base_name(base),
        "parameters": result.parameters,
        "processor_seconds": round(seconds, 1),
        "validation_nats_per_token": None if math.isinf(result.best) else result.best,
        **metrics,
    }


def write_subset(
    synsets: dict[str, int], question_kinds: dict[str, tuple[str, ...]], folder: Path
) -> tuple[str, str]:
    """Write questions about evenly spaced synsets of each split, and their glosses; two paths.

    `question_kinds` are the kinds of questions by split, by default examples.
    """
    from lmlab.data.corpus import open_corpus
    from lmlab.retrieval.documents import Documents, gloss_documents

    all_glosses, all_names = gloss_documents(), []
    rows = folder / "rows"
    rows.mkdir()
    for split, count in synsets.items():
        questions = list(open_corpus("wordnet-questions").split(split))
        names = list(dict.fromkeys(str(example.name) for example in questions))
        selected = names[:: max(1, len(names) // count)][:count]
        all_names += selected
        pairs_by_kind = {
            "examples": [(q.condition, q.text) for q in questions if q.name in set(selected)],
            "definitions": [
                definition_question(all_glosses[all_glosses.numbers[name]]) for name in selected
            ],
        }
        pairs = [
            pair
            for kind in question_kinds.get(split, ("examples",))
            for pair in pairs_by_kind[kind]
        ]
        lines = [
            json.dumps({"source": question, "target": answer}) + "\n" for question, answer in pairs
        ]
        (rows / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    glosses = folder / "glosses.jsonl"
    documents = Documents(all_glosses[all_glosses.numbers[name]] for name in all_names)
    glosses.write_bytes(gzip.decompress(documents.to_bytes()))
    return str(rows), str(glosses)


def definition_question(gloss: Document) -> tuple[str, str]:
    """Question and answer from a gloss document: its definition, and the first of its words."""
    words, _, definition = gloss.text.partition(" : ")
    return definition, words.split(" , ")[0]


def base_name(base: str | None) -> str | None:
    """Name of a base in records: its folder's."""
    return None if base is None else Path(base).name


def settings_of(task: dict[str, Any], row_spec: dict[str, Any], base: str | None) -> dict[str, Any]:
    """Settings of a row, without sizes where REALM copies the weights of its base."""
    system_settings = task.get("realm" if row_spec["system"] == "realm" else "rag", {})
    merged = {**DECODER, **task["settings"], **system_settings, **row_spec.get("settings", {})}
    inherited = SIZES if base is not None and row_spec["system"] == "realm" else ()
    return {name: value for name, value in merged.items() if name not in inherited}


def measure(model: Any, corpus: str, count: int) -> dict[str, Any]:
    """Exact match and retrieval recall of the answer on the test split."""
    from lmlab.data.corpus import open_corpus

    examples = list(open_corpus(corpus).split("test"))
    rows = examples[:: max(1, len(examples) // count)][:count]
    questions = [str(row.condition) for row in rows]
    options = {"max_length": 8} if hasattr(model.system, "decoding_methods") else {}
    answers = model.ask(questions, **options)
    correct = [answer.text == row.text for answer, row in zip(answers, rows, strict=True)]
    answer_retrieved = [
        any(f" {row.text} " in f" {document} " for document in documents)
        for row, documents in zip(rows, retrieved_texts(model, questions), strict=True)
    ]
    return {
        "questions": len(rows),
        "exact_match": sum(correct) / len(correct),
        "document_found": sum(answer_retrieved) / len(answer_retrieved),
    }


def retrieved_texts(model: Any, questions: list[str]) -> list[list[str]]:
    """Texts of the retrieved documents, per question."""
    import torch

    from lmlab.core.batch import Batch

    system, texts = model.system, []
    vocabulary = system.vocabulary
    for question in questions:
        ids = [vocabulary.start, *model.tokenizer.encode(question), vocabulary.end]
        with torch.no_grad():
            numbers = system.retrieve(Batch.collate([ids], pad=vocabulary.pad)).numbers[0]
        texts.append([system.documents[n].text for n in numbers.tolist() if n >= 0])
    return texts


def summary(records: list[dict[str, Any]]) -> list[str]:
    """One line per row, corpus and base: mean and spread over seeds."""
    lines = []
    names = ("corpus", "row", "base")
    for key in dict.fromkeys(tuple(record[name] for name in names) for record in records):
        group = [record for record in records if tuple(record[name] for name in names) == key]
        corpus, row, base = key
        metrics = []
        for name in ("exact_match", "document_found"):
            values = [record[name] for record in group]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            metrics.append(f"{name} {statistics.mean(values):.3f}{spread}")
        on = "" if base is None else f" on {base}"
        lines.append(f"{corpus}, {row}{on} ({len(group)} seeds): {', '.join(metrics)}")
    return lines


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Plot exact match by row, one point per seed, one panel per corpus."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    corpora = list(dict.fromkeys(record["corpus"] for record in records))
    figure, panels = plt.subplots(
        1, len(corpora), figsize=(5 * len(corpora), 2.6), squeeze=False, layout="constrained"
    )
    for panel, corpus in zip(panels[0], corpora, strict=True):
        corpus_records = [record for record in records if record["corpus"] == corpus]
        rows = list(dict.fromkeys(record["row"] for record in corpus_records))[::-1]
        for y, row in enumerate(rows):
            values = [record["exact_match"] for record in corpus_records if record["row"] == row]
            panel.plot(values, [y] * len(values), "o", color="#555555", alpha=0.6)
            panel.plot([statistics.mean(values)], [y], "|", color="black", markersize=18)
        panel.set_yticks(range(len(rows)), rows)
        panel.set_xlim(-0.02, 1.02)
        panel.set_xlabel(f"exact match on {corpus}, test")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="capitals-questions", choices=list(CORPORA))
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to run, comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--base", help="run of dpr that initialises the retriever")
    parser.add_argument("--out", type=Path, default=RESULTS / "open_questions.json")
    parser.add_argument("--draw", type=Path, help="plot this record instead of running")
    parser.add_argument("--figure", type=Path, default=RESULTS / "open_questions.svg")
    options = parser.parse_args()
    if options.draw is not None:
        plot(json.loads(options.draw.read_text(encoding="utf-8")), options.figure)
        return
    records = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    done = {(r["corpus"], r["row"], r["seed"], r["base"]) for r in records}
    for seed in range(options.seeds):
        for row in options.rows.split(","):
            base = None if row == "no documents" else options.base
            if (options.corpus, row, seed, base_name(base)) in done:
                continue
            records.append(run_one(options.corpus, row, seed, base))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    print("\n".join(summary(records)))


if __name__ == "__main__":
    main()
