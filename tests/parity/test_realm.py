"""REALM against sums over all documents by loops, and the gradient of its paper's appendix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.realm import REALM
from lmlab.objectives.masking.token_masking import masked_view
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.retriever import Retriever, refresh_due, refresh_ready

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b", "c", "d", "e", "f"]
VOCABULARY = Vocabulary(size=len(WORDS))
START, END, MASK = 2, 3, 4
TEXTS = ["a b c", "b b", "c d e f", "e", "f a"]
DOCUMENTS = Documents(Document(name=str(i), text=text) for i, text in enumerate(TEXTS))


class Letters:
    """A tokenizer of the words above."""

    kind = "word"

    def token(self, id: int) -> str:
        return WORDS[id]

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(WORDS[id] for id in ids if id > END)


def build(documents: Documents = DOCUMENTS, **settings) -> REALM:
    """In double precision, all documents found, and none dropped."""
    module = system_module("realm")
    torch.manual_seed(0)
    words = {"width": 8, "layers": 1, "heads": 2, "vector_width": 4, "dropout": 0.0}
    words |= {"attention_dropout": 0.0, "retrieved": len(documents), "length": 12}
    system = module.build(
        module.Config(**words | {"document_length": 8} | settings), VOCABULARY, documents=documents
    )
    system.double().setup_tokenizer(Letters())
    system.retriever.embed()
    return system


def rows(*texts: str) -> Batch:
    return Batch.collate([[START, *Letters().encode(t), END] for t in texts], pad=0)


def view_with_masked_positions(batch: Batch, *positions: list[int]) -> View:
    """The batch with some positions of each row masked as targets."""
    hidden = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, chosen in enumerate(positions):
        hidden[row, chosen] = True
    return masked_view(batch, batch.tokens.masked_fill(hidden, MASK), hidden)


def log_p_of_document(system: REALM, x: list[int]) -> Tensor:
    """(1 + N,) log p(z | x), the null document first, one text at a time."""
    query = system.retriever.questions(Batch.collate([x], pad=0))[0]
    texts = ["", *TEXTS]
    scores = [query @ system.retriever.documents(rows(text))[0] for text in texts]
    return torch.log_softmax(torch.stack(scores), 0)


def log_p_of_words(system: REALM, x: list[int], y: dict[int, int]) -> Tensor:
    """(1 + N,) log p(y | z, x), one forward pass at a time, `<s> x </s> z </s>` joined by hand."""
    result = []
    for text in ["", *TEXTS]:
        document = [*Letters().encode(text), END]
        tokens = torch.tensor([[*x, *document]])
        segments = torch.tensor([[0] * len(x) + [1] * len(document)])
        view = View(
            inputs=tokens,
            lengths=torch.tensor([tokens.shape[1]]),
            attention_mask=FullMask(),
            segments=segments,
        )
        states = system.backbone.encoder(view).values[0]
        each = [system.emission.log_probs(states[position])[word] for position, word in y.items()]
        result.append(torch.stack(each).sum())
    return torch.stack(result)


BATCH = rows("d a c", "b e")
VIEW = view_with_masked_positions(BATCH, [1, 2], [1])
MASKED_INPUTS = [[START, MASK, MASK, 7, END], [START, MASK, 9, END]]
TARGETS = [{1: 8, 2: 5}, {1: 6}]


def marginal(system: REALM) -> Tensor:
    """-Σ_x log Σ_z p(z | x) p(y | z, x), by loops over texts and documents."""
    each = [
        torch.logsumexp(log_p_of_document(system, x) + log_p_of_words(system, x, y), 0)
        for x, y in zip(MASKED_INPUTS, TARGETS, strict=True)
    ]
    return -torch.stack(each).sum()


def system_loss(system: REALM, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The system's own, of the view above."""
    monkeypatch.setattr(type(system.objective), "view", lambda self, batch, generator=None: VIEW)
    loss, _ = system.loss(BATCH)
    assert loss.count.item() == 3
    return loss.total


