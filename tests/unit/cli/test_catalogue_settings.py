"""`lmlab settings`, and references to it in `--set` errors, unknown options and `find`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest

import lmlab as package
from lmlab.training.config import TrainingConfig


def test_settings_lists_type_default_and_help_of_each(lmlab) -> None:
    lines = lmlab("settings").out.splitlines()
    for spec in fields(TrainingConfig):
        assert any(line.split()[:1] == [spec.name] for line in lines), spec.name
    [rate] = [line for line in lines if line.startswith("learning_rate ")]
    assert rate.split()[:3] == ["learning_rate", "float", "0.002"]
    assert "Peak learning rate" in rate
    assert "(> 0)" in rate
    [optimizer] = [line for line in lines if line.startswith("optimizer ")]
    assert "rmsprop" in optimizer


def test_system_settings_come_first_with_defaults_by_size(lmlab) -> None:
    records = json.loads(lmlab("settings", "lstm", "--json").out)
    assert [setting["name"] for setting in records] == [
        setting.name for setting in package.settings("lstm")
    ]
    by_name = {record["name"]: record for record in records}
    assert by_name["width"]["part"] == "system"
    assert by_name["width"]["sizes"] == {"tiny": 16, "small": 128, "base": 650}
    assert by_name["width"]["default"] == 128
    assert by_name["learning_rate"]["part"] == "training"
    shown = lmlab("settings", "lstm").out.splitlines()
    [width] = [line for line in shown if line.startswith("width ")]
    assert width.split()[:5] == ["width", "int", "16", "128", "650"]


def test_recipe_changes_the_listed_defaults(lmlab) -> None:
    plain = {record.name: record.default for record in package.settings("lstm")}
    recipe = {record.name: record for record in package.settings("lstm", recipe="multi30k")}
    assert (plain["learning_rate"], recipe["learning_rate"].default) == (2e-3, 4e-3)
    assert dict(recipe["dropout"].sizes) == {"tiny": 0.4, "small": 0.4, "base": 0.4}


def test_task_settings_are_those_of_finetune(lmlab) -> None:
    records = {record.name: record for record in package.settings(task="classify")}
    assert records["overlap"].part == "task"
    assert records["learning_rate"].default == 1e-3  # finetune's own default, not train's
    assert not {"stream_batch_size", "select_by"} & records.keys()
    assert "select_by" in {record.name for record in package.settings(task="generate")}
    assert "max_graph_nodes" in {record.name for record in package.settings(task="hops")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("settings", "lsmt"), "did you mean 'lstm'"),
        (("settings", "lstm", "--task", "classify"), "remove one"),
        (("settings", "--recipe", "multi30k"), "needs a system"),
        (("settings", "--task", "classfy"), "did you mean 'classify'"),
    ],
)
def test_invalid_arguments_are_refused(lmlab, arguments, message) -> None:
    result = lmlab(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_listing_settings_does_not_import_torch() -> None:
    code = "import sys, lmlab; lmlab.settings(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"


def test_find_shows_training_settings_of_a_system(lmlab) -> None:
    lines = lmlab("find", "ngram").out.splitlines()
    names = {line.split()[0] for line in lines if line.strip()}
    assert {spec.name for spec in fields(TrainingConfig)} <= names


TRAIN = ("train", "lstm", "--data", "grammar", "--out", "x")
FINETUNE = ("finetune", "r", "--data", "x", "--out", "y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TRAIN, "--learning-rate", "0.1"), "it is a setting: --set learning_rate=0.1."),
        ((*TRAIN, "--learning-rate=0.1"), "it is a setting: --set learning_rate=0.1."),
        ((*TRAIN, "--weight_decay", "-1"), "it is a setting: --set weight_decay=-1."),
        ((*TRAIN, "--width", "--seed"), "it is a setting: --set width=VALUE."),
        ((*TRAIN, "--learnin-rate", "1"), "did you mean the setting --set learning_rate=1?"),
        ((*TRAIN, "--minute", "1"), "did you mean --minutes?"),
        ((*TRAIN, "--foo", "1"), "lmlab settings lstm lists the settings that --set takes."),
        ((*FINETUNE, "--task", "tag", "--overlap", "0"), "it is a setting: --set overlap=0."),
        ((*FINETUNE, "--task", "hops", "--max-graph-nodes", "9"), "--set max_graph_nodes=9."),
        # The stream batch size does not apply to fine-tuning.
        (
            (*FINETUNE, "--task", "tag", "--stream-batch-size", "9"),
            "lmlab settings --task tag lists",
        ),
        (
            ("ablate", "gru-minimal", "--data", "x", "--out", "y", "--grad-clip", "2"),
            "--set grad_clip=2.",
        ),
        # show-objective does not train.
        (("show-objective", "bert", "--learning-rate", "1"), "lmlab settings bert lists"),
        (("score", "r", "--learning-rate", "1"), "has no option --learning-rate; see lmlab score"),
    ],
)
def test_option_named_like_a_setting_suggests_set(lmlab, arguments, message) -> None:
    result = lmlab(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("foo=1", "there is no setting called 'foo'; lmlab settings lstm lists all names."),
        ("learning_rat=1", "did you mean 'learning_rate'"),
    ],
)
def test_unknown_setting_error_points_to_the_list(lmlab, tmp_path, given, message) -> None:
    result = lmlab("train", "lstm", "--data", "grammar", "--out", tmp_path / "x", "--set", given)
    assert result.code == 2
    assert message in result.err


def test_help_of_commands_with_set_points_to_settings(lmlab) -> None:
    for command in ("train", "finetune", "ablate", "show-objective"):
        words = lmlab(command, "--help").out.replace("│", " ").split()
        assert "lmlab settings" in " ".join(words), command
