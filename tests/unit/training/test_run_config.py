"""A run's config.json: read and written byte for byte, whatever the kind of run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.run_configs import corpus_record, run_config

from lmlab.core.system_origin import FileOrigin, PackageOrigin
from lmlab.core.vocabulary import Vocabulary
from lmlab.tasks.finetune import finetune
from lmlab.training.run_config import REQUIRED_FIELDS, IncompleteConfig, RunConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.run_records import (
    BaseRecord,
    ImportRecord,
    MemoryRecord,
    RowsRecord,
    TaskRecord,
)
from lmlab.training.train import train

TEXTS = "a b .\nc d a .\nb b c .\n" * 20
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": f"{w} b .", "label": w} for w in "ac"],
    "pair": [{"text": f"{w} b .", "other": "c .", "label": w} for w in "ac"],
    "tag": [{"words": ["a", "b"], "tags": ["x", w]} for w in "xy"],
    "span": [{"text": f"{w} b .", "question": "c", "answer": w} for w in "ac"],
    "generate": [{"source": "a b", "target": w} for w in "ac"],
}
"""Two rows of each task."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of any kind, made when it is asked for."""
    folder = tmp_path_factory.mktemp("runs")
    for name, text in (("texts.txt", TEXTS), ("pairs.tsv", "a b\tx y\nb a\ty x\n" * 20)):
        (folder / name).write_text(text, encoding="utf-8")

    def trained(name: str, system: str, data: str = "texts.txt", **options: Any) -> Path:
        if not (folder / name).exists():
            where = folder / data if (folder / data).exists() else data
            train(
                system, data=where, out=folder / name, size="tiny", steps=1, quiet=True, **options
            )
        return folder / name

    def finetuned(name: str, task: str, run: Path, **options: Any) -> Path:
        data = folder / f"{task}.jsonl"
        data.write_text("\n".join(json.dumps(row) for row in ROWS[task] * 20), encoding="utf-8")
        finetune(run, task=task, data=data, out=folder / name, steps=1, quiet=True, **options)
        return folder / name

    def make(kind: str) -> Path:
        if kind in ROWS:
            return finetuned(kind, kind, trained("gpt", "gpt"))
        match kind:
            case "trained":
                return trained("gpt", "gpt")
            case "base":
                return trained(kind, "residual-ebm", base=trained("lstm", "lstm"))
            case "encoder":
                parts = {"base": trained("lstm", "lstm"), "encoder": trained("bert", "bert")}
                return trained(kind, "residual-ebm", **parts)
            case "memories":
                return trained(kind, "rag-token", "capitals", documents="capitals")
            case "source vocabulary":
                return trained(kind, "transformer", "pairs.tsv", source_tokenizer="word")
            case "twice fine-tuned":
                first = finetuned("first", "span", trained("gpt", "gpt"), long="windows")
                return finetuned(kind, "classify", first, frozen=True)
        raise AssertionError(kind)

    return make


def file_bytes(config: RunConfig) -> bytes:
    """A config as it is written to a file."""
    return (json.dumps(config.to_json(), indent=2, ensure_ascii=False) + "\n").encode()


KINDS = {
    "trained": set(),
    "base": {"base"},
    "encoder": {"base", "encoder"},
    "memories": {"memories"},
    "source vocabulary": {"source_vocabulary", "source_tokenizer"},
    "twice fine-tuned": {"task", "rows"},
    **{task: {"task", "rows"} for task in ROWS},
}
"""Kinds of run, with the fields that only they have."""


@pytest.mark.parametrize("kind", KINDS)
def test_config_is_written_as_it_was_read(runs: Callable[[str], Path], kind: str) -> None:
    run = RunFolder(runs(kind))
    text = run.config.read_bytes()
    config, values = run.read_config(), json.loads(text)
    assert file_bytes(config) == text
    assert RunConfig.from_json(values) == config and not config.unknown
    optional = ("base", "encoder", "memories", "task", "rows")
    optional += ("source_vocabulary", "source_tokenizer")
    assert {name for name in optional if name in values} == KINDS[kind]
    assert {name for name in optional if getattr(config, name)} == KINDS[kind]
    assert config.training.steps == 1
    assert config.task_head is (bool(KINDS[kind] & {"task"}) and kind != "generate")
    assert config.tuned_to_generate is (kind == "generate")


FULL = """\
{
  "format": 1,
  "lmlab": "0.1",
  "source_vocabulary": VOCABULARY,
  "source_tokenizer": "char",
  "system": "mine",
  "size": "tiny",
  "recipe": null,
  "seed": 3,
  "system_config": {"width": 8, "ranks": [1, 2]},
  "vocabulary": VOCABULARY,
  "tokenizer": "word",
  "tokenizer_fingerprint": "f",
  "layout": {"kind": "sentences", "cut": 7, "end": true},
  "corpus": {"name": "n", "spec": "s", "fingerprint": "c", "seed": 1, "errors": "replace"},
  "training": TRAINING,
  "base": {"path": "b", "system": "x", "size": "tiny", "system_config": {}, "corpus": CORPUS,
    "base": {"path": "c", "system": "y", "size": "base", "system_config": {"a": 1},
      "corpus": CORPUS, "plugin": {"file": "y.py", "sha256": "SHA"}, "weights": "2"},
    "weights": "1"},
  "memories": {"documents": {"spec": "d", "fingerprint": "e"}},
  "imported": {"from": "hub", "notes": ["one"], "config": {"k": 1}, "tokenizer_config": {}},
  "plugin": {"package": "p", "version": "1.0"},
  "task": {"name": "tag", "labels": ["a", "b"], "head": true, "frozen": false, "data": "r",
    "run": "q", "long": "head", "judge": null, "long_settings": {"length": 4}},
  "rows": {"seed": 1, "errors": "strict"},
  "of a later version": [1, null]
}"""


