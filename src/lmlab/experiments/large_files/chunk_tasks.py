"""The task of one chunk: read its lines, make rows of them, write its part."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmlab.core.compute_options import ComputeOptions, computing_with
from lmlab.core.manifest import verification
from lmlab.core.protocols import Multilingual, require
from lmlab.core.score import Convention, Summary
from lmlab.core.system_files import register
from lmlab.core.untrusted_input import parse_json
from lmlab.data.lines import ReadingReport, decoded_lines
from lmlab.data.readers import Example
from lmlab.experiments.large_files import storage
from lmlab.experiments.large_files.file_job import FileJob
from lmlab.experiments.large_files.operation import Operation
from lmlab.experiments.large_files.operations import OPERATIONS
from lmlab.experiments.large_files.row_formats import row_format
from lmlab.experiments.large_files.text_chunks import Chunk, chunk_lines
from lmlab.experiments.tasks import TaskOutcome
from lmlab.experiments.training_tasks import thread_count
from lmlab.interop.load_model import load_model


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """Counts of a part, in a file beside it."""

    texts: int
    rows: int
    peak_memory: int
    """Largest resident size in bytes of the process that wrote it; 0 where unknown."""
    summaries: Mapping[str, Summary]
    """Totals of scores, by model."""
    index: list[dict[str, Any]]
    """What the format records of the part."""

    @classmethod
    def read(cls, location: str) -> PartRecord:
        """The record that a task wrote."""
        values = parse_json(storage.read_bytes(location))
        summaries = {name: _summary(record) for name, record in values.pop("summaries").items()}
        return cls(**values, summaries=summaries)


def _summary(record: dict[str, Any]) -> Summary:
    convention: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.pop("convention").items()
    }
    return Summary(**record, convention=Convention(**convention))


def run_chunk(payload: Mapping[str, Any], quiet: bool) -> TaskOutcome:
    """The function of the tasks that are chunks; its payload is a job and one of its chunks."""
    del quiet  # it prints nothing
    job, number = FileJob(**payload["job"]), int(payload["number"])
    chunk = Chunk(*payload["chunk"])
    compute = ComputeOptions(**job.compute)
    assert compute.threads is not None
    with thread_count(compute.threads), computing_with(compute):
        write_part(job, number, chunk)
    return TaskOutcome(name=str(payload["name"]), state="finished")


def write_part(job: FileJob, number: int, chunk: Chunk) -> None:
    """Make the part of a chunk; it is on disk, after its record, when this returns."""
    operation = _operation(json.dumps(asdict(job)))
    rows_format = row_format(job.out, operation.row_class(job.options))
    texts = rows = 0

    def counted_texts(examples: Iterator[Example]) -> Iterator[Example]:
        nonlocal texts
        for example in examples:
            texts += 1
            yield example

    def counted_rows(made: Iterator[Any]) -> Iterator[Any]:
        nonlocal rows
        for row in made:
            rows += 1
            yield row

    with storage.open_file(job.text) as file, storage.written_file(job.part(number)) as part:
        examples = counted_texts(chunk_examples(job, file, chunk, sources=operation.sources))
        made = counted_rows(operation.rows(examples, number))
        index = rows_format.write_part(made, part)
        record = PartRecord(
            texts=texts,
            rows=rows,
            peak_memory=peak_memory(),
            summaries=operation.summaries(),
            index=index,
        )
        with storage.written_file(job.part_record(number)) as beside:
            beside.write(json.dumps(asdict(record), ensure_ascii=False).encode())


def chunk_examples(job: FileJob, file: Any, chunk: Chunk, *, sources: bool) -> Iterator[Example]:
    """The texts of a chunk with their line numbers; lines without text are left out."""
    reader, report = job.reader(sources=sources), ReadingReport()
    raw = chunk_lines(file, chunk, job.input)
    lines = decoded_lines(raw, job.input, report, job.errors, strip=reader.strip)
    examples = reader.read_lines(lines, report)
    return map(_source, examples) if sources else examples


def _source(example: Example) -> Example:
    """The first column of a line, or the source of a pair."""
    text = example.text.split("\t")[0].strip() if example.condition is None else example.condition
    return Example(text, line=example.line)


@lru_cache(maxsize=1)
def _operation(job_json: str) -> Operation:
    """The operation of a job with its models, which stay loaded for the next chunk."""
    job = FileJob(**json.loads(job_json))
    for file in job.system_files:
        register(file)
    with verification(job.verify):
        models = {name: load_model(Path(run)) for name, run in job.runs.items()}
    if job.language is not None:
        for model in models.values():
            require(model.system, Multilingual, "--language").use_language(job.language)
    return OPERATIONS[job.operation](models, job.options)


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes; 0 where the system has none."""
    try:
        import resource
    except ImportError:
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
