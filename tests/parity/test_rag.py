"""Both RAG against transformers' with the same weights, and against sums over all texts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.rag import RAG
from lmlab.retrieval.documents import Document, Documents
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import EncodedSources
from lmlab.sampling.rag_decoding import PerDocumentBeamSearch
from lmlab.zoo import rag_sequence, rag_token

from .test_hf_bart import our_names, randomise_weights

transformers = pytest.importorskip("transformers")

TEXTS = ("a b c", "b b", "c a d e", "e", "d d a", "a e e b c")
VOCABULARY = Vocabulary(size=10)
SETTINGS = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "length": 24,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pre_norm": False,
    "embedding_norm": True,
    "positions": "learned",
    "copy_mechanism": False,
    "retrieved": 3,
    "document_length": 9,
    "retriever_width": 12,
}
"""Layers as BART's."""
SYSTEMS = {"sequence": rag_sequence, "token": rag_token}
BOTH = pytest.mark.parametrize("kind", SYSTEMS)


class Letters:
    """A tokenizer of letters: a is 5, b is 6 …"""

    kind = "word"

    def token(self, id: int) -> str:
        return chr(id - 5 + ord("a"))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 5 for letter in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(self.token, ids))


def make(kind: str, *, seed: int = 0, **settings) -> RAG:
    torch.manual_seed(seed)
    module = SYSTEMS[kind]
    documents = Documents(Document(name=str(n), text=text) for n, text in enumerate(TEXTS))
    config = module.Config(**{**SETTINGS, **settings})
    system = module.build(config, VOCABULARY, documents=documents).eval()
    system.setup_tokenizer(Letters())
    randomise_weights(system.generator)
    torch.nn.init.normal_(system.retriever.questions.weight, std=0.7)
    return system


def framed(text: str) -> list[int]:
    return [VOCABULARY.start, *Letters().encode(text), VOCABULARY.end]


def batch_of(questions: tuple[str, ...], answers: tuple[str, ...]) -> Batch:
    condition = Batch.collate([framed(each) for each in questions], VOCABULARY.pad)
    rows = [framed(each) for each in answers]
    return Batch.collate(rows, VOCABULARY.pad, condition=condition)


def retrieved_by_hand(system: RAG, question: str) -> tuple[list[int], np.ndarray]:
    """The numbers of the best documents and p(z | x), by numpy from the vectors alone."""
    rows = system.retriever.questions.weight.detach().double().numpy()
    query = rows[framed(question)].sum(0) / math.sqrt(rows.shape[1])
    with torch.no_grad():
        vectors = [system.encode(Batch.collate([framed(t)], 0))[0].numpy() for t in TEXTS]
    scores = np.array([vector @ query for vector in vectors])
    best = np.argsort(-scores)[: system.retrieved]
    weights = np.exp(scores[best] - scores[best].max())
    return best.tolist(), weights / weights.sum()


@BOTH
def test_top_documents_by_inner_product_are_normalised(kind: str):
    system = make(kind)
    questions = ("a b", "e", "c d d")
    condition = batch_of(questions, ("a",) * 3).condition
    with torch.no_grad():
        result = system.retrieve(condition)
    for row, question in enumerate(questions):
        numbers, weights = retrieved_by_hand(system, question)
        assert result.numbers[row].tolist() == numbers
        assert result.log_probs[row].exp().tolist() == pytest.approx(weights.tolist(), abs=1e-5)


