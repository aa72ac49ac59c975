"""RAG: generator inputs, edited and exchanged documents, query encoders, length limits."""

from __future__ import annotations

import random

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.retrieval_protocols import Retrieve, RetrievedDocuments, WithDocuments
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


class WordTokenizer:
    """A tokenizer of the words above."""

    kind = "word"

    def token(self, id: int) -> str:
        return WORDS[id]

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(word) if word in WORDS else 1 for word in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(self.token, ids))


def location_documents(places: list[str]) -> Documents:
    """One document per person with their place."""
    pairs = zip(NAMES, places, strict=True)
    return Documents(Document(name=n, text=f"{n} is in the {place}") for n, place in pairs)


def make_rag(kind: str, places: list[str], **settings) -> RAG:
    module = SYSTEMS[kind]
    chosen = {"width": 32, "retriever_width": 64, "document_length": 8, **settings}
    config = module.Config(**{**vars(module.SIZES["tiny"]), **chosen})
    torch.manual_seed(0)
    system = module.build(config, VOCABULARY, documents=location_documents(places))
    system.setup_tokenizer(WordTokenizer())
    return system


def with_special_tokens(text: str) -> list[int]:
    return [VOCABULARY.start, *WordTokenizer().encode(text), VOCABULARY.end]


def questions_about(names: list[str]) -> Batch:
    return Batch.collate(
        [with_special_tokens(f"where is {name}") for name in names], VOCABULARY.pad
    )


def answers(system: RAG) -> list[str]:
    answered = system.ask([f"where is {name}" for name in NAMES])
    return [candidates[0].text for candidates in answered]


@pytest.mark.parametrize("kind", SYSTEMS)
def test_edited_document_changes_the_answer_without_training(kind: str):
    """In training the places are random at each step, so that only documents give the answer."""
    rng = random.Random(0)
    system = make_rag(kind, PLACES[: len(NAMES)])
    optimizer = torch.optim.Adam(system.parameters(), lr=0.01)
    for _ in range(80):
        places = rng.choices(PLACES, k=len(NAMES))
        targets = [with_special_tokens(place) for place in places]
        batch = Batch.collate(targets, VOCABULARY.pad, condition=questions_about(NAMES))
        optimizer.zero_grad()
        system.with_documents(location_documents(places)).loss(batch)[0].mean.backward()
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


def test_generator_input_is_question_plus_document():
    system = make_rag("token", PLACES[:5])
    questions = questions_about(["bob"])
    sources = system.sources(questions, torch.tensor([[1, 3]]))
    texts = [
        WordTokenizer().decode(row[:length])
        for row, length in zip(sources.tokens, sources.lengths, strict=True)
    ]
    assert texts == [
        f"<s> where is bob </s> {name} is in the {place} </s>"
        for name, place in (("bob", "barn"), ("dan", "garden"))
    ]


@pytest.mark.parametrize("kind", SYSTEMS)
def test_documents_are_retrieved_once_per_question(kind: str, monkeypatch: pytest.MonkeyPatch):
    """For decoding and evidence alike, by each method and by the system's own `ask`."""
    system = make_rag(kind, PLACES[: len(NAMES)]).eval()
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
        answerer = QuestionAnswerer(
            system=system, tokenizer=WordTokenizer(), method=method, max_length=3
        )
        answered = list(answerer.ask([questions]))
        assert all(answered_question.answers[0].evidence for answered_question in answered)
        assert calls == [len(questions)], method


def test_concatenate_rows_of_different_lengths():
    first = Batch.collate([[2, 5, 3], [2, 6, 7, 8, 3], [2, 3]], pad=0)
    second = Batch.collate([[2, 9, 9, 9, 3], [2, 9, 3], [2, 3]], pad=0)
    both = concatenate_rows(first, second, pad=0)
    expected = [[2, 5, 3, 9, 9, 9, 3], [2, 6, 7, 8, 3, 9, 3], [2, 3, 3]]
    assert both.lengths.tolist() == [7, 7, 3]
    assert both.tokens.tolist() == Batch.collate(expected, pad=0).tokens.tolist()


def test_with_documents_embeds_them_without_side_effects():
    system = make_rag("sequence", PLACES[:5])
    assert isinstance(system, WithDocuments) and isinstance(system, Retrieve)
    other = system.with_documents(location_documents(PLACES[1:]))
    assert [document.text for document in other.documents[:2]] == [
        "ann is in the barn",
        "bob is in the cellar",
    ]
    assert system.documents[0].text == "ann is in the attic"
    expected = system.encode(Batch.collate([with_special_tokens("bob is in the cellar")], 0))
    torch.testing.assert_close(other.memory.vectors[1], expected[0])
    assert other.generator is system.generator


def test_without_tokenizer_setup_no_document_is_used():
    module = rag_token
    system = module.build(
        module.SIZES["tiny"], VOCABULARY, documents=location_documents(PLACES[:5])
    )
    batch = Batch.collate([with_special_tokens("barn")], 0, condition=questions_about(["bob"]))
    condition = Batch.collate(
        [[*with_special_tokens("where is bob"), VOCABULARY.end]], VOCABULARY.pad
    )
    alone = Batch.collate([with_special_tokens("barn")], 0, condition=condition)
    with torch.no_grad():
        totals = system.log_prob(batch).totals
        torch.testing.assert_close(totals, system.generator.log_prob(alone).totals)


def test_question_longer_than_the_maximum_is_refused():
    """24 positions, of which a document takes 8 without its start token: 17 for the question."""
    system = make_rag("token", PLACES[:5], length=24)
    assert system.max_question_length == 24 - 7
    system.check_condition_length(17)
    with pytest.raises(UserError, match="at most 17 tokens"):
        system.ask(["where is " + "ann " * 14])