@pytest.mark.parametrize("shared", ["all", "nothing"])
def test_loss_and_gradients_equal_sum_over_documents(shared: str, monkeypatch: pytest.MonkeyPatch):
    system = build(shared_encoders=shared)
    parameters = dict(system.named_parameters())
    expected, actual = marginal(system), system_loss(system, monkeypatch)
    assert actual.item() == pytest.approx(expected.item(), abs=1e-10)
    ours = torch.autograd.grad(actual, list(parameters.values()))
    theirs = torch.autograd.grad(expected, list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7, msg=name)
    reached = [name for name, each in zip(parameters, ours, strict=True) if each.abs().sum() > 0]
    for part in (
        "backbone.encoder",
        "retriever.questions.projection",
        "retriever.documents.projection",
    ):
        assert any(part in name for name in reached)


def test_score_gradient_equals_the_papers_appendix():
    """∇_f(x,z) log p(y | x) = p(z | x) [p(y | z, x) / p(y | x) - 1]."""
    system = build()
    with torch.no_grad():
        log_z, log_y = log_p_of_document(system, MASKED_INPUTS[0]), log_p_of_words(system, *one())
    scores = log_z.clone().requires_grad_()  # any scores with this softmax will do
    log_p = torch.logsumexp(torch.log_softmax(scores, 0) + log_y, 0)
    log_p.backward()
    expected = log_z.exp() * ((log_y - log_p.detach()).exp() - 1)
    torch.testing.assert_close(scores.grad, expected)
    numbers, utility = system.retrieval_utility(VIEW)
    assert numbers[0, 0] == -1
    assert utility[0, 0] == 0
    by_number = {int(n): float(u) for n, u in zip(numbers[0], utility[0], strict=True)}
    for number in range(len(TEXTS)):
        assert by_number[number] == pytest.approx(float(log_y[1 + number] - log_y[0]), abs=1e-9)


def one() -> tuple[list[int], dict[int, int]]:
    return MASKED_INPUTS[0], TARGETS[0]


def test_fill_marginalises_over_all_documents():
    system = build()
    masked = VIEW.targets != NO_TARGET
    with torch.no_grad():
        actual = system.fill(BATCH, masked).log_probs
        for row, (position, word) in enumerate([(1, 8), (2, 5)]):
            each = log_p_of_words(system, MASKED_INPUTS[0], {position: word})
            expected = torch.logsumexp(log_p_of_document(system, MASKED_INPUTS[0]) + each, 0)
            assert float(actual[row, word]) == pytest.approx(float(expected), abs=1e-10)
        scored = system.target_log_probs(VIEW).log_probs
    torch.testing.assert_close(scored, actual.gather(1, torch.tensor([[8], [5], [6]]))[:, 0])


def test_top_k_document_probabilities_sum_to_one():
    system = build(retrieved=2)
    actual = system.retrieve(rows("a <mask>"))
    every = log_p_of_document(system, [START, 5, MASK, END])
    best = every[1:].topk(2).indices.tolist()
    assert set(actual.numbers[0].tolist()) == {-1, *best}
    chosen = torch.stack([every[0], *(every[1 + number] for number in best)])
    expected = torch.log_softmax(chosen, 0).sort(descending=True).values
    torch.testing.assert_close(actual.log_probs[0], expected)


