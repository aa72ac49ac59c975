"""Writing beside documents: what is read, edited documents, other documents, questions too long."""

from __future__ import annotations

import random

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import Retrieve, RetrievedDocuments, WithDocuments
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.rag import RAG
from lmlab.retrieval.bi_encoders import RandomProjectionBM25
from lmlab.retrieval.document_concat import concatenate_rows
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Document, Documents
from lmlab.sampling.question_answering import QuestionAnswerer
from lmlab.zoo import rag_sequence, rag_token

NAMES, PLACES = "ann bob cid dan eve".split(), "attic barn cellar garden hall kitchen".split()
WORDS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "where", "is", "in", "the", *NAMES, *PLACES)
VOCABULARY = Vocabulary(size=len(WORDS))
SYSTEMS = {"sequence": rag_sequence, "token": rag_token}


class Words:
    """A tokeniser of the words above."""

    kind = "word"

    def token(self, id: int) -> str:
        return WORDS[id]

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(word) if word in WORDS else 1 for word in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(self.token, ids))


def tell(places: list[str]) -> Documents:
    """Where everybody is."""
    pairs = zip(NAMES, places, strict=True)
    return Documents(Document(name=n, text=f"{n} is in the {place}") for n, place in pairs)


def make(kind: str, places: list[str], **settings) -> RAG:
    module = SYSTEMS[kind]
    chosen = {"width": 32, "retriever_width": 64, "document_length": 8, **settings}
    config = module.Config(**{**module.TINY, **chosen})
    torch.manual_seed(0)
    system = module.build(config, VOCABULARY, documents=tell(places))
    system.setup_tokenizer(Words())
    return system


def framed(text: str) -> list[int]:
    return [VOCABULARY.start, *Words().encode(text), VOCABULARY.end]


def questions_about(names: list[str]) -> Batch:
    return Batch.collate([framed(f"where is {name}") for name in names], VOCABULARY.pad)


def answers(system: RAG) -> list[str]:
    found = system.ask([f"where is {name}" for name in NAMES])
    return [each[0].text for each in found]


@pytest.mark.parametrize("kind", SYSTEMS)
def test_an_edited_document_changes_the_answer_without_training(kind: str):
    """In training everybody is somewhere else each time, so that only documents can tell."""
    chance = random.Random(0)
    system = make(kind, PLACES[: len(NAMES)])
    optimizer = torch.optim.Adam(system.parameters(), lr=0.01)
    for _ in range(80):
        places = chance.choices(PLACES, k=len(NAMES))
        told = [framed(place) for place in places]
        batch = Batch.collate(told, VOCABULARY.pad, condition=questions_about(NAMES))
        optimizer.zero_grad()
        system.with_documents(tell(places)).loss(batch)[0].mean.backward()
        optimizer.step()
    before = PLACES[: len(NAMES)]
    assert answers(system) == before
    weights = {name: value.clone() for name, value in system.state_dict().items()}
    edited = system.with_document(Document(name="cid", text="cid is in the kitchen"))
    assert answers(edited) == [*before[:2], "kitchen", *before[3:]]
    [[answer]] = edited.ask(["where is cid"])
    assert answer.evidence[0].text == "cid is in the kitchen"
    assert answer.evidence[0].probability > 0.5
    assert answers(system) == before, "the system itself must stay as it is"
    assert all(torch.equal(value, weights[name]) for name, value in system.state_dict().items())


def test_the_writer_reads_the_question_and_each_document():
    system = make("token", PLACES[:5])
    questions = questions_about(["bob"])
    found = system.sources(questions, torch.tensor([[1, 3]]))
    texts = [
        Words().decode(row[:length])
        for row, length in zip(found.tokens, found.lengths, strict=True)
    ]
    assert texts == [
        f"<s> where is bob </s> {name} is in the {place} </s>"
        for name, place in (("bob", "barn"), ("dan", "garden"))
    ]


