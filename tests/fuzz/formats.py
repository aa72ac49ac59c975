"""Every file format that lmlab loads, how it is mutated, and the commands that load it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lmlab.core.locks import LOCK_FILE
from lmlab.core.manifest import read_manifest, write_manifest
from tests.fuzz.mutations import (
    Mutate,
    mutate_bytes,
    mutate_json,
    mutate_lines_of_json,
    mutate_safetensors,
    packed,
)
from tests.fuzz.options import has_option

TEXT = ("--text", "the cat sees the dog .")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file of the world that is changed, and what loads it afterwards."""

    name: str
    path: str
    """Of the file or folder in the world that is copied."""
    file: str = ""
    """Of the file in that folder that is changed."""
    mutate: Mutate
    commands: tuple[tuple[str, ...], ...]
    """Arguments; {it} is the copy, {world} the folder of the world, {out} a new path."""
    small: bool = True
    """Whether it is part of the short world."""
    verified: bool = False
    """Whether hashes are checked: where the file that is changed is the list of them."""
    signed: bool = False
    """Whether the manifest next to the file lists the changed one: of checkpoints, whose hashes are
    always checked."""


def _corpus(path: str, mutate: Mutate, name: str = "", prefix: str = "") -> Target:
    it = f"{prefix}{{it}}"
    return Target(
        name=f"corpus {name or path}",
        path=path,
        mutate=mutate,
        commands=(("data", "describe", it), ("data", "describe", it, "--errors", "replace")),
    )


def _in_folder(
    name: str, path: str, file: str, mutate: Mutate, *commands: tuple[str, ...], **more: bool
) -> Target:
    return Target(
        name=f"{name} {file}",
        path=path,
        file=file,
        mutate=mutate,
        commands=commands,
        small=path in ("ngram", "lstm", "bm25", "ptb", "babi", "multi30k", "knowledge"),
        **more,
    )


def _run(path: str, file: str, mutate: Mutate, *commands: tuple[str, ...], **more: bool) -> Target:
    every = commands or (("score", "{it}", *TEXT), ("sample", "{it}", "--max-length", "5"))
    return _in_folder(f"run {path}", path, file, mutate, *every, **more)