def test_source_document_of_a_text_is_excluded():
    """Documents 0 and 2 hold `c`, 0 alone `b c`; a text is held as a whole or not at all."""
    system = build(retrieved=3)
    retriever = system.retriever
    numbers = torch.arange(5).expand(3, -1)
    held = retriever.contains_text(numbers, rows("b c", "c", "a c"))
    assert held.int().tolist() == [[1, 0, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    clean = rows("b c", "c", "a c")
    result = retriever.find(rows("b <mask>", "<mask>", "a <mask>"), clean=clean)
    assert 0 not in result.numbers[0].tolist()
    assert not {0, 2} & set(result.numbers[1].tolist())
    assert result.numbers.shape == (3, 4)
    torch.testing.assert_close(result.log_probs.exp().sum(1), torch.ones(3).double())


def test_truncated_document_still_contains_its_text():
    """Of `c d e f` three tokens are encoded; a text that starts after the cut is not excluded."""
    system = build(document_length=5)
    assert system.retriever.memory.document_tokens(torch.tensor([2]))[1].tolist() == [3]
    texts = rows("d e f", "e f", "f", "d e f a")
    held = system.retriever.contains_text(torch.tensor([[2, 0]] * 4), texts)
    assert held.tolist() == [[True, False], [True, False], [False, False], [False, False]]
    edited = system.with_document(Document(name="2", text="a b c d e"))
    held = edited.retriever.contains_text(torch.tensor([[2]] * 2), rows("b c d e", "d e f"))
    assert held.tolist() == [[True], [False]]


def test_with_documents_reembeds_and_keeps_the_original():
    system = build(retrieved=2)
    new_documents = Documents(
        [Document(name="new", text="d d"), Document(name="newer", text="a f")]
    )
    other = system.with_documents(new_documents)
    with torch.no_grad():
        now = torch.cat([system.encode(rows(text)) for text in ("d d", "a f")])
    torch.testing.assert_close(other.retriever.memory.vectors, now)
    [evidence] = other.evidence(other.retrieve(rows("a <mask>")))
    assert {each.name for each in evidence} == {"", "new", "newer"}
    assert system.documents is DOCUMENTS and len(system.retriever.memory.vectors) == len(TEXTS)
    given = torch.arange(8.0).view(2, 4)
    taken = system.with_documents(new_documents, vectors=given).retriever.memory.vectors
    assert torch.equal(taken, given.double())


def test_null_document_used_when_all_are_excluded():
    system = build(Documents([Document(name="x", text="a b"), Document(name="y", text="b a b")]))
    result = system.retriever.find(rows("a <mask>"), clean=rows("a b"))
    assert result.numbers.tolist() == [[-1, -1, -1]]
    assert result.log_probs.exp().tolist() == [[1.0, 0.0, 0.0]]
    loss, _ = system.loss(rows("a b"), generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    assert math.isfinite(loss.total.item())
    gradients = [p.grad for p in system.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(g.isfinite().all()) for g in gradients)


def test_index_changes_only_at_refresh_steps():
    system = build(refresh=3, background_refresh=False)
    system.begin_step(0)
    first = system.retriever.memory.vectors.clone()
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.mul_(1.1)
    for step in (1, 2):
        system.begin_step(step)
        assert torch.equal(system.retriever.memory.vectors, first)
    system.begin_step(3)
    with torch.no_grad():
        now = torch.cat([system.encode(rows(text)) for text in TEXTS])
    torch.testing.assert_close(system.retriever.memory.vectors, now)
    assert not torch.allclose(now, first)


def scaled(system, factor: float) -> torch.Tensor:
    """Change all weights; what the documents' vectors are then."""
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.mul_(factor)
        return torch.cat([system.encode(rows(text)) for text in TEXTS])


def test_background_index_is_used_half_a_refresh_later():
    system = build(refresh=4, background_refresh=True)
    memory = system.retriever.memory
    system.begin_step(0)
    first = memory.vectors.clone()
    second = scaled(system, 1.1)
    for step in (1, 2, 3, 4):
        system.begin_step(step)
        assert torch.equal(memory.vectors, first)
    third = scaled(system, 1.1)
    system.begin_step(5)
    assert torch.equal(memory.vectors, first)
    # A run saved here and resumed continues with the pending index.
    again = build(refresh=4, background_refresh=True)
    again.load_state_dict(system.state_dict())
    for each in (system, again):
        each.begin_step(6)
        torch.testing.assert_close(each.retriever.memory.vectors, second)
        for step in (7, 8, 9, 10):
            each.begin_step(step)
        torch.testing.assert_close(each.retriever.memory.vectors, third)


def test_refresh_schedule_starts_with_short_intervals():
    """By default at 16, 32, 64, 128 and 256, then every 500 steps; 5 is sooner than 16."""
    of_500 = [step for step in range(1600) if refresh_due(step, 500)]
    assert of_500 == [16, 32, 64, 128, 256, 500, 1000, 1500]
    assert [s for s in range(1600) if refresh_ready(s, 500)] == [24, 48, 96, 192, 384, 750, 1250]
    assert [step for step in range(16) if refresh_due(step, 5)] == [5, 10, 15]
    assert [step for step in range(60) if refresh_due(step, 25)] == [16, 25, 50]
    assert [step for step in range(60) if refresh_ready(step, 25)] == [24, 37]
    assert not any(refresh_due(step, 0) or refresh_ready(step, 0) for step in range(100))


def test_evaluation_and_checkpoints_use_a_fresh_index():
    system = build(refresh=4, background_refresh=True)
    memory = system.retriever.memory
    for step in range(5):
        system.begin_step(step)
    old, now = memory.vectors.clone(), scaled(system, 1.1)
    with system.refreshed():
        torch.testing.assert_close(memory.vectors, now)
        assert not len(memory.pending_vectors)
        with system.refreshed():
            torch.testing.assert_close(memory.vectors, now)
        torch.testing.assert_close(memory.vectors, now)
    assert torch.equal(memory.vectors, old)
    torch.testing.assert_close(
        memory.pending_vectors, old
    )  # begun at step 4, before the weights changed


def test_state_without_pending_index_can_be_loaded():
    system, again = build(), build()
    weights = {
        name: each for name, each in system.state_dict().items() if "pending_vectors" not in name
    }
    assert len(weights) < len(system.state_dict())
    again.load_state_dict(weights)
    assert again.state_dict().keys() == system.state_dict().keys()


def test_salient_spans_are_masked_where_present():
    """`b` and `c d` are titles, `a` occurs in every document and is no name."""
    documents = Documents(
        Document(name=title, title=title, text=f"{title} : a".replace(" : ", " "))
        for title in ("b", "c d", "a")
    )
    system = build(documents)
    batch = rows("a b e", "e c d a", "e f e")
    hidden = set()
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        view = system.objective.view(batch, generator=generator)
        assert bool((view.inputs[view.targets != NO_TARGET] == MASK).all())
        hidden |= {tuple(position) for position in (view.targets != NO_TARGET).nonzero().tolist()}
    assert hidden == {(0, 2), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)}


def test_edited_document_changes_only_the_edited_model():
    system = build().eval()
    before = system.ask(["a ___ c"], answers=len(WORDS))[0]
    edited = system.with_document(Document(name="0", text="f f f"))
    after = edited.ask(["a ___ c"], answers=len(WORDS))[0]
    assert [a.log_prob for a in after] != [a.log_prob for a in before]
    assert "f f f" in [e.text for e in after[0].evidence]
    assert "a b c" in [e.text for e in before[0].evidence]
    again = system.ask(["a ___ c"], answers=len(WORDS))[0]
    assert [a.log_prob for a in again] == [a.log_prob for a in before]
    assert sum(e.probability for e in before[0].evidence) == pytest.approx(1)


def test_documents_are_retrieved_once_per_question(monkeypatch: pytest.MonkeyPatch):
    system, calls = build().eval(), []
    find = Retriever.find

    def counted(self: Retriever, batch: Batch, **options):
        calls.append(len(batch))
        return find(self, batch, **options)

    monkeypatch.setattr(Retriever, "find", counted)
    system.ask(["a ___", "___ b"])
    assert calls == [2]


def test_answers_exclude_special_tokens():
    """Of the distribution at the blank the words alone, as likely as they were: a to f."""
    system = build().eval()
    blank = Batch.collate([[START, WORDS.index("a"), MASK, WORDS.index("c"), END]], pad=0)
    with torch.no_grad():
        # Unknown is by far the likeliest there.
        system.emission.get_parameter("bias")[WORDS.index("<unk>")] += 20
        [shares] = system.fill(blank, blank.tokens == MASK).log_probs.exp()
    assert shares.argmax() == WORDS.index("<unk>")
    [actual] = system.ask(["a ___ c"], answers=len(WORDS))
    words = WORDS[MASK + 1 :]
    assert sorted(answer.text for answer in actual) == words
    for answer in actual:
        expected = float(shares[WORDS.index(answer.text)])
        assert math.exp(answer.log_prob) == pytest.approx(expected, rel=1e-6)
    assert len(system.ask(["a ___ c"], answers=3)[0]) == 3


@pytest.mark.parametrize(("kind", "words"), [("wordpiece", "abcd"), ("char", "abcdef")])
def test_answers_do_not_start_inside_a_word(kind: str, words: str):
    class Halves(Letters):
        """Of which e and f go on the word before them, if these are pieces of words."""

        def token(self, id: int) -> str:
            return f"##{WORDS[id]}" if WORDS[id] in ("e", "f") else WORDS[id]

    tokenizer, system = Halves(), build().eval()
    tokenizer.kind, system.tokenizer = kind, None
    system.setup_tokenizer(tokenizer)
    system.retriever.embed()
    [result] = system.ask(["a ___ c"], answers=len(WORDS))
    assert sorted(answer.text for answer in result) == list(words)


def test_question_without_a_blank_is_refused():
    with pytest.raises(UserError, match="exactly one blank ___, got 0"):
        build().ask(["a b c"])


def test_encoders_initialised_from_dpr():
    module = system_module("dpr")
    torch.manual_seed(1)
    words = {"width": 8, "layers": 1, "heads": 2, "vector_width": 4, "length": 12}
    base = module.build(module.Config(**words), VOCABULARY).eval()
    realm = system_module("realm")
    config = realm.Config(**words, document_length=8)
    system = realm.build(config, VOCABULARY, documents=DOCUMENTS, base=base).eval()
    batch = rows("a b", "c")
    assert torch.equal(system.encode(batch), base.encode(batch))
    assert torch.equal(system.encode_queries(batch), base.encode_queries(batch))
    wide = realm.Config(**words | {"vector_width": 6}, document_length=8)
    with pytest.raises(UserError, match="the base has other sizes"):
        realm.build(wide, VOCABULARY, documents=DOCUMENTS, base=base)


def test_dpr_initialised_from_a_bidirectional_transformer():
    bert, dpr = system_module("bert"), system_module("dpr")
    torch.manual_seed(1)
    words = {"width": 8, "layers": 1, "heads": 2, "length": 12, "segments": 2}
    base = bert.build(bert.Config(**words), VOCABULARY)
    system = dpr.build(dpr.Config(**words), VOCABULARY, base=base).eval()
    given = base.backbone.state_dict()
    for encoder in (system.questions, system.documents):
        own = encoder.backbone.state_dict()
        assert all(torch.equal(own[name], given[name]) for name in own)
    lstm = system_module("lstm")
    with pytest.raises(UserError, match="the base must be a dual encoder"):
        dpr.build(dpr.Config(**words), VOCABULARY, base=lstm.build(lstm.SIZES["tiny"], VOCABULARY))


def test_zero_retrieved_leaves_only_the_null_document():
    system = build(retrieved=0)
    result = system.retriever.find(rows("a <mask>"), clean=rows("a b"))
    assert result.numbers.tolist() == [[-1]]
    assert result.log_probs.tolist() == [[0.0]]
    system.retriever.memory.vectors.zero_()
    system.begin_step(0)
    assert not system.retriever.memory.vectors.any(), "what is never searched is not embedded"
