"""The lm-eval adapter: log-likelihoods, generation, and tasks from files run by lm-eval."""

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
from tests.serving import running_server

import lmlab
from lmlab.core.errors import UserError
from lmlab.scoring.conditional import conditional_scores

pytest.importorskip("lm_eval", reason="lm-eval is an extra: run make test-integration")

from lmlab.interop.lm_eval import LmlabLM

pytestmark = pytest.mark.xdist_group("lm-eval")  # shares its trained runs
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 8
PAIRS = [
    ("the cat", " sat on the mat"),
    ("the bird flew under", " the old tree"),
    ("", "a big dog ran"),
    ("the cat sat on the", " old tree"),
]


class Instance(SimpleNamespace):
    """A request as lm-eval's clients of a server take it."""

    def __init__(self, kind: str, arguments: tuple) -> None:
        super().__init__(request_type=kind, args=arguments)


def make_requests(*arguments: tuple) -> list[SimpleNamespace]:
    """Requests in lm-eval's form."""
    return [SimpleNamespace(args=request) for request in arguments]


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
def test_loglikelihood_equals_conditional_scores(folder, name, count_end):
    adapter = LmlabLM(str(folder / name), count_end=count_end)
    scorer = lmlab.load(folder / name).scorer()
    expected = [score.total for score in conditional_scores(scorer, PAIRS, end=count_end)]
    scores = adapter.loglikelihood(make_requests(*PAIRS))
    assert [total for total, _ in scores] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt", "ngram"])
def test_is_greedy_matches_greedy_decoding(folder, name):
    """Compared with greedy decoding of as many tokens as the continuation has."""
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
    greedy = [is_greedy for _, is_greedy in LmlabLM(model).loglikelihood(make_requests(*pairs))]
    assert greedy == expected
    assert True in greedy and False in greedy


def test_is_greedy_with_probabilities_below_one_half():
    """No token has a probability above one half: 0.4, 0.3, 0.3."""
    rows = torch.tensor([0.4, 0.3, 0.3]).log().expand(3, 3)
    module = torch.nn.Embedding.from_pretrained(rows)
    words = SimpleNamespace(
        vocab_size=3,
        encode=lambda text: ["ab.".index(letter) for letter in text],
        decode=lambda ids: "".join("ab."[id] for id in ids),
    )
    adapter = LmlabLM(lmlab.wrap(module, words, end="."))
    scores = adapter.loglikelihood(make_requests(("b", "aa"), ("b", "ab"), ("", "a")))
    assert [is_greedy for _, is_greedy in scores] == [True, False, True]
    expected = [2 * math.log(0.4), math.log(0.4) + math.log(0.3), math.log(0.4)]
    assert [total for total, _ in scores] == pytest.approx(expected, abs=1e-6)


def test_rolling_loglikelihood_excludes_the_end_token(folder):
    model = lmlab.load(folder / "gpt")
    totals = LmlabLM(model).loglikelihood_rolling(make_requests((LINES[0],), (LINES[1],)))
    for total, score in zip(totals, model.score(LINES[:2]), strict=True):
        assert total == pytest.approx(score.total - score.per_token[-1].log_prob, abs=1e-5)


def test_generation_stops_at_until_and_max_gen_toks(folder):
    model = lmlab.load(folder / "gpt")
    [whole] = model.sample(1, prefix="the", method="greedy", max_length=40)
    continuation = whole.text.removeprefix("the")
    adapter = LmlabLM(model)
    third = continuation.split()[2]
    options = {"until": [f" {third}", "\n"], "max_gen_toks": 40}
    generated = adapter.generate_until(
        make_requests(
            ("the", options), ("the", {"until": [], "max_gen_toks": 2}), ("the", {"until": "zzz"})
        )
    )
    assert generated[0] == continuation[: continuation.index(f" {third}")]
    assert generated[1].split() == continuation.split()[:2]
    assert generated[2].startswith(continuation[:10])


def test_sampled_generation_depends_on_the_seed(folder):
    options = {"until": [], "do_sample": True, "temperature": 1.5, "max_gen_toks": 20}
    requests = make_requests(("the", options), ("the", options))
    one, again, other = (
        LmlabLM(str(folder / "gpt"), seed=seed).generate_until(requests) for seed in (0, 0, 7)
    )
    assert one == again != other
    assert one[0] != one[1]


def test_context_over_the_window_is_truncated_on_the_left(folder):
    model = lmlab.load(folder / "gpt")
    long = "the cat sat on the mat " * 40
    [text] = LmlabLM(model).generate_until(make_requests((long, {"until": [], "max_gen_toks": 3})))
    assert len(text.split()) <= 3
    [(total, _)] = LmlabLM(model).loglikelihood(make_requests((long, "the cat")))
    assert math.isfinite(total)


