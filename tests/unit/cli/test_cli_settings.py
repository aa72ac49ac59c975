"""`lmlab settings`, and what points to it: errors of `--set`, unknown options, `find SYSTEM`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest

import lmlab as package
from lmlab.training.config import TrainingConfig


def test_settings_lists_every_training_setting_with_type_default_and_help(lmlab) -> None:
    lines = lmlab("settings").out.splitlines()
    for spec in fields(TrainingConfig):
        assert any(line.split()[:1] == [spec.name] for line in lines), spec.name
    [rate] = [line for line in lines if line.startswith("learning_rate ")]
    assert rate.split()[:3] == ["learning_rate", "float", "0.002"]
    assert "Peak learning rate" in rate
    assert "(> 0)" in rate
    [optimizer] = [line for line in lines if line.startswith("optimizer ")]
    assert "rmsprop" in optimizer


def test_settings_of_a_system_come_first_with_their_defaults_by_size(lmlab) -> None:
    records = json.loads(lmlab("settings", "lstm", "--json").out)
    assert [each["name"] for each in records] == [each.name for each in package.settings("lstm")]
    by_name = {record["name"]: record for record in records}
    assert by_name["width"]["part"] == "system"
    assert by_name["width"]["sizes"] == {"tiny": 16, "small": 128, "base": 650}
    assert by_name["width"]["default"] == 128
    assert by_name["learning_rate"]["part"] == "training"
    shown = lmlab("settings", "lstm").out.splitlines()
    [width] = [line for line in shown if line.startswith("width ")]
    assert width.split()[:5] == ["width", "int", "16", "128", "650"]


def test_defaults_are_those_that_a_training_of_the_system_starts_from(lmlab) -> None:
    plain = {record.name: record.default for record in package.settings("lstm")}
    recipe = {record.name: record for record in package.settings("lstm", recipe="multi30k")}
    assert (plain["learning_rate"], recipe["learning_rate"].default) == (2e-3, 4e-3)
    assert dict(recipe["dropout"].sizes) == {"tiny": 0.4, "small": 0.4, "base": 0.4}


def test_settings_of_a_task_are_those_that_finetune_takes(lmlab) -> None:
    records = {record.name: record for record in package.settings(task="classify")}
    assert records["overlap"].part == "task"
    assert records["learning_rate"].default == 1e-3  # finetune's own default, not train's
    assert not {"stream_batch_size", "select_by"} & records.keys()
    assert "select_by" in {record.name for record in package.settings(task="generate")}
    assert "max_graph_nodes" in {record.name for record in package.settings(task="hops")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("settings", "lsmt"), "did you mean 'lstm'"),
        (("settings", "lstm", "--task", "classify"), "remove one"),
        (("settings", "--recipe", "multi30k"), "needs a system"),
        (("settings", "--task", "classfy"), "did you mean 'classify'"),
    ],
)
def test_settings_that_do_not_exist_are_refused(lmlab, arguments, said) -> None:
    result = lmlab(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_listing_the_training_settings_imports_no_torch() -> None:
    code = "import sys, lmlab; lmlab.settings(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"


def test_find_shows_the_training_settings_of_a_system_too(lmlab) -> None:
    lines = lmlab("find", "ngram").out.splitlines()
    names = {line.split()[0] for line in lines if line.strip()}
    assert {spec.name for spec in fields(TrainingConfig)} <= names


TRAIN = ("train", "lstm", "--data", "grammar", "--out", "x")
FINETUNE = ("finetune", "r", "--data", "x", "--out", "y")


@pytest.mark.parametrize(
    ("arguments", "said"),
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
        # The stream batch size is of no use to a fine-tuning, and no setting of it.
        (
            (*FINETUNE, "--task", "tag", "--stream-batch-size", "9"),
            "lmlab settings --task tag lists",
        ),
        (
            ("ablate", "gru-minimal", "--data", "x", "--out", "y", "--grad-clip", "2"),
            "--set grad_clip=2.",
        ),
        # A figure of an objective is not trained.
        (("show-objective", "bert", "--learning-rate", "1"), "lmlab settings bert lists"),
        (("score", "r", "--learning-rate", "1"), "has no option --learning-rate; see lmlab score"),
    ],
)
def test_an_option_that_names_a_setting_is_answered_with_its_form(lmlab, arguments, said) -> None:
    result = lmlab(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("foo=1", "there is no setting called 'foo'; lmlab settings lstm lists all names."),
        ("learning_rat=1", "did you mean 'learning_rate'"),
    ],
)
def test_an_unknown_setting_says_where_all_are_listed(lmlab, tmp_path, given, said) -> None:
    result = lmlab("train", "lstm", "--data", "grammar", "--out", tmp_path / "x", "--set", given)
    assert result.code == 2
    assert said in result.err


def test_help_of_verbs_with_set_points_to_settings(lmlab) -> None:
    for verb in ("train", "finetune", "ablate", "show-objective"):
        words = lmlab(verb, "--help").out.replace("│", " ").split()
        assert "lmlab settings" in " ".join(words), verb
