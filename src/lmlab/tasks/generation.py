"""Conditional generation task: a target text given a source, by greedy search; ROUGE, BLEU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of
from lmlab.core.registry import find_system
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.finetuned import FinetunedGenerator
from lmlab.sampling.decoding import greedy_search
from lmlab.tasks.metrics import accuracy, bleu, has_bleu, rouge_l, rouge_n
from lmlab.tasks.sequence_task import TOKENS_PER_BATCH
from lmlab.tasks.single_stage import SingleStageTask
from lmlab.tasks.task import EncodedExample, Row, special_tokens_of
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel, load_source_tokenizer

MAX_NEW_TOKENS = 256
"""The maximum length of a generated text in tokens."""


class Generation(SingleStageTask):
    """Conditional generation, p(target | source): by a conditional model, or as a continuation.

    A causal language model without a condition continues `<s> source </s>`. A row may have a
    `prefix`, the task prefix of T5 (`translate: `), which comes before its source; rows with
    several prefixes train one model for several tasks.
    """

    name = "generate"
    fields: ClassVar[Mapping[str, str]] = {
        "source": "the source text",
        "target": "the text to generate",
    }
    text_field = "source"
    options = frozenset()
    has_head = False
    reads_pairs = True
    can_prompt = True
    loss_unit = "nats per token"
    proportion_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    mean_metrics: ClassVar[tuple[str, ...]] = ("rouge1", "rouge2", "rougeL")

    def __init__(
        self,
        labels: Sequence[str] = (),
        *,
        conditional: bool = False,
        source_tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(labels)
        self.conditional = conditional
        """Whether the model takes the source as its condition."""
        self.source_tokenizer = source_tokenizer
        """The tokenizer of sources, if it differs."""

    @classmethod
    def from_rows(cls, rows: Sequence[Row], model: TrainedModel) -> Self:
        return cls(conditional=model.card.conditional, source_tokenizer=model.source_tokenizer)

    @classmethod
    def from_config(cls, config: RunConfig, run: RunFolder) -> Self:
        return cls(
            conditional=find_system(config.system).conditional,
            source_tokenizer=load_source_tokenizer(config, run),
        )

    def build(self, base: System, *, frozen: bool) -> System:
        return FinetunedGenerator(base, conditional=self.conditional)

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        """Labels hold one number: the length of the given prefix."""
        start, end = special_tokens_of(vocabulary)
        source = (self.source_tokenizer or tokenizer).encode(prefixed_source(row))
        target = [*tokenizer.encode(str(row["target"])), *end] if "target" in row else []
        max_tokens = max_length - len(start) - len(end)
        if self.conditional:
            cut = max(len(source), len(target)) > max_tokens
            tokens = [*start, *target][:max_length]
            if self.source_tokenizer is not None:
                start, end = special_tokens_of(self.source_tokenizer.vocabulary)
            given = [*start, *source[:max_tokens], *end]
            return EncodedExample(
                tokens=tokens, labels=[1], spans=[], condition=given, given=given, truncated=cut
            )
        max_source = max(1, max_tokens - len(target))
        prefix = [*start, *source[:max_source], *end]
        tokens = [*prefix, *target]
        cut = len(source) > max_source or len(tokens) > max_length
        # The length of the target is unknown in generation: it has at most half of the positions.
        max_given = max(1, max_tokens - min(MAX_NEW_TOKENS, max_tokens // 2))
        given = [*start, *source[:max_given], *end]
        return EncodedExample(
            tokens=tokens[:max_length], labels=[len(prefix)], spans=[], given=given, truncated=cut
        )

    def predict(
        self,
        system: System,
        tokenizer: Tokenizer,
        rows: Sequence[Row],
        encoded: Sequence[EncodedExample],
    ) -> list[str]:
        assert isinstance(system, FinetunedGenerator)
        return generate_texts(system, tokenizer, [example.given for example in encoded])

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> str:
        return str(row["target"])

    @classmethod
    def compute_metrics(cls, expected: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        pairs = list(zip(expected, answers, strict=True))
        count = max(len(pairs), 1)
        corpus_metrics = {"bleu": bleu(expected, answers)} if has_bleu(expected) else {}
        return {
            "exact_match": accuracy([a.split() for a in expected], [b.split() for b in answers]),
            "rouge1": sum(rouge_n(a, b) for a, b in pairs) / count,
            "rouge2": sum(rouge_n(a, b, 2) for a, b in pairs) / count,
            "rougeL": sum(rouge_l(a, b) for a, b in pairs) / count,
        } | corpus_metrics


def prefixed_source(row: Mapping[str, Any]) -> str:
    """The source after the row's task prefix, if it has one."""
    return str(row.get("prefix", "")) + str(row["source"])


def generate_texts(
    system: FinetunedGenerator, tokenizer: Tokenizer, sources: Sequence[Sequence[int]]
) -> list[str]:
    """The text that greedy search generates for each source, in their order."""
    texts = [""] * len(sources)
    for group in _source_groups(system, [len(source) for source in sources]):
        batch = Batch.collate([sources[index] for index in group], system.vocabulary.pad)
        batch = batch.to(device_of(system))
        generated = greedy_search(system, len(group), max_length=MAX_NEW_TOKENS, condition=batch)
        for index, generation in zip(group, generated, strict=True):
            texts[index] = tokenizer.decode(list(generation.tokens))
    return texts


def _source_groups(system: FinetunedGenerator, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Groups of sources of similar length; of equal length if they are prefixes."""
    if system.conditional:
        yield from group_by_length(lengths, TOKENS_PER_BATCH)
        return
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        by_length[length].append(index)
    for length, indices in by_length.items():
        for group in group_by_length([length] * len(indices), TOKENS_PER_BATCH):
            yield [indices[index] for index in group]
