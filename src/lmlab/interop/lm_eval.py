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
        named = isinstance(run, (str, Path))
        self.model = load_model(run) if named else _model_of(run)
        # lm-eval requests cuda by default, whether it is available or not.
        if named and device and (not device.startswith("cuda") or torch.cuda.is_available()):
            self.model.system.to(device)
        self.count_end, self.seed = count_end, seed
        self.scorer = Scorer(
            self.model.system,
            self.model.tokenizer,
            self.model.layout,
            tokens_per_batch=tokens_per_batch,
            carry=False,
        )
        self._told: set[str] = set()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p(continuation | context) of each request, and whether greedy decoding yields it.

        The second is always false for systems without `Step`.
        """
        pairs = [(str(context), str(more)) for context, more in (each.args for each in requests)]
        found = list(self._scores(pairs))
        for each in found[:1]:
            self._tell(each.kind)
        return list(zip((each.total for each in found), self._greedy(found), strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p(text) of each request, each from its own start."""
        totals = []
        for found in self._scores(("", str(each.args[0])) for each in requests):
            if found.kind not in NORMALISED_KINDS:
                raise UserError(
                    f"this task needs a perplexity, which scores of kind {found.kind} "
                    f"({self.model.name}) do not give; choose a multiple-choice task."
                )
            totals.append(found.total)
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Generate a continuation of each context, up to a stop string."""
        require(self.model.system, Step, "generation for lm-eval")
        return [
            self._written(str(context), dict(words), self.seed + place)
            for place, (context, words) in enumerate(each.args for each in requests)
        ]

    @property
    def tokenizer_name(self) -> str:
        """Key for lm-eval's caches: equal for equal tokenisations."""
        return f"{self.model.tokenizer.kind}-{self.model.tokenizer.fingerprint()}"

    # Scores --------------------------------------------------------------------------------------

    def _scores(self, pairs: Iterable[tuple[str, str]]) -> Iterator[ConditionalScore]:
        return conditional_scores(self.scorer, pairs, end=self.count_end)

    def _tell(self, kind: ScoreKind) -> None:
        if kind not in NORMALISED_KINDS and kind not in self._told:
            self._told.add(kind)
            warnings.warn(
                f"the scores of {self.model.name} are of kind {kind}: they rank answers but are "
                "not log-probabilities.",
                LmlabWarning,
                stacklevel=3,
            )

    def _greedy(self, found: Sequence[ConditionalScore]) -> list[bool]:
        """Whether each token of each continuation is the argmax.

        Decoding is skipped where log-probabilities suffice: p > 1/2 is always the argmax, and
        p < 1/V never is.
        """
        system = self.model.system
        if not isinstance(system, Step):
            return [False] * len(found)
        even = -math.log(system.vocabulary.size)
        values = [[token.log_prob for token in each.per_token] for each in found]
        answers = [all(value > math.log(0.5) for value in each) for each in values]
        open_ = [
            place
            for place, each in enumerate(values)
            if not answers[place] and all(value >= even - 1e-4 for value in each)
        ]
        rows = {place: self._row(found[place]) for place in open_}
        for group in group_by_length([len(rows[place][0]) for place in open_], 8192):
            here = [open_[index] for index in group]
            for place, answer in zip(here, self._walk([rows[p] for p in here]), strict=True):
                answers[place] = answer
        return answers

    def _row(self, found: ConditionalScore) -> tuple[list[int], int]:
        """The ids of context and continuation, and the length of the context."""
        tokenizer, vocabulary = self.model.tokenizer, self.model.system.vocabulary
        ids, spans = tokenizer.encode_with_offsets(found.prefix + found.continuation)
        before = sum(1 for _, end in spans if end <= len(found.prefix))
        end = [vocabulary.end] if self.count_end and vocabulary.end is not None else []
        ids = [*ids, *end]
        longest = self.model.system.window or len(ids)
        return ids[-longest:], max(0, before - max(0, len(ids) - longest))

    def _walk(self, rows: Sequence[tuple[list[int], int]]) -> list[bool]:
        """Step through rows as a batch; whether each continuation is the argmax throughout."""
        system: Any = self.model.system
        likeliest, device = [True] * len(rows), device_of(system)
        with evaluation_mode(system):
            state = system.start(len(rows))
            for step in range(max(len(ids) for ids, _ in rows)):
                asked = [r for r, (ids, first) in enumerate(rows) if first <= step < len(ids)]
                if any(likeliest[row] for row in asked):
                    best = next_distribution(system, state).log_probs.argmax(-1).tolist()
                    for row in asked:
                        likeliest[row] &= best[row] == rows[row][0][step]
                # A finished row repeats its last token and is no longer compared.
                fed = [ids[min(step, len(ids) - 1)] for ids, _ in rows]
                state = system.advance(state, torch.tensor(fed, device=device))
        return likeliest

    # Generation ----------------------------------------------------------------------------------

    def _written(self, context: str, words: Mapping[str, Any], seed: int) -> str:
        """Generate in chunks, each twice as long, until a stop string or the end."""
        if strange := sorted(set(words) - GENERATION_ARGUMENTS):
            raise UserError(
                "the task sets generation arguments that lmlab does not support: "
                f"{', '.join(strange)}; it supports {', '.join(sorted(GENERATION_ARGUMENTS))}."
            )
        most = int(words.get("max_gen_toks") or words.get("max_new_tokens") or DEFAULT_MAX_TOKENS)
        stops = words.get("until") or []
        stops = [stops] if isinstance(stops, str) else [stop for stop in stops if stop]
        given, most = self._room(self.model.tokenizer.encode(context), most)
        generator = torch.Generator().manual_seed(seed)
        tokens: tuple[int, ...] = ()
        stretch, text = FIRST_CHUNK_TOKENS, ""
        while len(tokens) < most:
            found = self._write(
                [*given, *tokens], min(stretch, most - len(tokens)), words, generator
            )
            tokens = found.tokens[len(given) :]
            text = self._after(given, tokens)
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends:
                return text[: min(ends)]
            if found.finished:
                break
            stretch *= 2
        return text

    def _write(
        self, prefix: list[int], most: int, words: Mapping[str, Any], generator: torch.Generator
    ) -> Any:
        shape = {name: words[name] for name in SAMPLING_ARGUMENTS if words.get(name) is not None}
        drawn = bool(words.get("do_sample", float(shape.get("temperature", 0)) > 0))
        if not drawn:
            return greedy_search(self.model.system, max_length=most, prefix=prefix)[0]
        system = self.model.system
        return sample_sequences(
            system, 1, max_length=most, prefix=prefix, generator=generator, **shape
        )[0]

    def _room(self, given: list[int], most: int) -> tuple[list[int], int]:
        """Left-truncate the context to leave room for generation, as lm-eval does."""
        window = self.model.system.window
        if window is None:
            return given, most
        most = min(most, window - 1)
        return given[-(window - most) :], most

    def _after(self, given: Sequence[int], tokens: Sequence[int]) -> str:
        """The generated text, with its leading space if there is one."""
        decode = self.model.tokenizer.decode
        before, whole = decode(given), decode([*given, *tokens])
        return whole[len(before) :] if whole.startswith(before) else decode(tokens)


def _model_of(given: Any) -> TrainedModel:
    """The model in the result of `lmlab.load` or `lmlab.wrap`."""
    model = getattr(given, "model", given)
    if not isinstance(model, TrainedModel):
        raise UserError(
            "a model for lm-eval must be a run's path or a model from lmlab.load or lmlab.wrap, "
            f"got {type(given).__name__}."
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
