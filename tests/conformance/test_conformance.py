"""What every system of the zoo must satisfy.

The checks by their numbers: 1 probabilities sum to one; 2 no prediction sees what is masked from
it; 3 scores do not depend on the batch; 4 it learns; 5 saved and resumed it is the same; 6 it
samples what it scores; 7 it steps as it scores; 8 it reveals what it declares (test_reveal.py).
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import PROTOCOLS, Encode, Fill, Given, Infill, LogProb, Step
from lmlab.core.registry import catalogue, full_card, system_module
from lmlab.core.score import NORMALISED_KINDS
from lmlab.core.system import Assembly, System
from lmlab.core.view import View
from lmlab.data.corpus import open_corpus
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import sample_sequences
from lmlab.sampling.infill_search import generated_log_probs
from lmlab.scoring.scorer import Scorer
from lmlab.training.config import apply_settings
from lmlab.training.run_folder import RunFolder, load_run

from .claims import (
    claim,
    claim_close,
    claim_mass,
    claim_protocol,
    claim_same,
    claim_sampled,
    claim_unchanged,
)
from .conftest import Specimen, train_tiny

LONGEST = 5
"""Tokens after the start token in the enumerable space."""
STEPPED = "token by token it gives another log-probability than at once"


def enumerate_space(specimen: Specimen) -> tuple[Batch, Batch]:
    """All complete sequences of at most LONGEST tokens, and all unfinished ones of LONGEST."""
    vocabulary = specimen.system.vocabulary
    end, start = vocabulary.end, vocabulary.start
    inner = [i for i in range(vocabulary.size) if i not in (*vocabulary.unpredictable, end)]
    claim(
        2 <= len(inner) <= 5, f"{len(inner)} tokens can be predicted: too many or few to enumerate"
    )
    complete = [
        [start, *body, end]
        for length in range(LONGEST)
        for body in itertools.product(inner, repeat=length)
    ]
    unfinished = [[start, *body] for body in itertools.product(inner, repeat=LONGEST)]
    pad = vocabulary.pad
    return Batch.collate(complete, pad=pad), Batch.collate(unfinished, pad=pad)


@torch.no_grad()
def totals(specimen: Specimen, batch: Batch) -> torch.Tensor:
    return specimen.system.log_prob(batch).totals.double()


def some_sentences(specimen: Specimen) -> list[list[int]]:
    tokenizer = specimen.model.tokenizer
    vocabulary = specimen.system.vocabulary
    texts = ["a a a b", "b", "a b a b b b a", "b b a zzz a"]
    return [[vocabulary.start, *tokenizer.encode(text), vocabulary.end] for text in texts]


def test_card_matches_the_system(specimen: Specimen):
    """The card read from the file equals the imported one, and its protocols are those it has."""
    card = catalogue()[specimen.name]
    imported = full_card(system_module(specimen.name))
    claim(
        card == imported,
        f"the card as read from its file differs from the imported one: {imported}",
    )
    has = {name for name, protocol in PROTOCOLS.items() if isinstance(specimen.system, protocol)}
    wrong = sorted(has ^ set(card.protocols))
    claim(
        not wrong,
        f"the card names {sorted(card.protocols)} and it satisfies {sorted(has)}: {wrong}",
    )
    batch = Batch.collate(some_sentences(specimen), pad=specimen.system.vocabulary.pad)
    kind = specimen.system.log_prob(batch).kind
    claim(kind == card.kind, f"the card says that log_prob is {card.kind}, and it is {kind}")


@pytest.mark.check("distribution")
def test_1_probabilities_sum_to_one(specimen: Specimen):
    complete, unfinished = enumerate_space(specimen)
    mass = totals(specimen, complete).exp().sum() + totals(specimen, unfinished).exp().sum()
    kind = catalogue()[specimen.name].kind
    claim(
        kind in NORMALISED_KINDS,
        f"a {kind} score has no distribution to sum; exempt it from the check",
    )
    claim_mass(mass.item(), len(complete) + len(unfinished), exact=kind == "exact")


@pytest.mark.protocol("Fill")
def test_1_fill_is_the_conditional_distribution(specimen: Specimen):
    """It sums to one; where log_prob is exact, it is p(text with the token) over all tokens.

    Except for a system that fills with another attention mask than it scores with (exempt: fill).
    """
    system, pad = specimen.system, specimen.system.vocabulary.pad
    claim_protocol(system, Fill)
    sentence = some_sentences(specimen)[2]
    positions = list(range(1, len(sentence)))
    batch = Batch.collate([sentence] * len(positions), pad=pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[range(len(positions)), positions] = True
    with torch.no_grad():
        filled = system.fill(batch, masked, generator=torch.Generator().manual_seed(0)).log_probs
    shape = (len(positions), system.vocabulary.size)
    claim(filled.shape == shape, f"fill gives {tuple(filled.shape)} log-probabilities, not {shape}")
    claim_close(
        filled.exp().sum(-1),
        torch.ones(len(positions)),
        "the probabilities of a masked token do not sum to 1",
        atol=1e-5,
        first=1,
    )
    card = catalogue()[specimen.name]
    if card.kind != "exact" or "fill" in card.exempt:
        return
    for row, position in enumerate(positions):
        tokens = list(range(system.vocabulary.size))
        each = [[*sentence[:position], token, *sentence[position + 1 :]] for token in tokens]
        expected = torch.softmax(totals(specimen, Batch.collate(each, pad=pad)), 0)
        claim_close(
            filled[row].exp().double(),
            expected,
            f"what fills position {position} is not the model's own conditional",
            atol=1e-5,
            axes=("token",),
        )


@pytest.mark.protocol("Infill")
def test_1_infill_is_a_distribution(specimen: Specimen):
    """All answers of at most three tokens: fillings are parsed back, their mass is at most one, and
    the best of them is what a search as wide as the space finds."""
    system = specimen.system
    claim_protocol(system, Infill)
    vocabulary = system.vocabulary
    inner = [
        i for i in range(vocabulary.size) if i not in (*vocabulary.unpredictable, vocabulary.end)
    ]
    answers = [each for size in range(4) for each in itertools.product(inner, repeat=size)]
    batch = Batch.collate([with_blanks(specimen, 3)] * len(answers), pad=vocabulary.pad)
    with torch.no_grad():
        decoder = system.infill_decoder(batch)
        rows = [decoder.linearise_fillings(row, [answer]) for row, answer in enumerate(answers)]
        log_probs = torch.tensor(generated_log_probs(decoder, rows), dtype=torch.float64)
        result = beam_search(
            system.infill_decoder(batch.select([0])),
            BeamConfig(width=len(answers), max_length=len(rows[-1]) + 1),
        )
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        again = decoder.answers(i, row)
        claim(
            again == [answer], f"the answer {answer} was written as {row} and read back as {again}"
        )
    mass = log_probs.exp().sum().item()
    claim(mass > 0, f"all {len(answers):,} answers have probability {mass}")
    claim_mass(mass, len(answers), exact=False)
    [(best, *_), *_], likeliest = result, int(log_probs.argmax())
    claim(
        abs(best.log_prob - log_probs.max().item()) <= 1e-4
        and best.tokens == tuple(rows[likeliest]),
        f"a search as wide as the space found {best.tokens} with {best.log_prob:.6g}; the best is "
        f"{tuple(rows[likeliest])} with {log_probs.max().item():.6g}",
    )


@pytest.mark.protocol("Infill")
def test_3_infill_does_not_depend_on_the_batch(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, Infill)
    texts = [with_blanks(specimen, 3), with_blanks(specimen, 1, 6), with_blanks(specimen, 2, 4)]
    answers = [[(5, 6)], [(6,), (5, 5, 6)], [(), (6,)]]

    def log_probs(chosen: list[int], texts: list[list[int]]) -> torch.Tensor:
        batch = Batch.collate([texts[i] for i in chosen], pad=system.vocabulary.pad)
        with torch.no_grad():
            decoder = system.infill_decoder(batch)
            rows = [decoder.linearise_fillings(row, answers[i]) for row, i in enumerate(chosen)]
            return torch.tensor(generated_log_probs(decoder, rows), dtype=torch.float64)

    alone = torch.cat([log_probs([i], texts) for i in range(3)])
    claim_close(
        log_probs([2, 0, 1], texts),
        alone[[2, 0, 1]],
        "what is written in a blank depends on the other texts of the batch",
        atol=1e-5,
        axes=("text",),
    )
    others = [[6 if token == 5 else token for token in text] for text in texts]
    same = (log_probs([0, 1, 2], others) == alone).nonzero().flatten().tolist()
    claim(not same, f"other words around the blanks of the texts {same} change no log-probability")


def with_blanks(specimen: Specimen, *positions: int) -> list[int]:
    """A sentence with the mask token at some positions."""
    mask = specimen.system.vocabulary.mask
    sentence = some_sentences(specimen)[2]
    return [mask if position in positions else token for position, token in enumerate(sentence)]


@pytest.mark.check("cheat")
def test_2_predictions_ignore_masked_inputs(specimen: Specimen):
    """Changing an input that is masked from a position changes no prediction there."""
    sentence, pad = some_sentences(specimen)[2], specimen.system.vocabulary.pad
    check_masked_inputs_are_ignored(specimen, Batch.collate([sentence], pad=pad))


def check_masked_inputs_are_ignored(specimen: Specimen, batch: Batch) -> None:
    """Check 2 for the one text of a batch, which may have a source."""
    system = specimen.system
    if not isinstance(system, Assembly):
        check_no_future_leak(specimen, batch)
        return
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(0))
    prediction_view = view.prediction_view
    attention_mask = prediction_view.query_attention_mask or prediction_view.attention_mask
    allowed = attention_mask.mask(prediction_view.lengths, prediction_view.inputs.shape[1])[0]
    reached = 0
    with torch.no_grad():
        before = system.target_log_probs(view).to_dense()[0]
        for changed in range(prediction_view.inputs.shape[1]):
            other = replace(
                prediction_view, inputs=with_replaced_token(prediction_view.inputs, changed)
            )
            after = system.target_log_probs(
                other if view.decoder is None else replace(view, decoder=other)
            ).to_dense()[0]
            claim_unchanged(after, before, ~allowed[:, changed], changed)
            reached += int((after != before).sum())
        if view.decoder is not None:
            for changed in range(view.inputs.shape[1]):
                other = replace(view, inputs=with_replaced_token(view.inputs, changed))
                reached += int((system.target_log_probs(other).to_dense()[0] != before).sum())
    if "sight" not in catalogue()[specimen.name].exempt:
        claim(reached, "no input changes any prediction: the check would pass on anything")


def with_replaced_token(tokens: torch.Tensor, position: int) -> torch.Tensor:
    """The tokens (1, T), or vectors (1, T, D), with another one at a position."""
    changed = tokens.clone()
    if changed.is_floating_point():
        changed[0, position] += 1
        return changed
    changed[0, position] = 5 if changed[0, position] != 5 else 6
    return changed


@pytest.mark.check("cheat")
def test_2_prediction_ignores_its_own_target(specimen: Specimen):
    """Changing a token of the clean text does not change its own prediction.

    Except where the objective shows it on purpose (BERT keeps one target in ten): then it is
    the input at that position; a query stream does not see that input.
    """
    system = specimen.system
    if not isinstance(system, Assembly):
        pytest.skip("it shows no view")
    if catalogue()[specimen.name].kind == "reconstruction":
        pytest.skip("it is shown what it is asked, through a vector: its kind says so")
    batch = Batch.collate([some_sentences(specimen)[2]] * 8, pad=system.vocabulary.pad)
    view = sample_view(system, batch)
    compared = 0
    for origin in range(1, int(batch.lengths[0]) - 1):
        tokens = batch.tokens.clone()
        tokens[:, origin] = torch.where(tokens[:, origin] == 5, 6, 5)
        other = sample_view(system, replace(batch, tokens=tokens))
        if other.prediction_view.inputs.shape != view.prediction_view.inputs.shape:
            continue  # what is masked depends on the text
        here = (view.prediction_view.clean_positions == origin) & (
            other.prediction_view.clean_positions == origin
        )
        if view.decoder is None and view.query_attention_mask is None:
            here &= view.inputs == other.inputs
        if view.decoder is not None and view.clean_positions is not None:
            # An encoder that sees the token itself, as BART's does, masks nothing of it.
            here &= ~(view.clean_positions == origin).any(1, keepdim=True)
        with torch.no_grad():
            targets = view.prediction_view.targets
            prediction_view = replace(
                other.prediction_view, targets=targets, weights=view.prediction_view.weights
            )
            again = (
                prediction_view
                if other.decoder is None
                else replace(other, decoder=prediction_view)
            )
            after = system.target_log_probs(again).to_dense()
            before = system.target_log_probs(view).to_dense()
        claim_close(
            after[here],
            before[here],
            f"the prediction of position {origin} depends on the token that stands there",
            atol=1e-6,
            axes=("prediction",),
        )
        compared += int(here.sum())
    claim(compared, "no prediction could be compared: the check would pass on anything")


def sample_view(system: Assembly, batch: Batch) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(0))


@pytest.mark.protocol("Fill")
def test_2_fill_ignores_masked_tokens(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, Fill)
    batch = Batch.collate([some_sentences(specimen)[2]], pad=system.vocabulary.pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, [2, 4]] = True
    with torch.no_grad():
        before = system.fill(batch, masked).log_probs
        for position in (2, 4):
            other = replace(batch, tokens=with_replaced_token(batch.tokens, position))
            claim_same(
                system.fill(other, masked).log_probs,
                before,
                f"what is filled in depends on the token under the mask at position {position}",
                axes=("masked position", "token"),
            )
        moved = replace(batch, tokens=with_replaced_token(batch.tokens, 3))
        claim(
            not torch.equal(system.fill(moved, masked).log_probs, before),
            "another token at position 3, which is not masked, changes nothing that is filled in",
        )


def check_no_future_leak(specimen: Specimen, batch: Batch) -> None:
    """Later tokens of the one text of a batch change no token's log-probability."""
    system = specimen.system
    claim_protocol(system, LogProb)
    reached = 0
    with torch.no_grad():
        before = system.log_prob(batch).per_token[0]
        for changed in range(1, batch.tokens.shape[1]):
            tokens = with_replaced_token(batch.tokens, changed)
            after = system.log_prob(replace(batch, tokens=tokens)).per_token[0]
            earlier = torch.arange(len(before)) < changed - 1
            # The first number is the log-probability of the token at position 1.
            claim_unchanged(after, before, earlier, changed, first=1)
            reached += int((after[changed:] != before[changed:]).sum())
    if "sight" not in catalogue()[specimen.name].exempt:
        claim(reached, "no token changes any later prediction: the check would pass on anything")


