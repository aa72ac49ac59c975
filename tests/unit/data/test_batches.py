"""Batches: everything once an epoch, under the budget, the same again, and exactly resumable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.data import batches
from lmlab.data.batches import LengthBatches, MixedBatches, StreamBatches, shard_rows
from lmlab.data.corpus import Layout, Split
from lmlab.data.dataset import TokenDataset
from lmlab.data.readers import Example
from lmlab.data.tokenizers import train_tokenizer

WORDS = train_tokenizer("word", ["a b c"])


def dataset(count: int, layout: Layout = Layout(), longest: int = 12) -> TokenDataset:  # noqa: B008
    """Texts of 1 to `longest` words, their lengths drawn by a fixed seed."""
    lengths = np.random.default_rng(0).integers(1, longest, size=(count, 2), endpoint=True)
    examples = [
        Example(" ".join("abc"[(i + k) % 3] for k in range(n)), condition=" ".join("c" * m))
        for i, (n, m) in enumerate(lengths)
    ]
    split = Split.from_list(examples, identity=f"{count}-{longest}", name="train")
    return TokenDataset.build(split, WORDS, layout, progress=False)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        one.tokens.equal(other.tokens) and one.rows.equal(other.rows)
        for one, other in zip(first, second, strict=True)
    )


@pytest.fixture(params=[2**20, 64])
def shard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Datasets smaller than a shard, and of several shards."""
    monkeypatch.setattr(batches, "SHUFFLE_SHARD", request.param)
    return int(request.param)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.usefixtures("shard")
def test_every_sequence_comes_once_as_it_is(shuffle: bool) -> None:
    data = dataset(300)
    source = LengthBatches(data, tokens_per_batch=50, shuffle=shuffle)
    seen: list[int] = []
    for batch in source.epoch(0):
        for tokens, length, row in zip(batch.tokens, batch.lengths, batch.rows, strict=True):
            assert tokens[:length].tolist() == data[int(row)].tolist()
            assert bool((tokens[length:] == 0).all())
            seen.append(int(row))
    assert sorted(seen) == list(range(300))
    assert sum(batch.count for batch in source.epoch(0)) == data.total_tokens


@pytest.mark.usefixtures("shard")
def test_padded_tokens_stay_within_the_budget() -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50)
    made = list(source.epoch(0))
    assert max(batch.tokens.numel() for batch in made) <= 50
    assert source.batches_per_epoch(0) == len(made)


@pytest.mark.usefixtures("shard")
def test_mixed_batches_hold_everything_once_in_as_many_batches() -> None:
    data = dataset(300)
    source = MixedBatches(data, tokens_per_batch=140, seed=1)
    alike = LengthBatches(data, tokens_per_batch=140, seed=1)
    for epoch in (0, 1):
        made = list(source.epoch(epoch))
        assert sorted(int(row) for batch in made for row in batch.rows) == list(range(300))
        assert len(made) == source.batches_per_epoch(epoch) == alike.batches_per_epoch(epoch)
        assert same(list(source.epoch(epoch, 5)), made[5:])
    assert not same(list(source.epoch(0)), list(source.epoch(1)))


def test_mixed_batches_have_the_lengths_of_the_whole() -> None:
    """Lengths are drawn evenly from n = 1 … 12 words, with a variance of (12² - 1) / 12.

    The mean of a batch of B has that over B, where texts are mixed, as of draws without order; the
    means of batches of like length go as far apart as the lengths themselves.
    """
    data, variance = dataset(3000), (12**2 - 1) / 12
    means, rows = {}, {}
    for kind in (MixedBatches, LengthBatches):
        made = list(kind(data, tokens_per_batch=180).epoch(0))
        means[kind] = np.array([batch.lengths.double().mean().item() for batch in made])
        rows[kind] = {len(batch) for batch in made}
    assert max(rows[MixedBatches]) - min(rows[MixedBatches]) <= 1
    # Of some 150 batches the variance of the means is known to a part of √(2/150), about 0.12.
    each = 3000 / len(means[MixedBatches])
    assert means[MixedBatches].var() == pytest.approx(variance / each, rel=0.4)
    assert means[LengthBatches].var() > 0.5 * variance


@pytest.mark.usefixtures("shard")
def test_little_is_padding() -> None:
    data = dataset(300)
    made = list(LengthBatches(data, tokens_per_batch=50).epoch(0))
    padding = sum(batch.tokens.numel() - int(batch.lengths.sum()) for batch in made)
    # Batches of as many sequences in the order of the text, for comparison.
    ends = np.cumsum([len(batch) for batch in made])
    in_order = sum(
        len(lengths) * lengths.max() - lengths.sum()
        for lengths in np.split(data.lengths, ends[:-1])
    )
    assert padding < in_order / 5


def test_batches_are_as_large_as_the_budget_allows() -> None:
    # Ten sequences of 4 tokens (<s> a a </s>) under a budget of 12: three by three, then one.
    split = Split.from_list(["a a"] * 10, identity="ten", name="train")
    data = TokenDataset.build(split, WORDS, Layout(), progress=False)
    sizes = [len(batch) for batch in LengthBatches(data, tokens_per_batch=12).epoch(0)]
    assert sorted(sizes) == [1, 3, 3, 3]


def test_a_sequence_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    split = Split.from_list(["a", "a " * 50, "a " * 60, "b"], identity="long", name="train")
    data = TokenDataset.build(split, WORDS, Layout(), progress=False)
    made = list(LengthBatches(data, tokens_per_batch=10).epoch(0))
    assert sorted(batch.rows.tolist() for batch in made if batch.tokens.shape[1] > 10) == [[1], [2]]
    assert sorted(row for batch in made for row in batch.rows.tolist()) == [0, 1, 2, 3]


