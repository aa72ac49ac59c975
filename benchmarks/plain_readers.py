"""Single-hop baselines for CogQA: readers of the question's entities, or of BM25's paragraphs.

The same encoder and pointers as system 1's, trained on the same questions; but a paragraph is read
without clues, only the answer pointers are trained, and the most probable span of all paragraphs
read is the answer. The answer to an alternative question is one of the two entities that it names,
as in CogQA. Yes or no is no span, so such a question is answered by "yes".
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
    """Reads each paragraph by itself; `index` retrieves paragraphs of `names`."""

    reader: CogQAReader
    encoder: NodeEncoder
    paragraphs: Mapping[str, str]
    index: LexicalIndex
    names: tuple[str, ...]
    retrieved: int

    def retrieve(self, questions: Sequence[str]) -> list[list[str]]:
        """The entities with the highest-scoring paragraphs per question."""
        _, numbers = self.index.search(list(questions), self.retrieved)
        return [[self.names[n] for n in row.tolist() if n >= 0] for row in numbers]

    def answer_first(self, questions: Sequence[MultihopQuestion]) -> list[str]:
        """Answers from the paragraphs of the entities that the questions name: one hop."""
        return self._answer(questions, [list(each.start) for each in questions])

    def answer_retrieved(self, questions: Sequence[MultihopQuestion]) -> list[str]:
        """Answers from the paragraphs that BM25 retrieves."""
        return self._answer(questions, self.retrieve([each.text for each in questions]))

    def _answer(
        self, questions: Sequence[MultihopQuestion], read: Sequence[Sequence[str]]
    ) -> list[str]:
        pairs = [(number, name) for number, names in enumerate(read) for name in names]
        inputs = [
            self.encoder(questions[number].text, "", self.paragraphs.get(name, ""))
            for number, name in pairs
        ]
        found = self.reader.extract([each.tokens for each in inputs])
        seen: list[dict[str, Seen]] = [{} for _ in questions]
        for (number, name), input, each in zip(pairs, inputs, found, strict=True):
            best = (0.0, "")
            for span in each.answers[:1]:
                low, high = input.spans[span.first][0], input.spans[span.last][1]
                best = span.probability, self.paragraphs[name][low:high]
            seen[number][name] = Seen(best=best, no_answer_probability=each.no_answer_probability)
        return [chosen(asked, each) for asked, each in zip(questions, seen, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The predictions in a paragraph."""

    best: tuple[float, str]
    """The most probable span: its probability and words; 0 and none without one."""
    no_answer_probability: float
    """The probability that there is no answer."""


def chosen(asked: MultihopQuestion, seen: Mapping[str, Seen]) -> str:
    """The answer to a question, by the predictions in the paragraphs read.

    Which of two: the one whose paragraph holds an answer more likely; one that was not read holds
    none.
    """
    if asked.kind == "yes-no":
        return "yes"
    if asked.kind == "alternative":
        return min(
            asked.start[:2],
            key=lambda name: seen[name].no_answer_probability if name in seen else 1.0,
        )
    return max((each.best for each in seen.values()), default=(0.0, ""))[1]


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
    """A plain reader on a run's system, trained on gold, first and retrieved paragraphs."""
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
        title="a reader without hops",
        quiet=quiet,
    )
    return plain


def plain_examples(plain: PlainReader, rows: Sequence[MultihopRow]) -> Iterator[SpanExample]:
    """Gold paragraphs with the answer; first and two retrieved ones without."""
    asked = [row for row in rows if row.kind != "yes-no"]
    for row, found in zip(asked, plain.retrieve([row.text for row in asked]), strict=True):
        right = _right(row)
        others = [*row.start, *(name for name in found if name not in right)][: len(row.start) + 2]
        for name in dict.fromkeys([*right, *others]):
            read = plain.encoder(row.text, "", plain.paragraphs.get(name, ""))
            named = (
                find_entity_name(plain.paragraphs.get(name, ""), row.answer)
                if name in right
                else None
            )
            places = None if named is None else read.positions_of(*named)
            if named is None or places is not None:
                yield SpanExample(input=read, labels=[[], [], *pointer_labels([], places)[2:]])


def _right(row: MultihopRow) -> list[str]:
    """Entities whose paragraphs hold the answer."""
    if row.kind == "alternative":
        return [row.answer]
    return [a for a, b in row.path if b == row.answer]
