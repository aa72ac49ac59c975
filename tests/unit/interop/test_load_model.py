"""Loading checkpoints by path: every command accepts one, and unreadable ones are reported."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import lmlab
from lmlab.cli.main import main
from lmlab.core.errors import UserError
from lmlab.interop.load_model import load_model
from lmlab.training.run_folder import load_run

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

pytestmark = pytest.mark.xdist_group("load_model")  # shares its checkpoints
WORDS = "the a cat dog bird sat ran on under mat tree".split()
SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SIZE = len(SPECIAL_TOKENS) + len(WORDS)
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
MORE = {"intermediate_size": 8, "max_position_embeddings": 20, "vocab_size": SIZE}
DISTIL = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "max_position_embeddings": 20}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """One that lmlab imports, and two run by transformers: a causal and a masked model."""
    folder = tmp_path_factory.mktemp("checkpoints")
    configs = {
        "bert": transformers.BertConfig(**SMALL, **MORE),
        "distilbert": transformers.DistilBertConfig(vocab_size=SIZE, **DISTIL),
        "neox": transformers.GPTNeoXConfig(**SMALL, **MORE),
    }
    for name, config in configs.items():
        transformers.set_seed(0)
        auto = transformers.AutoModelForMaskedLM
        if name == "neox":
            auto = transformers.AutoModelForCausalLM
        auto.from_config(config).save_pretrained(folder / name)
        words = {word: id for id, word in enumerate([*SPECIAL_TOKENS.values(), *WORDS])}
        inner = Tokenizer(models.WordLevel(words, "[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        roles = {f"{role}_token": token for role, token in SPECIAL_TOKENS.items()}
        transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(
            folder / name
        )
    (folder / "texts.txt").write_text("the cat sat\na dog ran\n" * 10, encoding="utf-8")
    return folder


def output(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    capfd.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capfd.readouterr()
    assert code == 0, captured.err
    return captured.out


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("name", ["bert", "distilbert", "neox"])
def test_commands_accept_checkpoints_and_leave_them_unchanged(checkpoints, name, tmp_path, capfd):
    before = files(checkpoints)
    folder = checkpoints / name
    [score] = json.loads(output(capfd, "score", folder, "--text", "the cat sat", "--json"))
    # A masked model predicts no end token.
    expected = ("exact", 4) if name == "neox" else ("pseudo", 3)
    assert (score["kind"], score["tokens"]) == expected
    lines = output(capfd, "score", folder, "--text", "the cat sat", "--csv").count("\n")
    assert lines == 1 + score["tokens"]
    pairs = tmp_path / "pairs.jsonl"
    row = {"sentence_good": "the cat sat", "sentence_bad": "sat cat the"}
    pairs.write_text(json.dumps(row), encoding="utf-8")
    assert json.loads(output(capfd, "pairs", folder, pairs, "--json"))["overall"]["pairs"] == 1
    cloze = json.loads(output(capfd, "cloze", folder, checkpoints / "texts.txt", "--json"))
    assert cloze["texts"] == 20 and cloze["method"] == ("left" if name == "neox" else "fill")
    if name == "neox":
        assert output(capfd, "sample", folder, "--max-length", 3).count("\n") == 1
    else:
        assert "the <mask> sat" in output(capfd, "fill", folder, "the <mask> sat")
    printed = output(capfd, "inspect", folder, "--text", "the cat sat", "--out", tmp_path / "out")
    assert "surprisal" in printed
    assert files(checkpoints) == before


def test_compare_accepts_checkpoints(checkpoints, capfd, tmp_path):
    options = ("--data", checkpoints / "texts.txt", "--out", tmp_path / "r.html", "--json")
    folders = [checkpoints / name for name in ("bert", "distilbert", "neox")]
    rows = json.loads(output(capfd, "compare", *folders, *options))["rows"]
    assert sorted(row["name"] for row in rows) == ["bert", "distilbert", "neox"]
    assert {row["name"]: row["perplexity"] is None for row in rows} == {
        "bert": True,
        "distilbert": True,
        "neox": False,
    }


def test_checkpoint_is_cached_until_it_changes(checkpoints, tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoints / "bert", folder)
    first = load_model(folder)
    assert load_model(str(folder)).system is first.system
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["layer_norm_eps"] = 0.5
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    [before], [after] = (
        lmlab.LanguageModel(m).score(["a cat"]) for m in (first, load_model(folder))
    )
    assert before.total != after.total


def test_unsupported_setting_falls_back_to_transformers(checkpoints, tmp_path):
    """A GPT-2 with attention scaled by layer is of a known family but not supported."""
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_positions=20,
        n_embd=8,
        n_layer=2,
        n_head=2,
        scale_attn_by_inverse_layer_idx=True,
    )
    shutil.copytree(checkpoints / "neox", tmp_path / "gpt2")
    (tmp_path / "gpt2" / "model.safetensors").unlink()
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = lmlab.load(tmp_path / "gpt2")
    assert model.card.family == "wrapped"
    assert model.score(["the cat"])[0].kind == "exact"


def test_doctor_examines_the_causality_of_checkpoints(checkpoints, capsys):
    """By lmlab's own networks and by transformers'; nothing is written into the folder."""
    verdicts = {
        name: lmlab.doctor(checkpoints / name).causality.verdict
        for name in ("bert", "distilbert", "neox")
    }
    assert verdicts == {"bert": "bidirectional", "distilbert": "bidirectional", "neox": "causal"}
    loaded = lmlab.doctor(lmlab.load(checkpoints / "distilbert"))
    assert loaded.healthy and loaded.causality.verdict == "bidirectional"
    before = sorted(checkpoints.rglob("*"))
    assert main(["doctor", str(checkpoints / "neox"), "--text", "the cat sat"]) == 0
    printed = capsys.readouterr().out
    assert "neox was not trained here: its causality alone is examined." in printed
    assert "no prediction changes when a later token" in printed
    assert sorted(checkpoints.rglob("*")) == before


def test_inspect_of_a_checkpoint_needs_out(checkpoints):
    with pytest.raises(UserError, match="give --out"):
        lmlab.inspect([checkpoints / "distilbert"], texts=["the cat"])


def test_show_objective_accepts_checkpoints(checkpoints):
    shown = lmlab.show_objective(checkpoints / "bert", text="the cat sat on a mat", seed=0)
    assert [matrix.name for matrix in shown.contents.matrices] == ["attention mask"]


def test_unknown_architecture_without_transformers_is_reported(checkpoints, monkeypatch, tmp_path):
    shutil.copytree(checkpoints / "neox", tmp_path / "neox")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"'gpt_neox' checkpoint, .* pip install 'lmlab\[hf\]'"):
        lmlab.load(tmp_path / "neox")


def modified_checkpoint(checkpoints: Path, folder: Path, name: str, **settings: object) -> Path:
    shutil.copytree(checkpoints / name, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_unreadable_checkpoints_are_reported(checkpoints, tmp_path):
    classifier = {"architectures": ["GPTNeoXForSequenceClassification"]}
    with pytest.raises(UserError, match="whose class ends in ForCausalLM"):
        lmlab.load(modified_checkpoint(checkpoints, tmp_path / "classes", "neox", **classifier))
    with pytest.raises(UserError, match="whose class ends in ForCausalLM"):
        lmlab.load(
            modified_checkpoint(checkpoints, tmp_path / "both", "neox", is_encoder_decoder=True)
        )
    bare = modified_checkpoint(checkpoints, tmp_path / "bare", "neox")
    (bare / "model.safetensors").unlink()
    (bare / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="only a pickle, which lmlab never opens"):
        lmlab.load(bare)
    no_tokenizer = modified_checkpoint(checkpoints, tmp_path / "silent", "neox")
    (no_tokenizer / "tokenizer.json").unlink()
    (no_tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        lmlab.load(no_tokenizer)
    with pytest.raises(UserError, match="lacks weights"):
        lmlab.load(modified_checkpoint(checkpoints, tmp_path / "deep", "neox", num_hidden_layers=2))
    with pytest.raises(UserError, match="there is no run at"):
        lmlab.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not a run; convert it with lmlab import-hf"):
        load_run(checkpoints / "neox")