def full_values() -> dict[str, Any]:
    """A config.json with every field that a file can have."""
    vocabulary = '{"size": 9, "pad": 0, "unknown": 1, "start": 2, "end": 3, "mask": 4, "first": 3}'
    corpus = '{"name": "", "spec": "", "fingerprint": "", "seed": 0}'
    training = json.dumps(run_config("x").to_json()["training"])
    text = (
        FULL.replace("SHA", "0f" * 32).replace("VOCABULARY", vocabulary).replace("CORPUS", corpus)
    )
    values: dict[str, Any] = json.loads(text.replace("TRAINING", training))
    return values


def test_every_field_is_parsed_and_written_in_order() -> None:
    values = full_values()
    config = RunConfig.from_json(values)
    assert json.dumps(config.to_json()) == json.dumps(values)
    assert config.lmlab == "0.1" and config.vocabulary == Vocabulary(size=9, first=3)
    assert config.corpus == replace(
        corpus_record("s"), name="n", fingerprint="c", seed=1, errors="replace"
    )
    assert isinstance(config.base, BaseRecord) and isinstance(config.base.base, BaseRecord)
    assert config.base_of_role("base") is config.base and config.base_of_role("encoder") is None
    assert (config.base.base.system, config.base.base.weights) == ("y", "2")
    assert config.base.base.plugin == FileOrigin(file="y.py", sha256="0f" * 32)
    assert config.memories == {"documents": MemoryRecord(spec="d", fingerprint="e")}
    assert config.imported == ImportRecord(source="hub", notes=("one",), config={"k": 1})
    assert config.plugin == PackageOrigin(package="p", version="1.0")
    assert config.rows == RowsRecord(seed=1)
    details = {"long": "head", "judge": None, "long_settings": {"length": 4}}
    assert config.task == TaskRecord(
        name="tag", labels=("a", "b"), data="r", run="q", details=details
    )
    assert config.unknown == {"of a later version": [1, None]}


def test_fields_of_later_versions_in_records_are_ignored() -> None:
    values = full_values()
    for name in ("corpus", "training", "rows"):
        values[name] |= {"later": 1}
    assert RunConfig.from_json(values) == RunConfig.from_json(full_values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": "1"}, "seed must be a whole number, got '1'"),
        ({"system": None}, "system must be a text, got None"),
        ({"recipe": 3}, "recipe must be a text or none, got 3"),
        ({"layout": []}, "layout: expected an object, got list"),
        ({"layout": {"kind": "poem"}}, "layout: kind must be one of sentences, contiguous, pairs"),
        ({"layout": {"cut": 1}}, "layout: cut must leave at least <s> and one token, got 1; try 2"),
        ({"vocabulary": {"size": 3}}, "vocabulary: end must be an id below 3, got 3"),
        ({"source_vocabulary": {"size": 0}}, "source_vocabulary: size must be 1 or more, got 0"),
        ({"corpus": {"name": "n"}}, "corpus: .*spec"),
        ({"corpus": full_values()["corpus"] | {"errors": None}}, "corpus: errors must be a text"),
        ({"training": {"bptt": 0}}, "training: bptt must be at least 1, got 0"),
        ({"training": {"bptt": 1.5}}, "training: bptt must be a whole number, got 1.5"),
        ({"memories": {"notes": {}}}, "memories.notes is not known"),
        ({"memories": {"documents": {}}}, "memories.documents.fingerprint must be a text"),
        ({"base": []}, "base must be an object or none"),
        ({"base": {"system": 1}}, "base: system must be a text, got 1"),
        ({"base": {"system": "x"}}, "base: system_config must be an object, got None"),
        ({"imported": []}, "imported must be an object"),
        ({"imported": {"notes": "one"}}, "imported: notes must be a list, each a text, got 'one'"),
        ({"task": {"head": True}}, "task: .*name"),
        ({"task": {"name": "tag", "labels": [1]}}, "task: labels must be a list, each a text"),
        ({"rows": {"seed": None}}, "rows: seed must be a whole number, got None"),
        ({"plugin": {"package": "p"}}, "plugin: expected package and version"),
    ],
)
def test_invalid_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        RunConfig.from_json(full_values() | changes)


def test_endless_base_is_an_error() -> None:
    base = full_values()["base"]
    for _ in range(10_000):
        base = {**base, "base": base}
    with pytest.raises(ValueError, match=r"^base: it is nested too deeply$"):
        RunConfig.from_json(full_values() | {"base": base})


@pytest.mark.parametrize("name", REQUIRED_FIELDS)
def test_missing_field_is_named(name: str) -> None:
    values = full_values()
    del values[name]
    with pytest.raises(IncompleteConfig, match=f"^it lacks {name}$"):
        RunConfig.from_json(values)
