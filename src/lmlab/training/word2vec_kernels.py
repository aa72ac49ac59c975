"""word2vec kernels: sampling and SGD steps, compiled by numba.

Sampling (`sample_training_pairs`) is separate from learning (`skipgram_step`, `cbow_step`,
`product_cbow_step`), so that each can be tested: samples against their distributions, updates
against the gradient of the loss in `objectives/negative_sampling.py`. All release the GIL, so that
threads update shared vectors without locks (Hogwild, Niu et al. 2011): correct up to lost updates
where two threads meet in one word, and deterministic with one thread.

The context words of one position share its negative samples, so that its k + 1 output vectors stay
in the L1 cache (Ji et al. 2016).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int32]

SENTENCE_BREAK = -1.0
"""Instead of a keep probability: a token that ends a sentence."""
LOSS_SAMPLE = 16
"""The loss is computed at one position in so many: a logarithm costs as much as twenty products."""

compiled: Any = njit(nogil=True, cache=True)
fast_compiled: Any = njit(nogil=True, cache=True, fastmath=True)


@compiled
def alias_table(law: Doubles) -> tuple[Doubles, Ids]:
    """Walker's alias method (Vose 1991): a sample is a uniform cell i, and i itself or its alias.

    Returns (V,) the probability to stay and (V,) the alias.
    """
    size = len(law)
    stay = law / law.sum() * size
    alias = np.arange(size).astype(np.int32)
    small = np.empty(size, np.int64)
    large = np.empty(size, np.int64)
    smalls = larges = 0
    for i in range(size):
        if stay[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls > 0 and larges > 0:
        smalls -= 1
        low, high = small[smalls], large[larges - 1]
        alias[low] = high
        stay[high] -= 1.0 - stay[low]
        if stay[high] < 1.0:
            larges -= 1
            small[smalls] = high
            smalls += 1
    # Leftovers of rounding keep their own cell.
    for i in range(larges):
        stay[large[i]] = 1.0
    for i in range(smalls):
        stay[small[i]] = 1.0
    return stay, alias


@compiled
def splitmix_uniform(state: np.uint64) -> tuple[float, np.uint64]:
    """SplitMix64 (Steele 2014): a uniform number in [0, 1) of 53 bits, and the next state."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * (1.0 / 9007199254740992.0), state


@compiled
def subsample_words(tokens: Ids, kept: Doubles, state: np.uint64) -> tuple[Ids, Ids, np.uint64]:
    """Subsampling: the words kept, the sentence index of each, and the next random state."""
    words = np.empty(len(tokens), np.int32)
    sentences = np.empty(len(tokens), np.int32)
    count = sentence = 0
    for token in tokens:
        probability = kept[token]
        if probability == SENTENCE_BREAK:
            sentence += 1
        elif probability > 0.0:
            random, state = splitmix_uniform(state)
            if random < probability:
                words[count] = token
                sentences[count] = sentence
                count += 1
    return words[:count], sentences[:count], state


@compiled
def sample_training_pairs(
    tokens: Ids,
    kept: Doubles,
    stay: Doubles,
    alias: Ids,
    window: int,
    random_contexts: int,
    negatives: int,
    seed: int,
) -> tuple[Ids, Ids, Ids, Ids]:
    """Sample training pairs of a chunk: n positions, at most M context words, k negative samples.

    Returns words (n,), contexts (n, M) of which the first counts (n,) are valid, negatives (n, k).
    `kept` (V,) is the keep probability of each token, `SENTENCE_BREAK` where it ends a sentence. A
    window has a uniform width of 1 … `window` words to either side; with `random_contexts` that
    many words of the whole window. Windows end at the chunk's ends.
    """
    words, sentences, state = subsample_words(tokens, kept, np.uint64(seed))
    count = len(words)
    around = np.empty((count, 2 * window), np.int32)
    counts = np.zeros(count, np.int32)
    noise = np.empty((count, negatives), np.int32)
    for place in range(count):
        reach = window
        if random_contexts == 0:
            random, state = splitmix_uniform(state)
            reach = 1 + int(random * window)
        here = 0
        for other in range(max(0, place - reach), min(count, place + reach + 1)):
            if other != place and sentences[other] == sentences[place]:
                around[place, here] = words[other]
                here += 1
        for chosen in range(min(random_contexts, here)):
            random, state = splitmix_uniform(state)
            swapped = chosen + int(random * (here - chosen))
            word = around[place, chosen]
            around[place, chosen] = around[place, swapped]
            around[place, swapped] = word
        counts[place] = min(random_contexts, here) if random_contexts > 0 else here
        for i in range(negatives):
            random, state = splitmix_uniform(state)
            scaled = random * len(stay)
            cell = int(scaled)
            noise[place, i] = cell if scaled - cell < stay[cell] else alias[cell]
    return words, around, counts, noise


@fast_compiled
def _dot(one: Floats, other: Floats) -> np.float32:
    total = np.float32(0.0)
    for d in range(one.shape[0]):
        total += one[d] * other[d]
    return total


@fast_compiled
def _wrong(score: np.float32, target: bool) -> np.float32:
    """Negative gradient of the loss by the score: label - σ(score)."""
    probability = np.float32(1.0) / (np.float32(1.0) + math.exp(-score))
    return np.float32(1.0) - probability if target else -probability