def test_masked_lm_ranks_answers_but_has_no_perplexity(folder):
    adapter = LmlabLM(str(folder / "bert"))
    with pytest.warns(UserWarning, match="are of kind pseudo"):
        scores = adapter.loglikelihood(make_requests(*PAIRS[:2]))
    scorer = lmlab.load(folder / "bert").scorer()
    expected = [score.total for score in conditional_scores(scorer, PAIRS[:2])]
    assert [total for total, _ in scores] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="needs a perplexity, which scores of kind pseudo"):
        adapter.loglikelihood_rolling(make_requests((LINES[0],)))
    with pytest.raises(UserError, match="needs a system with Step"):
        adapter.generate_until(make_requests(("the", {})))


def test_invalid_arguments_are_refused(folder):
    with pytest.raises(UserError, match="got dict"):
        LmlabLM({})
    with pytest.raises(UserError, match="does not support: repetition_penalty"):
        LmlabLM(str(folder / "gpt")).generate_until(
            make_requests(("the", {"repetition_penalty": 2}))
        )


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
    """A multiple-choice task and a generation task, from local files."""
    task_folder = folder / "tasks"
    task_folder.mkdir()
    data = task_folder / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)) + "\n", encoding="utf-8")
    paths = {"data": data, "cache": folder / "cache"}
    choice = TASK.format(
        name="lmlab_choice",
        kind="multiple_choice",
        target="right",
        more='doc_to_choice: "{{choices}}"',
        metric="acc",
        aggregation="mean",
        **paths,
    )
    generation = TASK.format(
        name="lmlab_writing",
        kind="generate_until",
        target="end",
        more="generation_kwargs:\n  until: ['\\n']\n  max_gen_toks: 1\n  do_sample: false",
        metric="exact_match",
        aggregation="mean",
        **paths,
    )
    (task_folder / "choice.yaml").write_text(choice, encoding="utf-8")
    (task_folder / "writing.yaml").write_text(generation, encoding="utf-8")
    return task_folder


def test_lm_eval_runs_its_tasks_on_a_run(folder, tasks):
    """Accuracies equal those computed directly from scores and generated texts."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = lmlab.load(folder / "gpt")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    results = lm_eval.simple_evaluate(
        LmlabLM(model),
        tasks=["lmlab_choice", "lmlab_writing"],
        task_manager=manager,
        bootstrap_iters=0,
    )["results"]
    right = 0
    for row in ROWS:
        pairs = [(row["start"], f" {choice}") for choice in row["choices"]]
        totals = [score.total for score in conditional_scores(model.scorer(), pairs)]
        right += totals.index(max(totals)) == row["right"]
    assert results["lmlab_choice"]["acc,none"] == pytest.approx(right / 3)
    generated = [
        model.sample(1, prefix=row["start"], method="greedy", max_length=1)[0].text for row in ROWS
    ]
    exact = sum(
        text == row["start"] + row["end"] for text, row in zip(generated, ROWS, strict=True)
    )
    assert results["lmlab_writing"]["exact_match,none"] == pytest.approx(exact / 3)
    assert 0 < right <= 3


def test_local_completions_give_the_numbers_of_the_adapter(folder, tasks, monkeypatch):
    """lm-eval's client of OpenAI's interface, with our server and an exported tokenizer."""
    pytest.importorskip("fastapi", reason="serving is an extra: run make test-integration")
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    lmlab.export_hf(folder / "gpt", folder / "gpt-hf")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    model = lmlab.load(folder / "gpt")
    adapter = LmlabLM(model)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    chosen = {"tasks": ["lmlab_choice", "lmlab_writing"], "task_manager": manager}
    with running_server(folder / "gpt", environment={"LMLAB_API_KEY": "key"}) as server:
        client = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions",
            model="gpt",
            tokenizer=str(folder / "gpt-hf"),
            tokenizer_backend="huggingface",
            max_length=60,
            batch_size=2,
        )
        served = client.loglikelihood([Instance("loglikelihood", pair) for pair in PAIRS])
        remote = lm_eval.simple_evaluate(client, bootstrap_iters=0, **chosen)["results"]
    expected = adapter.loglikelihood(make_requests(*PAIRS))
    assert [total for total, _ in served] == pytest.approx([t for t, _ in expected], abs=1e-5)
    assert [greedy for _, greedy in served] == [greedy for _, greedy in expected]
    local = lm_eval.simple_evaluate(adapter, bootstrap_iters=0, **chosen)["results"]
    for task, metric in (("lmlab_choice", "acc,none"), ("lmlab_writing", "exact_match,none")):
        assert remote[task][metric] == pytest.approx(local[task][metric])


@pytest.mark.slow
def test_lm_eval_command_line_knows_the_model(folder, tasks, tmp_path):
    arguments = ["run", "--model", "lmlab", "--model_args", f"run={folder / 'gpt'}"]
    arguments += ["--tasks", "lmlab_choice", "--include_path", str(tasks)]
    done = subprocess.run(
        [sys.executable, "-m", "lmlab.interop.lm_eval", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "lmlab_choice" in done.stdout and "acc" in done.stdout
