"""REALM's answers from documents against loops over all documents and all their spans."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.readers import Example
from lmlab.models.open_qa import OpenQAModel
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.retrieval.documents import Document, Documents
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b", "c", "d", "e", "f"]
VOCABULARY = Vocabulary(size=len(WORDS))
START, END = 2, 3
TEXTS = ["a b c", "b b", "c d e f", "e", "f a b"]
DOCUMENTS = Documents(Document(name=str(i), text=text) for i, text in enumerate(TEXTS))
LONGEST = 2


class Letters:
    """A tokenizer of the words above."""

    kind = "word"

    def token(self, id: int) -> str:
        return WORDS[id]

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(word) for word in text.split()]

    def decode(self, ids: tuple[int, ...]) -> str:
        return " ".join(WORDS[id] for id in ids)


def build(**settings) -> OpenQAModel:
    module = system_module("realm")
    torch.manual_seed(0)
    words = {"width": 8, "layers": 1, "heads": 2, "vector_width": 4, "dropout": 0.0}
    words |= {"attention_dropout": 0.0, "retrieved": len(TEXTS), "length": 12}
    words |= {"document_length": 8, "max_answer_length": LONGEST, "objective": "spans"}
    system = module.build(module.Config(**words | settings), VOCABULARY, documents=DOCUMENTS)
    system.double().setup_tokenizer(Letters())
    system.retriever.embed()
    return system.eval()


def rows(*texts: str, condition: Batch | None = None) -> Batch:
    framed = [[START, *Letters().encode(text), END] for text in texts]
    return Batch.collate(framed, pad=0, condition=condition)


def joint(system: OpenQAModel, question: str) -> dict[tuple[str, int], torch.Tensor]:
    """p(z | x) p(s | z, x) of each document's spans, one pass at a time, by words and number."""
    x = [START, *Letters().encode(question), END]
    query = system.retriever.questions(rows(question))[0]
    scores = torch.stack([query @ system.retriever.documents(rows(text))[0] for text in TEXTS])
    result: dict[tuple[str, int], torch.Tensor] = {}
    for number, share in enumerate(torch.softmax(scores, 0)):
        words = TEXTS[number].split()
        tokens = torch.tensor([[*x, *Letters().encode(TEXTS[number]), END]])
        segments = torch.tensor([[0] * len(x) + [1] * (len(words) + 1)])
        length = torch.tensor([tokens.shape[1]])
        view = View(inputs=tokens, lengths=length, attention_mask=FullMask(), segments=segments)
        states = system.backbone.encoder(view).values[0, len(x) :]
        spans = {
            (first, last): mlp(system, states[first], states[last])
            for first in range(len(words))
            for last in range(first, min(first + LONGEST, len(words)))
        }
        shares = torch.softmax(torch.stack(list(spans.values())), 0)
        for (first, last), each in zip(spans, shares, strict=True):
            key = (" ".join(words[first : last + 1]), number)
            result[key] = result.get(key, 0.0) + share * each
    return result


