"""Folder locks of commands: a second writer is refused in one sentence, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.cli.main import main
from lmlab.core.atomic_files import new_folder
from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder

SPEC = Path(__file__).resolve().parents[3] / "examples" / "sweep.yaml"
WRITERS = {
    "train": ["train", "lstm", "--data", "grammar", "--size", "tiny", "--out"],
    "resume": ["train", "lstm", "--data", "grammar", "--resume", "--out"],
    "finetune": ["finetune", "RUN", "--task", "classify", "--data", "rows.jsonl", "--out"],
    "hops": ["finetune", "RUN", "--task", "hops", "--data", "wordnet-hops", "--out"],
    "import-arpa": ["import-arpa", "model.arpa", "--out"],
    "sweep": ["sweep", str(SPEC), "--out"],
    "ablate": ["ablate", "gru-minimal", "--data", "grammar", "--size", "tiny", "--out"],
}


@pytest.mark.parametrize("command", WRITERS)
def test_command_refuses_locked_output_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with lock_folder(out):
        before = sorted(path.name for path in out.iterdir())
        assert main([*WRITERS[command], str(out)]) == 2
        assert sorted(path.name for path in out.iterdir()) == before
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"lmlab: {out} is being written by another lmlab process")


def test_atomically_created_folder_has_one_writer(tmp_path: Path) -> None:
    out = tmp_path / "index"
    with new_folder(out) as partial:
        (partial / "first").write_text("1")
        with pytest.raises(UserError, match="being written"), new_folder(out):
            pass
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "index",
        "index/first",
    ]


def test_train_leaves_no_lock_and_no_folder_when_refused(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "run"
    command = ["train", "ngram", "--data", "capitals", "--size", "tiny", "--out", str(out)]
    assert main([*command, "--set", "order=none"]) == 2
    assert not (tmp_path / "runs").exists()
    assert main(command) == 0
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