def test_document_length_must_leave_room_for_a_question():
    with pytest.raises(UserError, match="no room for a question"):
        make_rag("token", PLACES[:5], length=8, document_length=8)


def test_random_projection_encoder_approximates_bm25():
    """In 20,000 dimensions random directions are nearly orthogonal.

    N = 5 documents of 5 words. "bob" is in one: idf = log(1 + 4.5 / 1.5) = log 4; "is" in all:
    log(1 + 0.5 / 5.5). A word that occurs once in a document of mean length
    counts (1.5 + 1) / (1 + 1.5) = 1 time.
    """
    torch.manual_seed(0)
    encoder = RandomProjectionBM25(VOCABULARY, 20_000)
    memory = DocumentMemory(
        location_documents(PLACES[:5]), VOCABULARY, width=20_000, max_document_length=8
    )
    memory.setup_tokenizer(WordTokenizer())
    encoder.setup_documents(memory)
    with torch.no_grad():
        documents = encoder.encode(memory.batch(torch.arange(5)))
        scores = documents @ encoder.encode_queries(questions_about(["bob"]))[0]
    common = torch.log(torch.tensor(1 + 0.5 / 5.5))
    expected = common + torch.tensor([0, 4.0, 0, 0, 0]).clamp(min=1).log()
    torch.testing.assert_close(scores, expected, atol=0.1, rtol=0)


class DualEncoder(System):
    """A bi-encoder: mean word vectors, and a linear layer each for queries and documents."""

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


def test_with_a_base_only_the_query_encoder_is_trained():
    torch.manual_seed(0)
    base = DualEncoder()
    config = rag_sequence.Config(**vars(rag_sequence.SIZES["tiny"]))
    system = rag_sequence.build(
        config, VOCABULARY, documents=location_documents(PLACES[:5]), base=base
    )
    system.setup_tokenizer(WordTokenizer())
    batch = Batch.collate([with_special_tokens("barn")], 0, condition=questions_about(["bob"]))
    system.loss(batch)[0].mean.backward()
    trainable = {n for n, p in system.retriever.named_parameters() if p.requires_grad}
    assert trainable == {"questions.words.weight", "questions.turn.weight", "questions.turn.bias"}
    has_gradient = {
        n: p.grad.abs().sum() > 0
        for n, p in system.retriever.named_parameters()
        if p.grad is not None
    }
    assert has_gradient == dict.fromkeys(trainable, True)
    assert all(p.grad is None for p in base.parameters()), "the base belongs to its owner"
    documents_batch = system.memory.batch(torch.arange(5))
    torch.testing.assert_close(system.memory.vectors, base.encode(documents_batch).detach())


@pytest.mark.parametrize("with_base", [True, False])
def test_fixed_query_encoder_is_not_trained(with_base: bool):
    """The retriever has neither gradients nor dropout; the generator is still trained."""
    torch.manual_seed(0)
    settings = {**vars(rag_sequence.SIZES["tiny"]), "question_encoder": "fixed", "dropout": 0.5}
    options = {"base": DualEncoder()} if with_base else {}
    config = rag_sequence.Config(**settings)
    system = rag_sequence.build(
        config, VOCABULARY, documents=location_documents(PLACES[:5]), **options
    )
    system.setup_tokenizer(WordTokenizer())
    system.train()
    assert not system.retriever.training and system.generator.training
    questions = questions_about(["bob", "eve"])
    before = system.retriever.encode_queries(questions)
    assert not any(p.requires_grad for p in system.retriever.parameters())
    batch = Batch.collate(
        [with_special_tokens("barn"), with_special_tokens("hall")], 0, condition=questions
    )
    loss = system.loss(batch)[0].mean
    loss.backward()
    torch.optim.Adam(system.parameters(), lr=0.1).step()
    torch.testing.assert_close(system.retriever.encode_queries(questions), before, rtol=0, atol=0)
    assert any(p.grad is not None and bool(p.grad.any()) for p in system.generator.parameters())


def test_captured_internals_name_the_retrieved_documents():
    """Two questions with two documents each: a document not retrieved has probability 0."""
    system = make_rag("sequence", PLACES[:5]).eval()
    condition = questions_about(["bob", "dan"])
    texts = Batch.collate(
        [with_special_tokens("barn"), with_special_tokens("garden")], 0, condition=condition
    )
    internals = system.capture_internals(texts)
    retrieved, names = system.retrieve(condition), internals["retrieved documents"].names["choice"]
    retrieved_names = [[NAMES[number] for number in row] for row in retrieved.numbers.tolist()]
    assert set(names) == {*retrieved_names[0], *retrieved_names[1]} and names[:2] == ("bob", "dan")
    for row, share in enumerate(internals["retrieved documents"].values):
        expected = dict(
            zip(retrieved_names[row], retrieved.log_probs[row].exp().tolist(), strict=True)
        )
        assert share.tolist() == pytest.approx([expected.get(name, 0) for name in names])
    sums = internals["posterior over documents"].values.sum(-1)
    torch.testing.assert_close(sums, torch.ones(2, 2))


def test_base_without_encode_is_refused():
    base = System()
    base.vocabulary = VOCABULARY
    config = rag_token.Config(**vars(rag_token.SIZES["tiny"]))
    with pytest.raises(UserError, match="Encode"):
        rag_token.build(config, VOCABULARY, documents=location_documents(PLACES[:5]), base=base)
