"""Checkpoints in the Hub's format that something is wrong with: one sentence, nothing written."""

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
from lmlab.training.train import train

pytestmark = pytest.mark.xdist_group("hf folders")  # its trainings are shared, so made once
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 4
TINY = {"size": "tiny", "steps": 1, "quiet": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Runs of a few systems, and the checkpoints made of two of them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    for name in ("gpt", "bert", "lstm"):
        train(name, data=folder / "corpus.txt", out=folder / f"{name}-run", **TINY)
    for name in ("gpt", "bert"):
        export_hf(folder / f"{name}-run", folder / name)
    return folder


@pytest.fixture
def gpt(made, tmp_path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(made / "gpt", tmp_path / "gpt"))


def refused(source: Path | str, tmp_path: Path, **words) -> str:
    """The sentence that an import is refused with; no trace of a run is left."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as caught:
        import_hf(source, tmp_path / "run", **words)
    assert sorted(tmp_path.iterdir()) == before
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence[-1] in ".?"
    return sentence


def edit(folder: Path, **changes) -> None:
    """Change config.json; None takes an entry out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def rewrite(folder: Path, change: Callable[[dict], None]) -> None:
    """Change the weights."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "new")
    (folder / "new").replace(folder / "model.safetensors")


def test_a_checkpoint_of_no_family_names_those_there_are(gpt, tmp_path):
    edit(gpt, model_type="llama")
    assert "must be one of albert, bart, bert, electra, gpt2" in refused(gpt, tmp_path)
    edit(gpt, model_type=None)
    assert "got None" in refused(gpt, tmp_path)
    edit(gpt, model_type=["gpt2"])
    assert "got ['gpt2']" in refused(gpt, tmp_path)


def test_a_checkpoint_of_another_family_than_asked(gpt, tmp_path):
    said = refused(gpt, tmp_path, family="bert")
    assert said == "expected a checkpoint of bert, got one of gpt2."
    assert "did you mean 'gpt2'" in refused(gpt, tmp_path, family="gpt3")
    assert import_hf(gpt, tmp_path / "run", family="gpt2").card.name == "gpt"


def test_a_config_that_is_missing_or_broken(gpt, tmp_path, made):
    (gpt / "config.json").write_text("{")
    assert "it is not JSON" in refused(gpt, tmp_path)
    (gpt / "config.json").write_text("[]")
    assert "is not a JSON object" in refused(gpt, tmp_path)
    (gpt / "config.json").unlink()
    assert "it has no config.json" in refused(gpt, tmp_path)
    assert "is a run of lmlab already" in refused(made / "gpt-run", tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
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
def test_settings_that_can_not_be(gpt, tmp_path, changes, sentence):
    edit(gpt, **changes)
    assert sentence in refused(gpt, tmp_path)


def test_weights_that_are_missing_strange_or_differ(gpt, tmp_path):
    rewrite(gpt, lambda w: w.update({"transformer.h.0.adapter": torch.ones(2)}))
    assert "does not know in gpt2: transformer.h.0.adapter." in refused(gpt, tmp_path)
    rewrite(gpt, lambda w: w.pop("transformer.h.0.adapter"))
    rewrite(gpt, lambda w: w.update({"lm_head.weight": 2 * w["transformer.wte.weight"]}))
    assert "should be one shared weight" in refused(gpt, tmp_path)
    rewrite(gpt, lambda w: w.pop("lm_head.weight"))
    rewrite(gpt, lambda w: w.pop("transformer.ln_f.bias"))
    said = refused(gpt, tmp_path)
    assert "lacks weights of gpt2: transformer.ln_f.bias; use a model saved whole" in said


def test_a_file_that_was_cut_short(gpt, tmp_path):
    whole = (gpt / "model.safetensors").read_bytes()
    for size in (len(whole) - 10, 100, 0):
        (gpt / "model.safetensors").write_bytes(whole[:size])
        assert "is damaged or cut short" in refused(gpt, tmp_path)


def test_no_weights_or_only_a_pickle(gpt, tmp_path):
    (gpt / "model.safetensors").unlink()
    assert "has no model.safetensors; save it" in refused(gpt, tmp_path)
    (gpt / "pytorch_model.bin").write_bytes(b"\x80\x04")
    said = refused(gpt, tmp_path)
    assert "only a pickle, which lmlab never opens" in said and "save_pretrained" in said


def test_shards_are_read_and_told_where_one_is_missing(gpt, tmp_path):
    expected = import_hf(gpt, tmp_path / "whole").system.state_dict()
    weights = load_file(gpt / "model.safetensors")
    names = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(names.values()):
        part = {name: weights[name] for name in names if names[name] == file}
        save_file(part, gpt / file)
    (gpt / "model.safetensors").unlink()
    (gpt / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = import_hf(gpt, tmp_path / "sharded").system.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    (gpt / "model-1.safetensors").unlink()
    assert "lacks model-1.safetensors" in refused(gpt, tmp_path)
    outside = {"weight_map": dict.fromkeys(names, "../model.safetensors")}
    (gpt / "model.safetensors.index.json").write_text(json.dumps(outside))
    assert "is not an index of the files" in refused(gpt, tmp_path)


def test_a_tokeniser_that_is_missing_or_lacks_a_symbol(made, gpt, tmp_path):
    (gpt / "tokenizer.json").unlink()
    assert "has no tokeniser" in refused(gpt, tmp_path)
    text = (made / "bert" / "tokenizer.json").read_text(encoding="utf-8")
    bert = shutil.copytree(made / "bert", tmp_path / "bert")
    (bert / "tokenizer.json").write_text(text.replace("<mask>", "mask"), encoding="utf-8")
    assert "has neither <mask> nor [MASK]" in refused(bert, tmp_path)
    nothing = text.replace("<s>", "s").replace("</s>", "e")
    (bert / "tokenizer.json").write_text(nothing, encoding="utf-8")
    assert "has no start or end token" in refused(bert, tmp_path)


def test_out_must_be_new(gpt, tmp_path, made):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("kept")
    assert "already exists" in refused(gpt, tmp_path)
    assert (tmp_path / "run" / "mine").read_text() == "kept"
    with pytest.raises(UserError, match="already exists and is not empty"):
        export_hf(made / "gpt-run", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_path_that_is_no_folder(gpt, tmp_path):
    assert "is a file" in refused(gpt / "config.json", tmp_path)
    assert "there is no folder" in refused(tmp_path / "deep" / "nowhere", tmp_path)
    assert "there is no folder" in refused("../nowhere/at/all", tmp_path)


def test_names_are_fetched_from_the_hub(gpt, tmp_path, monkeypatch):
    """By snapshot_download, which is asked for no pickle; a failure is one sentence."""
    asked = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if "unknown" in name:
            raise RuntimeError("404 Client Error.\n\nRepository Not Found")
        return str(gpt)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = import_hf("someone/small-gpt", tmp_path / "fetched")
    assert model.config["corpus"]["name"] == "someone/small-gpt"
    assert asked == [("someone/small-gpt", ["*.json", "*.txt", "*.safetensors"])]
    said = refused("someone/unknown", tmp_path)
    assert "can't be reached (404 Client Error); check the name" in said
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'lmlab[hub]'" in refused("someone/small-gpt", tmp_path)


def test_old_spellings_are_read(made, tmp_path):
    """Bare models lack the prefix, the first ones say gamma and beta, some kept their masks."""

    def older(weights: dict) -> None:
        for name in list(weights):
            value, old = weights.pop(name), name.removeprefix("transformer.")
            old = old.replace("ln_1.weight", "ln_1.gamma").replace("ln_1.bias", "ln_1.beta")
            weights[old] = value.half()
        weights["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)

    gpt = Path(shutil.copytree(made / "gpt", tmp_path / "gpt"))
    rewrite(gpt, older)
    found = import_hf(gpt, tmp_path / "run").system.state_dict()
    expected = load_run(made / "gpt-run").system.state_dict()
    for name, value in expected.items():
        assert torch.equal(found[name], value.half().float()), name


def test_a_pooler_without_a_question_is_left_out_with_a_note(made, tmp_path):
    bert = Path(shutil.copytree(made / "bert", tmp_path / "bert"))
    rewrite(bert, lambda w: [w.pop(f"cls.seq_relationship.{kind}") for kind in ("weight", "bias")])
    model = import_hf(bert, tmp_path / "run")
    assert model.config["system_config"]["pairs"] == "none"
    assert model.config["imported"]["notes"] == ["the pooler was dropped: bert in lmlab has none."]


@pytest.mark.parametrize(
    ("system", "settings", "sentence"),
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
def test_what_theirs_can_not_express_is_not_exported(made, tmp_path, system, settings, sentence):
    data = made / "corpus.txt"
    train(system, data=data, out=tmp_path / "run", settings=settings, **TINY)
    with pytest.raises(UserError) as caught:
        export_hf(tmp_path / "run", tmp_path / "out")
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_systems_without_a_family_name_those_that_have_one(made, tmp_path):
    with pytest.raises(
        UserError, match=r"lstm can't be stored in the Hub's format; .* albert, bart"
    ):
        export_hf(made / "lstm-run", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_imported_run_says_where_it_is_from(gpt, tmp_path):
    model = import_hf(gpt, tmp_path / "run")
    assert model.config["corpus"] == {"name": "gpt", "spec": "", "fingerprint": "", "seed": 0}
    assert model.config["imported"]["from"] == "gpt"
    assert model.config["imported"]["config"]["model_type"] == "gpt2"
