"""word2vec kernels in numba: pair and negative sampling; skip-gram, CBOW, product CBOW SGD steps.

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
def alias_table(probabilities: Doubles) -> tuple[Doubles, Ids]:
    """Walker's alias method (Vose 1991): a sample is a uniform cell i, and i itself or its alias.

    Returns (V,) the probability to stay and (V,) the alias.
    """
    size = len(probabilities)
    stay = probabilities / probabilities.sum() * size
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
def subsample_words(tokens: Ids, keep: Doubles, state: np.uint64) -> tuple[Ids, Ids, np.uint64]:
    """Subsampling: the words kept, the sentence index of each, and the next random state."""
    words = np.empty(len(tokens), np.int32)
    sentences = np.empty(len(tokens), np.int32)
    count = sentence = 0
    for token in tokens:
        probability = keep[token]
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
    keep: Doubles,
    stay: Doubles,
    alias: Ids,
    window: int,
    random_contexts: int,
    negatives: int,
    seed: int,
) -> tuple[Ids, Ids, Ids, Ids]:
    """Sample training pairs of a chunk: n positions, at most M context words, k negative samples.

    Returns words (n,), contexts (n, M) of which the first counts (n,) are valid, negatives (n, k).
    `keep` (V,) is the keep probability of each token, `SENTENCE_BREAK` where it ends a sentence. A
    window has a uniform width of 1 … `window` words to either side; with `random_contexts` that
    many words of the whole window. Windows end at the chunk's ends.
    """
    words, sentences, state = subsample_words(tokens, keep, np.uint64(seed))
    count = len(words)
    contexts = np.empty((count, 2 * window), np.int32)
    counts = np.zeros(count, np.int32)
    noise = np.empty((count, negatives), np.int32)
    for position in range(count):
        half_width = window
        if random_contexts == 0:
            random, state = splitmix_uniform(state)
            half_width = 1 + int(random * window)
        size = 0
        for other in range(max(0, position - half_width), min(count, position + half_width + 1)):
            if other != position and sentences[other] == sentences[position]:
                contexts[position, size] = words[other]
                size += 1
        for slot in range(min(random_contexts, size)):
            random, state = splitmix_uniform(state)
            swapped = slot + int(random * (size - slot))
            word = contexts[position, slot]
            contexts[position, slot] = contexts[position, swapped]
            contexts[position, swapped] = word
        counts[position] = min(random_contexts, size) if random_contexts > 0 else size
        for i in range(negatives):
            random, state = splitmix_uniform(state)
            scaled = random * len(stay)
            cell = int(scaled)
            noise[position, i] = cell if scaled - cell < stay[cell] else alias[cell]
    return words, contexts, counts, noise


@fast_compiled
def _dot(one: Floats, other: Floats) -> np.float32:
    total = np.float32(0.0)
    for d in range(one.shape[0]):
        total += one[d] * other[d]
    return total


@fast_compiled
def _limit_length(vector: Floats, limit: np.float32) -> None:
    """Projection onto the ball: a vector longer than the limit gets its length; 0 is no limit."""
    if limit > 0.0:
        length = math.sqrt(_dot(vector, vector))
        if length > limit:
            for d in range(vector.shape[0]):
                vector[d] *= limit / length


@fast_compiled
def _score_gradient(score: np.float32, is_target: bool) -> np.float32:
    """Negative gradient of the loss by the score: label - σ(score)."""
    probability = np.float32(1.0) / (np.float32(1.0) + math.exp(-score))
    return np.float32(1.0) - probability if is_target else -probability


@fast_compiled
def _logistic_loss(score: np.float32, is_target: bool) -> float:
    """Logistic loss -log σ(±score), without overflow."""
    margin = -score if is_target else score
    positive_part = float(margin) if margin > 0.0 else 0.0
    return positive_part + math.log1p(math.exp(-abs(margin)))


@fast_compiled
def _update_pair(
    output: Floats, hidden: Floats, gradient: np.float32, hidden_gradient: Floats
) -> None:
    """Accumulate the gradient of the hidden vector, then update the output vector."""
    for d in range(output.shape[0]):
        hidden_gradient[d] += gradient * output[d]
        output[d] += gradient * hidden[d]


@fast_compiled
def _negative_sampling_update(
    hidden: Floats,
    outputs: Floats,
    ids: Ids,
    scores: Floats,
    hidden_gradient: Floats,
    rate: np.float32,
    limit: np.float32,
    loss: float,
    measured: bool,
) -> float:
    """One SGD step of the outputs `ids`, the word and its negatives, given the hidden vector.

    All scores are computed before any update. Fills `hidden_gradient`; returns `loss`, to which
    that of this step is added if it is `measured`.
    """
    for i in range(len(ids)):
        scores[i] = _dot(hidden, outputs[ids[i]])
    if measured:
        for i in range(len(ids)):
            loss += _logistic_loss(scores[i], i == 0)
    hidden_gradient[:] = 0.0
    for i in range(len(ids)):
        scores[i] = _score_gradient(scores[i], i == 0) * rate
    for i in range(len(ids)):
        _update_pair(outputs[ids[i]], hidden, scores[i], hidden_gradient)
        _limit_length(outputs[ids[i]], limit)
    return loss


@fast_compiled
def skipgram_step(
    words: Ids,
    contexts: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
    limit: np.float32,
) -> tuple[float, int]:
    """Skip-gram: an SGD step per context word on (word, negatives); returns sampled loss and count.

    All scores of a pair are computed before any update: one step along its exact gradient, except
    where a word is sampled twice, whose second update sees the first.
    """
    candidates = noise.shape[1] + 1
    ids = np.empty(candidates, np.int32)
    scores = np.empty(candidates, np.float32)
    hidden_gradient = np.empty(inputs.shape[1], np.float32)
    loss, loss_count = 0.0, 0
    for position in range(len(words)):
        ids[0] = words[position]
        ids[1:] = noise[position]
        for j in range(counts[position]):
            hidden = inputs[contexts[position, j]]
            measured = position % LOSS_SAMPLE == 0
            loss_count += measured
            loss = _negative_sampling_update(
                hidden, outputs, ids, scores, hidden_gradient, rate, limit, loss, measured
            )
            for d in range(hidden.shape[0]):
                hidden[d] += hidden_gradient[d]
            _limit_length(hidden, limit)
    return loss, loss_count


@fast_compiled
def cbow_step(
    words: Ids,
    contexts: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
    limit: np.float32,
    mean: bool,
    full_gradient: bool,
) -> tuple[float, int]:
    """CBOW: an SGD step on each (mean or sum of the context, word and negatives).

    With `full_gradient` each context word moves by the gradient of the mean, not by its share.
    """
    candidates = noise.shape[1] + 1
    ids = np.empty(candidates, np.int32)
    scores = np.empty(candidates, np.float32)
    hidden = np.empty(inputs.shape[1], np.float32)
    hidden_gradient = np.empty(inputs.shape[1], np.float32)
    loss, loss_count = 0.0, 0
    for position in range(len(words)):
        if counts[position] == 0:
            continue
        ids[0] = words[position]
        ids[1:] = noise[position]
        scale = np.float32(1.0 / counts[position]) if mean else np.float32(1.0)
        share = np.float32(1.0) if full_gradient else scale
        hidden[:] = 0.0
        for j in range(counts[position]):
            vector = inputs[contexts[position, j]]
            for d in range(hidden.shape[0]):
                hidden[d] += scale * vector[d]
        measured = position % LOSS_SAMPLE == 0
        loss_count += measured
        loss = _negative_sampling_update(
            hidden, outputs, ids, scores, hidden_gradient, rate, limit, loss, measured
        )
        for j in range(counts[position]):
            vector = inputs[contexts[position, j]]
            for d in range(hidden.shape[0]):
                vector[d] += share * hidden_gradient[d]
        for j in range(counts[position]):
            _limit_length(inputs[contexts[position, j]], limit)
    return loss, loss_count


@fast_compiled
def product_cbow_step(
    words: Ids,
    contexts: Ids,
    counts: Ids,
    noise: Ids,
    inputs: Floats,
    outputs: Floats,
    rate: np.float32,
    limit: np.float32,
) -> tuple[float, int]:
    """Product CBOW, P = Π_j σ(o · x_j): an SGD step on each word and each of its negatives."""
    width, max_contexts = inputs.shape[1], contexts.shape[1]
    shares = np.empty(max_contexts, np.float32)
    old_inputs = np.empty((max_contexts, width), np.float32)
    loss, loss_count = 0.0, 0
    for position in range(len(words)):
        if counts[position] == 0:
            continue
        for i in range(noise.shape[1] + 1):
            output = outputs[words[position] if i == 0 else noise[position, i - 1]]
            log_prob = 0.0
            for j in range(counts[position]):
                old_inputs[j] = inputs[contexts[position, j]]
                score = _dot(old_inputs[j], output)
                log_prob -= _logistic_loss(score, True)
                shares[j] = _score_gradient(score, True)  # 1 - σ
            prob = min(math.exp(log_prob), 0.999999)
            if position % LOSS_SAMPLE == 0:
                loss_count += i == 0
                loss -= log_prob if i == 0 else math.log1p(-prob)
            # d log P = Σ_j (1 - σ_j) d(o · x_j), and d log(1 - P) = -P/(1 - P) d log P.
            step_size = rate if i == 0 else -rate * prob / (1.0 - prob)
            for j in range(counts[position]):
                vector = inputs[contexts[position, j]]
                gradient = np.float32(step_size * shares[j])
                for d in range(width):
                    vector[d] += gradient * output[d]
            for j in range(counts[position]):
                gradient = np.float32(step_size * shares[j])
                for d in range(width):
                    output[d] += gradient * old_inputs[j, d]
            _limit_length(output, limit)
            for j in range(counts[position]):
                _limit_length(inputs[contexts[position, j]], limit)
    return loss, loss_count