@pytest.mark.parametrize("kind", SYSTEMS)
def test_documents_are_retrieved_once_per_question(kind: str, monkeypatch: pytest.MonkeyPatch):
    """For decoding and evidence alike, by each method and by the system's own `ask`."""
    system = make(kind, PLACES[: len(NAMES)]).eval()
    calls: list[int] = []
    retrieve = RAG.retrieve

    def counted(self: RAG, batch: Batch, **options: int) -> RetrievedDocuments:
        calls.append(len(batch))
        return retrieve(self, batch, **options)

    monkeypatch.setattr(RAG, "retrieve", counted)
    questions = ["where is bob", "where is cid"]
    system.ask(questions)
    assert calls == [len(questions)]
    for method in system.decoding_methods:
        calls.clear()
        answerer = QuestionAnswerer(system=system, tokenizer=Words(), method=method, max_length=3)
        answered = list(answerer.ask([questions]))
        assert all(each.answers[0].evidence for each in answered)
        assert calls == [len(questions)], method


def test_rows_are_joined_whatever_their_lengths():
    first = Batch.collate([[2, 5, 3], [2, 6, 7, 8, 3], [2, 3]], pad=0)
    second = Batch.collate([[2, 9, 9, 9, 3], [2, 9, 3], [2, 3]], pad=0)
    both = concatenate_rows(first, second, pad=0)
    expected = [[2, 5, 3, 9, 9, 9, 3], [2, 6, 7, 8, 3, 9, 3], [2, 3, 3]]
    assert both.lengths.tolist() == [7, 7, 3]
    assert both.tokens.tolist() == Batch.collate(expected, pad=0).tokens.tolist()


def test_other_documents_are_embedded_and_the_system_stays_as_it_is():
    system = make("sequence", PLACES[:5])
    assert isinstance(system, WithDocuments) and isinstance(system, Retrieve)
    other = system.with_documents(tell(PLACES[1:]))
    assert [each.text for each in other.documents[:2]] == [
        "ann is in the barn",
        "bob is in the cellar",
    ]
    assert system.documents[0].text == "ann is in the attic"
    expected = system.encode(Batch.collate([framed("bob is in the cellar")], 0))
    torch.testing.assert_close(other.memory.vectors[1], expected[0])
    assert other.generator is system.generator


def test_before_it_knows_any_document_it_writes_beside_none():
    module = rag_token
    system = module.build(module.SIZES["tiny"], VOCABULARY, documents=tell(PLACES[:5]))
    batch = Batch.collate([framed("barn")], 0, condition=questions_about(["bob"]))
    beside = Batch.collate([[*framed("where is bob"), VOCABULARY.end]], VOCABULARY.pad)
    alone = Batch.collate([framed("barn")], 0, condition=beside)
    with torch.no_grad():
        found = system.log_prob(batch).totals
        torch.testing.assert_close(found, system.generator.log_prob(alone).totals)


def test_a_question_longer_than_its_room_is_refused():
    """24 places, of which a document takes 8 but shares no start symbol: 17 for the question."""
    system = make("token", PLACES[:5], length=24)
    assert system.max_question_length == 24 - 7
    system.check_condition_length(17)
    with pytest.raises(UserError, match="at most 17 tokens"):
        system.ask(["where is " + "ann " * 14])


def test_a_document_must_leave_room_for_a_question():
    with pytest.raises(UserError, match="no room for a question"):
        make("token", PLACES[:5], length=8, document_length=8)


def test_the_bag_of_words_starts_from_bm25():
    """In so many dimensions that random directions are as good as orthogonal.

    N = 5 documents of 5 words. "bob" is in one: idf = log(1 + 4.5 / 1.5) = log 4; "is" in all:
    log(1 + 0.5 / 5.5). A word that comes once in a document of mean length counts
    (1.5 + 1) / (1 + 1.5) = 1 time.
    """
    torch.manual_seed(0)
    encoder = RandomProjectionBM25(VOCABULARY, 20_000)
    memory = DocumentMemory(tell(PLACES[:5]), VOCABULARY, width=20_000, longest=8)
    memory.setup_tokenizer(Words())
    encoder.setup_documents(memory)
    with torch.no_grad():
        documents = encoder.encode(memory.batch(torch.arange(5)))
        scores = documents @ encoder.encode_queries(questions_about(["bob"]))[0]
    common = torch.log(torch.tensor(1 + 0.5 / 5.5))
    expected = common + torch.tensor([0, 4.0, 0, 0, 0]).clamp(min=1).log()
    torch.testing.assert_close(scores, expected, atol=0.1, rtol=0)


