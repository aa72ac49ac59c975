"""`lmlab ask` on a briefly trained RAG model that copies answers from documents."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import lmlab as laboratory
from lmlab.cli.ask import print_answers
from lmlab.core.answers import Answer
from lmlab.core.errors import UserError
from lmlab.inspection.capture_collection import COMPARED_SENTENCES, collected_capture_figures
from lmlab.inspection.inspected_models import make_inspected_model
from lmlab.sampling.question_answering import AnsweredQuestion
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

from .conftest import Command

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay")
PLACES = ("attic", "barn", "cellar", "garden", "hall", "kitchen")


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    pairs = list(zip(NAMES, PLACES, strict=True))
    data = write(folder / "pairs.tsv", [f"where is {n}\t{p}" for n, p in pairs] * 8)
    rows = [
        json.dumps({"name": name, "text": f"{name} is in the {place}"}) for name, place in pairs
    ]
    documents = write(folder / "documents.jsonl", rows)
    out = folder / "run"
    settings = {"learning_rate": 0.01, "tokens_per_batch": 400, "width": 32, "retrieved": 3}
    train(
        "rag-sequence",
        data=str(data),
        documents=str(documents),
        out=out,
        size="tiny",
        settings=settings,
        steps=100,
        quiet=True,
    )
    return out


def test_answer_has_probability_and_evidence(lmlab: Command, run: Path):
    result = lmlab("ask", run, "where is bob", "--show-evidence")
    assert result.code == 0
    answer, header, first, *_ = result.out.splitlines()
    probability, text = answer.split("\t")
    assert text == "barn" and 0.5 < float(probability) <= 1
    assert header.split() == ["probability", "looked", "up", "it", "says"]
    assert first.strip().split(maxsplit=2)[1:] == ["bob", "bob is in the barn"]


def test_empty_answer_is_shown_and_empty_line_is_kept(
    lmlab: Command, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    empty = AnsweredQuestion(question="why", answers=(Answer(text=" ", log_prob=math.log(0.25)),))
    print_answers([empty, None, AnsweredQuestion(question="who", answers=())], evidence=False)
    assert capfd.readouterr().out == "0.2500\t(no answer)\n\n(no answer)\n"
    file = write(tmp_path / "questions.txt", ["where is bob", "", "where is eve"])
    answers = [line.split("\t")[-1] for line in lmlab("ask", run, file).out.splitlines()]
    assert answers == ["barn", "", "hall"]


def test_training_logs_retrieved_validation_documents(run: Path):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    retrievals = [line for line in lines if line["event"] == "looked up"]
    assert retrievals
    for line in retrievals:
        for text in line["texts"]:
            assert text["text"].startswith("where is")
            assert set(text["documents"]) <= {*NAMES}
            assert sum(text["documents"].values()) == pytest.approx(1, abs=1e-5)


def test_json_has_all_answers_and_evidence(lmlab: Command, run: Path):
    [record] = json.loads(lmlab("ask", run, "where is eve", "-n", 3, "--json").out)
    assert record["question"] == "where is eve" and len(record["answers"]) == 3
    probabilities = [answer["probability"] for answer in record["answers"]]
    assert probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1 + 1e-6
    for answer in record["answers"]:
        assert answer["probability"] == pytest.approx(math.exp(answer["log_prob"]))
        evidence = [document["probability"] for document in answer["evidence"]]
        assert len(evidence) == 3 and sum(evidence) == pytest.approx(1, abs=1e-5)


def test_decoding_methods_agree_on_a_certain_answer(lmlab: Command, run: Path):
    """Fast decoding underestimates the probability; beam and greedy equal the exact one here."""
    outputs = {
        method: json.loads(lmlab("ask", run, "where is dan", "--method", method, "--json").out)
        for method in ("thorough", "fast", "beam", "greedy", "sample")
    }
    best = {method: output[0]["answers"][0] for method, output in outputs.items()}
    assert {best[m]["text"] for m in ("thorough", "fast", "beam", "greedy")} == {"garden"}
    exact = best["thorough"]["log_prob"]
    assert best["beam"]["log_prob"] == pytest.approx(exact, abs=1e-5)
    assert best["greedy"]["log_prob"] == pytest.approx(exact, abs=1e-5)
    assert best["fast"]["log_prob"] <= exact + 1e-6


def test_questions_from_a_file_keep_their_order(lmlab: Command, run: Path, tmp_path: Path):
    file = write(tmp_path / "questions.txt", [f"where is {name}" for name in NAMES])
    result = lmlab("ask", run, "--file", file, "--method", "greedy")
    answers = [line.split("\t")[1] for line in result.out.splitlines()]
    assert answers == [*PLACES]
    nothing = lmlab("ask", run)
    assert nothing.code == 2 and "give exactly one of" in nothing.err


def test_documents_and_index_options_replace_the_store(lmlab: Command, run: Path, tmp_path: Path):
    """Evidence comes from the given file or index."""
    rows = [json.dumps({"name": "n", "text": "bob is in the kitchen"})]
    documents = write(tmp_path / "other.jsonl", rows)
    index = tmp_path / "index"
    laboratory.index_build(documents, "bm25", index)
    for option, where in (("--documents", documents), ("--index", index)):
        result = lmlab("ask", run, "where is bob", option, where, "--json")
        [record] = json.loads(result.out)
        assert [document["text"] for document in record["answers"][0]["evidence"]] == [
            "bob is in the kitchen"
        ]
    both = lmlab("ask", run, "where is bob", "--documents", documents, "--index", index)
    assert both.code == 2 and "not both" in both.err


def test_index_vectors_are_used_if_built_by_the_run(lmlab: Command, run: Path, tmp_path: Path):
    """Swapping the stored vectors of two documents swaps the retrieved evidence."""
    rows = [json.dumps({"name": n, "text": f"{n} is in the barn"}) for n in ("ann", "bob")]
    documents, index = write(tmp_path / "docs.jsonl", rows), tmp_path / "index"
    laboratory.index_build(documents, run, index)

    def first_evidence() -> str:
        result = lmlab("ask", run, "where is bob", "--index", index, "--json", "--no-verify")
        assert (result.code, result.err) == (0, "")
        return json.loads(result.out)[0]["answers"][0]["evidence"][0]["name"]

    assert first_evidence() == "bob"
    vectors = np.load(index / "vectors.npy")
    np.save(index / "vectors.npy", vectors[::-1].copy())
    assert first_evidence() == "ann"
    laboratory.index_build(documents, "bm25", tmp_path / "words")
    rebuilt = lmlab("ask", run, "where is bob", "--index", tmp_path / "words")
    assert rebuilt.code == 0 and "built by words (bm25) and not by this run" in rebuilt.err
    # Truncated vectors, and vectors of another width than the metadata says.
    np.save(index / "vectors.npy", vectors[:1])
    cut = lmlab("ask", run, "where is bob", "--index", index, "--no-verify")
    assert cut.code == 2 and "cut short; build the index again" in cut.err
    np.save(index / "vectors.npy", vectors.reshape(vectors.shape[1], 2))
    narrow = lmlab("ask", run, "where is bob", "--index", index, "--no-verify")
    assert narrow.code == 2 and "build the index again" in narrow.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("where is " + "bob " * 60,), "at most 49 tokens"),
        (("where is bob", "--method", "thoroug"), "thorough"),
        (("where is bob", "--method", "greedy", "--beam", 3), "beam does not apply"),
        (("where is bob", "-n", 0), "number of answers must be 1 or more"),
        (
            ("where is bob", "-n", 3, "--method", "greedy"),
            "answers must be 1 for the method greedy, got 3",
        ),
        (("where is bob", "--max-length", 0), "max-length must be 1 or more, got 0"),
        (("where is bob", "--max-length", -1), "max-length must be 1 or more, got -1"),
        (("where is bob", "--beam", 0), "beam must be 1 or more, got 0"),
        (("where is bob", "--documents", "nowhere"), "nowhere"),
        (("where is bob", "--knowledge", "capitals"), "only to a system with a memory of facts"),
        (("where is bob", "--fact", "bob is here"), "SUBJECT | RELATION | OBJECT"),
    ],
)
def test_usage_errors_are_one_sentence(lmlab: Command, run: Path, arguments, message: str):
    result = lmlab("ask", run, *arguments)
    assert result.code == 2 and message in result.err
    assert result.err.count("\n") == 1


def test_smallest_beam_and_max_length_are_accepted(lmlab: Command, run: Path):
    """Beam width 1 and a maximum length of one token."""
    result = lmlab("ask", run, "where is bob", "--beam", 1, "--max-length", 1, "--json")
    [record] = json.loads(result.out)
    assert all(len(answer["text"].split()) <= 1 for answer in record["answers"])
    sampled = lmlab("ask", run, "where is bob", "--method", "sample", "-n", 3, "--json")
    assert len(json.loads(sampled.out)[0]["answers"]) == 3


def test_system_without_ask_is_refused_with_alternatives(lmlab: Command, runs: dict[str, Path]):
    result = lmlab("ask", runs["ngram"], "where is bob")
    assert result.code == 2 and "rag-token" in result.err and "Ask" in result.err


def test_retrieval_figure_labels_rows_by_question(run: Path):
    inspected = make_inspected_model(load_run(run))
    figures = {figure.name: figure for figure in collected_capture_figures(inspected)}
    [grid] = figures["retrieved-documents"].draw.keywords["grids"]
    sentences = (*inspected.sentences, *inspected.sample)[:COMPARED_SENTENCES]
    assert grid.rows.labels == tuple(sentence.condition for sentence in sentences)
    assert set(grid.rows.labels) <= {f"where is {name}" for name in NAMES}


def test_python_api_gives_the_same_answers(run: Path):
    model = laboratory.load(run)
    [answered] = model.ask(["where is fay"], answers=2)
    assert answered.text == "kitchen" and len(answered.answers) == 2
    direct = model.system.ask(["where is fay"])[0][0]
    assert direct.text == "kitchen"
    assert direct.evidence == answered.answers[0].evidence
    with pytest.raises(UserError, match="list"):
        model.ask("where is fay")
