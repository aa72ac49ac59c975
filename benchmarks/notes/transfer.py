"""The four kinds of transfer (004): source with labels or without, target with labels or without.

    python benchmarks/notes/transfer.py --data DATA [--seeds 3]

One LSTM, its vocabulary of the words of all corpora, trained on a source and then on a
small target; each against the same target without the source.

- inductive (labels, labels): CoLA's acceptability, then SST-2's sentiment, 500 rows; accuracy.
- transductive (labels, none): sentiment learned on phrases of at most 6 words, tested on texts of
  15 and more of which no label was seen; without the source there is the larger class alone.
- self-taught (none, labels): WordNet's texts as a language model, then SST-2, 500 rows; accuracy.
- unsupervised (none, none): the same language model, then 500 captions as a language model;
  held-out nats per word.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from claim_records import Record, measure_missing, parse_arguments, print_means
from torch import Tensor, nn

from lmlab.data.corpus import open_corpus

WIDTH, RATE, LENGTH, VOCABULARY = 96, 2e-3, 30, 8000
SOURCE_ROWS, SOURCE_STEPS, TARGET_ROWS, TARGET_STEPS = 8000, 800, 500, 150
KINDS = ("inductive", "transductive", "self-taught", "unsupervised")
Rows = tuple[list[str], list[int]]


class Encoder(nn.Module):
    """An LSTM with a head for the next word and one for a label."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.label = nn.Linear(WIDTH, 2)

    def states(self, texts: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(texts))[0]
        return states

    def label_loss(self, texts: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.labels(texts), labels)

    def labels(self, texts: Tensor) -> Tensor:
        states = self.states(texts).masked_fill((texts == 0)[..., None], -1.0)
        logits: Tensor = self.label(states.amax(1))
        return logits

    def word_loss(self, texts: Tensor) -> Tensor:
        """Nats per word after the first; 0 is padding."""
        logits = self.states(texts[:, :-1]) @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten(), ignore_index=0)


class Numbers:
    """Numbers of the most frequent words of all corpora; 1 is any other, 0 padding."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = Counter(word for text in texts for word in text.lower().split())
        common = [word for word, _ in counts.most_common(VOCABULARY - 2)]
        self.number = {word: index + 2 for index, word in enumerate(common)}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        rows = [[self.number.get(w, 1) for w in t.lower().split()][:LENGTH] for t in texts]
        return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])


def read_rows(path: Path, text: int, label: int, count: int, skip: int = 0) -> Rows:
    with path.open(encoding="utf-8") as file:
        read = list(islice(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), skip, None))
    rows = read[:count]
    return [row[text] for row in rows], [int(row[label]) for row in rows]


def fit(model: Encoder, texts: Tensor, labels: Tensor | None, steps: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(steps):
        rows = torch.randint(len(texts), (32,))
        optimiser.zero_grad()
        chosen = texts[rows]
        loss = model.word_loss(chosen) if labels is None else model.label_loss(chosen, labels[rows])
        loss.backward()
        optimiser.step()


class Corpora:
    """All sources and targets as numbers."""

    def __init__(self, data: Path) -> None:
        cola = read_rows(data / "cola" / "train.tsv", 3, 1, SOURCE_ROWS)
        sst = read_rows(data / "sst2" / "train.tsv", 0, 1, 60_000, skip=1)
        held_out = read_rows(data / "sst2" / "test.tsv", 0, 1, 900, skip=1)
        glosses = [e.text for e in open_corpus("wordnet").splits["train"].first(SOURCE_ROWS)]
        captions = (data / "multi30k" / "train.en").read_text(encoding="utf-8").splitlines()
        self.number = Numbers([*cola[0], *sst[0][:SOURCE_ROWS], *glosses, *captions[:5000]])
        self.cola, self.sst, self.held_out = map(self.labelled, (cola, sst, held_out))
        self.glosses, self.captions = self.number(glosses), self.number(captions[:2000])
        self.sst_lengths = torch.tensor([len(text.split()) for text in sst[0]])

    def labelled(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self.number(rows[0]), torch.tensor(rows[1])


def accuracy(model: Encoder, texts: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model.labels(texts).argmax(1) == labels).float().mean())


def measure(corpora: Corpora, kind: str, source: bool, seed: int) -> Record:
    torch.manual_seed(seed)
    model, (texts, labels) = Encoder(), corpora.sst
    if kind == "transductive":
        short = corpora.sst_lengths <= 6
        long = (corpora.sst_lengths >= 15).nonzero()[:2000, 0]
        if not source:
            return {
                "right": max(
                    float(labels[long].float().mean()), float((1 - labels[long]).float().mean())
                )
            }
        fit(model, texts[short], labels[short], SOURCE_STEPS)
        return {"right": accuracy(model, texts[long], labels[long])}
    if source:
        of_cola = kind == "inductive"
        inputs = corpora.cola[0] if of_cola else corpora.glosses
        fit(model, inputs, corpora.cola[1] if of_cola else None, SOURCE_STEPS)
    if kind == "unsupervised":
        fit(model, corpora.captions[:TARGET_ROWS], None, TARGET_STEPS)
        with torch.no_grad():
            return {"nats per word": float(model.word_loss(corpora.captions[-1000:]))}
    fit(model, texts[:TARGET_ROWS], labels[:TARGET_ROWS], TARGET_STEPS)
    return {"right": accuracy(model, *corpora.held_out)}


def main() -> None:
    options = parse_arguments(__doc__, "transfer")
    torch.set_num_threads(1)
    cached: list[Corpora] = []

    def with_corpora(kind: str, source: bool, seed: int) -> Record:
        cached[:] = cached or [Corpora(Path(options.data))]
        return measure(cached[0], kind, source, seed)

    configurations = [{"kind": k, "source": source} for k in KINDS for source in (False, True)]
    settings: Record = {
        "width": WIDTH,
        "rate": RATE,
        "source": [SOURCE_ROWS, SOURCE_STEPS],
        "target": [TARGET_ROWS, TARGET_STEPS],
    }
    records = measure_missing(options, settings, configurations, with_corpora)
    print_means(records, ("kind", "source"))


if __name__ == "__main__":
    main()
