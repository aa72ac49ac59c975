"""Corpus loading by specification (`--data CORPUS`): built-in, file, folder, parallel, protocol.

capitals                    a built-in name
poems.txt                   a file: split 90/5/5 by seed
folder/                     with train*, val*|valid*|dev*, test* (files, shards or folders)
contiguous:PATH             a file or folder read as one stream, as PTB is
parallel:de-en:FOLDER       train*.de with train*.en, and so on
parallel:a.de,a.en          two line-aligned files, split like a single file
multi30k-l20:PATH           a protocol and its data folder; without PATH, in LMLAB_DATA
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lmlab.core.errors import UserError, unknown_name, unknown_name_or_path
from lmlab.data.builtin_corpora import builtin_descriptions, open_builtin
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.lines import Errors, check_errors
from lmlab.data.readers import (
    ChainedReaders,
    ExampleReader,
    Fasta,
    JsonLines,
    ParallelFiles,
    PlainText,
    TabSeparated,
)
from lmlab.data.splitting import SPLIT_BLOCK, split_by_block, split_by_position
from lmlab.data.standard_datasets import CORPUS_PROTOCOLS, open_protocol

FOLDER_PATTERNS = {"train": ("train*",), "validation": ("val*", "dev*"), "test": ("test*",)}
FORMATS: dict[str, Callable[..., ExampleReader]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".fa": Fasta,
    ".faa": Fasta,
    ".fna": Fasta,
    ".fasta": Fasta,
    ".tsv": TabSeparated,
}


def load_corpus(spec: str, *, errors: str, seed: int) -> Corpus:
    """Load the corpus that the specification names."""
    checked = check_errors(errors)
    if seed < 0:
        raise UserError(f"seed must be 0 or more, got {seed}; try 0.")
    head, colon, path = spec.partition(":")
    if not colon and head in builtin_descriptions():
        return open_builtin(head, seed)
    if head in CORPUS_PROTOCOLS:
        corpus = open_protocol(head, _protocol_root(head, path), errors=checked, seed=seed)
    elif head == "contiguous" and path:
        corpus = _open_path(Path(path).expanduser(), checked, seed, contiguous=True)
    elif head == "parallel" and path:
        corpus = _open_parallel(path, checked, seed)
    elif spec and _exists(spec):
        corpus = _open_path(Path(spec).expanduser(), checked, seed)
    else:
        raise _unknown_corpus(spec, head, colon)
    for split in corpus.splits.values():
        split.first()  # report an empty split now, not after an hour of training
    return corpus


def _protocol_root(name: str, path: str) -> Path:
    location = path or os.environ.get("LMLAB_DATA", "")
    if not location:
        raise UserError(
            f"the protocol {name} needs its data: write {name}:PATH, or set LMLAB_DATA to the "
            "folder that holds it."
        )
    root = Path(location).expanduser()
    if not root.exists():
        source = "" if path else " (from LMLAB_DATA)"
        raise UserError(f"there is no folder {root}{source} for the protocol {name}.")
    return root


def _exists(spec: str) -> bool:
    try:
        return Path(spec).expanduser().exists()
    except (OSError, RuntimeError):  # a name too long for the system, or a missing home folder
        return False


def _unknown_corpus(spec: str, head: str, colon: str) -> UserError:
    if colon and os.sep not in head:
        return unknown_name(
            "protocol", head, [*CORPUS_PROTOCOLS, "contiguous", "parallel"], "lmlab data list"
        )
    names = [*builtin_descriptions(), *CORPUS_PROTOCOLS]
    return unknown_name_or_path("corpus, file or folder", spec, names, "lmlab data list")


def _open_path(path: Path, errors: Errors, seed: int, contiguous: bool = False) -> Corpus:
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; check the path.")
    if path.is_dir():
        readers = {part: _part_of_folder(path, part, errors) for part in FOLDER_PATTERNS}
        splits = {
            part: Split(reader, name=part) for part, reader in readers.items() if reader is not None
        }
        if "train" not in splits:
            raise _no_train(path)
        description = f"the folder {path.name}: {', '.join(splits)}"
        if "validation" not in splits:
            stand_in = "test" if "test" in splits else "train"
            description += f"; it has no validation split, so {stand_in} is used for validation"
    else:
        reader = reader_for(path, errors)
        splits, description = _split_file(reader, f"the file {path.name}", seed, contiguous)
    return _with_layout(path.name, splits, description, contiguous)


def load_undivided(path: Path, *, errors: str) -> Corpus:
    """A file as one text, called train: held-out text that is not divided."""
    split = Split(reader_for(path, check_errors(errors)), name="train")
    return Corpus(name=path.name, splits={"train": split}, description=f"the file {path.name}")


def _split_file(
    reader: ExampleReader, name: str, seed: int, contiguous: bool = False
) -> tuple[dict[str, Split], str]:
    """The splits of a single reader's examples, and a description of how they were made."""
    everything = Split(reader, name="train")
    if len(everything.first(SPLIT_BLOCK)) < SPLIT_BLOCK:
        few = f"fewer than {SPLIT_BLOCK} examples, so all of them are train and nothing is held out"
        return {"train": everything}, f"{name}: {few}"
    selected: dict[str, ExampleReader]
    if contiguous:
        total = sum(1 for _ in everything)
        selected = {part: split_by_position(reader, part, total) for part in FOLDER_PATTERNS}
        how = ": the first 90 % train, the next 5 % validation, the last 5 % test"
    else:
        selected = {part: split_by_block(reader, part, seed) for part in FOLDER_PATTERNS}
        how = (
            f", split 90/5/5 by seed {seed}: of each {SPLIT_BLOCK} examples 18 train, 1 and 1 "
            f"held out"
        )
    splits = {part: Split(inner, name=part) for part, inner in selected.items()}
    return splits, f"{name}{how}"


