"""The short fuzz suite: known cases again, and some hundred inputs of the small world."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutations import mutate_bytes, mutate_json
from tests.fuzz.options import draw_command, has_option, verbs
from tests.fuzz.run import CASES, is_small, one_input, read_case, replay
from tests.fuzz.scenarios import SCENARIOS
from tests.fuzz.server import FAILURES, classify, in_server, prepare, run_forked
from tests.fuzz.world import make_world

INPUTS = 50
SEED = 2


def _serve(folder: Path, results: Any) -> None:
    """In a process of its own, since it has to be free of threads: replay and sample inputs."""
    prepare()
    world = folder / "world"
    assert make_world(world, full=False) == []
    for path in CASES:
        case = read_case(path)
        if is_small(case):
            outcome = replay(case, world)
            results.put((path.name, outcome.kind, outcome.last_line))
    for number in range(INPUTS):
        group, name, case = one_input(world, number, SEED, full=False)
        outcome = replay(case, world)
        results.put((f"{group} {name} {number}", outcome.kind, outcome.last_line))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    return in_server(_serve, tmp_path_factory.mktemp("fuzz"))


def test_dead_server_is_reported(tmp_path: Path):
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        in_server(_die, tmp_path)


def _die(folder: Path, results: Any) -> None:
    results.put("alive")
    results.close()
    results.join_thread()
    os._exit(3)


def test_no_input_ends_in_a_traceback_or_hangs(outcomes: list[tuple[str, str, str]]):
    assert [each for each in outcomes if each[1] in FAILURES] == []
    assert len(outcomes) >= INPUTS


def test_most_commands_execute(outcomes: list[tuple[str, str, str]]):
    kinds = [kind for name, kind, _ in outcomes if name.startswith("verb ")]
    assert kinds.count("ok") / len(kinds) > 0.5


def test_every_verb_has_inputs_and_scenarios_name_verbs():
    from random import Random

    for verb in verbs():
        assert draw_command(verb, Random(0)).arguments[: len(verb.split())] == tuple(verb.split())
    assert set(SCENARIOS) <= set(verbs())
    assert has_option(["index", "search"], "-k") and not has_option(["score"], "--beam")


@pytest.mark.parametrize(
    ("code", "err", "kind"),
    [
        (0, "", "ok"),
        (2, "lmlab: no.\n", "refused"),
        (2, "lmlab: there is not enough memory; use less.\n", "memory"),
        (2, "something else\n", "unclear"),
        (1, "Traceback (most recent call last):\nValueError\n", "traceback"),
        (-9, "", "killed"),
        (-11, "", "killed"),
        (3, "", "unclear"),
    ],
)
def test_classify_distinguishes_outcomes(code: int, err: str, kind: str):
    assert classify(code, err) == kind


def test_hanging_and_raising_children_are_detected(tmp_path: Path):
    def hang() -> int:
        import time

        time.sleep(60)
        return 0

    def fail() -> int:
        raise KeyError("x")

    assert run_forked(hang, folder=tmp_path, seconds=0.2).kind == "hang"
    assert run_forked(fail, folder=tmp_path).kind == "traceback"


def test_the_same_seed_gives_the_same_inputs():
    from random import Random

    document = json.dumps({"a": [1, 2, {"b": "c"}], "d": 1.5}).encode()
    for mutate in (mutate_bytes, mutate_json):
        result = [mutate(document, Random(seed)) for seed in range(50)]
        assert result == [mutate(document, Random(seed)) for seed in range(50)]
        assert len(set(result)) > 30