@fast_compiled
def _lost(score: np.float32, target: bool) -> float:
    """Logistic loss -log σ(±score), without overflow."""
    away = -score if target else score
    above = float(away) if away > 0.0 else 0.0
    return above + math.log1p(math.exp(-abs(away)))


@fast_compiled
def _step_both(output: Floats, hidden: Floats, wrong: np.float32, back: Floats) -> None:
    """Accumulate the gradient of the hidden vector, then update the output vector."""
    for d in range(output.shape[0]):
        back[d] += wrong * output[d]
        output[d] += wrong * hidden[d]


@fast_compiled
def skipgram_step(
    words: Ids,
    around: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
) -> tuple[float, int]:
    """Skip-gram: an SGD step per context word on (word, negatives); returns sampled loss and count.

    All scores of a pair are computed before any update: one step along its exact gradient, except
    where a word is sampled twice, whose second update sees the first.
    """
    candidates = noise.shape[1] + 1
    ids = np.empty(candidates, np.int32)
    wrong = np.empty(candidates, np.float32)
    back = np.empty(inputs.shape[1], np.float32)
    lost, looked = 0.0, 0
    for place in range(len(words)):
        ids[0] = words[place]
        ids[1:] = noise[place]
        for j in range(counts[place]):
            hidden = inputs[around[place, j]]
            for i in range(candidates):
                wrong[i] = _dot(hidden, outputs[ids[i]])
            if place % LOSS_SAMPLE == 0:
                looked += 1
                for i in range(candidates):
                    lost += _lost(wrong[i], i == 0)
            back[:] = 0.0
            for i in range(candidates):
                wrong[i] = _wrong(wrong[i], i == 0) * rate
            for i in range(candidates):
                _step_both(outputs[ids[i]], hidden, wrong[i], back)
            for d in range(hidden.shape[0]):
                hidden[d] += back[d]
    return lost, looked


@fast_compiled
def cbow_step(
    words: Ids,
    around: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
    mean: bool,
    whole: bool,
) -> tuple[float, int]:
    """CBOW: an SGD step on each (mean or sum of the context, word and negatives).

    With `whole` each context word moves by the gradient of the mean, not by its share of that.
    """
    candidates = noise.shape[1] + 1
    ids = np.empty(candidates, np.int32)
    wrong = np.empty(candidates, np.float32)
    hidden = np.empty(inputs.shape[1], np.float32)
    back = np.empty(inputs.shape[1], np.float32)
    lost, looked = 0.0, 0
    for place in range(len(words)):
        if counts[place] == 0:
            continue
        ids[0] = words[place]
        ids[1:] = noise[place]
        scale = np.float32(1.0 / counts[place]) if mean else np.float32(1.0)
        share = np.float32(1.0) if whole else scale
        hidden[:] = 0.0
        for j in range(counts[place]):
            vector = inputs[around[place, j]]
            for d in range(hidden.shape[0]):
                hidden[d] += scale * vector[d]
        for i in range(candidates):
            wrong[i] = _dot(hidden, outputs[ids[i]])
        if place % LOSS_SAMPLE == 0:
            looked += 1
            for i in range(candidates):
                lost += _lost(wrong[i], i == 0)
        back[:] = 0.0
        for i in range(candidates):
            wrong[i] = _wrong(wrong[i], i == 0) * rate
        for i in range(candidates):
            _step_both(outputs[ids[i]], hidden, wrong[i], back)
        for j in range(counts[place]):
            vector = inputs[around[place, j]]
            for d in range(hidden.shape[0]):
                vector[d] += share * back[d]
    return lost, looked


@fast_compiled
def product_cbow_step(
    words: Ids,
    around: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
) -> tuple[float, int]:
    """Product CBOW, P = Π_j σ(o · x_j): an SGD step on each word and each of its negatives."""
    width, most = inputs.shape[1], around.shape[1]
    shares = np.empty(most, np.float32)
    before = np.empty((most, width), np.float32)
    lost, looked = 0.0, 0
    for place in range(len(words)):
        if counts[place] == 0:
            continue
        for i in range(noise.shape[1] + 1):
            output = outputs[words[place] if i == 0 else noise[place, i - 1]]
            logs = 0.0
            for j in range(counts[place]):
                before[j] = inputs[around[place, j]]
                score = _dot(before[j], output)
                logs -= _lost(score, True)
                shares[j] = _wrong(score, True)  # 1 - σ
            whole = min(math.exp(logs), 0.999999)
            if place % LOSS_SAMPLE == 0:
                looked += i == 0
                lost -= logs if i == 0 else math.log1p(-whole)
            # d log P = Σ_j (1 - σ_j) d(o · x_j), and d log(1 - P) = -P/(1 - P) d log P.
            push = rate if i == 0 else -rate * whole / (1.0 - whole)
            for j in range(counts[place]):
                vector = inputs[around[place, j]]
                wrong = np.float32(push * shares[j])
                for d in range(width):
                    vector[d] += wrong * output[d]
            for j in range(counts[place]):
                wrong = np.float32(push * shares[j])
                for d in range(width):
                    output[d] += wrong * before[j, d]
    return lost, looked
