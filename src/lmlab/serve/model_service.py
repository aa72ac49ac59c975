"""One served model: its verbs as operations of its queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lmlab.core.errors import unknown_name
from lmlab.core.protocols import Decoder
from lmlab.core.score import Score
from lmlab.data.text_codecs import CHARACTER_KINDS
from lmlab.sampling.decoding import require_decoder
from lmlab.sampling.prompt_batches import check_prompt_length
from lmlab.sampling.text_sampling import source_batch
from lmlab.serve.batch_queue import Abandoned, BatchQueue, BatchReport, Job
from lmlab.serve.completion_text import EncodedText, decode_ids, encode_text
from lmlab.serve.completions import CompletionSettings, Generation
from lmlab.serve.request_errors import RequestError
from lmlab.serve.serving_options import RequestLimits
from lmlab.verbs.language_model import LanguageModel

REPEATABLE_KINDS = frozenset({"exact", "pseudo", "unnormalised"})
"""Kinds of scores without random numbers, which do not depend on a text's number in a batch."""
CHARACTERS_PER_TOKEN = 4
"""Of a subword or word, at least about: what waits is counted before it is tokenised."""
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class VerbCall:
    """A verb over texts, with the options that all texts of a batch share."""

    verb: Callable[..., Iterable[Any]]
    options: Options
    joins: bool = True
    chunks: bool = False
    """Whether the verb takes chunks of texts."""
    reports: bool = True
    """Whether it reports progress, so that it can be abandoned on the way."""
    repeatable: bool = True

    def __call__(self, items: Sequence[str], wanted: Callable[[], bool]) -> list[Any]:
        options = dict(self.options)
        if self.reports:
            options["progress"] = partial(_check_wanted, wanted)
        results = []
        for result in self.verb([items] if self.chunks else items, **options):
            _check_wanted(wanted)
            results.append(result)
        return results


@dataclass(frozen=True)
class SourceScoring:
    """Scores of texts given their sources."""

    model: LanguageModel
    options: Options
    joins: bool = False
    repeatable: bool = True

    def __call__(self, items: Sequence[tuple[str, str]], wanted: Callable[[], bool]) -> list[Score]:
        sources, texts = zip(*items, strict=True)
        progress = partial(_check_wanted, wanted)
        return self.model.score(
            list(texts), sources=list(sources), progress=progress, **dict(self.options)
        )


def _check_wanted(wanted: Callable[[], bool], tokens: int = 0) -> None:
    if not wanted():
        raise Abandoned


