"""Snapshots: the run as it was after some epochs, kept as runs of their own in RUN/epochs/."""

from __future__ import annotations

from accelerate import Accelerator

from lmlab.core.manifest import write_files
from lmlab.core.system import System
from lmlab.core.tensor_files import tensor_bytes
from lmlab.training.run_folder import CONFIG, PARTS, WEIGHTS, RunFolder


def snapshot_folder(run: RunFolder, epoch: int) -> RunFolder:
    """Where the snapshot after an epoch is kept."""
    return RunFolder(run.path / "epochs" / str(epoch))


def save_snapshot(run: RunFolder, system: System, epoch: int, accelerator: Accelerator) -> None:
    """Keep the current weights as a run; the main process writes for all."""
    if accelerator.is_main_process:
        with system.refreshed():
            _write(run, system, snapshot_folder(run, epoch))
    accelerator.wait_for_everyone()


def _write(run: RunFolder, system: System, snapshot: RunFolder) -> None:
    """Write everything that loading reads; config.json, which makes it a run, comes last."""
    snapshot.create()
    contents = {
        name: (run.path / name).read_bytes()
        for name in PARTS
        if name not in (CONFIG, WEIGHTS) and (run.path / name).is_file()
    }
    contents[WEIGHTS] = tensor_bytes(system.state_dict())
    contents[CONFIG] = run.config.read_bytes()
    write_files(snapshot.path, contents, parts=PARTS, fresh=True)