def longest_accepted_text(specimen: Specimen) -> list[int]:
    """A text of 30 tokens after <s>, or of as many as the system has a probability for."""
    for tokens in range(30, 0, -1):
        with suppress(UserError):
            specimen.system.check_length(tokens + 1)
            return [2] + [5] * tokens
    raise AssertionError("a system that takes no text at all")


@pytest.mark.check("company")
def test_3_score_does_not_depend_on_the_batch(specimen: Specimen):
    sentences, pad = some_sentences(specimen), specimen.system.vocabulary.pad
    alone = torch.cat([totals(specimen, Batch.collate([s], pad=pad)) for s in sentences])
    together = totals(specimen, Batch.collate(sentences, pad=pad))
    backwards = totals(specimen, Batch.collate(sentences[::-1], pad=pad)).flip(0)
    wider = Batch.collate([*sentences, longest_accepted_text(specimen)], pad=pad)
    padded = totals(specimen, wider)[: len(sentences)]
    batched_scores = {"together": together, "in reverse order": backwards, "with padding": padded}
    for how, scores in batched_scores.items():
        claim_close(
            scores,
            alone,
            f"scored {how}, a text has another log-probability than alone",
            atol=1e-5,
            axes=("text",),
        )


def baseline_entropy(specimen: Specimen, baseline: str) -> float:
    """Nats per token of the trivial model on the test split, fitted on the training split."""
    tokenizer = specimen.model.tokenizer
    vocabulary = tokenizer.vocabulary
    corpus = open_corpus(str(specimen.corpus))

    # Where the length of a text is given, as to a masked model, its end costs nothing.
    ends = [] if catalogue()[specimen.name].kind == "pseudo" else [vocabulary.end]

    def tokens(split: str) -> list[int]:
        lines = (tokenizer.encode(example.text) for example in corpus.splits[split])
        return [token for ids in lines for token in (*ids, *ends)]

    if baseline == "uniform":
        return math.log(vocabulary.size - len(vocabulary.unpredictable))
    counts = np.bincount(tokens("train"), minlength=vocabulary.size)
    return float(-np.log(counts[tokens("test")] / counts.sum()).mean())


