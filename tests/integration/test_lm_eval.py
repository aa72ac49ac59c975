"""lm-eval's tasks on our runs: the adapter's answers, and a task from a file run by lm-eval."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.scoring.conditional import conditional_scores

pytest.importorskip("lm_eval", reason="lm-eval is an extra: run make test-integration")

from lmlab.interop.lm_eval import LmlabLM

pytestmark = pytest.mark.xdist_group("lm-eval")  # its trainings are shared, so made once
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 8
PAIRS = [
    ("the cat", " sat on the mat"),
    ("the bird flew under", " the old tree"),
    ("", "a big dog ran"),
    ("the cat sat on the", " old tree"),
]


def asked(*arguments: tuple) -> list[SimpleNamespace]:
    """Requests as lm-eval makes them."""
    return [SimpleNamespace(args=each) for each in arguments]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    for name, steps in (("gpt", 60), ("bert", 2), ("ngram", None)):
        lmlab.train(
            name,
            data=folder / "corpus.txt",
            out=folder / name,
            size="tiny",
            quiet=True,
            **({} if steps is None else {"steps": steps}),
        )
    return folder


@pytest.mark.parametrize("name", ["gpt", "ngram"])
@pytest.mark.parametrize("count_end", [False, True])
def test_scores_are_conditional_scores(folder, name, count_end):
    adapter = LmlabLM(str(folder / name), count_end=count_end)
    scorer = lmlab.load(folder / name).scorer()
    expected = [each.total for each in conditional_scores(scorer, PAIRS, end=count_end)]
    found = adapter.loglikelihood(asked(*PAIRS))
    assert [total for total, _ in found] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt", "ngram"])
def test_what_greedy_decoding_would_write_is_told(folder, name):
    """Against greedy decoding itself, of as many tokens as the continuation has."""
    model = lmlab.load(folder / name)
    pairs = [*PAIRS]
    for prefix in ("the", "a big", "the cat sat"):
        [text] = model.sample(1, prefix=prefix, method="greedy", max_length=3)
        pairs.append((prefix, text.text.removeprefix(prefix)))
    expected = []
    for prefix, more in pairs:
        count = len(more.split())
        [text] = model.sample(1, prefix=prefix, method="greedy", max_length=count)
        expected.append(text.text == prefix + more)
    found = [is_greedy for _, is_greedy in LmlabLM(model).loglikelihood(asked(*pairs))]
    assert found == expected
    assert True in found and False in found


def test_a_walk_decides_where_the_numbers_alone_do_not():
    """Three likeliest tokens of less than a half each: 0.4, 0.3, 0.3."""
    rows = torch.tensor([0.4, 0.3, 0.3]).log().expand(3, 3)
    module = torch.nn.Embedding.from_pretrained(rows)
    words = SimpleNamespace(
        vocab_size=3,
        encode=lambda text: ["ab.".index(letter) for letter in text],
        decode=lambda ids: "".join("ab."[id] for id in ids),
    )
    adapter = LmlabLM(lmlab.wrap(module, words, end="."))
    found = adapter.loglikelihood(asked(("b", "aa"), ("b", "ab"), ("", "a")))
    assert [is_greedy for _, is_greedy in found] == [True, False, True]
    expected = [2 * math.log(0.4), math.log(0.4) + math.log(0.3), math.log(0.4)]
    assert [total for total, _ in found] == pytest.approx(expected, abs=1e-6)


def test_rolling_scores_are_those_of_whole_texts_without_their_ends(folder):
    model = lmlab.load(folder / "gpt")
    found = LmlabLM(model).loglikelihood_rolling(asked((LINES[0],), (LINES[1],)))
    for total, score in zip(found, model.score(LINES[:2]), strict=True):
        assert total == pytest.approx(score.total - score.per_token[-1].log_prob, abs=1e-5)


def test_writing_stops_where_it_is_told(folder):
    model = lmlab.load(folder / "gpt")
    [whole] = model.sample(1, prefix="the", method="greedy", max_length=40)
    written = whole.text.removeprefix("the")
    adapter = LmlabLM(model)
    third = written.split()[2]
    words = {"until": [f" {third}", "\n"], "max_gen_toks": 40}
    found = adapter.generate_until(
        asked(("the", words), ("the", {"until": [], "max_gen_toks": 2}), ("the", {"until": "zzz"}))
    )
    assert found[0] == written[: written.index(f" {third}")]
    assert found[1].split() == written.split()[:2]
    assert found[2].startswith(written[:10])


def test_drawn_texts_follow_the_seed(folder):
    words = {"until": [], "do_sample": True, "temperature": 1.5, "max_gen_toks": 20}
    requests = asked(("the", words), ("the", words))
    one, again, other = (
        LmlabLM(str(folder / "gpt"), seed=seed).generate_until(requests) for seed in (0, 0, 7)
    )
    assert one == again != other
    assert one[0] != one[1]


def test_a_context_longer_than_the_model_reads_is_cut_from_the_left(folder):
    model = lmlab.load(folder / "gpt")
    long = "the cat sat on the mat " * 40
    [text] = LmlabLM(model).generate_until(asked((long, {"until": [], "max_gen_toks": 3})))
    assert len(text.split()) <= 3
    [(total, _)] = LmlabLM(model).loglikelihood(asked((long, "the cat")))
    assert math.isfinite(total)


def test_masked_models_rank_answers_and_have_no_perplexity(folder):
    adapter = LmlabLM(str(folder / "bert"))
    with pytest.warns(UserWarning, match="are of kind pseudo"):
        found = adapter.loglikelihood(asked(*PAIRS[:2]))
    scorer = lmlab.load(folder / "bert").scorer()
    expected = [each.total for each in conditional_scores(scorer, PAIRS[:2])]
    assert [total for total, _ in found] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="needs a perplexity, which scores of kind pseudo"):
        adapter.loglikelihood_rolling(asked((LINES[0],)))
    with pytest.raises(UserError, match="needs a system with Step"):
        adapter.generate_until(asked(("the", {})))


def test_mistakes_are_told_in_a_sentence(folder):
    with pytest.raises(UserError, match="got dict"):
        LmlabLM({})
    with pytest.raises(UserError, match="does not support: repetition_penalty"):
        LmlabLM(str(folder / "gpt")).generate_until(asked(("the", {"repetition_penalty": 2})))


# lm-eval itself ---------------------------------------------------------------------------------

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
  cache_dir: {cache}
test_split: test
output_type: {kind}
doc_to_text: "{{{{start}}}}"
doc_to_target: "{{{{{target}}}}}"
{more}
metric_list:
  - metric: {metric}
    aggregation: {aggregation}
    higher_is_better: true
"""
ROWS = [
    {"start": "the cat", "choices": ["sat on the mat", "the the the"], "right": 0, "end": " sat"},
    {"start": "a big", "choices": ["mat on sat", "dog ran"], "right": 1, "end": " dog"},
    {"start": "the bird", "choices": ["flew under the old tree", "ran a"], "right": 0, "end": " x"},
]


