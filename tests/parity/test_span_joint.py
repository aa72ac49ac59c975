"""Joint fillings against the enumeration of every filling and every state, in plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.joint_states import AFFINITY_SCALE
from lmlab.inference import linear_chain, state_joint
from lmlab.inference.best_first import BestFirstSearch
from lmlab.inference.semirings import ENTROPY, MAX
from lmlab.inference.state_joint import state_sums
from lmlab.objectives.masking.token_masking import maskable_positions

VOCABULARY = Vocabulary(size=9)
PREDICTED = [i for i in range(9) if i not in (0, 2, 4)]  # no <pad>, <s>, <mask>
SENTENCES = [[2, 5, 6, 7, 8, 5, 3], [2, 8, 7, 3], [2, 6, 6, 5, 3], [2, 7, 3]]
MASKED = {0: (1, 2, 4), 1: (2,), 2: (1, 3)}
"""Positions by row: three blanks, adjacent and apart; one; two apart; none."""


def build(dependencies: str = "chain", **settings):
    torch.manual_seed(0)
    module = system_module("span-joint")
    defaults = {"width": 8, "layers": 1, "heads": 2, "length": 16, "states": 3, "rank": 4}
    system = module.build(
        module.Config(**defaults | {"dependencies": dependencies} | settings), VOCABULARY
    )
    with torch.no_grad():
        for name, parameter in system.named_parameters():
            if "emission" in name:
                size = 0.05 if name.endswith(".tokens") else 0.5
                parameter.add_(torch.randn_like(parameter) * size)
    return system.eval()


def masked_batch() -> tuple[Batch, torch.Tensor]:
    batch = Batch.collate(SENTENCES, pad=0)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, positions in MASKED.items():
        masked[row, list(positions)] = True
    return batch, masked


def log_normalised(scores: list[float], among: list[int] | None = None) -> list[float]:
    """Scores less the log of the sum of their exponentials, of some or all of them."""
    chosen = range(len(scores)) if among is None else among
    whole = math.log(math.fsum(math.exp(scores[i]) for i in chosen))
    return [score - whole for score in scores]


def enumerated_fillings(
    system, batch: Batch, masked: torch.Tensor, row: int
) -> dict[tuple[int, ...], float]:
    """Probability of every filling of one row, from its parts and no dynamic program."""
    emission = system.emission
    positions = masked[row].nonzero().flatten().tolist()
    hidden = (
        system.hidden(system.objective.fill_view(batch, masked)).values[row, positions].double()
    )
    emission = emission.double()
    phi = (emission.unary.logits(hidden) + emission.never_predicted).tolist()
    v = [[x / math.hypot(*vector) for x in vector] for vector in emission.vectors.tolist()]
    units = torch.tensor(v, dtype=torch.float64)
    g = [
        log_normalised(row, PREDICTED)
        for row in (units @ emission.tokens.T * AFFINITY_SCALE).tolist()
    ]
    r = (emission.state_scores(hidden) @ units.T).tolist()
    parents, strengths = [i - 1 for i in range(len(positions))], [1.0] * len(positions)
    if emission.parents is not None:
        query, key = emission.parents.query(hidden), emission.parents.key(hidden)
        for i in range(1, len(positions)):
            scores = [float(query[i] @ key[j]) / math.sqrt(query.shape[1]) for j in range(i)]
            parents[i] = scores.index(max(scores))
            strengths[i] = 2 / (1 + math.exp(-max(scores)))
    links = {}
    for i in range(1, len(positions)):
        size = emission.links.rank
        q = emission.links.query(hidden[parents[i]]).view(size, size)
        k = emission.links.key(hidden[i]).view(size, size)
        for a in range(len(g)):
            products = [strengths[i] * float((q @ units[a]) @ (k @ b)) for b in units]
            links |= {(i, a, b): value for b, value in enumerate(log_normalised(products))}
    weights = {}
    for x in itertools.product(PREDICTED, repeat=len(positions)):
        total = 0.0
        for z in itertools.product(range(len(g)), repeat=len(positions)):
            score = sum(phi[i][x[i]] + g[z[i]][x[i]] + r[i][z[i]] for i in range(len(positions)))
            score += sum(links[i, z[parents[i]], z[i]] for i in range(1, len(positions)))
            total += math.exp(score)
        weights[x] = total
    emission.float()
    whole = math.fsum(weights.values())
    return {x: weight / whole for x, weight in weights.items()}


def filled(row: int, x: tuple[int, ...]) -> torch.Tensor:
    """The (N,) tokens where row `row` is filled by x and others by 5."""
    answers = {0: (5, 5, 5), 1: (5,), 2: (5, 5)} | {row: x}
    return torch.tensor([token for each in answers.values() for token in each])


@pytest.fixture(scope="module", params=["chain", "tree"])
def case(request):
    system, (batch, masked) = build(request.param), masked_batch()
    with torch.no_grad():
        expected = {row: enumerated_fillings(system, batch, masked, row) for row in MASKED}
        joint = system.joint_fill(batch, masked)
    return system, batch, masked, joint, expected


def test_filling_probabilities_equal_enumeration(case):
    *_, joint, expected = case
    with torch.no_grad():
        for row, probabilities in expected.items():
            actual = {x: joint.log_prob(filled(row, x))[row].exp().item() for x in probabilities}
            assert math.fsum(actual.values()) == pytest.approx(1, abs=1e-5)
            assert actual == pytest.approx(probabilities, abs=1e-5)
        assert joint.log_prob(filled(1, (5,)))[3].item() == 0, "a row without a blank"
        never = joint.log_prob(filled(0, (5, 4, 6)))
    assert never[0].item() == -math.inf, "<mask> never comes"
    assert never[1:].isfinite().all()


def test_fill_gives_the_marginals(case):
    system, batch, masked, _, expected = case
    with torch.no_grad():
        actual = system.fill(batch, masked).log_probs.exp()
    marginals = []
    for probabilities in expected.values():
        for position in range(len(next(iter(probabilities)))):
            marginal = torch.zeros(VOCABULARY.size)
            for x, p in probabilities.items():
                marginal[x[position]] += p
            marginals.append(marginal)
    torch.testing.assert_close(actual, torch.stack(marginals), atol=1e-5, rtol=0)


def test_single_blank_equals_the_emission(case):
    system, batch, masked, joint, _ = case
    with torch.no_grad():
        hidden = system.hidden(system.objective.fill_view(batch, masked)).values[1, 2]
        alone = system.emission.log_probs(hidden)
        for token in PREDICTED:
            result = joint.log_prob(filled(1, (token,)))[1]
            assert result.item() == pytest.approx(alone[token].item(), abs=1e-5)
        logits = system.logits(batch.select([1]), masked[[1]])
        torch.testing.assert_close(torch.log_softmax(logits[0], -1), alone)


def test_masked_token_scores_equal_fill(case):
    """With other tokens masked; a visible target is scored by the emission alone."""
    system, batch, masked, *_ = case
    some, seen = masked.clone(), torch.zeros_like(masked)
    some[0, 2], seen[0, 3] = False, True
    with torch.no_grad():
        filled_in = torch.zeros(*masked.shape, VOCABULARY.size)
        filled_in[masked] = system.fill(batch, masked).log_probs
        hidden = system.hidden(system.objective.fill_view(batch, masked)).values
        filled_in[seen] = system.emission.log_probs(hidden[seen])
        expected = filled_in.gather(-1, batch.tokens[..., None])[..., 0][some | seen]
        actual = system.log_prob_at(batch, masked, some | seen)
        torch.testing.assert_close(actual, expected)
        scores = system.logits(batch, masked, some | seen)
        expected = scores.gather(-1, batch.tokens[some | seen][:, None])[:, 0]
        torch.testing.assert_close(system.logit_at(batch, masked, some | seen), expected)


def test_ranked_fillings_follow_the_enumeration(case):
    *_, joint, expected = case
    best = joint.best().tolist()
    for row, probabilities in expected.items():
        order = sorted(probabilities, key=lambda x: -probabilities[x])
        actual = joint.ranked(row, 12)
        assert len(actual) == min(12, len(order)), "impossible tokens are no fillings"
        assert [each.tokens for each in actual] == order[:12]
        assert [math.exp(each.log_prob) for each in actual] == pytest.approx(
            [probabilities[x] for x in order[:12]], abs=1e-6
        )
        assert all(each.proven for each in actual)
        first = sum(len(MASKED[r]) for r in range(row))
        assert tuple(best[first : first + len(MASKED[row])]) == order[0]


def test_sample_frequencies_match_probabilities(case):
    """Pearson's statistic over all fillings of the row of three, those below 5 expected pooled."""
    system, batch, masked, _, expected = case
    draws = 4000
    many, rows = batch.select([0] * draws), masked[[0] * draws]
    with torch.no_grad():
        samples = system.joint_fill(many, rows).sample(generator=torch.Generator().manual_seed(0))
    counts = dict.fromkeys(expected[0], 0)
    for x in samples.view(draws, 3).tolist():
        counts[tuple(x)] += 1
    observed = np.array(list(counts.values()), float)
    wanted = draws * np.array(list(expected[0].values()))
    small = wanted < 5
    observed = np.append(observed[~small], observed[small].sum())
    wanted = np.append(wanted[~small], wanted[small].sum())
    half = torch.tensor(((observed - wanted) ** 2 / wanted).sum() / 2)
    degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    assert torch.special.gammaincc(degrees, half).item() > 1e-6