def share_ranked_above_corruptions(specimen: Specimen) -> float:
    """How often a test text scores above one of its one-token corruptions that is not in the data.

    Half of the time, by chance. All corruptions by tokens of the language count, at every position.
    """
    system, tokenizer = specimen.system, specimen.model.tokenizer
    start, end, pad = system.vocabulary.start, system.vocabulary.end, system.vocabulary.pad
    splits = open_corpus(str(specimen.corpus)).splits
    texts = {name: [tokenizer.encode(e.text) for e in splits[name]] for name in ("train", "test")}
    held = {tuple(ids) for name in texts for ids in texts[name]}
    inner = sorted({token for ids in texts["train"] for token in ids})
    pairs = [
        (ids, other)
        for ids in texts["test"]
        for position, token in itertools.product(range(len(ids)), inner)
        if tuple(other := [*ids[:position], token, *ids[position + 1 :]]) not in held
    ]
    claim(len(pairs) > 100, f"only {len(pairs)} corruptions to compare with, too few")
    data, corrupted = (
        totals(specimen, Batch.collate([[start, *ids, end] for ids in side], pad=pad))
        for side in zip(*pairs, strict=True)
    )
    return (data > corrupted).double().mean().item()


def test_4_training_beats_the_baseline(specimen: Specimen):
    card = catalogue()[specimen.name]
    model = specimen.model
    if card.baseline == "chance":
        claim(
            card.kind not in NORMALISED_KINDS, f"a {card.kind} score must beat unigram or uniform"
        )
        share = share_ranked_above_corruptions(specimen)
        claim(share > 0.6, f"texts rank above {share:.1%} of their corruptions, expected over 60%")
        return
    corpus = open_corpus(str(specimen.corpus))
    texts = [example.text for example in corpus.splits["test"]]
    scores = list(Scorer(model.system, model.tokenizer, model.layout).score(texts))
    reached = -sum(s.total for s in scores) / sum(s.tokens for s in scores)
    known = baseline_entropy(specimen, card.baseline)
    claim(
        reached < known - 0.05,
        f"after training it has {reached:.4f} nats per token, expected under {known - 0.05:.4f}: "
        f"the {card.baseline} baseline less 0.05",
    )