@pytest.fixture(scope="module")
def tasks(folder) -> Path:
    """A task of several answers, and one of writing, from files alone."""
    place = folder / "tasks"
    place.mkdir()
    data = place / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)) + "\n", encoding="utf-8")
    told = {"data": data, "cache": folder / "cache"}
    choice = TASK.format(
        name="lmlab_choice",
        kind="multiple_choice",
        target="right",
        more='doc_to_choice: "{{choices}}"',
        metric="acc",
        aggregation="mean",
        **told,
    )
    writing = TASK.format(
        name="lmlab_writing",
        kind="generate_until",
        target="end",
        more="generation_kwargs:\n  until: ['\\n']\n  max_gen_toks: 1\n  do_sample: false",
        metric="exact_match",
        aggregation="mean",
        **told,
    )
    (place / "choice.yaml").write_text(choice, encoding="utf-8")
    (place / "writing.yaml").write_text(writing, encoding="utf-8")
    return place


def test_lm_eval_runs_its_tasks_on_a_run(folder, tasks):
    """Accuracies against scores and texts asked for by hand."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = lmlab.load(folder / "gpt")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(
        LmlabLM(model),
        tasks=["lmlab_choice", "lmlab_writing"],
        task_manager=manager,
        bootstrap_iters=0,
    )["results"]
    right = 0
    for row in ROWS:
        pairs = [(row["start"], f" {choice}") for choice in row["choices"]]
        totals = [each.total for each in conditional_scores(model.scorer(), pairs)]
        right += totals.index(max(totals)) == row["right"]
    assert found["lmlab_choice"]["acc,none"] == pytest.approx(right / 3)
    written = [
        model.sample(1, prefix=row["start"], method="greedy", max_length=1)[0].text for row in ROWS
    ]
    exact = sum(text == row["start"] + row["end"] for text, row in zip(written, ROWS, strict=True))
    assert found["lmlab_writing"]["exact_match,none"] == pytest.approx(exact / 3)
    assert 0 < right <= 3


@pytest.mark.slow
def test_lm_evals_command_line_knows_the_model(folder, tasks, tmp_path):
    words = ["run", "--model", "lmlab", "--model_args", f"run={folder / 'gpt'}"]
    words += ["--tasks", "lmlab_choice", "--include_path", str(tasks)]
    done = subprocess.run(
        [sys.executable, "-m", "lmlab.interop.lm_eval", *words],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "lmlab_choice" in done.stdout and "acc" in done.stdout
