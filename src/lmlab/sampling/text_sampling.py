"""Text generation by one model: ancestral sampling, greedy decoding or beam search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.core.options import as_keywords, takes
from lmlab.core.untrusted_input import check_seed, check_text, check_whole_number
from lmlab.inference.decoding import GeneratedSequence
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import Generator, greedy_search, sample_sequences
from lmlab.sampling.generation_options import SAMPLE_BEAM_WIDTH, SampleOptions
from lmlab.sampling.prompts import encode_prefix, encode_source

if TYPE_CHECKING:
    from lmlab.data.tokenizers import Tokenizer
    from lmlab.training.run_folder import TrainedModel

DECODING_OPTIONS = {
    "ancestral": ("temperature", "top_k", "top_p"),
    "greedy": (),
    "beam": ("beam", "length_penalty"),
}
"""Decoding methods, and the options of each."""
MCMC_METHODS = ("gibbs", "metropolis")
"""MCMC methods, which have a method of their own (`chains`)."""
TOKENS_AT_ONCE = 2**16
"""Most tokens generated in one batch, which bounds memory."""


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A generated text."""

    text: str
    log_prob: float | None
    """Log-probability in nats after the prefix, untempered and untruncated; None if unknown."""
    tokens: int
    """Tokens generated after the prefix, including the end token if generated."""
    finished: bool
    """Whether the model generated the end token; else the maximum length cut it off."""


@takes(SampleOptions)
def sample_texts(model: TrainedModel, options: SampleOptions) -> list[GeneratedText]:
    """Generate texts with a trained model; the same seed gives the same texts."""
    chosen = _checked(options)
    ids = list(encode_prefix(check_text(options.prefix, "the prefix"), model.tokenizer).ids)
    condition = source_batch(model, options.source)
    generated = _generate(model.system, options, ids, condition, chosen)
    return [_generated_text(sequence, model.tokenizer) for sequence in generated]


def _checked(options: SampleOptions) -> dict[str, Any]:
    """The options of the decoding method that were given."""
    method = options.method
    if method in MCMC_METHODS:
        raise UserError(f"MCMC returns a record; call chains(n, method={method!r}).")
    if method not in DECODING_OPTIONS:
        raise unknown_name("method", method, (*DECODING_OPTIONS, *MCMC_METHODS))
    check_seed(options.seed)
    check_whole_number("the number of texts", options.n)
    check_whole_number("the greatest length", options.max_length)
    check_limit("texts", options.n, called="the number of texts")
    check_limit("length", options.max_length, called="the greatest length")
    of_methods = {name for names in DECODING_OPTIONS.values() for name in names}
    given = {
        name: value
        for name, value in as_keywords(options).items()
        if name in of_methods and value is not None
    }
    for name in given:
        if name not in DECODING_OPTIONS[method]:
            raise UserError(
                f"{name.replace('_', '-')} does not apply to the method {method}; remove it."
            )
    return given


def source_batch(model: TrainedModel, source: str | None) -> Batch | None:
    """The source as a batch of one row; a UserError if the model does not take one."""
    card, config = model.card, model.config
    if source is not None:
        if not card.conditional:
            raise UserError(f"{card.name} does not condition on a source; remove it.")
        return encode_source(source, model.effective_source_tokenizer, model.system)
    if card.conditional and (model.layout.kind == "pairs" or config.tuned_to_generate):
        raise UserError(
            f"this {card.name} was trained to generate given a source, got none; give one "
            "by --source, or many to lmlab translate."
        )
    return None


def _generate(
    system: Generator,
    options: SampleOptions,
    prefix: list[int],
    condition: Batch | None,
    chosen: dict[str, Any],
) -> Iterator[GeneratedSequence]:
    inputs: dict[str, Any] = {"prefix": prefix, "condition": condition}
    n, max_length = options.n, options.max_length
    if options.method == "beam":
        # The same beam width for any n, or the best text would depend on n.
        width = chosen.pop("beam", SAMPLE_BEAM_WIDTH)
        beam = BeamConfig(width=width, best=n, max_length=max_length, **chosen)
        yield from beam_search(system, beam, **inputs)[0]
        return
    generator = torch.Generator().manual_seed(options.seed)
    batch_size = max(1, TOKENS_AT_ONCE // max_length)
    for first in range(0, n, batch_size):
        rows = min(batch_size, n - first)
        if condition is not None:
            inputs["condition"] = condition.select(torch.zeros(rows, dtype=torch.long))
        if options.method == "greedy":
            yield from greedy_search(system, rows, max_length=max_length, **inputs)
        else:
            sampling = {"generator": generator, **inputs, **chosen}
            yield from sample_sequences(system, rows, max_length=max_length, **sampling)


def _generated_text(sequence: GeneratedSequence, tokenizer: Tokenizer) -> GeneratedText:
    return GeneratedText(
        text=tokenizer.decode(sequence.tokens),
        log_prob=sequence.log_prob,
        tokens=len(sequence.tokens) - sequence.given + sequence.finished,
        finished=sequence.finished,
    )
