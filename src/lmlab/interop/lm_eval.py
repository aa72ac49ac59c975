"""lm-evaluation-harness adapter: runs registered there as the model `lmlab`.

    python -m lmlab.interop.lm_eval run --model lmlab --model_args run=RUN --tasks TASK

is lm-eval's own command line with this model registered (lm-eval finds only imported models). In
Python: `lm_eval.simple_evaluate(LmlabLM(run), tasks=[...])`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lmlab.core.errors import LmlabWarning, UserError, unknown_name
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import Step, require
from lmlab.core.score import NORMALISED_KINDS, ScoreKind
from lmlab.data.batches import group_by_length
from lmlab.inference.decoding import next_distribution
from lmlab.interop.load_model import load_model
from lmlab.sampling.decoding import greedy_search, sample_sequences
from lmlab.scoring.conditional import ConditionalScore, conditional_scores
from lmlab.scoring.scorer import Scorer
from lmlab.training.run_folder import TrainedModel

try:
    # Import its own models first: it loads them only while none is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    NOT_THERE = "lm-eval is not installed: pip install 'lmlab[lm-eval]'."
    if __name__ == "__main__":
        sys.exit(f"lmlab: {NOT_THERE}")
    raise UserError(NOT_THERE) from error

DEFAULT_MAX_TOKENS = 256
"""Default number of generated tokens per request, lm-eval's own."""
FIRST_CHUNK_TOKENS = 16
"""Tokens generated before the first search for stop strings; doubled each time."""
SAMPLING_ARGUMENTS = ("temperature", "top_k", "top_p")
GENERATION_ARGUMENTS = {*SAMPLING_ARGUMENTS, "until", "max_gen_toks", "max_new_tokens", "do_sample"}
"""Generation arguments that a request may contain."""
MODEL_ARGUMENTS = ("run", "count_end", "tokens_per_batch", "seed", "device")
IGNORED_ARGUMENTS = {"batch_size", "max_batch_size"}
"""Arguments that lm-eval passes to every model, and that are ignored here."""


