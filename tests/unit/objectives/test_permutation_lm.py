"""XLNet's and MPNet's permutation orders: distributions, attention masks and memory."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.token_masking import MaskReplacement, ordinary_token_ids
from lmlab.objectives.permutation_lm import CLS_SEGMENT, TEXT_SEGMENT, PermutationLM, split_batch
from lmlab.objectives.permuted_masking import MaskedPermutedLM
from lmlab.training.train import train
from lmlab.zoo import mpnet, xlnet

VOCABULARY = Vocabulary(size=16)
START, END, MASK = 2, 3, 4


def batch_of(*inner: int) -> Batch:
    """Random texts with so many tokens each between <s> and </s>."""
    generator = torch.Generator().manual_seed(0)
    texts = [
        [START, *torch.randint(5, 16, (count,), generator=generator).tolist(), END]
        for count in inner
    ]
    return Batch.collate(texts, pad=0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(zoo, **settings):
    """A system with weights large enough that every visible token makes a difference."""
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    system = zoo.build(zoo.Config(**{**sizes, **settings}), VOCABULARY).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return system


def chi_square_p_value(counts: Tensor, expected: float) -> float:
    statistic = ((counts - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(
        torch.tensor((len(counts) - 1) / 2.0), statistic.float() / 2
    ).item()


# Distributions of the orders ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "inner", "ordered"),
    [(PermutationLM(VOCABULARY), 3, 4), (MaskedPermutedLM(VOCABULARY), 4, 4)],
    ids=["xlnet: all but <s>", "mpnet: neither <s> nor </s>"],
)
def test_permutations_are_uniform(objective, inner: int, ordered: int):
    draws = 24 * 400
    view = objective.view(batch_of(inner).select([0] * draws), generator=seeded())
    orders = view.order[:, 1 : 1 + ordered]
    names = {order: position for position, order in enumerate(itertools.permutations(range(1, 5)))}
    indices = torch.tensor([names[tuple(order)] for order in orders.tolist()])
    counts = torch.bincount(indices, minlength=24)
    assert chi_square_p_value(counts, draws / 24) > 1e-4


@pytest.mark.parametrize("partial_prediction", [1, 2, 6])
def test_xlnet_predicts_the_last_1_in_k_of_the_order(partial_prediction: int):
    """round(n / K) of n = 23, 11, 2, 1 tokens after <s>, and at least one."""
    batch = batch_of(22, 10, 1, 0)
    view = PermutationLM(VOCABULARY, partial_prediction=partial_prediction).view(
        batch, generator=seeded()
    )
    is_target = view.targets != NO_TARGET
    expected = [max(1, round(n / partial_prediction)) for n in (23, 11, 2, 1)]
    assert is_target.sum(1).tolist() == expected
    for row, n in enumerate((23, 11, 2, 1)):
        turns = sorted(view.order[row][is_target[row]].tolist())
        assert turns == list(range(n - expected[row] + 1, n + 1))
    assert torch.equal(view.targets[is_target], batch.tokens[is_target])
    assert torch.equal(view.clean_positions[is_target], is_target.nonzero()[:, 1])


def test_mpnet_predicts_the_last_15_percent_of_the_order():
    """round(0.15 n) of n = 20, 10, 3 tokens between <s> and </s>, at least one; none of none."""
    batch = batch_of(20, 10, 3, 0)
    view = MaskedPermutedLM(VOCABULARY).view(batch, generator=seeded())
    is_target = view.targets != NO_TARGET
    assert is_target.sum(1).tolist() == [3, 2, 1, 0]  # 3.0, 1.5 to the even, 0.45
    for row, (n, count) in enumerate([(20, 3), (10, 2), (3, 1)]):
        turns = sorted(view.order[row][is_target[row]].tolist())
        assert turns == list(range(n - count + 1, n + 1))
    assert torch.equal(view.lengths, batch.lengths + is_target.sum(1))


def test_mpnet_without_compensation_sees_no_mask_but_the_same_tokens():
    """Position compensation is what the attention masks have beyond the visible text."""
    batch = batch_of(20, 10)
    full = MaskedPermutedLM(VOCABULARY).view(batch, generator=seeded())
    bare = MaskedPermutedLM(VOCABULARY, compensated=False).view(batch, generator=seeded())
    masks = (full.targets != NO_TARGET)[:, None, :]
    time = full.inputs.shape[1]
    for name in ("attention_mask", "query_attention_mask"):
        seen, without = (getattr(v, name).mask(v.lengths, time) for v in (full, bare))
        assert bool((seen & masks).any()) and not bool((without & masks).any())
        assert torch.equal(seen & ~masks, without & ~masks)


def test_mpnet_mask_replacement_is_80_10_10():
    """6,000 positions; a random token may be the right one, once for each ordinary token."""
    view = MaskedPermutedLM(VOCABULARY).view(batch_of(20).select([0] * 2000), generator=seeded())
    is_target = view.targets != NO_TARGET
    inputs, right = view.inputs[is_target], view.targets[is_target]
    by_chance = 0.1 / len(ordinary_token_ids(VOCABULARY))
    for hits, rate in ((inputs == MASK, 0.8), (inputs == right, 0.1 + by_chance)):
        assert len(hits) == 6000
        error = math.sqrt(rate * (1 - rate) / len(hits))
        assert hits.double().mean().item() == pytest.approx(rate, abs=4 * error)


@pytest.mark.parametrize(
    ("objective", "first", "last", "share"),
    [
        (PermutationLM(VOCABULARY, partial_prediction=4), 1, 12, 3 / 12),
        (MaskedPermutedLM(VOCABULARY, rate=0.25), 1, 12, 3 / 12),
    ],
    ids=["xlnet", "mpnet"],
)
def test_predicted_positions_are_uniform(objective, first, last, share: float):
    """Within 4.5 standard errors of a binomial; XLNet's last position holds </s>."""
    inner = last if isinstance(objective, MaskedPermutedLM) else last - 1
    draws = 4000
    view = objective.view(batch_of(inner).select([0] * draws), generator=seeded())
    rates = (view.targets != NO_TARGET).float().mean(0)[first : last + 1]
    error = math.sqrt(share * (1 - share) / draws)
    assert ((rates - share).abs() < 4.5 * error).all()
    assert not (view.targets[:, 0] != NO_TARGET).any()