def mlp(system: OpenQAModel, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """w · gelu(W [h_start; h_end] + b)."""
    head = system.spans
    weight = torch.cat([head.starts.weight, head.ends.weight], 1)
    inner = weight @ torch.cat([start, end]) + head.starts.bias
    return (head.scores.weight @ F.gelu(inner))[0]


def test_answer_probability_sums_over_its_spans():
    """`b` occurs in three documents, twice in one of them; `a b` in two; `f c` nowhere."""
    system = build()
    questions = ["d c", "e", "d c"]
    answers = ["b", "a b", "f c"]
    batch = rows(*answers, condition=rows(*questions))
    actual = system.log_prob(batch)
    assert actual.kind == "exact"
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        each = joint(system, question).items()
        expected = sum(p.item() for (words, _), p in each if words == answer)
        assert math.exp(actual.totals[row].item()) == pytest.approx(expected, abs=1e-12)
    assert actual.totals[2] == -torch.inf


def test_gradients_equal_explicit_loops():
    system = build(early_candidates=1)
    parameters = dict(system.named_parameters())
    loss, _ = system.loss(rows("a b", condition=rows("e d")))
    each = joint(system, "e d").items()
    expected = -torch.stack([p for (words, _), p in each if words == "a b"]).sum().log()
    assert loss.parts["spans"].total.item() == pytest.approx(expected.item(), abs=1e-10)
    ours = torch.autograd.grad(loss.parts["spans"].total, list(parameters.values()))
    theirs = torch.autograd.grad(expected, list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7, msg=name)


def test_early_loss_rewards_documents_with_the_answer():
    """`b c` occurs in document 0 only: -log p(0 | x) among all five, by the index."""
    system = build(retrieved=1)
    loss, _ = system.loss(rows("b c", condition=rows("e d")))
    with torch.no_grad():
        scores = system.retriever.memory.vectors @ system.encode_queries(rows("e d"))[0]
    expected = -float(torch.log_softmax(scores, 0)[0])
    assert loss.parts["early"].total.item() == pytest.approx(expected, abs=1e-10)
    assert loss.total.item() == pytest.approx(
        loss.parts["early"].total.item() + loss.parts["spans"].total.item()
    )


def test_missing_answer_counts_as_guessed_without_gradient():
    """13 tokens, spans of up to two: log 26 for each of the two losses."""
    system = build()
    loss, _ = system.loss(rows("d c", condition=rows("e")))
    assert loss.total.item() == pytest.approx(2 * math.log(13 * LONGEST))
    assert not loss.total.requires_grad or all(
        g is None or not g.abs().sum()
        for g in torch.autograd.grad(loss.total, list(system.parameters()), allow_unused=True)
    )


def test_answers_sum_to_one_with_documents_as_evidence():
    system = build()
    [answers] = system.ask(["d c"], answers=100)
    by_hand = joint(system, "d c")
    assert {a.text for a in answers} == {words for words, _ in by_hand}
    assert sum(math.exp(a.log_prob or 0) for a in answers) == pytest.approx(1)
    log_probs = [a.log_prob for a in answers]
    assert log_probs == sorted(log_probs, reverse=True)
    for answer in answers:
        shares = {str(n): p.item() for (words, n), p in by_hand.items() if words == answer.text}
        total = sum(shares.values())
        assert math.exp(answer.log_prob or 0) == pytest.approx(total)
        result = {each.name: each.probability for each in answer.evidence}
        assert result == pytest.approx({name: p / total for name, p in shares.items()})


def test_edited_document_changes_the_answers():
    system = build()
    edited = system.with_document(Document(name="1", text="d d"))
    assert "d d" in [a.text for a in edited.ask(["e"], answers=100)[0]]
    assert "b b" not in [a.text for a in edited.ask(["e"], answers=100)[0]]
    assert "b b" in [a.text for a in system.ask(["e"], answers=100)[0]]


class Halves(Letters):
    """The same words, of which e and f go on the word before them: `c d e f` is `c` and `def`."""

    kind = "wordpiece"

    def token(self, id: int) -> str:
        return f"##{WORDS[id]}" if WORDS[id] in ("e", "f") else WORDS[id]


def wordpiece_system(**settings) -> OpenQAModel:
    system = build(max_answer_length=3, **settings)
    system.tokenizer = None
    system.setup_tokenizer(Halves())
    system.retriever.embed()
    return system


def test_wordpiece_answers_are_whole_words():
    """A text begins with a word whatever its first piece: `e` is one, and `f a b` are f, a, b."""
    system = wordpiece_system()
    [answers] = system.ask(["d c"], answers=100)
    words = {"a", "b", "c", "a b", "b c", "a b c", "b b", "d e f", "e", "f", "f a", "f a b"}
    assert {a.text for a in answers} == words
    assert sum(math.exp(a.log_prob or 0) for a in answers) == pytest.approx(1)
    batch = rows("d", "d e f", condition=rows("a", "a"))
    assert (system.log_prob(batch).totals > -torch.inf).tolist() == [False, True]
    held = system.retriever.contains_text(torch.arange(5).expand(2, -1), batch)
    assert held.int().tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]


def test_truncated_word_is_no_answer():
    """Of `c d e f` c, d and e are encoded; the document `d e f e` has no whole word."""
    system = wordpiece_system(document_length=5)
    answer_texts = {a.text for a in system.ask(["a"], answers=100)[0]}
    assert "c" in answer_texts
    assert not {"d", "d e", "c d", "c d e"} & answer_texts
    alone = system.with_documents(Documents([Document(name="x", text="d e f e")]))
    assert alone.ask(["a"]) == [[]]
    loss, _ = alone.loss(rows("d", condition=rows("a")))
    assert math.isfinite(loss.total.item())


def test_text_without_a_question_is_refused():
    with pytest.raises(UserError, match="needs questions with answers"):
        build().loss(rows("a"))


PAIRS = [*zip("abcdefgh", "bcdefgha", strict=True)]
"""A letter and the one after it, around."""


