"""`hmm` against sums over all state sequences, by plain loops over its tables."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.config import apply_settings

VOCABULARY = Vocabulary(size=9)
END, START = 3, 2
TEXTS = [[START, 5, 6, END], [START, 7, END], [START, 8, 5, 5]]


def build(seed: int = 0, **settings):
    module = system_module("hmm")
    torch.manual_seed(seed)
    system = module.build(apply_settings(module.SIZES["tiny"], settings), VOCABULARY)
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return system.double().eval()


SYSTEMS = {
    "neural": {"states": 4, "blocks": 2, "width": 4},
    "neural, one block": {"states": 3, "blocks": 1, "width": 4},
    "free": {"states": 4, "blocks": 2, "fitting": "em"},
    "free, one block": {"states": 3, "blocks": 1, "fitting": "em"},
}


@pytest.fixture(params=SYSTEMS, ids=SYSTEMS.keys())
def system(request):
    return build(**SYSTEMS[request.param])


def plain_tables(system):
    """Probabilities as nested lists: start, transition, emission of any token by any state."""
    with torch.no_grad():
        tables = system.markov.tables()
    count, inside = len(tables.start), tables.states_per_block
    emission = [[0.0] * VOCABULARY.size for _ in range(count)]
    for token in range(VOCABULARY.size):
        for k in range(inside):
            state = int(tables.block[token]) * inside + k
            emission[state][token] = math.exp(tables.emission[token, k])
    return tables.start.exp().tolist(), tables.transition.exp().tolist(), emission


def joint(plain, z, tokens) -> float:
    """P(z, tokens) for one state sequence; a token of None may be any."""
    start, transition, emission = plain
    p = start[z[0]]
    for t, token in enumerate(tokens):
        p *= 1.0 if token is None else emission[z[t]][token]
        p *= transition[z[t]][z[t + 1]] if t + 1 < len(tokens) else 1.0
    return p


def sequences(plain, length):
    return itertools.product(range(len(plain[0])), repeat=length)


def probability(plain, tokens) -> float:
    return math.fsum(joint(plain, z, tokens) for z in sequences(plain, len(tokens)))


def batch_of(texts) -> Batch:
    return Batch.collate(texts, pad=0)


def test_tables_are_distributions(system):
    start, transition, emission = plain_tables(system)
    assert sum(start) == pytest.approx(1)
    for row in (*transition, *emission):
        assert sum(row) == pytest.approx(1)
    assert all(row[unpredictable] == 0 for row in emission for unpredictable in (0, 2, 4))


def test_log_prob_is_the_sum_over_state_sequences(system):
    plain = plain_tables(system)
    with torch.no_grad():
        result = system.log_prob(batch_of(TEXTS))
    for row, text in enumerate(TEXTS):
        assert result.totals[row].item() == pytest.approx(math.log(probability(plain, text[1:])))
        for position in range(1, len(text)):
            before = probability(plain, text[1:position]) if position > 1 else 1.0
            conditional = probability(plain, text[1 : position + 1]) / before
            assert result.per_token[row, position - 1].item() == pytest.approx(
                math.log(conditional)
            )


def test_text_in_two_segments_scores_as_one(system):
    text = [START, 5, 6, 7, 8, END]
    with torch.no_grad():
        whole = system.log_prob(batch_of([text])).per_token
        first = system.log_prob(batch_of([text[:3]]))
        second = system.log_prob(batch_of([text[2:]]), state=first.state)
    torch.testing.assert_close(torch.cat([first.per_token, second.per_token], 1), whole)


def test_state_posterior_equals_enumeration(system):
    plain = plain_tables(system)
    actual = system.capture_internals(batch_of(TEXTS))["state posterior"].values
    for row, text in enumerate(TEXTS):
        tokens = text[1:]
        expected = torch.zeros(len(tokens), len(plain[0])).double()
        for z in sequences(plain, len(tokens)):
            p = joint(plain, z, tokens) / probability(plain, tokens)
            for t, state in enumerate(z):
                expected[t, state] += p
        torch.testing.assert_close(actual[row, : len(tokens)], expected)
        assert actual[row, len(tokens) :].eq(0).all()


def test_fill_marginalises_over_other_masked_positions(system):
    """Two masked positions in one text: each is predicted with the other unknown."""
    plain = plain_tables(system)
    text = [START, 5, 6, END]
    masked = torch.tensor([[False, True, False, True]])
    actual = system.fill(batch_of([text]), masked).log_probs.exp()
    for row, position in enumerate((1, 3)):
        weights = []
        for token in range(VOCABULARY.size):
            tokens = [None, 6, None]
            tokens[position - 1] = token
            weights.append(probability(plain, tokens))
        expected = torch.tensor(weights).double() / sum(weights)
        torch.testing.assert_close(actual[row], expected)


def test_only_predicted_positions_can_be_filled(system):
    batch = batch_of(TEXTS)
    with pytest.raises(UserError, match="after the first token"):
        system.fill(batch, torch.ones_like(batch.tokens, dtype=torch.bool))


@pytest.fixture(params=["free", "free, one block"])
def em_system(request):
    return build(**SYSTEMS[request.param])


def test_expected_counts_are_posterior_sums(em_system):
    plain = plain_tables(em_system)
    result = em_system.expect(batch_of(TEXTS))
    states, inside = len(plain[0]), em_system.markov.inside
    start, moves = torch.zeros(states).double(), torch.zeros(states, states).double()
    emitted = torch.zeros(VOCABULARY.size, inside).double()
    for text in TEXTS:
        tokens = text[1:]
        whole = probability(plain, tokens)
        for z in sequences(plain, len(tokens)):
            p = joint(plain, z, tokens) / whole
            start[z[0]] += p
            for t, token in enumerate(tokens):
                if t + 1 < len(tokens):
                    moves[z[t], z[t + 1]] += p
                if p > 0:
                    emitted[token, z[t] % inside] += p
    torch.testing.assert_close(result["start"], start)
    torch.testing.assert_close(result["transition"], moves)
    torch.testing.assert_close(result["emission"], emitted)


def test_em_never_lowers_the_likelihood(em_system):
    batch = batch_of([*TEXTS, [START, 5, 7, 6, END], [START, 5, 8, END]])
    likelihoods = []
    for _ in range(15):
        with torch.no_grad():
            likelihoods.append(em_system.log_prob(batch).totals.sum().item())
        counts = em_system.expect(batch)
        em_system.free.set_from_counts(counts, floor=1e-300)  # maximum likelihood itself
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 1


def test_one_em_step_by_hand():
    """One state: the emission becomes the relative frequencies, whatever stood there before."""
    system = build(states=1, blocks=1, fitting="em")
    batch = batch_of([[START, 5, 5, 6, END]])
    system.maximise(system.expect(batch))
    with torch.no_grad():
        result = system.markov.tables().emission.exp().squeeze(1)
    assert result[5].item() == pytest.approx(2 / 4, abs=1e-5)
    assert result[6].item() == pytest.approx(1 / 4, abs=1e-5)
    assert result[END].item() == pytest.approx(1 / 4, abs=1e-5)


def test_state_dropout_is_a_smaller_hmm_in_training_only():
    system = build(states=8, blocks=2, width=4, state_dropout=0.5)
    batch = batch_of(TEXTS)
    whole = system.log_prob(batch).totals
    torch.manual_seed(0)
    system.train()
    with system.markov.shared() as tables:
        assert tables.kept_states.shape == (4,)
        assert (tables.kept_states // 4).tolist() == [0, 0, 1, 1]  # two of each block
        dropped = system.log_prob(batch).totals
        assert tables.transition.exp().sum(1).tolist() == pytest.approx([1.0] * 4)
    assert not torch.equal(dropped, whole)
    torch.testing.assert_close(system.eval().log_prob(batch).totals, whole)
