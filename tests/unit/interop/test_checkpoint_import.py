"""Hugging Face import and export: invalid checkpoints are refused and leave no files."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmlab.core.errors import UserError
from lmlab.interop.hf.checkpoint_export import export_hf
from lmlab.interop.hf.checkpoint_import import import_hf
from lmlab.training.run_folder import load_run
from lmlab.training.run_records import unknown_corpus
from lmlab.training.train import train

pytestmark = pytest.mark.xdist_group("checkpoint_import")  # shares its trained runs
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 4
TINY = {"size": "tiny", "steps": 1, "quiet": True}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """Runs of three systems, and the checkpoints exported from two of them."""
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    for name in ("gpt", "bert", "lstm"):
        train(name, data=folder / "corpus.txt", out=folder / f"{name}-run", **TINY)
    for name in ("gpt", "bert"):
        export_hf(folder / f"{name}-run", folder / name)
    return folder


@pytest.fixture
def gpt(checkpoints, tmp_path) -> Path:
    """A copy of the GPT-2 checkpoint to modify."""
    return Path(shutil.copytree(checkpoints / "gpt", tmp_path / "gpt"))


def import_error(source: Path | str, tmp_path: Path, **options) -> str:
    """The error message of a refused import, which must leave no files."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as caught:
        import_hf(source, tmp_path / "run", **options)
    assert sorted(tmp_path.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message and message[-1] in ".?"
    return message


def edit_config(folder: Path, **changes) -> None:
    """Change config.json; None removes an entry."""
    config = json.loads((folder / "config.json").read_text()) | changes
    remaining = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(remaining))