def test_predictions_follow_the_chain_rule(case):
    """Each term is log p(x_i | x_<i), later blanks unknown; their sum is the joint's."""
    system, batch, masked, _, expected = case
    view = system.objective.fill_view(batch, masked)
    with torch.no_grad():
        terms = system.target_log_probs(view).to_dense()
    for row, positions in MASKED.items():
        x = tuple(SENTENCES[row][position] for position in positions)
        before = 1.0
        for number, position in enumerate(positions, 1):
            mass = math.fsum(p for y, p in expected[row].items() if y[:number] == x[:number])
            assert terms[row, position].item() == pytest.approx(math.log(mass / before), abs=1e-5)
            before = mass
        assert terms[row].sum().item() == pytest.approx(math.log(expected[row][x]), abs=1e-5)
    assert terms[3].eq(0).all()


def test_gradient_equals_finite_differences():
    """By differences, in double precision, of all the emission's parameters along one direction."""
    for dependencies in ("chain", "tree"):
        system, (batch, masked) = build(dependencies).double(), masked_batch()
        tokens = filled(0, (5, 6, 8))

        def value(system=system, batch=batch, masked=masked, tokens=tokens) -> torch.Tensor:
            return system.joint_fill(batch, masked).log_prob(tokens).sum()

        parameters = list(system.emission.parameters())
        generator = torch.Generator().manual_seed(1)
        directions = [torch.randn(p.shape, generator=generator).to(p) for p in parameters]
        gradients = torch.autograd.grad(value(), parameters)
        expected = sum(
            (g * direction).sum() for g, direction in zip(gradients, directions, strict=True)
        )
        step, values = 1e-6, []
        with torch.no_grad():
            for sign in (1, -2):
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.add_(direction, alpha=sign * step)
                values.append(value().item())
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(expected), rel=1e-5)


