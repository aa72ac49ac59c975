"""Run a job on a large file: plan its chunks, make the missing parts, join them, remove them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from lmlab.core.atomic_files import telling_disk_errors
from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder
from lmlab.core.score import Summary
from lmlab.data.lines import ReadingReport, bounded_lines, decoded_lines
from lmlab.data.readers import PlainText
from lmlab.experiments.engine import run_tasks
from lmlab.experiments.executors import Executor
from lmlab.experiments.large_files import storage
from lmlab.experiments.large_files.chunk_tasks import PartRecord
from lmlab.experiments.large_files.file_job import PART, FileJob, JobManifest
from lmlab.experiments.large_files.row_formats import RowFormat
from lmlab.experiments.large_files.text_chunks import Chunk, ChunkPlan, plan_chunks
from lmlab.experiments.tasks import Task, TaskOutcome

ReportProgress = Callable[[str, int, int], None]
"""Called with what is done, the chunks done and their number."""


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """What a command on a large file has written."""

    out: str
    finished: bool
    """Whether it was not interrupted; the same call continues."""
    lines: int
    texts: int
    rows: int
    chunks: int
    resumed: int
    """Chunks that an earlier call had finished."""
    peak_memory: int
    """The largest resident size in bytes of a process that wrote a part; 0 where unknown."""
    summaries: Mapping[str, Summary]
    """Totals of scores, by model; empty for other operations."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_file(
    job: FileJob,
    rows_format: RowFormat,
    executor: Executor,
    progress: ReportProgress,
    *,
    sources: bool,
) -> FileResult:
    """Run a job, from the parts that an earlier call left; see `FileResult`."""
    _check_out(job, rows_format)
    with _locked(job), _parts_folder(job):
        manifest = _manifest(job, progress, sources=sources)
        source = _ChunkSource(job, manifest.chunks, progress)
        resumed = source.done
        if not run_tasks(source, executor):
            return _result(job, manifest, [], resumed=resumed, finished=False)
        count = len(manifest.chunks)
        progress("joining", count, count)
        records = [PartRecord.read(job.part_record(number)) for number in range(count)]
        parts = [job.part(number) for number in range(count)]
        rows_format.join(parts, job.out, lambda number: records[number].index)
        storage.remove_folder(job.parts)
    return _result(job, manifest, records, resumed=resumed, finished=True)


def _check_out(job: FileJob, rows_format: RowFormat) -> None:
    """A UserError where the output can't be written, or is there and was not begun."""
    path = storage.local_path(job.out)
    if path is not None and path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it.")
    if path is not None and not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} to; create it.")
    if rows_format.is_there(job.out, storage.exists) and not storage.exists(job.parts):
        raise UserError(f"{job.out} already exists; remove it, or give another --out.")


def _locked(job: FileJob) -> AbstractContextManager[object]:
    """The lock of the parts, so that no two commands write one output."""
    path = storage.local_path(job.parts)
    if path is None:
        return nullcontext()
    with telling_disk_errors(path):
        return lock_folder(path, adjacent=True)


@contextmanager
def _parts_folder(job: FileJob) -> Iterator[None]:
    """The folder of the parts, which is removed at the end unless it has a part."""
    storage.make_folder(job.parts)
    try:
        yield
    finally:
        if storage.exists(job.parts) and not _finished(job):
            storage.remove_folder(job.parts)


def _finished(job: FileJob) -> set[str]:
    """The names of the parts that are there."""
    suffix = job.part(0).rpartition(".")[2]
    return {
        name
        for name in storage.names_in(job.parts)
        if name.startswith(PART) and name.endswith(f".{suffix}")
    }


def _manifest(job: FileJob, progress: ReportProgress, *, sources: bool) -> JobManifest:
    """The manifest of the job that was begun, else a new one."""
    state = storage.file_state(job.input)
    begun = JobManifest.read(job) if _finished(job) else None
    if begun is not None:
        begun.check_settings(job)
        same = begun.size == state.size and begun.modified == state.modified
        if same and state.modified is not None:
            return begun
    progress("planning", 0, 1)
    plan = _plan(job, sources=sources)
    progress("planning", 1, 1)
    if begun is not None and begun.sha256 != plan.sha256:
        raise UserError(
            f"{job.input} has changed since {job.parts} was begun; remove {job.parts} to start "
            "anew."
        )
    manifest = JobManifest.of(job, state, plan)
    manifest.write(job)
    return manifest


