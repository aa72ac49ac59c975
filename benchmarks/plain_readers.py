"""Single-hop baselines for CogQA: span extraction from the named entities' or BM25's paragraphs.

The encoder and pointers are those of system 1, trained on the same questions; but paragraphs are
encoded without clues, only the answer pointers are trained, and the answer is the most probable
span of all paragraphs. The answer to an alternative question is one of the two entities that it
names, as in CogQA. Yes-no questions have no answer span and are answered by "yes".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmlab.data.name_matching import find_entity_name
from lmlab.layers.span_pointers import CogQAConfig, pointer_labels
from lmlab.models.cogqa import CogQAReader
from lmlab.retrieval.bm25 import LexicalIndex
from lmlab.tasks.finetune_job import fit_stage
from lmlab.tasks.multihop.cognitive_graph import NodeEncoder
from lmlab.tasks.multihop.graph_examples import SpanExample
from lmlab.tasks.multihop.multihop_rows import MultihopQuestion, MultihopRow
from lmlab.tasks.multihop.two_stage_training import SpanExampleBatches
from lmlab.training.config import TrainingConfig
from lmlab.training.run_folder import RunFolder, TrainedModel


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainReader:
    """Extracts answers from single paragraphs; `index` retrieves paragraphs of `names`."""

    reader: CogQAReader
    encoder: NodeEncoder
    paragraphs: Mapping[str, str]
    index: LexicalIndex
    names: tuple[str, ...]
    retrieved: int

    def retrieve(self, questions: Sequence[str]) -> list[list[str]]:
        """Entities with the highest-scoring paragraphs, per question."""
        _, numbers = self.index.search(list(questions), self.retrieved)
        return [[self.names[n] for n in row.tolist() if n >= 0] for row in numbers]

    def answer_first(self, questions: Sequence[MultihopQuestion]) -> list[str]:
        """Answers from the paragraphs of the entities named in the questions: one hop."""
        return self._answer(questions, [list(question.start) for question in questions])

    def answer_retrieved(self, questions: Sequence[MultihopQuestion]) -> list[str]:
        """Answers from the paragraphs that BM25 retrieves."""
        return self._answer(questions, self.retrieve([question.text for question in questions]))

    def _answer(
        self, questions: Sequence[MultihopQuestion], entities: Sequence[Sequence[str]]
    ) -> list[str]:
        pairs = [(number, name) for number, names in enumerate(entities) for name in names]
        inputs = [
            self.encoder(questions[number].text, "", self.paragraphs.get(name, ""))
            for number, name in pairs
        ]
        extractions = self.reader.extract([input.tokens for input in inputs])
        predictions: list[dict[str, ParagraphPrediction]] = [{} for _ in questions]
        for (number, name), input, extraction in zip(pairs, inputs, extractions, strict=True):
            best = (0.0, "")
            for span in extraction.answers[:1]:
                low, high = input.spans[span.first][0], input.spans[span.last][1]
                best = span.probability, self.paragraphs[name][low:high]
            predictions[number][name] = ParagraphPrediction(
                best=best, no_answer_probability=extraction.no_answer_probability
            )
        return [
            select_answer(question, by_entity)
            for question, by_entity in zip(questions, predictions, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class ParagraphPrediction:
    """The prediction from one paragraph."""

    best: tuple[float, str]
    """Probability and text of the most probable span; 0 and "" if there is none."""
    no_answer_probability: float
    """The probability that there is no answer."""


def select_answer(
    question: MultihopQuestion, predictions: Mapping[str, ParagraphPrediction]
) -> str:
    """Select the answer to a question from the predictions by paragraph.

    Of two alternatives, the one whose paragraph more probably contains an answer; an alternative
    without a prediction contains none.
    """
    if question.kind == "yes-no":
        return "yes"
    if question.kind == "alternative":
        return min(
            question.start[:2],
            key=lambda name: (
                predictions[name].no_answer_probability if name in predictions else 1.0
            ),
        )
    return max((prediction.best for prediction in predictions.values()), default=(0.0, ""))[1]


def train_plain_reader(
    model: TrainedModel,
    rows: Mapping[str, Sequence[MultihopRow]],
    paragraphs: Mapping[str, str],
    *,
    config: TrainingConfig,
    out: Path,
    settings: CogQAConfig,
    retrieved: int = 5,
    quiet: bool = True,
) -> PlainReader:
    """Train a reader on a run's system with gold, first-hop and retrieved paragraphs."""
    reader = CogQAReader(model.system, settings)
    names = tuple(paragraphs)
    plain = PlainReader(
        reader=reader,
        encoder=NodeEncoder(model.tokenizer, reader.vocabulary, reader.longest),
        paragraphs=paragraphs,
        index=LexicalIndex.build([paragraphs[name] for name in names]),
        names=names,
        retrieved=retrieved,
    )
    sources = {}
    for split in ("train", "validation"):
        if examples := list(plain_examples(plain, rows.get(split, ()))):
            pad = reader.vocabulary.pad
            sources[split] = SpanExampleBatches(examples, config, pad, shuffle=split == "train")
    fit_stage(
        reader,
        sources,
        folder=RunFolder(out),
        config=config,
        unit="nats per paragraph",
        title="a single-hop reader",
        quiet=quiet,
    )
    return plain


def plain_examples(plain: PlainReader, rows: Sequence[MultihopRow]) -> Iterator[SpanExample]:
    """Gold paragraphs with answer labels; first-hop and two retrieved ones without."""
    span_rows = [row for row in rows if row.kind != "yes-no"]
    for row, retrieved in zip(
        span_rows, plain.retrieve([row.text for row in span_rows]), strict=True
    ):
        gold = gold_entities(row)
        others = [*row.start, *(name for name in retrieved if name not in gold)][
            : len(row.start) + 2
        ]
        for name in dict.fromkeys([*gold, *others]):
            encoded = plain.encoder(row.text, "", plain.paragraphs.get(name, ""))
            answer_span = (
                find_entity_name(plain.paragraphs.get(name, ""), row.answer)
                if name in gold
                else None
            )
            positions = None if answer_span is None else encoded.positions_of(*answer_span)
            if answer_span is None or positions is not None:
                yield SpanExample(
                    input=encoded, labels=[[], [], *pointer_labels([], positions)[2:]]
                )


def gold_entities(row: MultihopRow) -> list[str]:
    """Entities whose paragraphs contain the answer."""
    if row.kind == "alternative":
        return [row.answer]
    return [a for a, b in row.path if b == row.answer]