def test_left_to_right_rate():
    draws, share = 4000, 0.3
    objective = PermutationLM(VOCABULARY, partial_prediction=4, left_to_right_rate=share)
    view = objective.view(batch_of(7).select([0] * draws), generator=seeded())
    whole = (view.targets != NO_TARGET).sum(1) == 8
    error = math.sqrt(share * (1 - share) / draws)
    assert abs(whole.float().mean() - share) < 4.5 * error
    assert (view.order[whole] == torch.arange(9)).all()
    assert ((view.targets[~whole] != NO_TARGET).sum(1) == 2).all()


def test_same_seed_gives_the_same_order():
    batch = batch_of(8, 5)
    for objective in (PermutationLM(VOCABULARY), MaskedPermutedLM(VOCABULARY)):
        first, again = (objective.view(batch, generator=seeded(3)) for _ in range(2))
        assert torch.equal(first.order, again.order)
        assert torch.equal(first.inputs, again.inputs)


# Attention masks ----------------------------------------------------------------------------------


def test_xlnet_attention_masks_follow_the_definition():
    """Content z_t: z_≤t. Query z_t: z_<t. Position 0 comes first, padding is never attended."""
    batch = batch_of(6, 3)
    view = PermutationLM(VOCABULARY, partial_prediction=2).view(batch, generator=seeded())
    content = view.attention_mask.mask(view.lengths, 8)
    query = view.query_attention_mask.mask(view.lengths, 8)
    for row, length in enumerate(batch.lengths.tolist()):
        z = sorted(range(length), key=lambda position: int(view.order[row, position]))
        assert z[0] == 0
        for t, position in enumerate(z):
            assert content[row, position].nonzero().flatten().tolist() == sorted(z[: t + 1])
            assert query[row, position].nonzero().flatten().tolist() == sorted(z[:t])