class TwoTowers(System):
    """A trained bi-encoder: the mean of word vectors, and a matrix for questions."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary = VOCABULARY
        self.words = torch.nn.Embedding(VOCABULARY.size, 6)
        self.turn = torch.nn.Linear(6, 6)
        self.other = torch.nn.Linear(6, 6)

    def encode(self, batch: Batch) -> torch.Tensor:
        return self.other(self.words(batch.tokens).mean(1))

    def encode_queries(self, batch: Batch) -> torch.Tensor:
        return self.turn(self.words(batch.tokens).mean(1))


def test_on_a_base_the_questions_encoder_learns_and_the_documents_rests():
    torch.manual_seed(0)
    base = TwoTowers()
    config = rag_sequence.Config(**rag_sequence.TINY)
    system = rag_sequence.build(config, VOCABULARY, documents=tell(PLACES[:5]), base=base)
    system.setup_tokenizer(Words())
    batch = Batch.collate([framed("barn")], 0, condition=questions_about(["bob"]))
    system.loss(batch)[0].mean.backward()
    learning = {n for n, p in system.retriever.named_parameters() if p.requires_grad}
    assert learning == {"questions.words.weight", "questions.turn.weight", "questions.turn.bias"}
    moved = {
        n: p.grad.abs().sum() > 0
        for n, p in system.retriever.named_parameters()
        if p.grad is not None
    }
    assert moved == dict.fromkeys(learning, True)
    assert all(p.grad is None for p in base.parameters()), "the base belongs to its owner"
    every = system.memory.batch(torch.arange(5))
    torch.testing.assert_close(system.memory.vectors, base.encode(every).detach())


@pytest.mark.parametrize("with_base", [True, False])
def test_a_questions_encoder_that_is_fixed_finds_what_it_found(with_base: bool):
    """Nothing of the retriever learns, nor has it dropout; the writer learns all the same."""
    torch.manual_seed(0)
    settings = {**rag_sequence.TINY, "question_encoder": "fixed", "dropout": 0.5}
    words = {"base": TwoTowers()} if with_base else {}
    config = rag_sequence.Config(**settings)
    system = rag_sequence.build(config, VOCABULARY, documents=tell(PLACES[:5]), **words)
    system.setup_tokenizer(Words())
    system.train()
    assert not system.retriever.training and system.generator.training
    asked = questions_about(["bob", "eve"])
    before = system.retriever.encode_queries(asked)
    assert not any(p.requires_grad for p in system.retriever.parameters())
    batch = Batch.collate([framed("barn"), framed("hall")], 0, condition=asked)
    loss = system.loss(batch)[0].mean
    loss.backward()
    torch.optim.Adam(system.parameters(), lr=0.1).step()
    torch.testing.assert_close(system.retriever.encode_queries(asked), before, rtol=0, atol=0)
    assert any(p.grad is not None and bool(p.grad.any()) for p in system.generator.parameters())


def test_the_documents_found_are_told_by_name():
    """Two questions with two documents each: who was not found for one has no share in it."""
    system = make("sequence", PLACES[:5]).eval()
    condition = questions_about(["bob", "dan"])
    texts = Batch.collate([framed("barn"), framed("garden")], 0, condition=condition)
    shown = system.capture_internals(texts)
    found, names = system.retrieve(condition), shown["retrieved documents"].names["choice"]
    every = [[NAMES[number] for number in row] for row in found.numbers.tolist()]
    assert set(names) == {*every[0], *every[1]} and names[:2] == ("bob", "dan")
    for row, share in enumerate(shown["retrieved documents"].values):
        expected = dict(zip(every[row], found.log_probs[row].exp().tolist(), strict=True))
        assert share.tolist() == pytest.approx([expected.get(name, 0) for name in names])
    sums = shown["posterior over documents"].values.sum(-1)
    torch.testing.assert_close(sums, torch.ones(2, 2))


def test_a_base_that_encodes_no_questions_is_refused():
    base = System()
    base.vocabulary = VOCABULARY
    config = rag_token.Config(**rag_token.TINY)
    with pytest.raises(UserError, match="Encode"):
        rag_token.build(config, VOCABULARY, documents=tell(PLACES[:5]), base=base)