def test_one_state_equals_the_independent_product():
    system, (batch, masked) = build(states=1), masked_batch()
    with torch.no_grad():
        joint = system.joint_fill(batch, masked)
        single = system.fill(batch, masked).log_probs
        tokens = filled(0, (5, 6, 8))
        each = single.gather(1, tokens[:, None])[:, 0]
    sums = [each[:3].sum(), each[3].sum(), each[4:].sum(), torch.tensor(0.0)]
    torch.testing.assert_close(joint.log_prob(tokens), torch.stack(sums))


def test_tree_of_neighbours_equals_the_chain():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    pairwise = torch.randn(3, 4, 4, 4, generator=generator, dtype=torch.float64)
    lengths, parents = torch.tensor([5, 2, 1]), torch.tensor([0, 0, 1, 2, 3])
    for semiring in (MAX, ENTROPY):
        expected = linear_chain.total(unary, pairwise, semiring=semiring, lengths=lengths)
        actual = state_joint.tree_total(
            unary, pairwise, parents, semiring=semiring, lengths=lengths
        )
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("tree", [False, True])
def test_state_sums_equal_the_dynamic_program(tree):
    generator = torch.Generator().manual_seed(0)
    unary = (torch.randn(2, 4, 5, 3, generator=generator) * 3).double().requires_grad_()
    links = (torch.randn(4, 4, 3, 3, generator=generator) * 3).double().requires_grad_()
    lengths = torch.tensor([5, 2, 1, 4])
    parents = torch.tensor([[0, 0, 0, 2, 1]] * 3 + [[0, 0, 1, 1, 0]]) if tree else None

    def clear(unary):
        if parents is None:
            return linear_chain.total(unary, links, lengths=lengths)
        return state_joint.tree_total(unary, links, parents, lengths=lengths)

    expected = torch.stack([clear(each) for each in unary])
    actual = state_sums(unary, links, lengths, parents)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    weights = torch.randn(2, 4, generator=generator).double()
    for a, b in zip(
        torch.autograd.grad((actual * weights).sum(), (unary, links)),
        torch.autograd.grad((expected * weights).sum(), (unary, links)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("parents", [(-1, 0, 1, 2), (-1, 0, 0, 1), (-1, 0, 1, 0), (-1, 0, 0, 0)])
def test_best_first_search_ranks_all_fillings_on_any_tree(parents):
    generator = torch.Generator().manual_seed(2)
    tokens = [torch.randn(3, 3, generator=generator) * 2 for _ in parents]
    links = [torch.randn(3, 3, generator=generator) * 2 for _ in parents[1:]]
    scores = {}
    for x in itertools.product(range(3), repeat=4):
        terms = []
        for z in itertools.product(range(3), repeat=4):
            score = sum(float(tokens[i][z[i], x[i]]) for i in range(4))
            terms.append(score + sum(float(links[i - 1][z[parents[i]], z[i]]) for i in (1, 2, 3)))
        scores[x] = math.log(math.fsum(map(math.exp, terms)))
    order = sorted(scores, key=lambda x: -scores[x])
    search = BestFirstSearch(tokens, links, parents)
    result = search.ranked(81)
    assert [each.tokens for each in result] == order
    assert [each.score for each in result] == pytest.approx([scores[x] for x in order])
    # Given up at once, a beam as wide as the space still finds them, and says that it is not sure.
    given_up = search.ranked(81, max_expansions=0)
    assert [each.tokens for each in given_up] == order
    assert not any(each.proven for each in given_up)


@pytest.mark.parametrize("dependencies", ["chain", "tree"])
def test_joint_fill_pairs_countries_with_capitals(dependencies):
    """p(中国, 北京) > p(中国, 北黎), nearer to the truth than any product can be."""
    pairs = ["中国北京", "法国巴黎", "日本东京", "英国伦敦", "韩国首尔", "泰国曼谷"]
    letters = sorted(set("".join(pairs)))
    vocabulary = Vocabulary(size=6 + len(letters))
    texts = [[2, *(6 + letters.index(letter) for letter in pair), 3] for pair in pairs]
    batch = Batch.collate(texts, pad=0)
    torch.manual_seed(0)
    module = system_module("span-joint")
    sizes = {"width": 32, "layers": 1, "heads": 2, "length": 8, "states": 12, "rank": 8}
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    system = module.build(module.Config(dependencies=dependencies, **sizes, **still), vocabulary)
    optimizer = torch.optim.Adam(system.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    many = batch.select(list(range(6)) * 4)
    for _ in range(200):
        optimizer.zero_grad()
        system.loss(many, generator=generator)[0].total.backward()
        optimizer.step()
    system.eval()
    masked = maskable_positions(batch, vocabulary)
    with torch.no_grad():
        joint = system.joint_fill(batch, masked).log_prob(batch.tokens[masked])
        wrong = batch.tokens[masked].clone()
        wrong[3] = 6 + letters.index("黎")
        mixed_up = system.joint_fill(batch, masked).log_prob(wrong)[0]
        single = system.fill(batch, masked).log_probs
        product = single.gather(1, batch.tokens[masked][:, None]).view(6, 4).sum(1)
    assert joint[0] > mixed_up + 2
    # Single letters at best: 国 five times in six and 京 twice, all others once in six.
    counts = [[column.count(x) for x in column] for column in zip(*pairs, strict=True)]
    best = math.fsum(math.log(count / 6) for column in counts for count in column) / 6
    kl = math.log(1 / 6) - joint.mean().item()
    assert kl < 0.5 * (math.log(1 / 6) - best)
    assert product.mean().item() < best + 1e-6, "no product is better than that of the marginals"