RESUME = ("train", "lstm", "--data", "{world}/corpus.txt", "--out", "{it}", "--resume")
FILL = ("fill", "{it}", "the <mask> sees .")
PREDICT = ("predict", "{it}", *TEXT)
SEARCH = ("index", "search", "{it}", "capital of Chad", "-k", "2")
INSPECT = ("inspect", "{world}/lstm", *TEXT, "--out", "{it}")
ENCODE = ("index", "build", "{world}/documents.jsonl", "--encoder", "{it}", "--out", "{out}")
IMPORT = ("import-hf", "{it}", "--out", "{out}")
TARGETS: tuple[Target, ...] = (
    _corpus("corpus.txt", mutate_bytes),
    _corpus("corpus.txt.gz", packed(mutate_bytes)),
    _corpus("corpus.jsonl", mutate_lines_of_json),
    _corpus("pairs.tsv", mutate_bytes),
    _corpus("pairs.jsonl", mutate_lines_of_json),
    _corpus("seqs.fasta", mutate_bytes),
    _in_folder(
        "corpus ptb", "ptb", "ptb.train.txt", mutate_bytes,
        ("data", "describe", "ptb-sentence:{it}"), ("data", "describe", "ptb-contiguous:{it}"),
    ),
    _in_folder(
        "corpus babi", "babi", "qa1_train.txt", mutate_bytes, ("data", "describe", "babi-1:{it}")
    ),
    _in_folder(
        "corpus parallel", "multi30k", "train.de", mutate_bytes,
        ("data", "describe", "multi30k-de-en:{it}"),
    ),
    Target(
        name="texts", path="corpus.txt", mutate=mutate_bytes,
        commands=(("score", "{world}/lstm", "{it}"), ("cloze", "{world}/lstm", "{it}")),
    ),
    Target(
        name="sweep spec", path="sweep.yaml", mutate=mutate_bytes,
        commands=(("sweep", "{it}", "--out", "{out}", "--dry-run"),),
    ),
    Target(
        name="minimal pairs", path="minimal.jsonl", mutate=mutate_lines_of_json,
        commands=(("pairs", "{world}/ngram", "{it}"),),
    ),
    Target(
        name="documents", path="documents.jsonl", mutate=mutate_lines_of_json,
        commands=(("index", "build", "{it}", "--encoder", "bm25", "--out", "{out}"),),
    ),
    Target(
        name="arpa", path="model.arpa", mutate=mutate_bytes,
        commands=(("import-arpa", "{it}", "--out", "{out}"),),
    ),
    Target(
        name="corpus mentions.jsonl", path="mentions.jsonl", mutate=mutate_lines_of_json,
        small=False,
        commands=(
            ("train", "eae", "--data", "{it}", "--knowledge", "{world}/knowledge", "--size",
             "tiny", "--steps", "1", "--out", "{out}"),
        ),
    ),
    Target(
        name="lexicon", path="names.txt", mutate=mutate_bytes, small=False,
        commands=(
            ("train", "ernie", "--data", "{world}/corpus.txt", "--size", "tiny", "--steps", "1",
             "--set", "mentions={it}", "--out", "{out}"),
        ),
    ),
    Target(
        name="similar words", path="similar.tsv", mutate=mutate_bytes, small=False,
        commands=(("words", "{world}/vectors.txt", "similarity", "{it}"),),
    ),
    *(
        _in_folder(
            "rows of hops", "hop-rows", file, mutate_lines_of_json,
            ("finetune", "{world}/bert", "--task", "hops", "--data", "{it}/rows.jsonl",
             "--steps", "1", "--out", "{out}"),
        )
        for file in ("rows.jsonl", "paragraphs.jsonl")
    ),
    *(
        Target(
            name=f"word2vec {name}", path=name, mutate=mutate_bytes, small=False,
            commands=(("words", "{it}", "nearest", "cat"),),
        )
        for name in ("vectors.txt", "vectors.bin")
    ),
    Target(
        name="task rows", path="rows.jsonl", mutate=mutate_lines_of_json, small=False,
        commands=(
            ("predict", "{world}/classifier", "{it}"),
            ("finetune", "{world}/bert", "--task", "classify", "--data", "{it}", "--steps", "1",
             "--out", "{out}"),
        ),
    ),
    *(
        Target(
            name=f"rows of {task}", path=f"{task}.jsonl", mutate=mutate_lines_of_json, small=False,
            commands=(
                ("finetune", "{world}/" + run, "--task", task, "--data", "{it}", "--steps", "1",
                 "--out", "{out}"),
            ),
        )
        for task, run in (("pair", "bert"), ("tag", "bert"), ("span", "bert"), ("generate", "t5"))
    ),
    _run("lstm", "config.json", mutate_json),
    _run("lstm", "config.json", mutate_json, RESUME, ("doctor", "{it}")),
    _run("lstm", "tokenizer.json", mutate_json),
    _run("lstm", "model.safetensors", mutate_safetensors),
    _run("lstm", "metrics.jsonl", mutate_lines_of_json, RESUME, ("doctor", "{it}")),
    _run("lstm", "trainer/step-2/state.json", mutate_json, RESUME, signed=True),
    _run("lstm", "trainer/step-2/optimizer.safetensors", mutate_safetensors, RESUME, signed=True),
    _run("lstm", "trainer/step-2/model.safetensors", mutate_safetensors, RESUME, signed=True),
    _run("lstm", "trainer/step-2/manifest.json", mutate_json, RESUME, verified=True),
    _run("lstm", "manifest.json", mutate_json, verified=True),
    _run("lstm", "environment.json", mutate_json, ("doctor", "{it}"), ("compare", "{it}")),
    _in_folder("figures", "figures", "inspection.json", mutate_json, INSPECT),
    _run("ngram", "config.json", mutate_json),
    _run("ngram", "model.safetensors", mutate_safetensors),
    _run("ngram", "tokenizer.json", mutate_json),
    _run("bert", "config.json", mutate_json, FILL, ("score", "{it}", *TEXT)),
    _run("bert", "tokenizer.json", mutate_json, FILL),
    _run("gpt", "config.json", mutate_json),
    _run("hmm", "config.json", mutate_json),
    _run("seq2seq", "config.json", mutate_json, ("translate", "{it}", *TEXT)),
    _run("seq2seq", "source_tokenizer.json", mutate_json, ("translate", "{it}", *TEXT)),
    _run("cbow", "config.json", mutate_json, ("words", "{it}", "nearest", "cat")),
    _run("rag", "config.json", mutate_json, ("ask", "{it}", "what is the capital of Chad ?")),
    _run("rag", "memory/documents.jsonl.gz", packed(mutate_lines_of_json), ("ask", "{it}", "x ?")),
    _run("eae", "memory/knowledge.json.gz", packed(mutate_json), FILL),
    _run("classifier", "config.json", mutate_json, PREDICT),
    _run("classifier", "model.safetensors", mutate_safetensors, PREDICT),
    *(
        _in_folder(f"hf {path}", path, file, mutate, IMPORT)
        for path in ("hf-gpt", "hf-bert")
        for file, mutate in (
            ("config.json", mutate_json),
            ("tokenizer.json", mutate_json),
            ("tokenizer_config.json", mutate_json),
            ("model.safetensors", mutate_safetensors),
        )
    ),
    *(
        _in_folder(f"hf {path}", path, file, mutate, IMPORT)
        for path, file, mutate in (
            ("hf-words", "vocab.txt", mutate_bytes),
            ("hf-words", "special_tokens_map.json", mutate_json),
            ("hf-shards", "model.safetensors.index.json", mutate_json),
        )
    ),
    *(
        _in_folder("encoder", "sentences", file, mutate_json, ENCODE)
        for file in (
            *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
            *("config.json", "tokenizer.json"),
        )
    ),
    _in_folder(
        "ablation", "ablation", "ablation.json", mutate_json,
        ("ablate", "gru-minimal", "--data", "{world}/corpus.txt", "--size", "tiny", "--seeds",
         "1", "--epochs", "1", "--switches", "0", "--out", "{it}"),
    ),
    *(
        _in_folder(
            "sweep", "sweep", file, mutate,
            ("sweep", "{world}/sweep.yaml", "--out", "{it}"),
        )
        for file, mutate in (("sweep.json", mutate_json), ("trials.jsonl", mutate_lines_of_json))
    ),
    *(
        _in_folder(f"index {path}", path, file, mutate, SEARCH, ("index", "info", "{it}"))
        for path, file, mutate in (
            ("bm25", "meta.json", mutate_json),
            ("bm25", "manifest.json", mutate_json),
            ("bm25", "documents.jsonl.gz", packed(mutate_lines_of_json)),
            ("bm25", "bm25/data.csc.index.npy", mutate_bytes),
            ("bm25", "bm25/vocab.index.json", mutate_json),
            ("bm25", "bm25/params.index.json", mutate_json),
            ("flat", "meta.json", mutate_json),
            ("flat", "vectors.npy", mutate_bytes),
            ("hnsw", "meta.json", mutate_json),
            ("hnsw", "index.faiss", mutate_bytes),
        )
    ),
    *(
        _in_folder(
            "knowledge", "knowledge", file, mutate_bytes,
            ("train", "eae", "--data", "{world}/corpus.txt", "--knowledge", "{it}", "--size",
             "tiny", "--steps", "1", "--out", "{out}"),
        )
        for file in ("entities.tsv", "aliases.tsv", "facts.tsv")
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DamagedFile:
    """One input: a copy of a target with a changed file, and a command on it."""

    target: Target
    content: bytes
    arguments: tuple[str, ...]

    def place(self, world: Path, scratch: Path) -> list[str]:
        """Write the copy below `scratch`, and give the command's arguments."""
        copy = scratch / Path(self.target.path).name
        if self.target.file:
            shutil.copytree(
                world / self.target.path, copy, ignore=shutil.ignore_patterns(LOCK_FILE)
            )
            file = copy / self.target.file
            file.write_bytes(self.content)
            if self.target.signed:
                write_manifest(file.parent, read_manifest(file.parent))
        else:
            copy.write_bytes(self.content)
        named = {"it": copy, "world": world, "out": scratch / "out"}
        arguments = [each.format(**named) for each in self.arguments]
        return arguments if self.target.verified else unverified(arguments)


def draw_damaged(world: Path, target: Target, draw: Random) -> DamagedFile:
    """A target with a random change, and one of its commands."""
    file = world / target.path / target.file if target.file else world / target.path
    return DamagedFile(
        target=target,
        content=target.mutate(file.read_bytes(), draw),
        arguments=draw.choice(target.commands),
    )


def unverified(arguments: list[str]) -> list[str]:
    """The command with checksums left unchecked, where it has that option.

    Else each damage would be found by its checksum alone, and readers would never see one.
    """
    if has_option(arguments, "--no-verify"):
        return [*arguments, "--no-verify"]
    return arguments
