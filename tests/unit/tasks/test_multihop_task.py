"""Multi-hop question answering (CogQA) from rows to answers: two-stage training and loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.plain_readers import (
    ParagraphPrediction,
    plain_examples,
    select_answer,
    train_plain_reader,
)
from typer.testing import CliRunner

import lmlab
from lmlab.cli.main import app
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors
from lmlab.data.wordnet.multihop_questions import multihop_questions
from lmlab.layers.span_pointers import CogQAConfig
from lmlab.models.cogqa import CogQA, CogQANodeTraining, CogQAReader, answer_loss
from lmlab.tasks.finetune import finetune
from lmlab.tasks.loading import load_task
from lmlab.tasks.multihop.cognitive_graph import NodeEncoder
from lmlab.tasks.multihop.multihop_rows import MultihopQuestion, MultihopRow, read_multihop_rows
from lmlab.tasks.multihop.multihop_task import MultihopModel
from lmlab.training.config import TrainingConfig, with_budget
from lmlab.training.run_folder import load_run

LETTERS = "abcdefghij"
SETTINGS = {"learning_rate": "0.01", "log_every": "5", "predictor_width": "7"}


def paragraph(number: int) -> str:
    """A ring of letters: each is left of the next and right of the one before."""
    here, after, before = (LETTERS[(number + step) % 10] for step in (0, 1, 9))
    return f"{here} is left of {after} . it is right of {before} ."


PARAGRAPHS = {letter: paragraph(number) for number, letter in enumerate(LETTERS)}


def special(number: int) -> dict:
    a, b, c = (LETTERS[(number + step) % 10] for step in range(3))
    return {
        "question": f"what is left of left of {a} ?",
        "start": [a],
        "answer": c,
        "path": [[a, b], [b, c]],
        "irrelevant": [[a, LETTERS[(number + 9) % 10]]],
    }


def compared(number: int, word: str) -> dict:
    a, b = LETTERS[number % 10], LETTERS[(number + 5) % 10]
    target = LETTERS[(number + 1) % 10]
    question = f"which is left of {target} , {a} or {b} ?"
    if word == "yes-no":
        question = f"are {a} and {b} both left of {target} ?"
    answer = a if word == "alternative" else "no"
    return {"question": question, "start": [a, b], "answer": answer, "path": [[a, target]]}


ROWS = [
    row
    for number in range(10)
    for row in (special(number), compared(number, "alternative"), compared(number, "yes-no"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("multihop")
    lines = [json.dumps({"entity": name, "text": text}) for name, text in PARAGRAPHS.items()]
    (folder / "paragraphs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for split, rows in (("train", ROWS), ("valid", ROWS[:6]), ("test", ROWS[:9])):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    texts = [*PARAGRAPHS.values(), *(row["question"] for row in ROWS)]
    (folder / "corpus.txt").write_text("\n".join(texts * 3) + "\n", encoding="utf-8")
    result = lmlab.train(
        "cogqa",
        data=folder / "corpus.txt",
        out=folder / "base",
        size="tiny",
        steps=5,
        settings={"starts": "2", "max_graph_nodes": "5"},
        quiet=True,
    )
    return result.path


@pytest.fixture(scope="module")
def run(base: Path, folder: Path) -> Path:
    options = {"task": "hops", "data": folder, "steps": 30, "settings": SETTINGS, "quiet": True}
    return finetune(base, out=folder / "run", **options).path


def test_loaded_run_reproduces_its_predictions(run: Path):
    saved = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    model = load_task(run)
    answers = model.predict_with_details([{**row, "paragraphs": PARAGRAPHS} for row in ROWS[:9]])
    assert [each["answered"]["answer"] for each in saved] == [each.answer for each in answers]
    assert [each["answered"]["path"] for each in saved] == [
        list(map(list, e.path)) for e in answers
    ]
    metrics = json.loads((run / "evaluation.json").read_text())["metrics"]
    assert metrics["joint"] <= min(metrics["answer"], metrics["path"])
    assert set(metrics) >= {"answer special", "joint alternative", "joint yes-no", "reached"}


def test_load_task_opens_a_multihop_run(run: Path):
    model = lmlab.load_task(run)
    assert isinstance(model, MultihopModel)
    question = "what is left of left of c ?"
    [answer] = model.predict_with_details([{"question": question}])
    assert answer.as_dict() == load_task(run).answer(question).as_dict()


def test_system_settings_are_inherited_and_overridable(run: Path):
    settings = load_task(run).system.settings
    assert settings == CogQAConfig(starts=2, max_graph_nodes=5, predictor_width=7)


def test_loss_falls_in_both_training_stages(run: Path):
    for stage in ("spans", "nodes"):
        lines = [json.loads(x) for x in (run / stage / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if line["event"] == "train"]
        assert losses[-1] < losses[0], stage


def test_resume_is_idempotent_and_rejects_other_settings(run: Path, base: Path, folder: Path):
    before = (run / "model.safetensors").read_bytes()
    finetune(
        base,
        task="hops",
        data=folder,
        out=run,
        steps=30,
        settings=SETTINGS,
        resume=True,
        quiet=True,
    )
    assert (run / "model.safetensors").read_bytes() == before
    with pytest.raises(UserError, match="started with another task, run or data"):
        finetune(base, task="hops", data=folder, out=run, steps=30, resume=True, quiet=True)


@pytest.mark.parametrize("stopped", [CogQAReader, CogQANodeTraining], ids=["spans", "nodes"])
def test_resumed_training_equals_uninterrupted_training(
    stopped: type, run: Path, base: Path, folder: Path, tmp_path: Path, monkeypatch
):
    """Interrupted at step 12 of either stage, two steps after its last checkpoint."""
    settings = {**SETTINGS, "checkpoint_steps": "5"}
    options = {"data": folder, "out": tmp_path / "run", "steps": 30, "settings": settings}
    begin_step = stopped.begin_step

    def break_off(self, step: int) -> None:
        begin_step(self, step)
        if step == 12:
            raise RuntimeError("broken off")

    with monkeypatch.context() as patched:
        patched.setattr(stopped, "begin_step", break_off)
        with pytest.raises(RuntimeError, match="broken off"):
            finetune(base, task="hops", quiet=True, **options)
    finetune(base, task="hops", quiet=True, resume=True, **options)
    for name in ("model.safetensors", "predictions.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes(), name


OTHER_PROCESS = """
import json, sys, torch
from lmlab.data.wordnet.multihop_questions import multihop_questions
from lmlab.tasks.finetune import finetune
threads, base, data, out, settings, sizes = map(json.loads, sys.argv[1:])
torch.set_num_threads(threads)
finetune(base, task="hops", data=data, out=out, steps=30, settings=settings, quiet=True)
print(json.dumps(multihop_questions(sizes)))
"""


def test_training_is_reproducible_across_processes(
    run: Path, base: Path, folder: Path, tmp_path: Path
):
    """String hashes differ there, so that sets and samples from them have other orders."""
    sizes = {"train": 40, "test": 24}
    arguments = [
        torch.get_num_threads(),
        str(base),
        str(folder),
        str(tmp_path / "run"),
        SETTINGS,
        sizes,
    ]
    completed = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, *map(json.dumps, arguments)],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("model.safetensors", "predictions.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes(), name
    assert json.loads(completed.stdout.splitlines()[-1]) == multihop_questions(sizes)


def test_questions_use_the_paragraphs_stored_in_the_run(run: Path):
    model = load_task(run)
    assert model.paragraphs == PARAGRAPHS
    answer = model.answer("what is left of left of c ?")
    assert [node.name for node in answer.graph.nodes if node.start] == ["c"]
    assert answer.as_dict()["kind"] == "special"
    with pytest.raises(UserError, match="names no entity"):
        model.answer("what is left of z ?")


def run_command(*arguments: object) -> None:
    """A command in this process, which raises its errors."""
    app(args=[str(argument) for argument in arguments], standalone_mode=False)


def test_ask_command_answers_with_evidence(run: Path, capsys: pytest.CaptureFixture[str]):
    """`lmlab ask`: the evidence is the steps of the path."""
    question = "what is left of left of c ?"
    expected = load_task(run).answer(question)
    run_command("ask", run, question, "--json")
    [output] = json.loads(capsys.readouterr().out)
    if expected.answer:
        [answer] = output["answers"]
        assert answer["text"] == expected.answer
        assert answer["probability"] == pytest.approx(expected.probability)
        assert [each["text"] for each in answer["evidence"]] == [c for _, c in expected.evidence]
    else:
        assert output["answers"] == []
    with pytest.raises(UserError, match="documents does not apply to the task hops"):
        run_command("ask", run, question, "--documents", "capitals")
    with pytest.raises(UserError, match="gives one answer to a question, got 3"):
        run_command("ask", run, question, "-n", 3)


@pytest.mark.parametrize("show_evidence", [False, True])
def test_missing_answer_is_reported(
    run: Path,
    show_evidence: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """`ask` and `predict` print the same message, one line per question."""
    question = "what is left of left of c ?"
    unanswered = replace(load_task(run).answer(question), answer="")
    monkeypatch.setattr(
        MultihopModel, "predict_with_details", lambda self, rows: [unanswered] * len(rows)
    )
    evidence = ["--show-evidence"] if show_evidence else []
    run_command("ask", run, question, *evidence)
    assert capsys.readouterr().out == "(no answer)\n"
    run_command("predict", run, "--text", question)
    assert capsys.readouterr().out.splitlines()[0] == "(no answer)"


def test_joint_training_updates_the_reader_and_separate_not(base: Path, folder: Path):
    reader_unchanged = {}
    for joint in (False, True):
        out = folder / f"together-{joint}"
        settings = {"joint_training": joint, "learning_rate": 0.01}
        finetune(base, task="hops", data=folder, out=out, steps=3, settings=settings, quiet=True)
        reader = load_task(out).system.reader
        spans = CogQAReader(load_run(base).system, reader.settings)
        spans.load_state_dict(read_tensors(out / "spans" / "model.safetensors"))
        pairs = zip(spans.state_dict().values(), reader.state_dict().values(), strict=True)
        reader_unchanged[joint] = all(torch.equal(a, b) for a, b in pairs)
    assert reader_unchanged == {False: True, True: False}


def test_node_semantics_come_from_the_configured_layer(base: Path):
    """Layer 1 of 2, before the last; the reader's output equals the backbone's hidden states."""
    model = load_run(base)
    encoder = NodeEncoder(model.tokenizer, model.system.vocabulary, 60)
    encoded = encoder("what is left of a ?", "", PARAGRAPHS["a"])
    batch = Batch.collate([encoded.tokens], model.system.vocabulary.pad)
    by_layer = {
        layer: CogQAReader(model.system, CogQAConfig(semantics_layer=layer)).eval().read(batch)
        for layer in (0, 1, 2)
    }
    assert torch.equal(by_layer[0].semantics, by_layer[1].semantics)
    assert not torch.allclose(by_layer[1].semantics, by_layer[2].semantics)
    reader = CogQAReader(model.system, CogQAConfig()).eval()
    last, _ = reader._encode(batch)
    assert torch.equal(by_layer[2].semantics, last[:, 0])
    words = [model.tokenizer.token(token) for token in encoded.tokens]
    shown = [w for w, inside in zip(words, by_layer[0].allowed[0].tolist(), strict=True) if inside]
    assert " ".join(shown) == PARAGRAPHS["a"]


def test_empty_paragraph_has_no_spans_but_has_semantics(base: Path):
    model = load_run(base)
    reader = CogQAReader(model.system, CogQAConfig()).eval()
    encoder = NodeEncoder(model.tokenizer, model.system.vocabulary, 60)
    [spans] = reader.extract([encoder("what is left of a ?", "it is left of b .", "").tokens])
    assert spans.hops == spans.answers == []
    assert float(spans.semantics.norm()) > 0


def test_answer_loss_by_hand():
    """Scores 1 and 3: -log(e^3 / (e + e^3)) = log(1 + e^-2); log-odds 2: log(1 + e^∓2)."""
    expected = torch.tensor(2.0).neg().exp().log1p()
    scores = torch.tensor([1.0, 3.0])
    assert float(answer_loss(scores, "special", 1)) == pytest.approx(float(expected))
    odds = torch.tensor(2.0)
    assert float(answer_loss(odds, "yes-no", 1)) == pytest.approx(float(expected))
    assert float(answer_loss(odds, "alternative", 0)) == pytest.approx(float(expected))
    assert float(answer_loss(odds, "alternative", 1)) == pytest.approx(float(expected) + 2)


def test_node_training_has_the_state_dict_of_the_whole_model(base: Path):
    whole = CogQA(CogQAReader(load_run(base).system, CogQAConfig()))
    assert CogQANodeTraining(whole, []).state_dict().keys() == whole.state_dict().keys()
    assert not any(p.requires_grad for p in whole.reader.parameters())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object"),
        ('{"question": "what ?"}', "line 2: a row of hops needs question, start"),
        (json.dumps({**special(0), "start": ["z"]}), "line 2: no hop of the path leads to 'a'"),
    ],
)
def test_malformed_row_error_names_the_line(tmp_path: Path, folder: Path, line: str, message: str):
    shared = (folder / "paragraphs.jsonl").read_text(encoding="utf-8")
    (tmp_path / "paragraphs.jsonl").write_text(shared, encoding="utf-8")
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(special(0))}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_multihop_rows(tmp_path)


def test_malformed_paragraph_error_names_the_line(tmp_path: Path):
    (tmp_path / "paragraphs.jsonl").write_text('{"entity": "a"}\n', encoding="utf-8")
    (tmp_path / "train.jsonl").write_text(json.dumps(special(0)), encoding="utf-8")
    with pytest.raises(UserError, match=r"paragraphs\.jsonl, line 1: expected"):
        read_multihop_rows(tmp_path)
    with pytest.raises(UserError, match="choose from wordnet-hops"):
        read_multihop_rows("nowhere")


def test_plain_readers_use_first_or_retrieved_paragraphs(base: Path, folder: Path):
    pytest.importorskip("bm25s", reason="BM25 needs lmlab[retrieval]")
    rows = {
        name: [MultihopRow.from_row(r) for r in retrieved_names]
        for name, retrieved_names in read_multihop_rows(folder).items()
    }
    plain = train_plain_reader(
        load_run(base),
        rows,
        PARAGRAPHS,
        config=with_budget(TrainingConfig(), steps=2),
        out=folder / "plain",
        settings=CogQAConfig(),
        retrieved=3,
    )
    # The letter itself and its two neighbours are the only paragraphs that name it.
    [retrieved_names] = plain.retrieve(["what is left of left of d ?"])
    assert set(retrieved_names) == {"c", "d", "e"}
    examples = list(plain_examples(plain, rows["train"][:1]))
    # Left of left of a: the paragraph of b names c; those of a and j, retrieved too, do not.
    assert [each.labels[2] != [0] for each in examples] == [True, False, False]
    for answers in (plain.answer_first(rows["test"]), plain.answer_retrieved(rows["test"])):
        assert len(answers) == 9
        assert answers[2] == "yes"


def test_predict_command_outputs_path_and_graph(run: Path, tmp_path: Path):
    figure = tmp_path / "graph.svg"
    command = ["predict", str(run), "--text", "what is left of left of c ?", "--json"]
    completed = CliRunner().invoke(app, [*command, "--graph", str(figure)])
    assert completed.exit_code == 0, completed.output
    [answer] = json.loads(completed.stdout)
    assert {"question", "answer", "path", "graph", "evidence"} <= answer.keys()
    assert answer["graph"]["nodes"][0] == {"name": "c", "answer": False, "start": True}
    assert figure.read_text(encoding="utf-8").startswith("<svg")


def test_plain_reader_chooses_one_of_the_compared_entities():
    """The one whose paragraph more probably holds an answer; an unread one holds none."""
    comparison = MultihopQuestion(
        text="which is larger , axle or wheel ?", start=("axle", "wheel"), paragraphs={}
    )
    other = ParagraphPrediction(best=(0.9, "spoke"), no_answer_probability=0.0)
    for axle, wheel, right in (
        (0.2, 0.7, "axle"),
        (0.7, 0.2, "wheel"),
        (0.6, None, "axle"),
        (1.0, 0.9, "wheel"),
    ):
        read_paragraphs = {
            "axle": ParagraphPrediction(best=(0.1, "rim"), no_answer_probability=axle),
            "spoke": other,
        }
        if wheel is not None:
            read_paragraphs["wheel"] = ParagraphPrediction(
                best=(0.8, "hub"), no_answer_probability=wheel
            )
        assert select_answer(comparison, read_paragraphs) == right
    special = MultihopQuestion(text="what is the part of axle ?", start=("axle",), paragraphs={})
    assert (
        select_answer(
            special,
            {
                "axle": ParagraphPrediction(best=(0.1, "rim"), no_answer_probability=0.1),
                "spoke": other,
            },
        )
        == "spoke"
    )
    assert select_answer(special, {}) == ""
