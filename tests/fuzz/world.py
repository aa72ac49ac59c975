"""Files of every format and trained tiny runs of several families, made once for all inputs."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

NOUNS = "cat dog bird child queen river".split()
VERBS = "sees hears likes follows".split()
COUNTRIES = {"France": "Paris", "Italy": "Rome", "Peru": "Lima", "Chad": "Ndjamena"}

SMALL_RUNS: dict[str, tuple[str, ...]] = {
    "ngram": ("ngram", "corpus.txt"),
    "lstm": ("lstm", "corpus.txt", "--steps", "2"),
}
"""Run → system, corpus and options; quick enough for the short suite."""
RUNS: dict[str, tuple[str, ...]] = {
    **SMALL_RUNS,
    "gpt": ("gpt", "corpus.txt", "--steps", "2"),
    "bert": ("bert", "corpus.txt", "--steps", "2"),
    "hmm": ("hmm", "corpus.txt", "--steps", "2"),
    "t5": ("t5", "corpus.txt", "--steps", "2"),
    "cbow": ("cbow", "corpus.txt", "--epochs", "1"),
    "seq2seq": ("seq2seq", "pairs.tsv", "--steps", "2", "--source-tokenizer", "word"),
    "rag": ("rag-token", "capitals-questions", "--steps", "1", "--set", "retriever_width=16"),
    "eae": ("eae", "capitals", "--steps", "1"),
    "electra": ("electra", "corpus.txt", "--steps", "1"),
}
DERIVED = frozenset(
    {"flat", "hnsw", "vectors.txt", "vectors.bin", "hf-gpt", "hf-bert", "hf-words", "hf-shards"}
    | {"sentences", "classifier", "hops", "ablation", "figures"}
)
"""What is made of runs of the full world."""
LARGE = (frozenset(RUNS) | DERIVED) - frozenset(SMALL_RUNS)
"""What the small world does not have."""


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of a few words."""
    draw = random.Random(seed)
    return [
        f"the {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)} ."
        for _ in range(count)
    ]


def write_files(folder: Path) -> None:
    """A small valid file of every format that lmlab reads."""
    texts = sentences(60)
    lines = "".join(f"{text}\n" for text in texts)
    (folder / "corpus.txt").write_text(lines)
    (folder / "corpus.txt.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    _jsonl(folder / "corpus.jsonl", [{"text": text} for text in texts])
    (folder / "pairs.tsv").write_text("".join(f"{t}\t{t.upper()}\n" for t in texts))
    _jsonl(folder / "pairs.jsonl", [{"source": t, "target": t.upper()} for t in texts])
    (folder / "seqs.fasta").write_text("".join(f">s{n}\nACDEFGH\nIKL\n" for n in range(20)))
    for split, name in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr")):
        (folder / "multi30k").mkdir(exist_ok=True)
        for language in ("de", "en"):
            (folder / "multi30k" / f"{name}.{language}").write_text(lines)
        (folder / "ptb").mkdir(exist_ok=True)
        (folder / "ptb" / f"ptb.{'valid' if split == 'val' else split}.txt").write_text(lines)
    (folder / "babi").mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / "babi" / f"qa1_{split}.txt").write_text(_babi(30))
    _jsonl(
        folder / "minimal.jsonl",
        [{"sentence_good": t, "sentence_bad": t.replace("the", "a")} for t in texts[:8]],
    )
    _jsonl(
        folder / "rows.jsonl",
        [{"text": t, "label": "cat" if "cat" in t else "other"} for t in texts],
    )
    _jsonl(
        folder / "documents.jsonl",
        [{"name": c, "text": f"the capital of {c} is {a}"} for c, a in COUNTRIES.items()],
    )
    _knowledge(folder / "knowledge")
    _task_rows(folder, texts)
    _jsonl(
        folder / "mentions.jsonl",
        [{"text": f"{c} is warm", "mentions": [[0, len(c), c]]} for c in COUNTRIES] * 8,
    )
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in NOUNS))
    (folder / "similar.tsv").write_text("cat\tdog\t7.5\ncat\triver\t1\nqueen\tchild\t4\n")
    _hop_rows(folder / "hop-rows")
    (folder / "sweep.yaml").write_text(
        f"system: gru\ndata: {folder / 'corpus.txt'}\nsize: tiny\nsteps: 1\nsearch: grid\n"
        "space:\n  width: [4, 8]\n  dropout: {low: 0.0, high: 0.1, step: 0.1}\n"
    )
    (folder / "questions.txt").write_text("what is the capital of Chad ?\n" * 2)
    (folder / "masked.txt").write_text("the <mask> sees the dog .\n" * 3)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _task_rows(folder: Path, texts: list[str]) -> None:
    """Rows of each task; those of classify are rows.jsonl."""
    rows: dict[str, list[dict[str, Any]]] = {
        "pair": [{"text": t, "other": t, "label": str("cat" in t)} for t in texts],
        "tag": [{"words": t.split(), "tags": ["O", "B-x", "O", "O", "B-y", "O"]} for t in texts],
        "span": [
            {"text": t, "question": "who sees ?", "answer": t.split()[1], "start": 4} for t in texts
        ],
        "generate": [{"source": t, "target": t.upper()} for t in texts],
    }
    for task, listed in rows.items():
        _jsonl(folder / f"{task}.jsonl", listed)