def test_mpnet_attention_masks_follow_the_definition():
    """Query z_t: x_{z_≤c}, x of the predicted before it, M of itself and those after.

    So it attends to each position of the text exactly once, as token or as mask.
    """
    batch = batch_of(9, 4)
    view = MaskedPermutedLM(VOCABULARY, rate=0.4).view(batch, generator=seeded())
    time = view.inputs.shape[1]
    content = view.attention_mask.mask(view.lengths, time)
    query = view.query_attention_mask.mask(view.lengths, time)
    for row, length in enumerate(batch.lengths.tolist()):
        targets = [
            position for position in range(length) if view.targets[row, position] != NO_TARGET
        ]
        z = sorted(targets, key=lambda position: int(view.order[row, position]))
        visible = [position for position in range(length) if position not in targets]
        slots = list(range(length, length + len(z)))
        assert view.inputs[row, slots].tolist() == batch.tokens[row, z].tolist()
        assert view.positions[row, slots].tolist() == z
        for t, position in enumerate(z):
            attended = query[row, position].nonzero().flatten().tolist()
            assert attended == sorted([*visible, *slots[:t], *z[t:]])
            assert sorted(view.positions[row, attended].tolist()) == list(range(length))
            own = content[row, slots[t]].nonzero().flatten().tolist()
            assert own == sorted([*visible, *slots[: t + 1], *z[t + 1 :]])
        for position in range(length):
            assert content[row, position].nonzero().flatten().tolist() == list(range(length))


@pytest.mark.parametrize(
    ("zoo", "settings"),
    [(xlnet, {"partial_prediction": 2}), (mpnet, {"rate": 0.5})],
    ids=["xlnet", "mpnet"],
)
def test_token_affects_only_later_predictions_in_the_order(zoo, settings):
    """By perturbation, through all layers: never its own prediction, and always the later ones."""
    system, batch = build(zoo, **settings), batch_of(8)
    view = system.objective.view(batch, generator=seeded())
    is_target = (view.targets != NO_TARGET)[0]
    with torch.no_grad():
        before = system.hidden(view).values[0]
        for changed in range(1, 9):
            tokens = batch.tokens.clone()
            tokens[0, changed] = 5 if tokens[0, changed] != 5 else 6
            other = system.objective.view(replace(batch, tokens=tokens), generator=seeded())
            moved = (system.hidden(other).values[0] - before).abs().amax(-1)[is_target]
            later = (view.order[0] > view.order[0, changed])[is_target]
            assert (moved[later] > 1e-3).all()
            assert (moved[~later] == 0).all()


def test_mpnet_first_query_equals_the_mask_position():
    """The first predicted position attends to all masks, as in a masked text at inference."""
    system, batch = build(mpnet, rate=0.4), batch_of(8)
    system.objective.replacement = MaskReplacement(vocabulary=VOCABULARY, mask=1.0, random=0.0)
    view = system.objective.view(batch, generator=seeded())
    is_target = (view.targets != NO_TARGET)[:, : batch.tokens.shape[1]]
    turns = view.order[:, : batch.tokens.shape[1]].masked_fill(~is_target, 99)
    first = int(turns.argmin())
    with torch.no_grad():
        by_query = system.hidden(view).values[0, first]
        by_mask = system.hidden(system.objective.fill_view(batch, is_target)).values[0, first]
    torch.testing.assert_close(by_query, by_mask, atol=1e-5, rtol=0)


# Scores and memory over segments ------------------------------------------------------------------


def test_score_does_not_depend_on_later_tokens_or_length():
    system = build(xlnet)
    text = batch_of(9).tokens[0].tolist()
    with torch.no_grad():
        whole = system.log_prob(Batch.collate([text], pad=0)).per_token[0]
        for cut in range(2, len(text)):
            other = [START] + [7] * 14
            short = Batch.collate([text[:cut], other], pad=0)
            prefix = system.log_prob(short).per_token[0]
            torch.testing.assert_close(prefix[: cut - 1], whole[: cut - 1], atol=1e-5, rtol=0)
            assert (prefix[cut - 1 :] == 0).all()


