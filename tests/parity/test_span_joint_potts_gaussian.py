"""Potts and Gaussian dependencies against explicit energies and torch's multivariate normal."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference import potts_joint

VOCABULARY = Vocabulary(size=8)
PREDICTED = [i for i in range(8) if i not in (0, 2, 4)]  # no <pad>, <s>, <mask>
SENTENCES = [[2, 5, 6, 7, 5, 3], [2, 7, 3], [2, 6, 5, 3]]
MASKED = {0: (1, 2, 4), 1: (1,)}


def build(dependencies: str):
    torch.manual_seed(0)
    module = system_module("span-joint")
    config = module.Config(width=8, layers=1, heads=2, length=16, rank=3, dependencies=dependencies)
    system = module.build(config, VOCABULARY).double()
    with torch.no_grad():
        for name, parameter in system.named_parameters():
            if "emission" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return system.eval()


def masked_batch() -> tuple[Batch, torch.Tensor]:
    batch = Batch.collate(SENTENCES, pad=0)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, positions in MASKED.items():
        masked[row, list(positions)] = True
    return batch, masked


def at_blanks(system, row: int) -> torch.Tensor:
    batch, masked = masked_batch()
    hidden = system.hidden(system.objective.fill_view(batch, masked)).values
    return hidden[row, list(MASKED[row])]


def normalised(energies: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    whole = math.fsum(map(math.exp, energies.values()))
    return {x: math.exp(energy) / whole for x, energy in energies.items()}


def by_potts(system, row: int) -> dict[tuple[int, ...], float]:
    emission, hidden = system.emission, at_blanks(system, row)
    f, size = emission.vectors, emission.links.rank
    energies = {}
    for x in itertools.product(PREDICTED, repeat=len(hidden)):
        energy = sum(float(emission.unary.logits(h)[a]) for h, a in zip(hidden, x, strict=True))
        for i, j in itertools.combinations(range(len(x)), 2):
            q = emission.links.query(hidden[i]).view(size, size)
            k = emission.links.key(hidden[j]).view(size, size)
            energy += float((q @ f[x[i]]) @ (k @ f[x[j]]))
        energies[x] = energy
    return normalised(energies)


def normal(system, row: int) -> torch.distributions.MultivariateNormal:
    """The Gaussian over a row's blanks, from its parts."""
    emission, hidden = system.emission, at_blanks(system, row)
    mean = torch.cat([emission.mean(h) for h in hidden])
    own = torch.cat([0.02 + torch.nn.functional.softplus(emission.spread(h)) for h in hidden])
    common = torch.cat([emission.common(h).view(emission.rank, -1) for h in hidden])
    return torch.distributions.MultivariateNormal(mean, torch.diag(own) + common @ common.T)


def by_gaussian(system, row: int) -> dict[tuple[int, ...], float]:
    emission, distribution = system.emission, normal(system, row)
    sharp, energies = float(emission.log_sharpness.exp()), {}
    for x in itertools.product(PREDICTED, repeat=len(MASKED[row])):
        density = float(distribution.log_prob(emission.vectors[list(x)].flatten()))
        energies[x] = sharp * density + sum(float(emission.bias[a]) for a in x)
    return normalised(energies)