def _babi(count: int) -> str:
    lines = []
    for number in range(count):
        position = ("kitchen", "garden")[number % 2]
        lines += [f"1 Mary moved to the {position}.", "2 John went to the hall."]
        lines.append(f"3 Where is Mary?\t{position}\t1")
    return "\n".join(lines) + "\n"


def _knowledge(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    entities = {**dict.fromkeys(COUNTRIES, "a country"), **dict.fromkeys(COUNTRIES.values(), "")}
    (folder / "entities.tsv").write_text(
        "".join(f"{name}\t{name}\t{text}\n" for name, text in entities.items())
    )
    (folder / "aliases.tsv").write_text("".join(f"{name}\t{name}\t3\n" for name in entities))
    (folder / "facts.tsv").write_text(
        "".join(f"{a}\tcapital of\t{c}\n" for c, a in COUNTRIES.items())
    )


def _hop_rows(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "question": f"what is the capital of the country of {n} ?",
            "start": [n],
            "answer": a,
            "path": [[n, c], [c, a]],
        }
        for n, (c, a) in zip(NOUNS, COUNTRIES.items(), strict=False)
    ]
    _jsonl(folder / "rows.jsonl", rows * 5)
    pairs = [(row["start"][0], row["path"][0][1]) for row in rows]
    texts = {n: f"{n} lives in {c} ." for n, c in pairs}
    texts |= {c: f"the capital of {c} is {a} ." for c, a in COUNTRIES.items()}
    _jsonl(folder / "paragraphs.jsonl", [{"entity": e, "text": t} for e, t in texts.items()])


def _checkpoints(folder: Path) -> None:
    """Forms of Hugging Face folders that lmlab reads and does not write."""
    for name in ("hf-words", "hf-shards", "sentences"):
        shutil.copytree(folder / "hf-bert", folder / name)
    words = folder / "hf-words"
    vocabulary = json.loads((words / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    (words / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (words / "special_tokens_map.json").write_text(
        json.dumps({"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
                   | {"pad_token": "<pad>", "mask_token": "<mask>"})
    )  # fmt: skip
    (words / "tokenizer.json").unlink()
    shards = folder / "hf-shards"
    os.rename(shards / "model.safetensors", shards / "one.safetensors")
    with (shards / "one.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    names = [name for name in header if name != "__metadata__"]
    (shards / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "one.safetensors")})
    )
    sentences = folder / "sentences"
    modules = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(modules.items())
    ]
    (sentences / "modules.json").write_text(json.dumps(listed))
    (sentences / "1_Pooling").mkdir()
    (sentences / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True})
    )
    (sentences / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 32, "do_lower_case": False})
    )


def make_world(folder: Path, *, full: bool) -> list[str]:
    """Files and runs into a folder; the names of what could not be made, for the report."""
    from lmlab.cli.main import main

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LMLAB_CACHE"] = str(folder / "cache")
    write_files(folder)
    failed = []
    for name, (system, corpus, *options) in (RUNS if full else SMALL_RUNS).items():
        data = str(folder / corpus) if "." in corpus else corpus
        arguments = ["train", system, "--data", data, "--out", str(folder / name), *options]
        if main([*arguments, "--size", "tiny"]) != 0:
            failed.append(name)
    for arguments in _derived(folder, full=full):
        if main(arguments) != 0:
            failed.append(" ".join(arguments[:2]))
    if full:
        _checkpoints(folder)
    return failed


def _derived(folder: Path, *, full: bool) -> list[list[str]]:
    """Commands that make files of runs: exports, indexes, fine-tuned runs."""
    here = {name: str(folder / name) for name in (*RUNS, "model.arpa", "bm25", "flat", "hnsw")}
    documents = str(folder / "documents.jsonl")
    commands = [
        ["export-arpa", here["ngram"], here["model.arpa"]],
        ["index", "build", documents, "--encoder", "bm25", "--out", here["bm25"]],
    ]
    if not full:
        return commands
    rows = str(folder / "hop-rows" / "rows.jsonl")
    build = ["index", "build", documents, "--encoder", here["bert"]]
    classify = ["--task", "classify", "--data", str(folder / "rows.jsonl"), "--steps", "2"]
    return [
        *commands,
        [*build, "--out", here["flat"]],
        [*build, "--kind", "hnsw", "--out", here["hnsw"]],
        ["words", here["cbow"], "export", str(folder / "vectors.txt")],
        ["words", here["cbow"], "export", str(folder / "vectors.bin")],
        ["inspect", here["lstm"], "--text", "the cat", "--out", str(folder / "figures")],
        ["export-hf", here["gpt"], str(folder / "hf-gpt")],
        ["export-hf", here["bert"], str(folder / "hf-bert")],
        ["finetune", here["bert"], *classify, "--out", str(folder / "classifier")],
        [
            *("finetune", here["bert"], "--task", "hops", "--data", rows),
            *("--steps", "1", "--out", str(folder / "hops")),
        ],
        [
            *("ablate", "gru-minimal", "--data", str(folder / "corpus.txt"), "--size", "tiny"),
            *("--seeds", "1", "--epochs", "1", "--switches", "0", "--out"),
            str(folder / "ablation"),
        ],
        ["sweep", str(folder / "sweep.yaml"), "--out", str(folder / "sweep")],
    ]