def contiguous(length: int) -> Batch:
    """Text that does not begin with a start token."""
    tokens = torch.randint(5, 16, (2, length), generator=seeded(5))
    return Batch(tokens=tokens, lengths=torch.full((2,), length), rows=torch.arange(2))


@pytest.mark.parametrize("segment", [3, 4, 20])
def test_segments_with_full_memory_score_as_the_whole(segment: int):
    """Hidden states of the past are the same whether cached or recomputed."""
    batch = contiguous(13)
    whole, parts = build(xlnet, length=64), build(xlnet, length=segment, memory=64)
    with torch.no_grad():
        expected = whole.log_prob(batch).per_token
        torch.testing.assert_close(parts.log_prob(batch).per_token, expected, atol=1e-5, rtol=1e-5)
        state, scores = None, []
        for part in split_batch(batch, segment):
            scored = whole.log_prob(part, state=state)
            state = scored.state
            scores.append(scored.per_token)
    torch.testing.assert_close(torch.cat(scores, 1), expected, atol=1e-5, rtol=1e-5)


def test_memory_holds_the_last_positions_of_each_row():
    """A row that ends earlier continues after its last token, not after the padding."""
    system, tokens = build(xlnet, memory=5), contiguous(12).tokens
    rows = torch.arange(2)
    first = Batch(tokens=tokens[:, :7], lengths=torch.tensor([7, 4]), rows=rows)
    # The last real token of each row is the first input again.
    after = torch.stack([tokens[0, 6:10], tokens[1, 3:7]])
    second = Batch(tokens=after, lengths=torch.tensor([4, 4]), rows=rows)
    with torch.no_grad():
        state = system.log_prob(first).state
        scores = system.log_prob(second, state=state).per_token
        for row, length in enumerate([7, 4]):
            alone = Batch(
                tokens=tokens[row : row + 1, :length], lengths=torch.tensor([length]), rows=rows[:1]
            )
            memory = system.log_prob(alone).state
            expected = system.log_prob(second.select([row]), state=memory).per_token
            torch.testing.assert_close(scores[row : row + 1], expected, atol=1e-5, rtol=1e-5)
    assert state["positions"].tolist() == [[-5, -4, -3, -2, -1], [0, 0, -3, -2, -1]]


def test_one_layer_attends_exactly_its_memory_length():
    """Predicted from position 6 on, with a memory of 3: positions 3, 4, 5 count; 0, 1, 2 do not."""
    system, batch = build(xlnet, layers=1, length=6, memory=3), contiguous(10)
    with torch.no_grad():
        before = system.log_prob(batch).per_token[0, 6:]
        for position in range(6):
            tokens = batch.tokens.clone()
            tokens[0, position] = 5 if tokens[0, position] != 5 else 6
            after = system.log_prob(replace(batch, tokens=tokens)).per_token[0, 6:]
            assert bool((after != before).any()) == (position >= 3)


@pytest.mark.parametrize("memory", [0, 2, 5])
def test_stepping_equals_segment_scores_at_any_memory(memory: int):
    system, text = build(xlnet, length=4, memory=memory), batch_of(12).tokens[0]
    with torch.no_grad():
        at_once = system.log_prob(Batch.collate([text.tolist()], pad=0)).per_token[0]
        state, stepped = system.start(1), []
        for token in text[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, token[None])
    torch.testing.assert_close(torch.stack(stepped), at_once, atol=1e-4, rtol=0)