def _with_layout(name: str, splits: dict[str, Split], description: str, contiguous: bool) -> Corpus:
    pairs = splits["train"].first()[0].condition is not None
    if pairs and contiguous:
        raise UserError(f"{name} holds pairs, which can't be used as contiguous text.")
    letters = _uses_reader(splits["train"].reader, Fasta)
    corpus = Corpus(
        name=name, splits=splits, description=description, tokenizer="char" if letters else "word"
    )
    if pairs:
        return replace(corpus, layout=Layout(kind="pairs"))
    return replace(corpus, layout=Layout(kind="contiguous")) if contiguous else corpus


def _uses_reader(reader: ExampleReader, kind: type) -> bool:
    parts: list[ExampleReader] = list(reader.readers) if isinstance(reader, ChainedReaders) else []
    parts += [reader.reader] if hasattr(reader, "reader") else []
    return isinstance(reader, kind) or any(_uses_reader(part, kind) for part in parts)


def reader_for(path: Path, errors: Errors = "strict") -> ExampleReader:
    """The reader for a file, by its suffix (before `.gz`)."""
    return FORMATS.get(_suffix(path), PlainText)(path=path, errors=errors)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def _part_of_folder(folder: Path, part: str, errors: Errors) -> ExampleReader | None:
    paths = sorted({path for pattern in FOLDER_PATTERNS[part] for path in folder.glob(pattern)})
    files = [file for path in paths for file in _files_below(path)]
    files = _deduplicate(files)
    if not files:
        return None
    suffixes = sorted({_suffix(file) for file in files})
    if len(suffixes) > 1:
        raise UserError(
            f"the {part} files in {folder} are of several kinds ({', '.join(suffixes)}); keep one "
            "kind, or for translations write parallel:SOURCE-TARGET:FOLDER."
        )
    return _chain([reader_for(file, errors) for file in files])


def _chain(readers: Sequence[ExampleReader]) -> ExampleReader:
    return readers[0] if len(readers) == 1 else ChainedReaders(tuple(readers))


def _files_below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def _no_train(folder: Path) -> UserError:
    names = sorted(path.name for path in folder.iterdir())[:5]
    inside = ", ".join(names) if names else "nothing"
    return UserError(
        f"expected train*, val*|valid*|dev* and test* in the folder {folder}, but no name there "
        f"begins with 'train' (found {inside}); rename the training file, or give a single file."
    )


def _open_parallel(rest: str, errors: Errors, seed: int) -> Corpus:
    languages, _, path = rest.partition(":")
    source, dash, target = languages.partition("-")
    folder = Path(path).expanduser()
    named = bool(source and dash and target and path)
    if "," in rest and not (named and folder.is_dir()):
        return _open_two_files(rest, errors, seed)
    if not named:
        raise UserError(
            "expected parallel:SOURCE-TARGET:FOLDER or parallel:SOURCE_FILE,TARGET_FILE, got "
            f"parallel:{rest}."
        )
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; check the path.")
    splits = {}
    for part in FOLDER_PATTERNS:
        sides = [_side_of_folder(folder, part, language) for language in (source, target)]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"expected as many {part}*.{source} as {part}*.{target} in {folder}, found "
                f"{len(sides[0])} and {len(sides[1])}."
            )
        if all(sides):
            readers = [
                ParallelFiles(source=source_file, target=target_file, errors=errors)
                for source_file, target_file in zip(*sides, strict=True)
            ]
            splits[part] = Split(_chain(readers), name=part)
    if "train" not in splits:
        raise UserError(f"expected train*.{source} and train*.{target} in the folder {folder}.")
    return Corpus(
        name=f"{folder.name}-{source}-{target}",
        splits=splits,
        layout=Layout(kind="pairs"),
        description=f"{source} to {target} from the folder {folder.name}: {', '.join(splits)}",
    )


def _open_two_files(rest: str, errors: Errors, seed: int) -> Corpus:
    files = [Path(name.strip()).expanduser() for name in rest.split(",")]
    if len(files) != 2:
        raise UserError(f"expected parallel:SOURCE_FILE,TARGET_FILE, got {len(files)} files.")
    for file in files:
        if not file.is_file():
            raise UserError(f"there is no file {file}; check the path.")
    source, target = files
    reader = ParallelFiles(source=source, target=target, errors=errors)
    name = f"the files {source.name} and {target.name}"
    splits, description = _split_file(reader, name, seed)
    return Corpus(
        name=f"{source.name}-{target.name}",
        splits=splits,
        layout=Layout(kind="pairs"),
        description=description,
    )


def _side_of_folder(folder: Path, part: str, language: str) -> list[Path]:
    patterns = [f"{stem}.{language}{end}" for stem in FOLDER_PATTERNS[part] for end in ("", ".gz")]
    return _deduplicate(sorted({path for pattern in patterns for path in folder.glob(pattern)}))


def _deduplicate(files: list[Path]) -> list[Path]:
    """Drop the second of a file's packed and unpacked copies."""
    return [file for file in files if file.suffix != ".gz" or file.with_suffix("") not in files]