@register_model("lmlab")
class LmlabLM(LM):
    """lm-eval model of a run, a checkpoint folder or a wrapped model.

    Scores are those of `lmlab.scoring.conditional`: context and continuation are tokenised
    together, and the end token is scored only with `count_end`. Scores that are no
    log-probabilities (a masked model's pseudo-log-likelihood) rank the answers of a task, with a
    warning, and are refused for perplexity.
    """

    def __init__(
        self,
        run: str | Path | Any = None,
        *,
        count_end: bool = False,
        tokens_per_batch: int = 8192,
        seed: int = 0,
        device: str | None = None,
        **unused: Any,
    ) -> None:
        """`run`: a path, or the result of `lmlab.load` or `lmlab.wrap`; `unused`: batch sizes."""
        super().__init__()
        for name in sorted(set(unused) - IGNORED_ARGUMENTS):
            raise unknown_name("argument of lmlab's model", name, MODEL_ARGUMENTS)
        if run is None:
            raise UserError("the model lmlab needs a run; give --model_args run=RUN.")
        is_path = isinstance(run, (str, Path))
        self.model = load_model(run) if is_path else _model_of(run)
        # lm-eval requests cuda by default, whether it is available or not.
        if is_path and device and (not device.startswith("cuda") or torch.cuda.is_available()):
            self.model.system.to(device)
        self.count_end, self.seed = count_end, seed
        self.scorer = Scorer(
            self.model.system,
            self.model.tokenizer,
            self.model.layout,
            tokens_per_batch=tokens_per_batch,
            carry=False,
        )
        self._warned_kinds: set[str] = set()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p(continuation | context) of each request, and whether greedy decoding yields it.

        The second is always false for systems without `Step`.
        """
        pairs = [(str(context), str(text)) for context, text in (item.args for item in requests)]
        scores = list(self._scores(pairs))
        for item in scores[:1]:
            self._warn_kind(item.kind)
        return list(zip((item.total for item in scores), self._greedy(scores), strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p(text) of each request, each from its own start."""
        totals = []
        for score in self._scores(("", str(request.args[0])) for request in requests):
            if score.kind not in NORMALISED_KINDS:
                raise UserError(
                    f"this task needs a perplexity, which scores of kind {score.kind} "
                    f"({self.model.name}) do not give; choose a multiple-choice task."
                )
            totals.append(score.total)
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Generate a continuation of each context, up to a stop string."""
        require(self.model.system, Step, "generation for lm-eval")
        return [
            self._generate(str(context), dict(arguments), self.seed + index)
            for index, (context, arguments) in enumerate(request.args for request in requests)
        ]

    @property
    def tokenizer_name(self) -> str:
        """Key for lm-eval's caches: equal for equal tokenisations."""
        return f"{self.model.tokenizer.kind}-{self.model.tokenizer.fingerprint()}"

    # Scores --------------------------------------------------------------------------------------

    def _scores(self, pairs: Iterable[tuple[str, str]]) -> Iterator[ConditionalScore]:
        return conditional_scores(self.scorer, pairs, end=self.count_end)

    def _warn_kind(self, kind: ScoreKind) -> None:
        if kind not in NORMALISED_KINDS and kind not in self._warned_kinds:
            self._warned_kinds.add(kind)
            warnings.warn(
                f"the scores of {self.model.name} are of kind {kind}: they rank answers but are "
                "not log-probabilities.",
                LmlabWarning,
                stacklevel=3,
            )

    def _greedy(self, scores: Sequence[ConditionalScore]) -> list[bool]:
        """Whether each token of each continuation is the argmax.

        Decoding is skipped where log-probabilities suffice: p > 1/2 is always the argmax, and
        p < 1/V never is.
        """
        system = self.model.system
        if not isinstance(system, Step):
            return [False] * len(scores)
        uniform = -math.log(system.vocabulary.size)
        values = [[token.log_prob for token in row.per_token] for row in scores]
        is_greedy = [all(value > math.log(0.5) for value in row) for row in values]
        open_ = [
            i
            for i, row in enumerate(values)
            if not is_greedy[i] and all(value >= uniform - 1e-4 for value in row)
        ]
        rows = {i: self._row(scores[i]) for i in open_}
        for group in group_by_length([len(rows[i][0]) for i in open_], 8192):
            chosen = [open_[index] for index in group]
            for i, answer in zip(
                chosen, self._greedy_matches(system, [rows[p] for p in chosen]), strict=True
            ):
                is_greedy[i] = answer
        return is_greedy

    def _row(self, score: ConditionalScore) -> tuple[list[int], int]:
        """The ids of context and continuation, and the length of the context."""
        tokenizer, vocabulary = self.model.tokenizer, self.model.system.vocabulary
        ids, spans = tokenizer.encode_with_offsets(score.prefix + score.continuation)
        before = sum(1 for _, end in spans if end <= len(score.prefix))
        end = [vocabulary.end] if self.count_end and vocabulary.end is not None else []
        ids = [*ids, *end]
        max_length = self.model.system.window or len(ids)
        return ids[-max_length:], max(0, before - max(0, len(ids) - max_length))

    def _greedy_matches(self, system: Step, rows: Sequence[tuple[list[int], int]]) -> list[bool]:
        """Step through rows as a batch; whether each continuation is the argmax throughout."""
        is_greedy, device = [True] * len(rows), device_of(system)
        with evaluation_mode(system):
            state = system.start(len(rows))
            for step in range(max(len(ids) for ids, _ in rows)):
                scored = [r for r, (ids, first) in enumerate(rows) if first <= step < len(ids)]
                if any(is_greedy[row] for row in scored):
                    best = next_distribution(system, state).log_probs.argmax(-1).tolist()
                    for row in scored:
                        is_greedy[row] &= best[row] == rows[row][0][step]
                # A finished row repeats its last token and is no longer compared.
                next_ids = [ids[min(step, len(ids) - 1)] for ids, _ in rows]
                state = system.advance(state, torch.tensor(next_ids, device=device))
        return is_greedy

    # Generation ----------------------------------------------------------------------------------

    def _generate(self, context: str, options: Mapping[str, Any], seed: int) -> str:
        """Generate in chunks, each twice as long, until a stop string or the end."""
        if unsupported := sorted(set(options) - GENERATION_ARGUMENTS):
            raise UserError(
                "the task sets generation arguments that lmlab does not support: "
                f"{', '.join(unsupported)}; it supports {', '.join(sorted(GENERATION_ARGUMENTS))}."
            )
        max_tokens = int(
            options.get("max_gen_toks") or options.get("max_new_tokens") or DEFAULT_MAX_TOKENS
        )
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else [stop for stop in stops if stop]
        context_ids, max_tokens = self._truncate(self.model.tokenizer.encode(context), max_tokens)
        generator = torch.Generator().manual_seed(seed)
        tokens: tuple[int, ...] = ()
        chunk, text = FIRST_CHUNK_TOKENS, ""
        while len(tokens) < max_tokens:
            generated = self._continue(
                [*context_ids, *tokens], min(chunk, max_tokens - len(tokens)), options, generator
            )
            tokens = generated.tokens[len(context_ids) :]
            text = self._generated_text(context_ids, tokens)
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends:
                return text[: min(ends)]
            if generated.finished:
                break
            chunk *= 2
        return text

    def _continue(
        self, prefix: list[int], limit: int, options: Mapping[str, Any], generator: torch.Generator
    ) -> Any:
        shape = {
            name: options[name] for name in SAMPLING_ARGUMENTS if options.get(name) is not None
        }
        sampled = bool(options.get("do_sample", float(shape.get("temperature", 0)) > 0))
        if not sampled:
            return greedy_search(self.model.system, max_length=limit, prefix=prefix)[0]
        system = self.model.system
        return sample_sequences(
            system, 1, max_length=limit, prefix=prefix, generator=generator, **shape
        )[0]

    def _truncate(self, context_ids: list[int], max_tokens: int) -> tuple[list[int], int]:
        """Left-truncate the context to leave room for generation, as lm-eval does."""
        window = self.model.system.window
        if window is None:
            return context_ids, max_tokens
        max_tokens = min(max_tokens, window - 1)
        return context_ids[-(window - max_tokens) :], max_tokens

    def _generated_text(self, context_ids: Sequence[int], tokens: Sequence[int]) -> str:
        """The generated text, with its leading space if there is one."""
        decode = self.model.tokenizer.decode
        before, full_text = decode(context_ids), decode([*context_ids, *tokens])
        return full_text[len(before) :] if full_text.startswith(before) else decode(tokens)


def _model_of(source: Any) -> TrainedModel:
    """The model in the result of `lmlab.load` or `lmlab.wrap`."""
    model = getattr(source, "model", source)
    if not isinstance(model, TrainedModel):
        raise UserError(
            "a model for lm-eval must be a run's path or a model from lmlab.load or lmlab.wrap, "
            f"got {type(source).__name__}."
        )
    return model


def main() -> None:
    """lm-eval's own command line with the model `lmlab` registered; UserErrors as one line."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UserError as error:
        print(f"lmlab: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