def test_training_memory_is_used_without_gradient():
    system = build(xlnet, memory=8)
    first, second = contiguous(6), replace(contiguous(6), continues_previous=True)
    _, state = system.loss(first, generator=seeded())
    assert not any(tensor.requires_grad for tensor in state.tensors.values())
    with_memory, _ = system.loss(second, state=state, generator=seeded())
    without, _ = system.loss(second, generator=seeded())
    assert abs(with_memory.total - without.total) > 1e-3
    with_memory.total.backward()
    # Keys of the memory are computed with the current weights.
    assert system.backbone.stack.blocks[0].mixer.qkv_projection.weight.grad.abs().sum() > 0


def test_resumed_training_restores_the_memory(tmp_path):
    """Bit-exact: the memory of the last segment is part of a checkpoint."""
    (tmp_path / "corpus").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "corpus" / f"{split}.txt").write_text("a b b a c\nb a\n" * 40)

    def run(name: str, steps: int, *, resume: bool = False) -> list[float]:
        settings = {"stream_batch_size": "3", "bptt": "5", "log_every": "1"}
        data, out = f"contiguous:{tmp_path / 'corpus'}", tmp_path / name
        given = {"resume": True} if resume else {"size": "tiny", "settings": settings}
        train("xlnet", data=data, out=out, steps=steps, quiet=True, **given)
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["event"] == "train"]

    whole = run("whole", 6)
    run("halves", 3)
    assert run("halves", 6, resume=True) == whole
    assert len(whole) == 6


def test_start_token_has_its_own_segment():
    objective = PermutationLM(VOCABULARY)
    sentence, running = batch_of(3), contiguous(5)
    assert objective.view(sentence).segments.tolist() == [[CLS_SEGMENT] + [TEXT_SEGMENT] * 4]
    assert objective.view(running).segments.tolist() == [[TEXT_SEGMENT] * 5] * 2


@pytest.mark.parametrize("zoo", [xlnet, mpnet], ids=["xlnet", "mpnet"])
def test_masked_tokens_are_filled_independently(zoo):
    """The tokens at masked positions make no difference, all others do."""
    system, batch = build(zoo), batch_of(6)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, [2, 5]] = True
    with torch.no_grad():
        before = system.fill(batch, masked).log_probs
        assert before.shape == (2, 16)
        for position in range(1, 7):
            tokens = batch.tokens.clone()
            tokens[0, position] = 5 if tokens[0, position] != 5 else 6
            moved = (system.fill(replace(batch, tokens=tokens), masked).log_probs - before)[:, 5:]
            assert bool((moved != 0).any()) == (position not in (2, 5))


def test_captures_distinguish_content_and_query_streams():
    system, batch = build(xlnet, partial_prediction=2), batch_of(5)
    captures = system.capture_internals(batch)
    content, query = captures["layer 1 attention"], captures["query layer 1 attention"]
    assert content.values.shape == query.values.shape == (1, 2, 7, 7)
    torch.testing.assert_close(content.values.sum(-1), torch.ones(1, 2, 7))
    query_mass = query.values.sum(-1)[0, 0]
    assert int((query_mass > 0.5).sum()) == 3  # round(6 / 2) positions are predicted
    # A query gives itself no weight; content may.
    assert (query.values.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (content.values.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert captures["query layer 2 hidden"].values.shape == (1, 7, 16)


def test_xlnet_refuses_absolute_positions():
    with pytest.raises(UserError, match=r"transformer-xl.*got learned"):
        xlnet.Config(positions="learned")


def test_mpnet_refuses_a_second_relative_encoding():
    with pytest.raises(UserError, match=r"learned.*got rotary"):
        mpnet.build(mpnet.Config(positions="rotary"), VOCABULARY)


@pytest.mark.parametrize("positions", ["buckets", "shaw", "alibi", "rotary"])
def test_xlnet_accepts_other_relative_positions(positions):
    """They give the query stream its position: another position, another prediction."""
    system, batch = build(xlnet, positions=positions), batch_of(5)
    view: View = system.objective.fill_view(batch, torch.arange(7)[None] % 2 == 1)
    with torch.no_grad():
        values = system.hidden(view).values[0, [1, 3, 5]]
    assert (values[0] - values[1]).abs().max() > 1e-3
    assert (values[1] - values[2]).abs().max() > 1e-3
