"""DPR against sums worked by hand, and the inverse cloze against the text it was cut from."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.dual_encoder import DualEncoder, equal_rows, in_batch_log_probs
from lmlab.objectives.inverse_cloze import InverseClozeTask
from lmlab.retrieval.bm25 import BM25Negatives

VOCABULARY = Vocabulary(size=9)
START, END = 2, 3


def rows(*texts: list[int], condition: Batch | None = None) -> Batch:
    framed = [[START, *text, END] for text in texts]
    return Batch.collate(framed, pad=0, condition=condition)


def build(**settings) -> DualEncoder:
    module = system_module("dpr")
    torch.manual_seed(0)
    words = {"width": 8, "layers": 1, "heads": 2, "vector_width": 4, "dropout": 0.0}
    return module.build(module.Config(**words | settings), VOCABULARY).eval()


def test_in_batch_softmax_by_hand():
    """Scores 1 and 0, 0 and 2: log(e / (e + 1)) and log(e² / (e² + 1))."""
    scores = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    actual = in_batch_log_probs(scores, torch.eye(2, dtype=torch.bool)).diagonal().tolist()
    expected = [math.log(math.e / (math.e + 1)), math.log(math.e**2 / (math.e**2 + 1))]
    assert actual == pytest.approx(expected)


def test_identical_documents_are_no_negatives():
    """Of three documents the first and the last are one: each question chooses between two."""
    same = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    result = in_batch_log_probs(torch.zeros(3, 3), same)
    assert result.diagonal().tolist() == pytest.approx([-math.log(2), -math.log(3), -math.log(2)])
    assert result[0, 2] == -torch.inf


def test_equal_rows_ignores_padding():
    first, second = rows([5, 6], [5]), rows([5], [5, 6], [5, 6, 6])
    assert equal_rows(first, second).tolist() == [[False, True, False], [True, False, False]]


@pytest.mark.parametrize("shared", ["all", "tokens", "nothing"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_loss_equals_loops_over_pairs(shared: str, pooling: str):
    system = build(shared_encoders=shared, pooling=pooling)
    questions = [[5], [6, 7, 5], [8, 8]]
    documents = [[5, 5, 6], [7], [7, 8]]
    batch = rows(*documents, condition=rows(*questions))
    with torch.no_grad():
        total = 0.0
        for i, question in enumerate(questions):
            q = system.encode_queries(rows(question))[0]
            scores = [float(q @ system.encode(rows(document))[0]) for document in documents]
            total -= scores[i] - math.log(sum(math.exp(score) for score in scores))
        loss, _ = system.loss(batch)
    assert loss.total.item() == pytest.approx(total, abs=1e-5)
    assert loss.count.item() == 3


def test_hard_negatives_equal_bm25s_top_results():
    """Against `bm25s`, an independent implementation, on the same documents."""
    bm25s = pytest.importorskip("bm25s")
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, 5, 60, generator=generator)
    documents = [draw((int(n),)).tolist() for n in torch.randint(3, 12, (80,), generator=generator)]
    questions = [draw((5,)).tolist() for _ in range(20)]
    result = BM25Negatives(Vocabulary(size=60), count=2)
    result.setup_documents([[START, *each, END] for each in [*documents, documents[0]]])
    own = list(range(20))
    theirs = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    theirs.index([[str(token) for token in each] for each in documents], show_progress=False)
    ours = result.find(rows(*questions), rows(*(documents[n] for n in own)))
    for row, question in enumerate(questions):
        known = [str(t) for t in question if str(t) in theirs.vocab_dict]
        scores = theirs.get_scores(known)
        scores[own[row]] = -1.0
        got = ours.tokens[2 * row : 2 * row + 2], ours.lengths[2 * row : 2 * row + 2]
        texts = [t[1 : n - 1].tolist() for t, n in zip(*map(list, got), strict=True)]
        numbers = [documents.index(text) for text in texts]
        assert own[row] not in numbers
        assert scores[numbers] == pytest.approx(sorted(scores)[:-3:-1], rel=1e-5)


def test_hard_negatives_are_shared_across_the_batch():
    """Five documents by loops: those of three questions, and the wrong ones of the first two."""
    questions, documents = [[5], [6, 7, 5], [8, 8]], [[5, 5, 6], [7], [7, 8]]
    batch = rows(*documents, condition=rows(*questions))
    wrong = [[8, 5], [6, 6]]

    class FixedNegatives:
        def setup_documents(self, documents: list) -> None: ...

        def find(self, questions: Batch, own: Batch) -> Batch:
            return rows(*wrong, documents[2])

    system = build()
    system.negatives = FixedNegatives()
    with torch.no_grad():
        total = 0.0
        for i, question in enumerate(questions):
            q = system.encode_queries(rows(question))[0]
            # The right document of the third question is no wrong one of its own.
            others = [*documents, *wrong, *([documents[2]] if i < 2 else [])]
            scores = [float(q @ system.encode(rows(document))[0]) for document in others]
            total -= scores[i] - math.log(sum(math.exp(score) for score in scores))
        loss, _ = system.loss(batch)
    assert loss.total.item() == pytest.approx(total, abs=1e-5)


def test_hard_negatives_come_from_the_training_split():
    system = build(hard_negatives=1)
    texts = [[START, 5, 6, END], [START, 5, 7, END], [START, 8, END]]
    flat, offsets = np.concatenate(texts), np.array([0, 4, 8, 11])
    batch = rows([5, 6], condition=rows([5]))
    assert system.loss(batch)[0].total.item() == 0  # a single document, and none is known yet
    system.setup_data(flat, offsets)
    with torch.no_grad():
        q = system.encode_queries(rows([5]))[0]
        right, wrong = (float(q @ system.encode(rows(each))[0]) for each in ([5, 6], [5, 7]))
    expected = math.log(1 + math.exp(wrong - right))
    assert system.loss(batch)[0].total.item() == pytest.approx(expected, abs=1e-5)


def test_shared_encoders_reduce_the_parameter_count():
    sizes = {
        shared: build(shared_encoders=shared).parameter_count
        for shared in ("all", "tokens", "nothing")
    }
    embedding = 9 * 8
    assert sizes["nothing"] - sizes["tokens"] == embedding
    assert sizes["all"] < sizes["tokens"]


def test_score_is_normalised_over_training_documents():
    """Three stored documents; the score is normalised over them and the text, not the batch."""
    system = build()
    kept = [[5, 6], [7], [8, 5, 5]]
    flat = torch.tensor([i for text in kept for i in (START, *text, END)]).numpy()
    offsets = torch.tensor([0, 4, 7, 12]).numpy()
    system.setup_data(flat, offsets)
    batch = rows([6, 6], condition=rows([5]))
    with torch.no_grad():
        q = system.encode_queries(rows([5]))[0]
        own, *others = (float(q @ system.encode(rows(text))[0]) for text in ([6, 6], *kept))
        result = system.log_prob(batch)
    every = [math.exp(score) for score in (own, *others)]
    assert result.totals.item() == pytest.approx(own - math.log(sum(every) / len(every)), abs=1e-5)
    assert result.kind == "unnormalised"


def test_inverse_cloze_question_and_document_form_the_text():
    cloze = InverseClozeTask(vocabulary=VOCABULARY, keep_rate=0.0)
    texts = [[5, 6, 7, 8, 5, 5, 7], [6, 8], [5], [7, 7, 8]] * 20
    batch, seen = rows(*texts), set()
    cut = cloze.sample(batch, generator=torch.Generator().manual_seed(0))
    for i, text in enumerate(texts):
        question = cut.questions.tokens[i, 1 : cut.questions.lengths[i] - 1].tolist()
        document = cut.documents.tokens[i, 1 : cut.documents.lengths[i] - 1].tolist()
        assert 1 <= len(question) <= max(1, len(text) // 2)
        firsts = range(len(document) + 1)
        assert text in [[*document[:f], *question, *document[f:]] for f in firsts]
        seen.add((i % 4, tuple(question)))
    assert {(1, (6,)), (1, (8,)), (2, (5,))} <= seen
    assert len({question for row, question in seen if row == 0}) > 5


def test_inverse_cloze_may_keep_the_question():
    batch = rows([5, 6, 7, 8], [6])
    cut = InverseClozeTask(vocabulary=VOCABULARY, keep_rate=1.0).sample(batch)
    assert torch.equal(cut.documents.tokens, batch.tokens)
    assert torch.equal(cut.documents.lengths, batch.lengths)


def test_inverse_cloze_enumerates_all_cuts():
    """Two of five tokens are cut out, at four positions; of one token that one, of none none."""
    batch = rows([5, 6, 7, 8, 5], [6], [])
    cuts = list(InverseClozeTask(vocabulary=VOCABULARY).every(batch))
    assert [real.tolist() for real, _ in cuts] == [[True, True, True]] + [[True, False, False]] * 3
    questions = [cut.questions.tokens[0, 1:3].tolist() for _, cut in cuts]
    assert questions == [[5, 6], [6, 7], [7, 8], [8, 5]]
    documents = [cut.documents.tokens[0, 1:4].tolist() for _, cut in cuts]
    assert documents == [[7, 8, 5], [5, 8, 5], [5, 6, 5], [5, 6, 7]]
    assert cuts[0][1].questions.lengths.tolist() == [4, 3, 2]
    assert cuts[0][1].documents.lengths.tolist() == [5, 2, 2]
