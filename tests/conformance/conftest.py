"""One tiny training for each system of the zoo, shared by all conformance checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.registry import catalogue
from lmlab.core.system import System
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

STEPS = 60
SETTINGS = {
    "learning_rate": "0.02",
    "schedule": "constant",
    "tokens_per_batch": "512",
    "weight_decay": "0",
    "log_every": "1",
}


def sample_lines(count: int, seed: int) -> list[str]:
    """Sentences of a and b in which a letter repeats itself nine times in ten: a bigram sees it."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        words = [generator.choice(["a", "b"])]
        while generator.random() > 0.25 and len(words) < 12:
            same = generator.random() < 0.9
            words.append(words[-1] if same else {"a": "b", "b": "a"}[words[-1]])
        lines.append(" ".join(words))
    return lines


@cache
def write_corpus(folder: Path) -> Path:
    corpus = folder / "ab"
    corpus.mkdir()
    for split, (count, seed) in {"train": (600, 0), "valid": (60, 1), "test": (200, 2)}.items():
        text = "\n".join(sample_lines(count, seed)) + "\n"
        (corpus / f"{split}.txt").write_text(text, encoding="utf-8")
    return corpus


@cache
def write_documents(folder: Path) -> Path:
    """Documents in the words of the corpus, so that a retriever can distinguish them."""
    path = folder / "documents.txt"
    path.write_text("\n".join(dict.fromkeys(sample_lines(40, seed=3))) + "\n", encoding="utf-8")
    return path


def train_tiny(name: str, corpus: Path, out: Path, *, steps: int = STEPS, **words) -> Path:
    """A tiny run. One iteration of EM goes over all the text, so it takes epochs, at most ten.

    A system that is built on another gets a tiny run of that one, trained once for each corpus; one
    that needs knowledge gets some of which the corpus speaks.
    """
    card = catalogue()[name]
    fitting = card.fitting
    if card.base:
        words["base"] = tiny_base(card.base, corpus)
    if "knowledge" in card.needs:
        words["knowledge"] = str(write_knowledge(corpus.parent))
    if "documents" in card.needs:
        words["documents"] = str(write_documents(corpus.parent))
    train(
        name,
        data=str(corpus),
        out=out,
        size="tiny",
        settings=SETTINGS,
        steps=steps if fitting in ("gradient", "words") else None,
        epochs=min(steps, 10) if fitting == "em" else None,
        quiet=True,
        **words,
    )
    return out


@cache
def write_knowledge(folder: Path) -> Path:
    """Letters and pairs of them as entities; some words name two of them."""
    tables = {
        "entities": "A\tthe first\tb a\nB\tthe second\ta b\nAB\tboth\ta b b\nAA\ttwice\ta a\n",
        "aliases": "a\tA\t3\na\tAA\nb\tB\t2\nb\tAB\na b\tAB\na a\tAA\na a\tA\n",
        "facts": "AB\tbegins with\tA\nAB\tends with\tB\nA\tis in\tAB\nA\tis in\tAA\n",
    }
    knowledge = folder / "letters"
    knowledge.mkdir()
    for name, text in tables.items():
        (knowledge / f"{name}.tsv").write_text(text, encoding="utf-8")
    return knowledge


@cache
def tiny_base(name: str, corpus: Path) -> Path:
    return train_tiny(name, corpus, corpus.parent / f"base-{name}")


@dataclass(frozen=True)
class Specimen:
    """A system of the zoo after its tiny training."""

    name: str
    corpus: Path
    run: Path
    model: TrainedModel

    @property
    def system(self) -> System:
        return self.model.system


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


_specimens: dict[str, Specimen] = {}


@pytest.fixture
def specimen(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory) -> Specimen:
    name: str = request.param
    if name not in _specimens:
        run = train_tiny(name, corpus, tmp_path_factory.mktemp("runs") / name)
        _specimens[name] = Specimen(name, corpus, run, load_run(run))
    return _specimens[name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every system of the zoo, and all checks of one system on one worker, which trained it.

    A check marked with a protocol runs only for systems whose card names it, and one marked
    conditional for those conditioned on a source. One marked with names of checks does not
    run for systems that are exempt from them; the card and the atlas give the reason.
    """
    if "specimen" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("protocol")
    conditional = metafunc.definition.get_closest_marker("conditional") is not None
    checks = {name for each in metafunc.definition.iter_markers("check") for name in each.args}
    names = [
        name
        for name, card in catalogue().items()
        if (marker is None or marker.args[0] in card.protocols)
        and (card.conditional or not conditional)
        and not checks & card.exempt.keys()
    ]
    grouped = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]
    metafunc.parametrize("specimen", grouped, indirect=True, ids=names)