def edit_weights(folder: Path, change: Callable[[dict], None]) -> None:
    """Apply `change` to the stored weights."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "new")
    (folder / "new").replace(folder / "model.safetensors")


def test_unknown_model_type_lists_the_supported_families(gpt, tmp_path):
    edit_config(gpt, model_type="gpt_neox")
    assert "must be one of albert, bart, bert, electra, gpt2, llama" in import_error(gpt, tmp_path)
    edit_config(gpt, model_type=None)
    assert "got None" in import_error(gpt, tmp_path)
    edit_config(gpt, model_type=["gpt2"])
    assert "got ['gpt2']" in import_error(gpt, tmp_path)


def test_family_mismatch_is_refused(gpt, tmp_path):
    message = import_error(gpt, tmp_path, family="bert")
    assert message == "expected a checkpoint of bert, got one of gpt2."
    assert "did you mean 'gpt2'" in import_error(gpt, tmp_path, family="gpt3")
    assert import_hf(gpt, tmp_path / "run", family="gpt2").card.name == "gpt"


def test_missing_or_invalid_config_is_refused(gpt, tmp_path, checkpoints):
    (gpt / "config.json").write_text("{")
    assert "it is not JSON" in import_error(gpt, tmp_path)
    (gpt / "config.json").write_text("[]")
    assert "is not a JSON object" in import_error(gpt, tmp_path)
    (gpt / "config.json").unlink()
    assert "it has no config.json" in import_error(gpt, tmp_path)
    assert "is a run of lmlab already" in import_error(checkpoints / "gpt-run", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": "wide"}, "must be a value such as 768, got 'wide'"),
        ({"n_head": 0}, "is invalid for gpt2"),
        ({"n_head": 3}, "multiple of heads (3)"),
        ({"n_layer": 3}, "lacks weights of gpt2: transformer.h.2."),
        ({"n_layer": 1}, "does not know in gpt2: transformer.h.1.attn"),
        ({"n_layer": -1}, "layers must be at least 1"),
        ({"n_positions": 63}, "must have shape (63, 16), got (64, 16)"),
        ({"vocab_size": None}, "has no vocab_size"),
        ({"vocab_size": 7}, "tokens, but the checkpoint has embeddings for 7"),
        ({"vocab_size": 99}, "rows, but config.json declares 99"),
        ({"activation_function": "swiglu"}, "activation must be one of gelu"),
        ({"scale_attn_weights": False}, "must be True for gpt2, got False"),
        ({"tie_word_embeddings": False}, "lacks weights of gpt2: lm_head.weight"),
    ],
    ids=str,
)
def test_inconsistent_config_values_are_refused(gpt, tmp_path, changes, message):
    edit_config(gpt, **changes)
    assert message in import_error(gpt, tmp_path)


def test_missing_unknown_or_untied_weights_are_refused(gpt, tmp_path):
    edit_weights(gpt, lambda w: w.update({"transformer.h.0.adapter": torch.ones(2)}))
    assert "does not know in gpt2: transformer.h.0.adapter." in import_error(gpt, tmp_path)
    edit_weights(gpt, lambda w: w.pop("transformer.h.0.adapter"))
    edit_weights(gpt, lambda w: w.update({"lm_head.weight": 2 * w["transformer.wte.weight"]}))
    assert "should be one shared weight" in import_error(gpt, tmp_path)
    edit_weights(gpt, lambda w: w.pop("lm_head.weight"))
    edit_weights(gpt, lambda w: w.pop("transformer.ln_f.bias"))
    message = import_error(gpt, tmp_path)
    assert "lacks weights of gpt2: transformer.ln_f.bias; use a model saved whole" in message


def test_truncated_safetensors_file_is_refused(gpt, tmp_path):
    whole = (gpt / "model.safetensors").read_bytes()
    for size in (len(whole) - 10, 100, 0):
        (gpt / "model.safetensors").write_bytes(whole[:size])
        assert "is damaged or cut short" in import_error(gpt, tmp_path)


def test_missing_weights_and_pickle_only_are_refused(gpt, tmp_path):
    (gpt / "model.safetensors").unlink()
    assert "has no model.safetensors; save it" in import_error(gpt, tmp_path)
    (gpt / "pytorch_model.bin").write_bytes(b"\x80\x04")
    message = import_error(gpt, tmp_path)
    assert "only a pickle, which lmlab never opens" in message and "save_pretrained" in message


def test_sharded_weights_are_read_and_missing_shards_reported(gpt, tmp_path):
    expected = import_hf(gpt, tmp_path / "whole").system.state_dict()
    weights = load_file(gpt / "model.safetensors")
    names = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(names.values()):
        part = {name: weights[name] for name in names if names[name] == file}
        save_file(part, gpt / file)
    (gpt / "model.safetensors").unlink()
    (gpt / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    sharded = import_hf(gpt, tmp_path / "sharded").system.state_dict()
    assert all(torch.equal(sharded[name], value) for name, value in expected.items())
    (gpt / "model-1.safetensors").unlink()
    assert "lacks model-1.safetensors" in import_error(gpt, tmp_path)
    outside = {"weight_map": dict.fromkeys(names, "../model.safetensors")}
    (gpt / "model.safetensors.index.json").write_text(json.dumps(outside))
    assert "is not an index of the files" in import_error(gpt, tmp_path)


def test_missing_tokenizer_or_special_token_is_refused(checkpoints, gpt, tmp_path):
    (gpt / "tokenizer.json").unlink()
    assert "has no tokenizer" in import_error(gpt, tmp_path)
    text = (checkpoints / "bert" / "tokenizer.json").read_text(encoding="utf-8")
    bert = shutil.copytree(checkpoints / "bert", tmp_path / "bert")
    (bert / "tokenizer.json").write_text(text.replace("<mask>", "mask"), encoding="utf-8")
    assert "has neither <mask> nor [MASK]" in import_error(bert, tmp_path)
    nothing = text.replace("<s>", "s").replace("</s>", "e")
    (bert / "tokenizer.json").write_text(nothing, encoding="utf-8")
    assert "has no start or end token" in import_error(bert, tmp_path)


def test_existing_output_folder_is_refused(gpt, tmp_path, checkpoints):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("kept")
    assert "already exists" in import_error(gpt, tmp_path)
    assert (tmp_path / "run" / "mine").read_text() == "kept"
    with pytest.raises(UserError, match="already exists and is not empty"):
        export_hf(checkpoints / "gpt-run", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_source_path_that_is_not_a_folder_is_refused(gpt, tmp_path):
    assert "is a file" in import_error(gpt / "config.json", tmp_path)
    assert "there is no folder" in import_error(tmp_path / "deep" / "nowhere", tmp_path)
    assert "there is no folder" in import_error("../nowhere/at/all", tmp_path)


def test_hub_names_are_downloaded_without_pickles(gpt, tmp_path, monkeypatch):
    """By snapshot_download without pickles; a failure is a UserError."""
    requests = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        requests.append((name, allow_patterns))
        if "unknown" in name:
            raise RuntimeError("404 Client Error.\n\nRepository Not Found")
        return str(gpt)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = import_hf("someone/small-gpt", tmp_path / "fetched")
    assert model.config.corpus.name == "someone/small-gpt"
    assert requests == [("someone/small-gpt", ["*.json", "*.txt", "*.safetensors"])]
    message = import_error("someone/unknown", tmp_path)
    assert "can't be reached (404 Client Error); check the name" in message
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'lmlab[hub]'" in import_error("someone/small-gpt", tmp_path)


def test_legacy_weight_names_are_imported(checkpoints, tmp_path):
    """Bare models lack the prefix, old ones use gamma and beta, some store attention masks."""

    def older(weights: dict) -> None:
        for name in list(weights):
            value, old = weights.pop(name), name.removeprefix("transformer.")
            old = old.replace("ln_1.weight", "ln_1.gamma").replace("ln_1.bias", "ln_1.beta")
            weights[old] = value.half()
        weights["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)

    gpt = Path(shutil.copytree(checkpoints / "gpt", tmp_path / "gpt"))
    edit_weights(gpt, older)
    imported = import_hf(gpt, tmp_path / "run").system.state_dict()
    expected = load_run(checkpoints / "gpt-run").system.state_dict()
    for name, value in expected.items():
        assert torch.equal(imported[name], value.half().float()), name


def test_pooler_without_nsp_head_is_dropped_with_a_note(checkpoints, tmp_path):
    bert = Path(shutil.copytree(checkpoints / "bert", tmp_path / "bert"))
    edit_weights(
        bert, lambda w: [w.pop(f"cls.seq_relationship.{kind}") for kind in ("weight", "bias")]
    )
    model = import_hf(bert, tmp_path / "run")
    assert model.config.system_config["pairs"] == "none"
    assert list(model.config.imported.notes) == ["the pooler was dropped: bert in lmlab has none."]


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        (
            "gpt",
            {"cosine_attention": True},
            "cosine_attention=True, which a gpt2 checkpoint can't express",
        ),
        ("gpt", {"positions": "rotary"}, "positions='rotary'"),
        ("gpt", {"temperature": 2.0}, "temperature=2.0"),
        ("gpt", {"pre_norm": False}, "pre_norm=False"),
        ("bert", {"pre_norm": True}, "pre_norm=True, which a bert checkpoint can't express"),
        ("bert", {"pairs": "order"}, "on sentence-order prediction"),
        ("roberta", {"activation": "relu"}, "activation='relu'"),
        ("albert", {"shared_layers": False}, "shared_layers=False"),
        ("albert", {"embedding_width": 0}, "as wide as its layers"),
        ("mpnet", {"buckets": 16}, "buckets=16"),
        ("xlnet", {"positions": "alibi"}, "positions='alibi'"),
        ("t5", {"positions": "learned"}, "positions='learned'"),
        ("bart", {"norm_epsilon": 1e-3}, "norm_epsilon=0.001"),
        ("pegasus", {"positions": "learned"}, "positions='learned'"),
    ],
    ids=str,
)
def test_inexpressible_settings_are_not_exported(checkpoints, tmp_path, system, settings, message):
    data = checkpoints / "corpus.txt"
    train(system, data=data, out=tmp_path / "run", settings=settings, **TINY)
    with pytest.raises(UserError) as caught:
        export_hf(tmp_path / "run", tmp_path / "out")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_export_of_unsupported_system_lists_supported_ones(checkpoints, tmp_path):
    with pytest.raises(
        UserError, match=r"lstm can't be stored in the Hub's format; .* albert, bart"
    ):
        export_hf(checkpoints / "lstm-run", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_imported_run_records_its_source(gpt, tmp_path):
    model = import_hf(gpt, tmp_path / "run")
    assert model.config.corpus == unknown_corpus("gpt")
    stored = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert stored["corpus"] == {"name": "gpt", "spec": "", "fingerprint": "", "seed": 0}
    assert model.config.imported.source == "gpt"
    assert model.config.imported.config["model_type"] == "gpt2"