def test_4_every_parameter_gets_a_gradient(specimen: Specimen):
    system = specimen.system
    if not any(parameter.requires_grad for parameter in system.parameters()):
        fitting = catalogue()[specimen.name].fitting
        claim(fitting != "gradient", "it is fitted by gradient and has no trainable parameter")
        pytest.skip("it has tables and no trainable parameter")
    batch = Batch.collate(some_sentences(specimen), pad=system.vocabulary.pad)
    if "knowledge" in catalogue()[specimen.name].needs:
        batch = with_mentions(batch)
    without_gradient = parameters_without_gradient(system, batch)
    if without_gradient:
        # What is trained in stages may have parameters of the first stage alone (PALM's head).
        beginning = copy.deepcopy(system).train()
        beginning.begin_step(0)
        without_gradient &= parameters_without_gradient(beginning, batch)
    claim(
        not without_gradient,
        f"parameters that get no gradient from the loss: {sorted(without_gradient)}",
    )


def parameters_without_gradient(system: System, batch: Batch) -> set[str]:
    """The trainable parameters that the loss of a batch does not depend on."""
    system.zero_grad()
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    without_gradient = {
        name
        for name, parameter in system.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not parameter.grad.abs().sum() > 0)
    }
    system.zero_grad()
    return without_gradient


