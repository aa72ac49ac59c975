"""The short crash suite: two kinds of fits, killed inside some of their writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.fits import FITS, results_of
from tests.crash.run import check_fit, run_with_fault
from tests.fuzz.server import in_server, prepare
from tests.fuzz.world import write_files


def _serve(folder: Path, results: Any) -> None:
    """In a process of its own, since it has to be free of threads."""
    prepare()
    write_files(folder)
    for fit in FITS:
        if fit.short:
            results.put(check_fit(fit, folder, every=60, moments=1, seed=0))
    fit = FITS[0]
    killed, _ = run_with_fault(fit, folder, folder / "killed", 9)
    whole, writes = run_with_fault(fit, folder, folder / "whole", 0)
    different = results_of(folder / "killed") != results_of(folder / "whole")
    results.put((killed.code, whole.code, writes, different))


@pytest.fixture(scope="module")
def crash_results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return in_server(_serve, tmp_path_factory.mktemp("crash"))


def test_resumed_fit_equals_an_uninterrupted_one(crash_results: list[Any]):
    for summary, *problems in crash_results[:-1]:
        assert problems == [], summary


def test_faults_kill_the_process_and_are_detected(crash_results: list[Any]):
    """Killed by SIGKILL inside the ninth of many writes; the unfinished folder differs."""
    killed, whole, writes, different = crash_results[-1]
    assert (killed, whole) == (-9, 0) and writes > 50 and different
