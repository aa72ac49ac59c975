"""One command on a large file as plain data, and the folder of its finished parts.

    OUT.parts/  manifest.json  input (an unpacked .gz)  part-000001.jsonl  part-000001.json …

The manifest has the job, what the input was and its chunks. A part is there as a whole or not at
all, so a killed command continues with the chunks that have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.manifest import MANIFEST, hash_file
from lmlab.core.untrusted_input import parse_json
from lmlab.data.lines import Errors, check_errors
from lmlab.data.load_corpus import reader_for
from lmlab.data.readers import LineReader, PlainText
from lmlab.experiments.large_files import storage
from lmlab.experiments.large_files.text_chunks import Chunk, ChunkPlan

FORMAT = 1
PART = "part-"
"""Prefix of the names of parts and their records."""


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """What is done with a file, by which models."""

    operation: str
    """score, encode, translate or fill."""
    runs: Mapping[str, str]
    """Folders of the models by their names."""
    models_sha256: Sequence[str]
    """Hashes of the models."""
    options: Mapping[str, Any]
    input: str
    out: str
    errors: Errors
    chunk_bytes: int
    compute: Mapping[str, Any]
    """Device, precision and threads of each process, the fields of `ComputeOptions`."""
    language: str | None = None
    """Of the texts, for a system with language embeddings."""
    verify: bool = True
    """Whether models are compared with their manifests when loaded."""
    system_files: Sequence[str] = ()
    """Python files of systems that the models are of."""

    @property
    def parts(self) -> str:
        """The folder of the parts."""
        return f"{self.out}.parts"

    @property
    def text(self) -> str:
        """The file that chunks are read from: the input, or what it unpacks to."""
        return f"{self.parts}/input" if self.is_packed else self.input

    @cached_property
    def is_packed(self) -> bool:
        """Whether the input is a gzip file."""
        with storage.open_file(self.input) as file:
            return file.read(2) == b"\x1f\x8b"

    def reader(self, *, sources: bool) -> LineReader:
        """The reader of the input's lines; `sources` are read as they stand."""
        name = PurePosixPath(self.input.rpartition("://")[2])
        reader = reader_for(Path(name), check_errors(self.errors))
        if not isinstance(reader, LineReader):
            raise UserError(
                f"{self.input} has texts of several lines, which can't be divided; convert it to a "
                "file with a text a line."
            )
        return PlainText(path=reader.path, errors=reader.errors) if sources else reader

    def settings(self) -> dict[str, Any]:
        """What must be the same when a killed command is given again."""
        return {
            "operation": self.operation,
            "models": list(self.runs),
            "model weights": list(self.models_sha256),
            **{name.replace("_", "-"): value for name, value in self.options.items()},
            "errors": self.errors,
            "chunk-bytes": self.chunk_bytes,
            **self.compute,
            "language": self.language,
        }

    def part(self, number: int) -> str:
        """The file of a chunk's rows."""
        return f"{self.parts}/{part_name(number)}{PurePosixPath(self.out).suffix}"

    def part_record(self, number: int) -> str:
        """The file of a part's counts, written before the part."""
        return f"{self.parts}/{part_name(number)}.json"


def part_name(number: int) -> str:
    """The name of a part without its suffix; parts are counted from 1 in names."""
    return f"{PART}{number + 1:06}"


def hash_model(run: Path) -> str:
    """A hash of a run that changes with its weights: of its manifest, else of all its files."""
    if (run / MANIFEST).is_file():
        return hash_file(run / MANIFEST)
    digest = hashlib.sha256()
    for path in sorted(path for path in run.iterdir() if path.is_file()):
        digest.update(f"{path.name} {hash_file(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class JobManifest:
    """The manifest of a folder of parts."""

    settings: Mapping[str, Any]
    size: int
    modified: str | None
    sha256: str
    """Of the unpacked input."""
    lines: int
    chunks: tuple[Chunk, ...]

    @classmethod
    def of(cls, job: FileJob, state: storage.FileState, plan: ChunkPlan) -> JobManifest:
        """The manifest of a job that begins."""
        settings: dict[str, Any] = json.loads(json.dumps(job.settings()))
        return cls(settings=settings, **asdict(state), **vars(plan))

    def write(self, job: FileJob) -> None:
        """Write it into the folder of the parts."""
        with storage.written_file(f"{job.parts}/{MANIFEST}") as file:
            file.write(json.dumps({"format": FORMAT, **asdict(self)}).encode())

    @classmethod
    def read(cls, job: FileJob) -> JobManifest | None:
        """The manifest of a job that was begun; None if there is none."""
        location = f"{job.parts}/{MANIFEST}"
        if not storage.exists(location):
            return None
        try:
            values = parse_json(storage.read_bytes(location))
            if values.pop("format") != FORMAT:
                raise ValueError("another version of lmlab wrote it")
            chunks = tuple(Chunk(*chunk) for chunk in values.pop("chunks"))
            return cls(**values, chunks=chunks)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{location} is damaged ({error}); remove {job.parts} to start anew."
            ) from None

    def check_settings(self, job: FileJob) -> None:
        """A UserError if the job is not the one that was begun."""
        now: dict[str, Any] = json.loads(json.dumps(job.settings()))
        for name in {**self.settings, **now}:
            before, given = self.settings.get(name), now.get(name)
            if before != given:
                changed = "" if "weights" in name else f" ({before!r}, now {given!r})"
                raise UserError(
                    f"{job.parts} was begun with other options: {name} differs{changed}; give the "
                    f"same command again, or remove {job.parts} to start anew."
                )