def with_mentions(batch: Batch) -> Batch:
    """The batch with two annotated entities in its longer rows: a memory learns from mentions."""
    entities = torch.full_like(batch.tokens, -1)
    entities[batch.lengths > 4, 1] = 2
    entities[batch.lengths > 4, 3] = 0
    return replace(batch, entities=entities)


def test_5_loaded_model_scores_the_same(specimen: Specimen):
    again = load_run(specimen.run)
    batch = Batch.collate(some_sentences(specimen), pad=specimen.system.vocabulary.pad)
    with torch.no_grad():
        first = specimen.system.log_prob(batch).per_token
        second = again.system.log_prob(batch).per_token
    claim_same(
        second,
        first,
        "loaded from its folder, a text has another log-probability",
        axes=("text", "prediction"),
    )


def losses_of(run) -> list[tuple[int, float]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if line["event"] == "train"]


def last_weights(run) -> dict[str, torch.Tensor]:
    checkpoint = RunFolder(run).load_checkpoint(print)
    return load_file(run / "model.safetensors") if checkpoint is None else checkpoint.model


def test_5_resumed_training_is_bit_identical(specimen: Specimen, tmp_path):
    """To the bit: the same losses and the same weights as a training that was never stopped."""
    whole = train_tiny(specimen.name, specimen.corpus, tmp_path / "whole", steps=8)
    if catalogue()[specimen.name].fitting != "counting":
        halves = train_tiny(specimen.name, specimen.corpus, tmp_path / "halves", steps=4)
        train_tiny(specimen.name, specimen.corpus, halves, steps=8, resume=True)
        claim(losses_of(whole), "the training wrote no losses to compare")
        pairs = itertools.zip_longest(losses_of(whole), losses_of(halves))
        differing = [(one, two) for one, two in pairs if one != two]
        claim(
            not differing,
            f"resumed, the losses (step, loss) differ; never stopped and resumed: {differing[:1]}",
        )
    else:
        halves = train_tiny(specimen.name, specimen.corpus, tmp_path / "halves")
    # The last weights: the best ones by validation depend on when it was evaluated.
    first, second = last_weights(whole), last_weights(halves)
    unmatched = sorted(first.keys() ^ second.keys())
    claim(not unmatched, f"weights that only one of the two trainings has: {unmatched}")
    for name, weights in first.items():
        claim_same(second[name], weights, f"resumed, {name} differs", axes=("index",))


