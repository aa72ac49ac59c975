"""A Ray cluster of several nodes on this machine: nothing is lost, results equal bit by bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import lmlab
from lmlab.core.atomic_files import TEMPORARY
from lmlab.core.errors import LmlabWarning, UserError
from lmlab.experiments.ablation import Ablation
from lmlab.experiments.executor_options import ExecutorOptions
from lmlab.experiments.executors import make_executor
from lmlab.experiments.ray_cluster import LOOPBACK_ALONE
from lmlab.experiments.sweep_results import Sweep, Trial
from lmlab.experiments.tasks import Task
from lmlab.training.training_logs import read_metrics

os.environ.update(LOOPBACK_ALONE)
pytest.importorskip("ray", reason="Ray is an extra: run make test-integration")
import ray
from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::lmlab.core.errors.LmlabWarning"),
]
CHECKPOINT_STEPS, STEPS = 20, 400
STORE = 80 * 1024 * 1024
WAIT_SECONDS = 120.0


def spec(widths: list[int], steps: int = STEPS) -> dict[str, Any]:
    return {
        "system": "gru",
        "data": "grammar",
        "size": "tiny",
        "steps": steps,
        "settings": {"checkpoint_steps": CHECKPOINT_STEPS, "log_every": 1, "tokens_per_batch": 500},
        "search": "grid",
        "space": {"width": widths},
    }


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was waited for has not happened"
        time.sleep(0.02)
    return value


@contextmanager
def ray_cluster(**head: Any) -> Iterator[Cluster]:
    """A cluster whose head runs no tasks; everything listens to this machine alone."""
    own = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**own, "num_cpus": 0, "include_dashboard": False, **head},
    )
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Cluster, **options: Any) -> Any:
    return cluster.add_node(
        node_ip_address="127.0.0.1", object_store_memory=STORE, num_cpus=1, **options
    )


def by_number(sweep: Sweep) -> list[Trial]:
    return sorted(sweep.trials, key=lambda trial: trial.number)


def results(sweep: Sweep) -> list[tuple[Any, ...]]:
    return [(t.number, t.point, t.state, dict(t.values), t.losses) for t in by_number(sweep)]


def files(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The weights, and the metrics without clock times."""
    clocks = ("seconds", "tokens_per_second")
    lines = [
        {name: value for name, value in line.items() if name not in clocks}
        for line in read_metrics(run / "metrics.jsonl")
    ]
    return (run / "model.safetensors").read_bytes(), lines


def resumptions(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob("runs/*.resumed.jsonl"))
        for line in path.read_text().splitlines()
    ]


