"""The console script: start-up time, errors in one sentence with exit code 2, signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lmlab as package
from lmlab.cli import main as entry
from lmlab.core.errors import LmlabWarning

HEAVY = ("torch", "numpy", "matplotlib", "tokenizers", "accelerate", "safetensors")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_importing_the_cli_imports_no_heavy_package() -> None:
    code = f"import sys, lmlab, lmlab.cli.main; print([m for m in {HEAVY} if m in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_help_takes_under_half_a_second_of_cpu() -> None:
    # Processor time, not the clock: a busy machine must not make this fail.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = python("-m", "lmlab", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert result.returncode == 0
    assert used < 0.5
    for command in (
        "systems",
        "find",
        "data",
        "train",
        "score",
        "sample",
        "pairs",
        "compare",
        "demo",
    ):
        assert command in result.stdout


def test_no_command_shows_help(lmlab) -> None:
    result = lmlab()
    assert result.code == 0
    assert "Usage: lmlab" in result.out


def test_version(lmlab) -> None:
    assert lmlab("--version").out == f"lmlab {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scor",), "did you mean 'score'"),
        (("data", "lst"), "did you mean 'list'"),
        (("data",), "see lmlab data --help"),
        (("systems", "--jsn"), "did you mean --json"),
        (("--verson",), "did you mean --version"),
        (("systems", "more"), "unexpected extra argument"),
        (("find",), "missing argument 'TEXT'"),
        (("find", "zzzzzz"), "nothing matches 'zzzzzz'"),
        (("train", "lstm", "--out", "x"), "--data"),
        (("sample", "RUN", "-n", "many"), "-n must be a whole number, got many."),
        (("sample", "RUN", "--temperature", "hot"), "--temperature must be a number, got hot."),
        (("score", "no/such/run", "--text", "a"), "there is no run at no/such/run"),
        (("sample", "no/such/run"), "there is no run at no/such/run"),
        (("pairs", "no/such/run", "file.jsonl"), "there is no run at no/such/run"),
        (("compare", "no/such/run"), "there is no run at no/such/run"),
        (("data", "describe", "capitols"), "did you mean 'capitals'"),
        (("data", "describe", "no/such.txt"), "there is no file or folder no/such.txt"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(lmlab, arguments, message) -> None:
    result = lmlab(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("lmlab: ")
    assert message in result.err
    assert result.err.rstrip().endswith((".", "?"))


def test_disk_error_is_reported_without_traceback(lmlab, monkeypatch) -> None:
    def full(**words: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(entry, "app", full)
    result = lmlab("systems")
    assert (result.code, result.err) == (2, "lmlab: somewhere: No space left on device.\n")


def test_internal_errors_are_raised(monkeypatch) -> None:
    def broken(**words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(entry, "app", broken)
    with pytest.raises(ZeroDivisionError):
        entry.main(["systems"])


def test_closed_output_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m lmlab systems --json | head -n 1"
    shell = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert shell.stdout == "[\n"
    assert shell.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is no signal there")
def test_ctrl_c_exits_with_one_sentence_and_130(runs: dict[str, Path]) -> None:
    # Standard input stays open, so the command waits for more text until it is interrupted.
    waiting = subprocess.Popen(
        [sys.executable, "-m", "lmlab", "score", str(runs["ngram"]), "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background makes their children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        _wait_until_reading(waiting.pid)
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
    assert (waiting.returncode, out, err) == (130, "", "lmlab: stopped by Ctrl-C.\n")


def _wait_until_reading(pid: int) -> None:
    """Wait until the process blocks on reading standard input, at most a minute."""
    channel = Path(f"/proc/{pid}/wchan")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if channel.exists() and "pipe" in channel.read_text():
            return
        time.sleep(0.1)


def test_own_warnings_are_sentences_others_show_their_line():
    assert entry.warning_sentence("it was rebuilt.", LmlabWarning, "here.py", 3) == (
        "lmlab: it was rebuilt.\n"
    )
    assert entry.warning_sentence("old", FutureWarning, "/elsewhere/torch.py", 7) == (
        "/elsewhere/torch.py:7: FutureWarning: old\n"
    )