def build_theirs(kind: str, ours: RAG):
    """transformers' RAG; ours gets the weights of its generator."""
    shape = {"d_model": 16, "vocab_size": VOCABULARY.size, "max_position_embeddings": 24}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64}
    generator = transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            **shape,
            pad_token_id=VOCABULARY.pad,
            bos_token_id=VOCABULARY.start,
            eos_token_id=VOCABULARY.end,
            decoder_start_token_id=VOCABULARY.start,
        )
    )
    randomise_weights(generator)
    torch.nn.init.normal_(generator.final_logits_bias, std=0.6)
    weights = our_names(generator.state_dict(), ours.generator.state_dict())
    ours.generator.load_state_dict(weights)
    # Special tokens that are never predicted have no mass here, and must have none there.
    generator.final_logits_bias[:, list(VOCABULARY.unpredictable)] = -1e9
    encoder = transformers.DPRQuestionEncoder(
        transformers.DPRConfig(
            vocab_size=VOCABULARY.size,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    classes = {
        "sequence": transformers.RagSequenceForGeneration,
        "token": transformers.RagTokenForGeneration,
    }
    return classes[kind](question_encoder=encoder, generator=generator).eval()


@BOTH
def test_losses_equal_transformers(kind: str):
    """Sources are put together by hand here: question, end, document, end."""
    questions, answers = ("a b", "e", "c d d"), ("b c", "e e d a", "d")
    ours = make(kind)
    theirs = build_theirs(kind, ours)
    batch = batch_of(questions, answers)
    sources, scores = [], []
    for question in questions:
        numbers, weights = retrieved_by_hand(ours, question)
        sources += [[*framed(question), *framed(TEXTS[number])[1:]] for number in numbers]
        scores.append(np.log(weights))
    context = Batch.collate(sources, VOCABULARY.pad)
    with torch.no_grad():
        expected = theirs(
            context_input_ids=context.tokens,
            context_attention_mask=context.mask().long(),
            doc_scores=torch.tensor(np.array(scores), dtype=torch.float32),
            labels=batch.tokens,
            n_docs=3,
        ).loss
        actual = ours.log_prob(batch).totals
        lost = ours.loss(batch)[0].total
    assert expected.std() > 1, "losses hardly differ"
    torch.testing.assert_close(-actual, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(lost, expected.sum(), atol=1e-4, rtol=0)


def test_rag_sequence_equals_rag_token_for_one_token():
    """Of a text that was cut off after its first token both sums over documents are one.

    With a second token, the end token, they are not: the first changes which document is likely.
    """
    sequence, token = make("sequence"), make("token")
    token.load_state_dict(sequence.state_dict())
    whole = batch_of(("a b", "e", "c d d"), ("b", "a", "d"))
    cut = Batch.collate(
        [row[:2] for row in whole.tokens.tolist()], VOCABULARY.pad, condition=whole.condition
    )
    with torch.no_grad():
        one, other = (system.log_prob(cut).totals for system in (sequence, token))
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
        longer, others = (system.log_prob(whole).totals for system in (sequence, token))
    assert (longer - others).abs().max() > 1e-2, "the two hardly differ: the check says nothing"


LETTERS = [*range(5, VOCABULARY.size), VOCABULARY.unknown]


def every_text(longest: int) -> list[tuple[int, ...]]:
    """All texts of less than `longest` tokens, their end left out."""
    return [y for size in range(longest) for y in itertools.product(LETTERS, repeat=size)]


@torch.no_grad()
def sums_by_hand(system: RAG, question: str, texts) -> np.ndarray:
    """log Σ_z p(z | x) p(y | x, z), each document's share by its own pass."""
    numbers, weights = retrieved_by_hand(system, question)
    shares = []
    for number, weight in zip(numbers, weights, strict=True):
        source = [*framed(question), *framed(TEXTS[number])[1:]]
        condition = Batch.collate([source] * len(texts), VOCABULARY.pad)
        rows = [[VOCABULARY.start, *text, VOCABULARY.end] for text in texts]
        batch = Batch.collate(rows, VOCABULARY.pad, condition=condition)
        shares.append(weight * system.generator.log_prob(batch).totals.double().exp().numpy())
    return np.log(sum(shares))


def test_thorough_decoding_ranks_as_enumeration():
    """6 letters, at most 2 of them: 43 texts, all of which are in a beam as wide as the space."""
    system = make("sequence")
    texts = every_text(3)
    assert len(texts) == 1 + 6 + 36
    condition = batch_of(("a b", "c d d"), ("a", "a")).condition
    wide = BeamConfig(width=36, best=len(texts), max_length=3)
    actual = PerDocumentBeamSearch(beam=wide).decode(
        system, EncodedSources.encode(system, condition), [3] * len(condition), 0
    )
    for question, hypotheses in zip(("a b", "c d d"), actual, strict=True):
        expected = dict(zip(texts, sums_by_hand(system, question, texts), strict=True))
        ranked = sorted(expected, key=lambda text: -expected[text])
        ended = [each for each in hypotheses if each.finished]
        assert [each.tokens for each in ended] == ranked
        values = [each.log_prob for each in ended]
        assert values == pytest.approx([expected[text] for text in ranked], abs=1e-4)


def test_fast_decoding_is_a_lower_bound_of_thorough():
    """Never more than thorough; the same where every beam holds every text."""
    system = make("sequence")
    condition = batch_of(("a b", "c d d", "e"), ("a",) * 3).condition

    def find(thorough: bool, width: int, best: int):
        beam = BeamConfig(width=width, best=best, max_length=3)
        strategy = PerDocumentBeamSearch(thorough=thorough, beam=beam)
        return strategy.decode(
            system, EncodedSources.encode(system, condition), [3] * len(condition), 0
        )

    for thorough, fast in zip(find(True, 36, 43), find(False, 36, 43), strict=True):
        every = {each.tokens: each.log_prob for each in thorough if each.finished}
        again = {each.tokens: each.log_prob for each in fast if each.finished}
        assert again == pytest.approx(every, abs=1e-4)
    below = 0
    for thorough, fast in zip(find(True, 2, 6), find(False, 2, 6), strict=True):
        whole = {each.tokens: each.log_prob for each in thorough if each.finished}
        for each in fast:
            if each.finished and each.tokens in whole:
                assert each.log_prob <= whole[each.tokens] + 1e-5
                below += each.log_prob < whole[each.tokens] - 1e-3
    assert below > 0, "every text was in every beam: the check would pass on anything"


@BOTH
def test_beam_search_finds_the_best_texts(kind: str):
    """Through `Step`; RAG-Sequence updates its document weights by the decoded tokens."""
    system, texts = make(kind), every_text(3)
    condition = batch_of(("a b",), ("a",)).condition
    [result] = beam_search(system, BeamConfig(width=36, best=5, max_length=3), condition=condition)
    rows = [[VOCABULARY.start, *text, VOCABULARY.end] for text in texts]
    every = condition.select([0] * len(rows))
    with torch.no_grad():
        totals = system.log_prob(Batch.collate(rows, 0, condition=every)).totals.tolist()
    if kind == "sequence":
        assert totals == pytest.approx(sums_by_hand(system, "a b", texts).tolist(), abs=1e-4)
    best = sorted(zip(totals, texts, strict=True), reverse=True)[:5]
    assert [each.tokens for each in result] == [text for _, text in best]
    assert [each.log_prob for each in result] == pytest.approx([p for p, _ in best], abs=1e-4)


@BOTH
def test_conditional_mass_is_one_and_stepping_equals_scoring(kind: str):
    """With a copying decoder: all texts of at most two letters and all longer ones sum to one."""
    system = make(kind, copy_mechanism=True)
    condition = batch_of(("c d d",), ("a",)).condition
    ended = [[VOCABULARY.start, *text, VOCABULARY.end] for text in every_text(3)]
    going = [[VOCABULARY.start, *text] for text in itertools.product(LETTERS, repeat=3)]
    batch = Batch.collate(ended + going, 0, condition=condition.select([0] * len(ended + going)))
    with torch.no_grad():
        assert system.log_prob(batch).totals.double().exp().sum().item() == pytest.approx(
            1, abs=1e-5
        )
        text = framed("a d a c")
        at_once = system.log_prob(Batch.collate([text], 0, condition=condition)).per_token
        state, stepped = system.start(1, condition=condition), []
        for token in text[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, torch.tensor([token]))
    torch.testing.assert_close(torch.stack(stepped), at_once[0], atol=1e-5, rtol=0)