@pytest.mark.usefixtures("shard")
def test_seed_and_epoch_decide_the_order() -> None:
    data = dataset(300)
    make = lambda seed, epoch: list(  # noqa: E731
        LengthBatches(data, tokens_per_batch=50, seed=seed).epoch(epoch)
    )
    assert same(make(0, 0), make(0, 0))
    assert not same(make(0, 0), make(0, 1))
    assert not same(make(0, 0), make(1, 0))
    assert len(make(0, 0)) == len(make(0, 1))
    widths = [batch.tokens.shape[1] for batch in make(0, 0)]
    assert widths != sorted(widths)  # short and long ones are mixed over the epoch


@pytest.mark.usefixtures("shard")
def test_an_epoch_resumes_at_any_batch() -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50, seed=3)
    whole = list(source.epoch(2))
    for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        assert same(list(source.epoch(2, start)), whole[start:])


def test_skipped_batches_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50)
    total = source.batches_per_epoch(0)
    built = []
    original = LengthBatches._batch
    monkeypatch.setattr(
        LengthBatches, "_batch", lambda self, rows: built.append(1) or original(self, rows)
    )
    assert len(list(source.epoch(0, total - 2))) == len(built) == 2


def test_unshuffled_batches_are_in_order_of_length() -> None:
    source = LengthBatches(dataset(100), tokens_per_batch=50, shuffle=False)
    order = [row for batch in source.epoch(0) for row in batch.rows.tolist()]
    lengths = source.dataset.lengths
    assert order == sorted(range(100), key=lambda row: (lengths[row], row))
    assert same(list(source.epoch(0)), list(source.epoch(5)))


def test_pairs_bring_their_conditions_and_both_sides_keep_the_budget() -> None:
    data = dataset(200, Layout(kind="pairs"))
    for batch in LengthBatches(data, tokens_per_batch=60).epoch(0):
        assert batch.condition is not None
        assert max(batch.tokens.numel(), batch.condition.tokens.numel()) <= 60
        for row, tokens, length in zip(
            batch.rows, batch.condition.tokens, batch.condition.lengths, strict=True
        ):
            assert tokens[:length].tolist() == data.condition(int(row)).tolist()


@pytest.mark.parametrize("lanes", [1, 2, 7, 20])
@pytest.mark.parametrize("span", [1, 5, 35, 10_000])
def test_every_token_of_a_stream_is_predicted_once_in_its_place(lanes: int, span: int) -> None:
    data = dataset(40, Layout(kind="contiguous"))
    source = StreamBatches(data, batch_size=lanes, bptt=span)
    made = list(source.epoch(0))
    assert len(made) == source.batches_per_epoch(0)
    assert [batch.continues_previous for batch in made] == [place > 0 for place in range(len(made))]
    assert sum(batch.count for batch in made) == data.total_tokens
    predicted = []
    for lane in range(lanes):
        context: int | None = None
        for batch in made:
            row = batch.tokens[lane, : int(batch.lengths[lane])].tolist()
            assert len(row) - 1 <= span
            if context is not None:
                assert row[0] == context  # it goes on where it stopped
            predicted += row[1:]
            context = row[-1]
    assert predicted == data.stream[1:].tolist()


def test_lanes_differ_by_at_most_one_token() -> None:
    data = dataset(40, Layout(kind="contiguous"))
    made = list(StreamBatches(data, batch_size=7, bptt=5).epoch(0))
    lengths = sum((batch.lengths - 1 for batch in made), torch.zeros(7, dtype=torch.int64))
    assert int(lengths.max() - lengths.min()) <= 1


def test_a_stream_resumes_at_any_batch() -> None:
    source = StreamBatches(dataset(40, Layout(kind="contiguous")), batch_size=4, bptt=6)
    whole = list(source.epoch(0))
    assert same(list(source.epoch(0, 3)), whole[3:])
    assert next(iter(source.epoch(0, 3))).continues_previous


def test_more_lanes_than_tokens() -> None:
    split = Split.from_list(["a"], identity="one", name="train")
    data = TokenDataset.build(split, WORDS, Layout(kind="contiguous"), progress=False)
    (batch,) = StreamBatches(data, batch_size=50, bptt=3).epoch(0)
    assert (len(batch), batch.count) == (2, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 50])
def test_processes_share_a_batch_without_loss(world: int) -> None:
    for batch in LengthBatches(dataset(100), tokens_per_batch=50).epoch(0):
        parts = [shard_rows(batch, rank, world) for rank in range(world)]
        assert sum(part.count for part in parts) == batch.count
        rows = sorted(row for part in parts if part.count for row in part.rows.tolist())
        assert rows == sorted(batch.rows.tolist())
        assert all(part.tokens.shape[1] == int(part.lengths.max()) for part in parts)
        assert all(len(part) >= 1 for part in parts)  # an idle one still takes part in the step


def test_processes_keep_their_lanes() -> None:
    source = StreamBatches(dataset(40, Layout(kind="contiguous")), batch_size=5, bptt=6)
    for batch in source.epoch(0):
        assert source.split(batch, 1, 2).rows.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LengthBatches(dataset(1), tokens_per_batch=0), "at least 1, got 0"),
        (lambda: LengthBatches(dataset(1), tokens_per_batch=9, seed=-1), "0 or more"),
        (lambda: StreamBatches(dataset(1), batch_size=1, bptt=1), "need a contiguous corpus"),
        (
            lambda: StreamBatches(dataset(1, Layout(kind="contiguous")), batch_size=0, bptt=1),
            "at least 1, got 0 and 1",
        ),
    ],
)
def test_mistakes_get_a_sentence(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make()
