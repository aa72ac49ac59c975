"""Minimal pairs on a system whose scores are set by hand."""

from __future__ import annotations

import gzip
import json
import math

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.system import System
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.minimal_pairs import UNLABELLED, read_minimal_pairs, score_minimal_pair_files
from lmlab.scoring.scorer import Scorer

WORDS = {"good": -1.0, "fair": -2.0, "bad": -3.0, "</s>": -1.0, "<unk>": -9.0}


class UnigramEnergy(System):
    """Unnormalised unigram scores: every word has one score, at any position."""

    def __init__(self, tokenizer) -> None:
        super().__init__()
        self.vocabulary = tokenizer.vocabulary
        self.energies = torch.zeros(self.vocabulary.size)
        for word, value in WORDS.items():
            self.energies[tokenizer.id(word)] = value

    def log_prob(self, batch, *, state=None, generator=None):
        per_token = self.energies[batch.tokens[:, 1:]] * batch.targets_mask()[:, 1:]
        return LogProbs(per_token=per_token, kind="unnormalised")


@pytest.fixture
def scorer():
    tokenizer = train_tokenizer("word", ["good fair bad"])
    return Scorer(UnigramEnergy(tokenizer), tokenizer, Layout())


def write_jsonl(path, *rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8")
    return path


def pair(good, bad, term=None, uid=None, **more):
    row = {"sentence_good": good, "sentence_bad": bad} | more
    row |= {} if term is None else {"linguistics_term": term}
    return row | ({} if uid is None else {"UID": uid})


def test_accuracy_by_file_phenomenon_and_paradigm(scorer, tmp_path):
    first = write_jsonl(
        tmp_path / "one.jsonl",
        pair("good good", "good bad", "agreement", "a1"),  # -3 against -5: right
        pair("bad", "good", "agreement", "a1"),  # -4 against -2: wrong
        pair("good", "good", "binding", "b1"),  # equal: a tie, so wrong
    )
    second = write_jsonl(
        tmp_path / "two.jsonl",
        # -4 against -4 in all: a tie; by token -4/4 = -1 against -4/2 = -2: right.
        pair("good good good", "bad", "binding", "b2"),
        pair("good", "fair", phenomenon="islands"),
        pair("good zebra", "bad zebra"),
    )
    report = score_minimal_pair_files(scorer, [first, second])
    assert (report.overall.pairs, report.overall.right, report.overall.ties) == (6, 3, 2)
    assert report.overall.right_per_token == 4
    assert report.overall.with_unknown == 1
    assert {a.name: (a.right, a.pairs) for a in report.files} == {
        str(first): (1, 3),
        str(second): (2, 3),
    }
    assert {a.name: (a.right, a.pairs) for a in report.phenomena} == {
        "agreement": (1, 2),
        "binding": (0, 2),
        "islands": (1, 1),
        UNLABELLED: (1, 1),
    }
    assert {a.name: a.accuracy for a in report.paradigms} == {"a1": 0.5, "b1": 0.0, "b2": 0.0}
    assert report.kind == "unnormalised"


def test_standard_error_is_binomial(scorer, tmp_path):
    rows = [pair("good", "bad")] * 3 + [pair("bad", "good")]
    report = score_minimal_pair_files(scorer, [write_jsonl(tmp_path / "pairs.jsonl", *rows)])
    # a = 3/4 of n = 4: √(3/4 · 1/4 / 4) = √3 / 8.
    assert report.overall.accuracy == 0.75
    assert report.overall.standard_error == pytest.approx(math.sqrt(3) / 8)
    json.dumps(report.as_dict())
    assert report.as_dict()["overall"]["accuracy"] == 0.75


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 3: this is not JSON"),
        ("[1]", "line 3: expected a JSON object, not list"),
        ('{"sentence_good": "a"}', "line 3: expected a sentence under 'sentence_bad'"),
        ('{"sentence_good": 5, "sentence_bad": "b"}', "line 3: .*'sentence_good'"),
    ],
)
def test_malformed_row_error_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "broken.jsonl"
    good = json.dumps(pair("a", "b"))
    path.write_text(f"{good}\n\n{text}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"broken.jsonl, {message}"):
        list(read_minimal_pairs([path]))


def test_missing_and_empty_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="no file"):
        list(read_minimal_pairs([tmp_path / "absent.jsonl"]))
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="no pair"):
        list(read_minimal_pairs([tmp_path / "empty.jsonl"]))


def test_gzip_file_is_read_with_line_numbers(tmp_path):
    path = tmp_path / "pairs.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(pair("a", "b", "t", "u")) + "\n").encode()))
    (parsed,) = read_minimal_pairs([path])
    assert (parsed.good, parsed.bad, parsed.phenomenon, parsed.uid, parsed.line) == (
        "a",
        "b",
        "t",
        "u",
        1,
    )


def test_contiguous_models_score_pair_sentences_independently(
    word_tokenizer, tiny_recurrent, tmp_path
):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scorer = Scorer(system, word_tokenizer, Layout(kind="contiguous"))
    rows = [pair("the cat sat", "cat the sat"), pair("a dog", "dog a")]
    whole = score_minimal_pair_files(scorer, [write_jsonl(tmp_path / "both.jsonl", *rows)])
    alone = [
        score_minimal_pair_files(scorer, [write_jsonl(tmp_path / f"{i}.jsonl", r)])
        for i, r in enumerate(rows)
    ]
    assert whole.overall.right == sum(each.overall.right for each in alone)
    assert not whole.convention.state_carried