def chi_square_p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    """Upper tail of Pearson's statistic, cells with fewer than 5 expected pooled into one."""
    small = expected < 5
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    kept = expected > 0
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = torch.tensor((kept.sum() - 1) / 2.0, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return torch.special.gammaincc(degrees, half).item()


@pytest.mark.check("sample")
def test_6_samples_follow_the_scored_distribution(specimen: Specimen):
    complete, unfinished = enumerate_space(specimen)
    expected: dict[tuple[int, ...], float] = {}
    for batch in (complete, unfinished):
        for tokens, length, total in zip(
            batch.tokens.tolist(), batch.lengths.tolist(), totals(specimen, batch), strict=True
        ):
            expected[tuple(tokens[1:length])] = total.exp().item()
    sample_count = 4000
    samples = sample_sequences(
        specimen.system,
        sample_count,
        max_length=LONGEST,
        generator=torch.Generator().manual_seed(0),
    )
    counts = dict.fromkeys(expected, 0)
    for one in samples:
        counts[(*one.tokens, specimen.system.vocabulary.end) if one.finished else one.tokens] += 1
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), sample_count * np.array(list(expected.values()))
    )
    claim_sampled(counts, expected, p_value)


@pytest.mark.protocol("Step")
def test_7_stepping_equals_scoring(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, Step)
    claim_protocol(system, LogProb)
    sentence = some_sentences(specimen)[2]
    batch = Batch.collate([sentence], pad=system.vocabulary.pad)
    with torch.no_grad():
        at_once = system.log_prob(batch).per_token[0]
        state, stepped = system.start(1), []
        for token in sentence[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, torch.tensor([token]))
    claim_close(torch.stack(stepped).to(at_once), at_once, STEPPED, atol=1e-5, first=1)


