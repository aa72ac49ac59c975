"""`lmlab ask` on a system trained for a moment to copy answers from documents."""

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
    told = [
        json.dumps({"name": name, "text": f"{name} is in the {place}"}) for name, place in pairs
    ]
    documents = write(folder / "documents.jsonl", told)
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


def test_an_answer_comes_with_its_probability_and_what_it_rests_on(lmlab: Command, run: Path):
    found = lmlab("ask", run, "where is bob", "--show-evidence")
    assert found.code == 0
    answer, header, first, *_ = found.out.splitlines()
    share, text = answer.split("\t")
    assert text == "barn" and 0.5 < float(share) <= 1
    assert header.split() == ["probability", "looked", "up", "it", "says"]
    assert first.strip().split(maxsplit=2)[1:] == ["bob", "bob is in the barn"]


def test_an_empty_answer_is_said_and_an_empty_line_stays_one(
    lmlab: Command, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    empty = AnsweredQuestion(question="why", answers=(Answer(text=" ", log_prob=math.log(0.25)),))
    print_answers([empty, None, AnsweredQuestion(question="who", answers=())], evidence=False)
    assert capfd.readouterr().out == "0.2500\t(no answer)\n\n(no answer)\n"
    file = write(tmp_path / "questions.txt", ["where is bob", "", "where is eve"])
    answers = [line.split("\t")[-1] for line in lmlab("ask", run, file).out.splitlines()]
    assert answers == ["barn", "", "hall"]


def test_what_held_out_questions_find_is_written_down_as_training_goes_on(run: Path):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    looks = [line for line in lines if line["event"] == "looked up"]
    assert looks
    for line in looks:
        for text in line["texts"]:
            assert text["text"].startswith("where is")
            assert set(text["documents"]) <= {*NAMES}
            assert sum(text["documents"].values()) == pytest.approx(1, abs=1e-5)


def test_json_tells_all_answers_and_all_evidence(lmlab: Command, run: Path):
    [asked] = json.loads(lmlab("ask", run, "where is eve", "-n", 3, "--json").out)
    assert asked["question"] == "where is eve" and len(asked["answers"]) == 3
    shares = [answer["probability"] for answer in asked["answers"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1 + 1e-6
    for answer in asked["answers"]:
        assert answer["probability"] == pytest.approx(math.exp(answer["log_prob"]))
        evidence = [each["probability"] for each in answer["evidence"]]
        assert len(evidence) == 3 and sum(evidence) == pytest.approx(1, abs=1e-5)


def test_ways_of_decoding_agree_on_what_is_certain(lmlab: Command, run: Path):
    """Fast counts too little and never too much; beam on the exact law is no worse than greedy."""
    found = {
        method: json.loads(lmlab("ask", run, "where is dan", "--method", method, "--json").out)
        for method in ("thorough", "fast", "beam", "greedy", "sample")
    }
    best = {method: asked[0]["answers"][0] for method, asked in found.items()}
    assert {best[m]["text"] for m in ("thorough", "fast", "beam", "greedy")} == {"garden"}
    exact = best["thorough"]["log_prob"]
    assert best["beam"]["log_prob"] == pytest.approx(exact, abs=1e-5)
    assert best["greedy"]["log_prob"] == pytest.approx(exact, abs=1e-5)
    assert best["fast"]["log_prob"] <= exact + 1e-6


def test_questions_come_from_a_file_in_their_order(lmlab: Command, run: Path, tmp_path: Path):
    file = write(tmp_path / "questions.txt", [f"where is {name}" for name in NAMES])
    found = lmlab("ask", run, "--file", file, "--method", "greedy")
    answers = [line.split("\t")[1] for line in found.out.splitlines()]
    assert answers == [*PLACES]
    nothing = lmlab("ask", run)
    assert nothing.code == 2 and "give exactly one of" in nothing.err


def test_other_documents_are_looked_up_instead(lmlab: Command, run: Path, tmp_path: Path):
    """Of a file and of an index: the evidence is theirs."""
    told = [json.dumps({"name": "n", "text": "bob is in the kitchen"})]
    documents = write(tmp_path / "other.jsonl", told)
    index = tmp_path / "index"
    laboratory.build_index(documents, "bm25", index)
    for option, where in (("--documents", documents), ("--index", index)):
        found = lmlab("ask", run, "where is bob", option, where, "--json")
        [asked] = json.loads(found.out)
        assert [each["text"] for each in asked["answers"][0]["evidence"]] == [
            "bob is in the kitchen"
        ]
    both = lmlab("ask", run, "where is bob", "--documents", documents, "--index", index)
    assert both.code == 2 and "not both" in both.err


def test_vectors_of_an_index_serve_where_the_run_made_them(
    lmlab: Command, run: Path, tmp_path: Path
):
    """Those of two documents exchanged on the disk: what was found is exchanged too."""
    told = [json.dumps({"name": n, "text": f"{n} is in the barn"}) for n in ("ann", "bob")]
    documents, index = write(tmp_path / "docs.jsonl", told), tmp_path / "index"
    laboratory.build_index(documents, run, index)

    def first_found() -> str:
        found = lmlab("ask", run, "where is bob", "--index", index, "--json", "--no-verify")
        assert (found.code, found.err) == (0, "")
        return json.loads(found.out)[0]["answers"][0]["evidence"][0]["name"]

    assert first_found() == "bob"
    vectors = np.load(index / "vectors.npy")
    np.save(index / "vectors.npy", vectors[::-1].copy())
    assert first_found() == "ann"
    laboratory.build_index(documents, "bm25", tmp_path / "words")
    anew = lmlab("ask", run, "where is bob", "--index", tmp_path / "words")
    assert anew.code == 0 and "built by words (bm25) and not by this run" in anew.err
    # Cut short, and of another width than the index says.
    np.save(index / "vectors.npy", vectors[:1])
    cut = lmlab("ask", run, "where is bob", "--index", index, "--no-verify")
    assert cut.code == 2 and "cut short; build the index again" in cut.err
    np.save(index / "vectors.npy", vectors.reshape(vectors.shape[1], 2))
    narrow = lmlab("ask", run, "where is bob", "--index", index, "--no-verify")
    assert narrow.code == 2 and "build the index again" in narrow.err


@pytest.mark.parametrize(
    ("arguments", "told"),
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
def test_mistakes_are_told_in_one_sentence(lmlab: Command, run: Path, arguments, told: str):
    found = lmlab("ask", run, *arguments)
    assert found.code == 2 and told in found.err
    assert found.err.count("\n") == 1


def test_the_least_that_may_be_given_is_heard(lmlab: Command, run: Path):
    """One token of an answer, one open hypothesis: 0 would be refused, and the default is more."""
    found = lmlab("ask", run, "where is bob", "--beam", 1, "--max-length", 1, "--json")
    [asked] = json.loads(found.out)
    assert all(len(answer["text"].split()) <= 1 for answer in asked["answers"])
    drawn = lmlab("ask", run, "where is bob", "--method", "sample", "-n", 3, "--json")
    assert len(json.loads(drawn.out)[0]["answers"]) == 3


def test_who_can_not_answer_says_who_can(lmlab: Command, runs: dict[str, Path]):
    found = lmlab("ask", runs["ngram"], "where is bob")
    assert found.code == 2 and "rag-token" in found.err and "Ask" in found.err


def test_pictures_name_documents_by_the_question_they_were_found_for(run: Path):
    subject = make_inspected_model(load_run(run))
    pictures = {picture.name: picture for picture in collected_capture_figures(subject)}
    [grid] = pictures["retrieved-documents"].draw.keywords["grids"]
    sentences = (*subject.sentences, *subject.sample)[:COMPARED_SENTENCES]
    assert grid.rows.labels == tuple(each.condition for each in sentences)
    assert set(grid.rows.labels) <= {f"where is {name}" for name in NAMES}


def test_the_same_from_python(run: Path):
    model = laboratory.load(run)
    [asked] = model.ask(["where is fay"], answers=2)
    assert asked.text == "kitchen" and len(asked.answers) == 2
    own = model.system.ask(["where is fay"])[0][0]
    assert own.text == "kitchen"
    assert own.evidence == asked.answers[0].evidence
    with pytest.raises(UserError, match="list"):
        model.ask("where is fay")