def running(folder: Path, checkpoints: int = 1) -> list[Path]:
    """Unfinished runs that have checkpoints."""
    runs = [path for path in folder.glob("runs/trial-*") if path.is_dir()]
    return [run for run in runs if len(list(run.glob("trainer/step-*"))) >= checkpoints]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The same sweep on this machine, without Ray."""
    return lmlab.sweep(spec([4, 5, 6]), out=tmp_path_factory.mktemp("local"), quiet=True)


def assert_same(on_ray: Sweep, local: Sweep) -> None:
    assert on_ray.finished and results(on_ray) == results(local)[: len(on_ray.trials)]
    for trial in on_ray.trials:
        for run in trial.runs:
            assert files(on_ray.path / run) == files(local.path / run)


def test_a_lost_node_costs_the_steps_since_the_last_checkpoint(
    local: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with ray_cluster() as cluster:
        nodes = [add_node(cluster), add_node(cluster)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)

        def lose_a_node() -> None:
            wait_for(lambda: len(running(tmp_path)) == 2)
            cluster.remove_node(nodes[0], allow_graceful=False)

        killer = threading.Thread(target=lose_a_node)
        killer.start()
        with pytest.warns(LmlabWarning, match=r"stopped \(its process or node was lost\); it runs"):
            sweep = lmlab.sweep(spec([4, 5, 6]), out=tmp_path, on="ray", quiet=True)
        killer.join()
    assert_same(sweep, local)
    repeated = [line["reached_step"] - line["from_step"] for line in resumptions(tmp_path)]
    assert len(repeated) == 1 and 0 <= repeated[0] <= CHECKPOINT_STEPS
    assert resumptions(tmp_path)[0]["from_step"] >= CHECKPOINT_STEPS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "gru"
    lmlab.train("gru", data="grammar", out=run, size="tiny", steps=2, quiet=True)
    return run


def processes(node: Any) -> list[int]:
    """What the raylet of a node has started, workers among them."""
    [raylet] = node.all_processes["raylet"]
    threads = Path(f"/proc/{raylet.process.pid}/task").glob("*/children")
    return [int(process) for children in threads for process in children.read_text().split()]


def is_writing(process: int, folder: Path) -> bool:
    """Whether a process has a file open that is being written into a folder."""
    with suppress(OSError):  # it has ended
        opened = [os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()]
        return any(file.startswith(f"{folder / TEMPORARY}") for file in opened)
    return False


def test_a_node_lost_amid_bulk_scoring_changes_no_byte(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text, parts = tmp_path / "text.txt", tmp_path / "ray.csv.parts"
    text.write_text("the dog sleeps\nmary sees a cat\n\nthe cat that mary sees sleeps\n" * 8000)
    chunk_bytes = text.stat().st_size // 16
    alone = lmlab.score_file([run], text, tmp_path / "alone.csv", chunk_bytes=chunk_bytes)
    with ray_cluster() as cluster:
        nodes = [add_node(cluster), add_node(cluster)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)

        def lose_a_node() -> None:
            """Its processes end amid a chunk, as when a machine fails."""
            wait_for(lambda: list(parts.glob("part-*.csv")))
            wait_for(lambda: any(is_writing(process, parts) for process in processes(nodes[0])))
            for process in processes(nodes[0]):
                os.kill(process, signal.SIGKILL)
            cluster.remove_node(nodes[0], allow_graceful=False)

        killer = threading.Thread(target=lose_a_node)
        killer.start()
        with pytest.warns(
            LmlabWarning, match=r"^chunk from line \S+ stopped \(its process or node"
        ):
            result = lmlab.score_file(
                [run], text, tmp_path / "ray.csv", on="ray", chunk_bytes=chunk_bytes
            )
        killer.join()
    assert result.finished and result.chunks == alone.chunks
    assert result.texts == result.rows == 24_000
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
    assert result.summaries == alone.summaries
    assert not parts.exists()


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture(scope="module")
def client_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Cluster]:
    """A cluster with one node, which a client can connect to as well."""
    with ray_cluster(ray_client_server_port=client_port) as cluster:
        add_node(cluster)
        yield cluster


def test_a_stopped_sweep_repeats_no_step(cluster: Cluster, local: Sweep, tmp_path: Path):
    """Ctrl-C: the training writes a checkpoint; this machine goes on from there."""
    (tmp_path / "spec.json").write_text(json.dumps(spec([4, 5])))
    command = [sys.executable, "-m", "lmlab", "sweep", "spec.json", "--out", "out", "--on", "ray"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_for(lambda: running(tmp_path / "out") or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, printed
    assert "stopped; run the same command again to resume in out" in printed
    assert not (tmp_path / "out" / ".lmlab-shared").exists()
    assert_same(lmlab.sweep(spec([4, 5]), out=tmp_path / "out", quiet=True), local)
    [line] = resumptions(tmp_path / "out")
    assert line["from_step"] == line["reached_step"] < STEPS


def test_a_client_from_elsewhere(cluster: Cluster, client_port: int, local: Sweep, tmp_path: Path):
    on = f"ray://127.0.0.1:{client_port}"
    assert_same(lmlab.sweep(spec([4]), out=tmp_path, on=on, quiet=True), local)


def test_a_task_that_dies_again_and_again_has_failed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    lock = tmp_path / "runs" / "trial-000-seed0" / ".lmlab-lock"
    killed: set[int] = set()

    def owner() -> int | None:
        words = lock.read_text().split() if lock.exists() else []
        return int(words[0]) if len(words) == 2 and int(words[0]) not in killed else None

    def kill_three_times() -> None:
        for _ in range(3):
            process = wait_for(owner)
            os.kill(process, signal.SIGKILL)
            killed.add(process)

    killer = threading.Thread(target=kill_three_times)
    killer.start()
    long = spec([4], steps=100_000)
    sweep = lmlab.sweep(long, out=tmp_path, on="ray", quiet=True)
    killer.join()
    [trial] = sweep.trials
    assert trial.state == "failed"
    assert "its process was ended, as when memory runs out, 3 times." in trial.failure


def test_a_node_without_memory_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Ray's error is simulated, as no test should fill the memory of its machine."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    task = Task(name="large", function="training", payload={})
    executor = make_executor(ExecutorOptions(on="ray"), threads=1, folder=None)
    with executor:

        def out_of_memory(reference: Any) -> str:
            raise ray.exceptions.OutOfMemoryError("simulated")

        with monkeypatch.context() as patched:
            patched.setattr(ray, "get", out_of_memory)
            executor.submit(task)
            with pytest.warns(LmlabWarning, match="^large stopped ") as warned:
                [outcome] = executor.wait()
    assert len(warned) == 2
    assert (outcome.name, outcome.state) == ("large", "failed")
    assert outcome.failure == "its node ran out of memory, 3 times."


def test_an_ablation_on_ray_equals_one_on_this_machine(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    def ablate(out: Path, **options: Any) -> Ablation:
        return lmlab.ablate(
            "gru-minimal",
            data="grammar",
            out=out,
            switches="4",
            seeds=1,
            epochs=1,
            size="tiny",
            settings={"tokens_per_batch": 4000},
            quiet=True,
            **options,
        )

    on_ray, local = ablate(tmp_path / "ray", on="ray"), ablate(tmp_path / "local")
    assert on_ray.finished and [row.terms for row in on_ray.rows] == [
        "4 candidate-hidden",
        "intact",
    ]
    assert [trial.losses for trial in on_ray.trials] == [trial.losses for trial in local.trials]
    for trial in on_ray.trials:
        assert files(tmp_path / "ray" / trial.run) == files(tmp_path / "local" / trial.run)


def test_what_does_not_fit_is_refused_in_one_sentence(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    with pytest.raises(UserError, match=r"^no node of the Ray cluster has the 1 CPU and 1 GPUs"):
        lmlab.sweep(spec([4]), out=tmp_path / "gpus", on="ray", gpus=1, quiet=True)
    # A path that is another folder in each process, as one on a disk of their own is.
    monkeypatch.chdir(tmp_path)
    executor = make_executor(
        ExecutorOptions(on="ray"), threads=1, folder=Path("/proc/self/cwd/out")
    )
    with (
        pytest.raises(UserError, match=r"^the Ray worker on \S+ does not see /proc/self/cwd/out"),
        executor,
    ):
        pass
    assert not list(tmp_path.glob("out/*"))
    other = tmp_path / "packages" / "lmlab"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("__version__ = '0.0.7'\n")
    node = add_node(cluster, env_vars={"PYTHONPATH": str(other.parent)})
    with pytest.raises(UserError, match=r"^the Ray worker on \S+ has lmlab 0\.0\.7, this machine"):
        lmlab.sweep(spec([4]), out=tmp_path / "versions", on="ray", quiet=True)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_cluster_that_is_not_there(
    by_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address = f"127.0.0.1:{free_port()}"
    if by_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    on = "ray" if by_variable else f"ray://{address}"
    with pytest.raises(UserError, match=rf"^no Ray cluster can be used at \S*{address} .*refused"):
        lmlab.sweep(spec([4]), out=tmp_path, on=on, quiet=True)


def test_forms_that_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"^--on must be ray or ray://HOST:PORT, got 'dask'"):
        lmlab.sweep(spec([4]), out=tmp_path, on="dask", quiet=True)
    with pytest.raises(UserError, match=r"^runs need a folder with locks and renames, got s3:/"):
        lmlab.sweep(spec([4]), out="s3://bucket/sweep", on="ray", quiet=True)