@pytest.mark.conditional
@pytest.mark.protocol("Step")
@pytest.mark.check("source")
def test_7_conditional_stepping_equals_scoring(specimen: Specimen):
    """Conditioned on a source: token by token, alone and in a batch, and the source matters."""
    system, (first, second, text, other) = specimen.system, some_sentences(specimen)
    claim_protocol(system, Step)
    claim_protocol(system, LogProb)
    pad = system.vocabulary.pad

    def log_probs(sources: list[list[int]], texts: list[list[int]]) -> torch.Tensor:
        batch = Batch.collate(texts, pad, condition=Batch.collate(sources, pad))
        with torch.no_grad():
            return system.log_prob(batch).per_token

    at_once = log_probs([first], [text])[0]
    with torch.no_grad():
        state = system.start(1, condition=Batch.collate([first], pad))
        stepped = []
        for token in text[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, torch.tensor([token]))
    claim_close(torch.stack(stepped).to(at_once), at_once, STEPPED, atol=1e-5, first=1)
    together = log_probs([second, first], [other, text])[1]
    claim_close(
        together[: len(at_once)],
        at_once,
        "with another pair in the batch, a text has another log-probability",
        atol=1e-5,
        first=1,
    )
    claim(
        not torch.equal(log_probs([second], [text])[0], at_once),
        "another source changes no log-probability of the text",
    )


@pytest.mark.protocol("Given")
def test_7_latent_decoder_mass_is_one_and_steps_as_scored(specimen: Specimen):
    """A latent-variable model and an autoencoder: given z, both checks 1 and 7 hold exactly."""
    system = specimen.system
    claim_protocol(system, Given)
    claim_protocol(system, Encode)
    sentence, pad = some_sentences(specimen)[2], system.vocabulary.pad
    batch = Batch.collate([sentence], pad=pad)
    with torch.no_grad():
        given = system.given(system.encode(batch))
        at_once, state, stepped = given.log_prob(batch).per_token[0], given.start(1), []
        for token in sentence[1:]:
            stepped.append(given.peek(state).log_probs[0, token])
            state = given.advance(state, torch.tensor([token]))
        claim_close(torch.stack(stepped).to(at_once), at_once, STEPPED, atol=1e-5, first=1)
        space = torch.cat([given.log_prob(b).totals.double() for b in enumerate_space(specimen)])
    claim_mass(space.exp().sum().item(), len(space), exact=True)


@pytest.mark.protocol("Step")
def test_7_selecting_rows_forks_the_state(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, Step)
    with torch.no_grad():
        state = system.advance(system.start(2), torch.tensor([5, 6]))
        before = system.peek(state).log_probs
        swapped = system.peek(state.select(torch.tensor([1, 0, 1]))).log_probs
        again = system.peek(state).log_probs
    claim_close(
        swapped,
        before[[1, 0, 1]],
        "selected rows of a state predict otherwise than the rows did",
        atol=1e-5,
        rtol=1.3e-6,
        axes=("row", "token"),
    )
    claim_same(again, before, "peek changed the state", axes=("row", "token"))


def test_numeric_settings_have_ranges(specimen: Specimen):
    """So that an absurd value gives a user error and never reaches torch."""
    module = system_module(specimen.name)
    numbers = {
        field.name: field.metadata
        for field in fields(module.Config)
        if isinstance(getattr(module.SIZES["base"], field.name), (int, float))
        and not isinstance(getattr(module.SIZES["base"], field.name), bool)
    }
    without_range = [name for name, metadata in numbers.items() if not metadata]
    claim(not without_range, f"settings without a range in their metadata: {without_range}")
    for name in numbers:
        with pytest.raises(UserError, match=name):
            apply_settings(module.SIZES["base"], {name: "-7"})