def corpus_of(name: str, examples: list[Example], kind: str) -> Corpus:
    splits = {
        split: Split.from_list(examples, identity=f"{name}:{split}", name=split)
        for split in ("train", "validation")
    }
    return Corpus(name=name, splits=splits, layout=Layout(kind=kind))


def embedded(system: RetrieverModel) -> torch.Tensor:
    """(N, width) the vectors of all documents, by the encoder as it is."""
    with torch.no_grad():
        return system.encode(system.retriever.memory.batch(torch.arange(len(system.documents))))


def test_fixed_document_encoder_keeps_document_vectors():
    system = build(document_encoder="fixed").train()
    before = {name: each.clone() for name, each in system.named_parameters()}
    optimizer = torch.optim.SGD([p for p in system.parameters() if p.requires_grad], lr=0.1)
    system.begin_step(0)
    kept = system.retriever.memory.vectors.clone()
    loss, _ = system.loss(rows("b", condition=rows("e d")))
    loss.total.backward()
    optimizer.step()
    changed = {name for name, each in system.named_parameters() if not each.equal(before[name])}
    assert not any(name.startswith("backbone.retriever.documents") for name in changed)
    assert any(name.startswith("backbone.retriever.questions.backbone") for name in changed)
    torch.testing.assert_close(embedded(system.eval()), kept)
    actual = system.retriever.find(rows("e d"))
    scores = system.encode_queries(rows("e d")) @ kept.T
    expected = torch.log_softmax(scores, 1).gather(1, actual.numbers)
    torch.testing.assert_close(actual.log_probs, expected)


def test_final_index_uses_the_last_weights_after_short_run(tmp_path: Path):
    """Five steps, none of which embeds anew by default; resumed, losses are the same to the bit."""
    documents = tmp_path / "documents.txt"
    documents.write_text("".join(f"{letter} {after}\n" for letter, after in PAIRS))
    examples = [Example(after, condition=f"next {letter}") for letter, after in PAIRS]
    words = {"size": "tiny", "data": corpus_of("asked", examples, "pairs"), "quiet": True}
    words |= {"documents": str(documents)}
    words["settings"] = {"objective": "spans", "learning_rate": "0.01", "refresh": "500"}
    words["settings"] |= {"log_every": "1", "tokens_per_batch": "16", "evaluate_every": "2"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train("realm", out=whole, steps=5, **words)
    train("realm", out=parts, steps=3, **words)
    train("realm", out=parts, steps=5, resume=True, **words)
    losses = [
        [
            row["loss"]
            for row in map(json.loads, (run / "metrics.jsonl").open())
            if row["event"] == "train"
        ]
        for run in (whole, parts)
    ]
    assert len(set(losses[0])) == 5
    system = load_run(whole).system
    torch.testing.assert_close(system.retriever.memory.vectors, embedded(system))
    assert losses[1] == losses[0]


def test_pretrained_run_is_finetuned_resumed_and_queried(tmp_path: Path):
    """Both stages, the second one resumed: `next a` is answered by the document `a b`."""
    documents = tmp_path / "documents.txt"
    documents.write_text("".join(f"{letter} {after}\n" for letter, after in PAIRS))
    sentence_examples = [Example(f"next {letter} is {after}") for letter, after in PAIRS]
    question_examples = [Example(after, condition=f"next {letter}") for letter, after in PAIRS]
    texts, questions = (
        corpus_of("told", sentence_examples, "sentences"),
        corpus_of("asked", question_examples, "pairs"),
    )
    words = {"size": "tiny", "documents": str(documents), "quiet": True}
    settings = {"learning_rate": "0.01", "log_every": "1"}
    masked, spans = tmp_path / "masked", tmp_path / "spans"
    train("realm", data=texts, out=masked, steps=3, settings=settings, **words)
    settings |= {"objective": "spans", "early_candidates": "8"}
    train("realm", data=questions, out=spans, base=masked, steps=2, settings=settings, **words)
    train("realm", data=questions, out=spans, steps=60, settings=settings, resume=True, **words)
    fixed, before = load_run(spans).system, load_run(masked).system
    assert not any(each.requires_grad for each in fixed.retriever.documents.parameters())
    # From a masked run, documents keep their vectors; those of the masked run are its own.
    for each in (fixed, before):
        torch.testing.assert_close(each.retriever.memory.vectors, embedded(before))
    answers = fixed.ask([f"next {letter}" for letter, _ in PAIRS])
    right = [best.text == after for [best], (_, after) in zip(answers, PAIRS, strict=True)]
    assert sum(right) >= 6
    assert all(best.evidence for [best] in answers)