def filled(x: tuple[int, ...], y: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([*x, *y])


@pytest.fixture(scope="module", params=["potts", "gaussian"])
def case(request):
    system = build(request.param)
    by = by_potts if request.param == "potts" else by_gaussian
    with torch.no_grad():
        expected = {row: by(system, row) for row in MASKED}
        joint = system.joint_fill(*masked_batch())
    return system, joint, expected


def test_filling_probabilities_equal_enumeration(case):
    _, joint, expected = case
    with torch.no_grad():
        for x, p in expected[0].items():
            actual = joint.log_prob(filled(x, (5,)))
            assert actual[0].exp().item() == pytest.approx(p, abs=1e-9)
            assert actual[2].item() == 0, "a row without a blank"
        for y, p in expected[1].items():
            assert joint.log_prob(filled((5, 5, 5), y))[1].exp().item() == pytest.approx(p)


def test_conditionals_marginals_and_best_equal_enumeration(case):
    system, joint, expected = case
    x = (5, 7, 6)
    with torch.no_grad():
        rows = torch.tensor([x, (5, 0, 0), (0, 0, 0)])
        conditionals = joint.padded.conditionals(rows)[0].exp()
        filled_in = system.fill(*masked_batch()).log_probs.exp()
    for position, token in itertools.product(range(3), PREDICTED):
        y = (*x[:position], token, *x[position + 1 :])
        rest = others_of(y, position)
        others = sum(p for z, p in expected[0].items() if others_of(z, position) == rest)
        assert conditionals[position, token].item() == pytest.approx(expected[0][y] / others)
        marginal = sum(p for z, p in expected[0].items() if z[position] == token)
        assert filled_in[position, token].item() == pytest.approx(marginal)
    order = sorted(expected[0], key=lambda z: -expected[0][z])
    assert [each.tokens for each in joint.ranked(0, 4)] == order[:4]
    assert tuple(joint.best()[:3].tolist()) == order[0]
    single = max(expected[1], key=lambda z: expected[1][z])
    assert tuple(joint.best()[3:].tolist()) == single


def others_of(x: tuple[int, ...], position: int) -> tuple[int, ...]:
    return x[:position] + x[position + 1 :]


def test_single_blank_equals_the_emission(case):
    system, _, expected = case
    with torch.no_grad():
        alone = system.emission.log_probs(at_blanks(system, 1)[0]).exp()
    assert {(a,): alone[a].item() for a in PREDICTED} == pytest.approx(expected[1])


def test_predictions_follow_the_chain_rule(case):
    system, _, expected = case
    view = system.objective.fill_view(*masked_batch())
    with torch.no_grad():
        terms = system.target_log_probs(view).to_dense()
    x = tuple(SENTENCES[0][position] for position in MASKED[0])
    assert terms[0].sum().exp().item() == pytest.approx(expected[0][x])
    first = sum(p for z, p in expected[0].items() if z[0] == x[0])
    assert terms[0, 1].exp().item() == pytest.approx(first)


@pytest.mark.parametrize("enumerated", [True, False])
def test_samples_follow_the_distribution(case, enumerated, monkeypatch):
    """Exact ones, and a Gibbs sampler's after its sweeps: each token's share within five errors."""
    if not enumerated:
        monkeypatch.setattr(potts_joint, "MAX_ENUMERATED_FILLINGS", 1)
        monkeypatch.setattr(potts_joint, "GIBBS_SWEEPS", 15)
    system, _, expected = case
    draws = 1500
    batch, masked = masked_batch()
    many = system.joint_fill(batch.select([0] * draws), masked[[0] * draws])
    with torch.no_grad():
        samples = many.sample(generator=torch.Generator().manual_seed(0)).view(draws, 3)
    for position, token in itertools.product(range(3), PREDICTED):
        p = sum(q for z, q in expected[0].items() if z[position] == token)
        count = int((samples[:, position] == token).sum())
        assert abs(count - draws * p) < 5 * math.sqrt(draws * p * (1 - p)) + 1


def test_too_many_fillings_are_reported(case, monkeypatch):
    system, _, expected = case
    batch, masked = masked_batch()
    monkeypatch.setattr(potts_joint, "MAX_ENUMERATED_FILLINGS", 8)
    joint = system.joint_fill(batch, masked)
    with pytest.raises(UserError, match=r"8\^3 combinations.*dependencies=chain"):
        joint.log_prob(filled((5, 5, 5), (5,)))
    [best] = joint.ranked(0, 1)
    assert best.tokens == max(expected[0], key=lambda z: expected[0][z])
    assert not best.proven
    assert best.kind == "pseudo"
    given_others = [
        expected[0][best.tokens]
        / math.fsum(
            p for z, p in expected[0].items() if others_of(z, i) == others_of(best.tokens, i)
        )
        for i in range(3)
    ]
    assert best.log_prob == pytest.approx(sum(map(math.log, given_others)))
    with torch.no_grad():
        twice = [joint.padded.marginals() for _ in range(2)]
    assert torch.equal(*twice), "one question, one answer, without a generator too"
    with pytest.warns(UserWarning, match="before it could prove the optimum"):
        joint.best()
    with torch.no_grad():
        many = system.joint_fill(batch.select([0] * 200), masked[[0] * 200])
        actual = many.padded.marginals(generator=torch.Generator().manual_seed(0)).exp().mean(0)
    for position, token in itertools.product(range(3), PREDICTED):
        p = sum(q for z, q in expected[0].items() if z[position] == token)
        assert actual[position, token].item() == pytest.approx(p, abs=0.02)


def test_potts_loss_is_its_pseudo_likelihood():
    system = build("potts")
    batch, masked = masked_batch()
    view = system.objective.fill_view(batch, masked)
    with torch.no_grad():
        lost = system.joint_loss(view)
        expected = by_potts(system, 0)
    x = tuple(SENTENCES[0][position] for position in MASKED[0])
    value = 0.0
    for position in range(3):
        others = [
            p for z, p in expected.items() if others_of(z, position) == others_of(x, position)
        ]
        value -= math.log(expected[x] / math.fsum(others))
    assert lost[0].item() == pytest.approx(value)
    assert lost[2].item() == 0


def test_gaussian_loss_is_density_and_unembedding_loss():
    system = build("gaussian")
    batch, masked = masked_batch()
    view = system.objective.fill_view(batch, masked)
    with torch.no_grad():
        lost = system.joint_loss(view)
        expected = by_gaussian(system, 0)
        x = tuple(SENTENCES[0][position] for position in MASKED[0])
        value = -float(normal(system, 0).log_prob(system.emission.vectors[list(x)].flatten()))
    for position in range(3):
        others = [
            p for z, p in expected.items() if others_of(z, position) == others_of(x, position)
        ]
        value -= math.log(expected[x] / math.fsum(others))
    assert lost[0].item() == pytest.approx(value)


@pytest.mark.parametrize("dependencies", ["chain", "tree", "potts", "gaussian"])
def test_joint_learns_that_two_blanks_are_equal(dependencies):
    """x x or y y, never x y: the product of single blanks gives each ¼, the joint 0 to x y."""
    torch.manual_seed(1)
    module = system_module("span-joint")
    config = module.Config(
        width=16,
        layers=1,
        heads=2,
        length=8,
        dropout=0.0,
        attention_dropout=0.0,
        states=4,
        rank=4,
        dependencies=dependencies,
        max_mask_rate=1.0,
    )
    system = module.build(config, Vocabulary(size=7))
    batch = Batch.collate([[2, 5, 5, 3], [2, 6, 6, 3]] * 8, pad=0)
    optimizer = torch.optim.Adam(system.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        optimizer.zero_grad()
        system.loss(batch, generator=generator)[0].total.backward()
        optimizer.step()
    system.eval()
    one, masked = batch.select([0]), torch.tensor([[False, True, True, False]])
    with torch.no_grad():
        joint = system.joint_fill(one, masked)
        same = [joint.log_prob(torch.tensor(x))[0].exp().item() for x in ([5, 5], [6, 6])]
    assert sum(same) > 0.9
    if dependencies in ("chain", "tree"):
        # A likelihood fits the frequencies; given one blank the other is certain, so that a
        # pseudo-likelihood need not.
        assert min(same) > 0.2