class ModelService:
    """A model with the queue in front of it."""

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        limits: RequestLimits,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.name, self.model, self.limits = name, model, limits
        self.created = int(time.time())
        self.queue = BatchQueue(
            budget=limits.batch_tokens, max_waiting=limits.max_waiting, report=report
        )

    # Verbs ---------------------------------------------------------------------------------------

    def score(self, texts: Sequence[str], sources: Sequence[str] | None, options: Any) -> Job:
        """Scores of texts, each by itself."""
        chosen: Options = (*_frozen(options), ("carry", False))
        if sources is not None:
            pairs = list(zip(sources, texts, strict=True))
            return self._job(SourceScoring(self.model, chosen), pairs, [a + b for a, b in pairs])
        joins = self.model.card.kind in REPEATABLE_KINDS
        return self._job(VerbCall(self.model.score_stream, chosen, joins), texts, texts)

    def encode(self, texts: Sequence[str], options: Mapping[str, Any]) -> Job:
        """Vectors of texts."""
        return self._job(VerbCall(self.model.encode_stream, _frozen(options)), texts, texts)

    def detect(self, texts: Sequence[str]) -> Job:
        """Replaced tokens of texts."""
        return self._job(VerbCall(self.model.detect_stream, ()), texts, texts)

    def fill(self, texts: Sequence[str], options: Mapping[str, Any]) -> Job:
        """Fillings of masks; sampled ones depend on the texts before them, so they are alone."""
        joins = not dict(options).get("sample")
        call = VerbCall(self.model.fill_stream, _frozen(options), joins, reports=False)
        return self._job(call, texts, texts)

    def ask(self, questions: Sequence[str], options: Mapping[str, Any]) -> Job:
        """Answers to questions; sampled ones depend on the number of a question."""
        joins = dict(options).get("method") != "sample"
        call = VerbCall(self.model.ask_stream, _frozen(options), joins, chunks=True, reports=False)
        return self._job(call, questions, questions)

    def _job(self, operation: Any, items: Sequence[Any], texts: Sequence[str]) -> Job:
        self.check_count(len(texts), "texts")
        cost = sum(map(self.count_tokens, texts))
        self.check_cost(cost)
        return Job(operation, items, cost)

    # Completions ---------------------------------------------------------------------------------

    def decoder(self) -> Decoder:
        """The system, if it generates token by token from nothing but a prompt."""
        decoder = require_decoder(self.model.system, "completions")
        source_batch(self.model.model, None)
        return decoder

    def prompts(self, given: Any) -> list[EncodedText]:
        """The prompts of a request: one or several, as texts or ids."""
        several = given if isinstance(given, list) and not _is_ids(given) else [given]
        self.check_count(len(several), "prompts")
        return [self._prompt(prompt) for prompt in several]

    def _prompt(self, prompt: str | list[int]) -> EncodedText:
        tokenizer = self.model.tokenizer
        if isinstance(prompt, str):
            self.check_cost(self.count_tokens(prompt))
            return encode_text(prompt, tokenizer)
        self.check_cost(len(prompt))
        size = tokenizer.vocabulary.size
        for id in prompt:
            if not 0 <= id < size:
                raise RequestError(
                    400, f"token ids must be from 0 to {size - 1}, got {id}.", param="prompt"
                )
        return decode_ids(prompt, tokenizer)

    def completion_settings(
        self, prompts: Sequence[EncodedText], settings: CompletionSettings, choices: int
    ) -> list[CompletionSettings]:
        """The settings of each prompt: as many tokens as its model has room for."""
        if settings.max_tokens > self.limits.max_tokens:
            raise RequestError(
                400,
                f"max_tokens must be at most {self.limits.max_tokens}, got {settings.max_tokens}.",
                param="max_tokens",
            )
        self.check_count(len(prompts) * choices, "choices")
        system = self.decoder()
        if settings.echo and settings.logprobs is not None and not self.scores_left_to_right:
            raise RequestError(
                400,
                f"the tokens of a text have no log-probabilities from left to right in "
                f"{self.model.card.name}; use /lmlab/score.",
                param="logprobs",
            )
        chosen = []
        for prompt in prompts:
            room = check_prompt_length(system, prompt.ids, settings.max_tokens)
            chosen.append(replace(settings, max_tokens=room))
        self.check_cost(completion_cost(prompts, chosen, choices))
        return chosen

    @property
    def scores_left_to_right(self) -> bool:
        return self.model.system.scorer_kind == "left-to-right"

    def generation(self) -> Generation:
        """The operation that continues prompts."""
        return Generation(self.decoder())

    # Limits --------------------------------------------------------------------------------------

    def count_tokens(self, text: str) -> int:
        """About how many tokens a text has, its end token included."""
        per_token = 1 if self.model.tokenizer.kind in CHARACTER_KINDS else CHARACTERS_PER_TOKEN
        return 1 + len(text) // per_token

    def check_count(self, count: int, what: str) -> None:
        if not 1 <= count <= self.limits.max_texts:
            raise RequestError(
                400,
                f"a request has from 1 to {self.limits.max_texts} {what}, got {count}; send more "
                "in several requests.",
            )

    def check_cost(self, tokens: int) -> None:
        if tokens > self.limits.max_request_tokens:
            raise RequestError(
                413,
                f"a request has at most {self.limits.max_request_tokens} tokens, got about "
                f"{tokens}; send less at once.",
            )

    def description(self) -> dict[str, Any]:
        """What /v1/models says of it."""
        model = self.model
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "lmlab",
            "system": model.card.name,
            "scorer_kind": model.system.scorer_kind,
            "capabilities": sorted(model.card.protocols),
            "max_length": model.system.window,
            "tokenizer": model.tokenizer.kind,
            "vocabulary": model.tokenizer.vocabulary.size,
        }


def completion_cost(
    prompts: Sequence[EncodedText], settings: Sequence[CompletionSettings], choices: int
) -> int:
    """Tokens of all rows of a completion, those to generate included."""
    rows = zip(prompts, settings, strict=True)
    return choices * sum(len(prompt.ids) + own.max_tokens for prompt, own in rows)


def _is_ids(given: Sequence[Any]) -> bool:
    return bool(given) and isinstance(given[0], int)


def _frozen(options: Mapping[str, Any]) -> Options:
    """Options that can be compared; what was not given is left out."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(options.items())
        if value is not None
    )


def find_service(services: Mapping[str, ModelService], name: str | None) -> ModelService:
    """The service of a model by name, the only one if none is named; 404 if there is none."""
    if name is None and len(services) == 1:
        return next(iter(services.values()))
    if name is None:
        raise RequestError(
            400, f"model is missing; choose from {', '.join(services)}.", param="model"
        )
    if name not in services:
        error = unknown_name("model", name[:200], services)
        raise RequestError(404, str(error), param="model", code="model_not_found")
    return services[name]