def _plan(job: FileJob, *, sources: bool) -> ChunkPlan:
    """The chunks of the input, which is unpacked and checked."""
    if job.is_packed:
        _unpack(job)
    with storage.open_file(job.text) as file:
        plan = plan_chunks(file, job.input, chunk_bytes=job.chunk_bytes, errors=job.errors)
    reader = job.reader(sources=sources)
    if job.errors == "strict" and not isinstance(reader, PlainText):
        with storage.open_file(job.text) as file:  # a bad row is found before any is worked on
            lines = enumerate(bounded_lines(file, job.input), 1)
            report = ReadingReport()
            decoded = decoded_lines(lines, job.input, report, strip=reader.strip)
            for _ in reader.read_lines(decoded, report):
                pass
    return plan


def _unpack(job: FileJob) -> None:
    """Unpack a gzip file, which can't be read from the middle, into the folder of the parts."""
    if storage.exists(job.text):
        return
    try:
        with (
            storage.open_file(job.input) as packed,
            gzip.open(packed, "rb") as file,
            storage.written_file(job.text) as unpacked,
        ):
            storage.copy_file(cast(Any, file), unpacked)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"the gzip file {job.input} is damaged or cut short ({error}); fetch or pack it again."
        ) from error


class _ChunkSource:
    """The chunks without a part, as tasks."""

    def __init__(self, job: FileJob, chunks: tuple[Chunk, ...], progress: ReportProgress) -> None:
        self.job, self.chunks, self.progress = job, chunks, progress
        there = _finished(job)
        missing = [
            number
            for number in range(len(chunks))
            if job.part(number).rpartition("/")[2] not in there
        ]
        self.done = len(chunks) - len(missing)
        self._waiting: Iterator[int] = iter(missing)
        self._payload = asdict(job)
        self._report()

    def next_task(self) -> Task | None:
        number = next(self._waiting, None)
        if number is None:
            return None
        name = f"chunk from line {self.chunks[number].first_line:,}"
        payload = {"job": self._payload, "number": number, "chunk": self.chunks[number]}
        return Task(name=name, function="chunk", payload={"name": name, **payload})

    def record(self, outcome: TaskOutcome) -> None:
        """A failed chunk ends the command; the finished parts stay."""
        failure = f"{self.job.input}, {outcome.name}: {outcome.failure}"
        if outcome.state == "failed" and not self.done:
            raise UserError(failure)
        if outcome.state == "failed":
            raise UserError(
                f"{failure.rstrip('.')}; {self.done:,} of {len(self.chunks):,} chunks are "
                f"finished in {self.job.parts}, and the same command continues."
            )
        self.done += 1
        self._report()

    def _report(self) -> None:
        self.progress(self.job.operation, self.done, len(self.chunks))


def _result(
    job: FileJob, manifest: JobManifest, records: list[PartRecord], *, resumed: int, finished: bool
) -> FileResult:
    return FileResult(
        out=job.out,
        finished=finished,
        lines=manifest.lines,
        texts=sum(record.texts for record in records),
        rows=sum(record.rows for record in records),
        chunks=len(manifest.chunks),
        resumed=resumed,
        peak_memory=max((record.peak_memory for record in records), default=0),
        summaries=_summed(records),
    )


def _summed(records: list[PartRecord]) -> dict[str, Summary]:
    """The totals over all parts, added in their order."""
    by_model: dict[str, list[Summary]] = {}
    for record in records:
        for name, summary in record.summaries.items():
            by_model.setdefault(name, []).append(summary)
    return {name: add_summaries(summaries) for name, summaries in by_model.items()}


def add_summaries(summaries: list[Summary]) -> Summary:
    """The sum of summaries of one model."""
    first = summaries[0]

    def total(name: str) -> Any:
        values = [getattr(summary, name) for summary in summaries]
        return None if None in values else sum(values)

    added = {spec.name for spec in fields(Summary)} - {"kind", "convention"}
    return Summary(
        **{name: total(name) for name in added}, kind=first.kind, convention=first.convention
    )
