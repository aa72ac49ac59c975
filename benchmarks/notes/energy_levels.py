"""An energy model for labels and for sentences (000's outlook).

    python benchmarks/notes/energy_levels.py --data DATA [--seeds 3]

- labels (SST-2, 5,000 rows): the energy E(x, y) of a text with a label, the label entering below
  the last layer as an input; p(y | x) = exp(-E(x, y)) / Σ_y'. Trained normalised over the labels,
  by noise contrast with the other label, or, for comparison, as an ordinary softmax classifier.
- sentences (bAbI 1): the energy of a story with its answered question, of vectors of sentences; an
  answer is right if its energy is lowest of all places. With interactions between the sentences (a
  Transformer layer over them), or as a sum of energies of single sentences. The same contrasts.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from claim_records import Record, measure_missing, parse_arguments, print_means
from torch import Tensor, nn

WIDTH, RATE, ROWS, EPOCHS = 64, 2e-3, 5000, 8
LABELS = ("softmax classifier", "energy, normalised", "energy, contrast")
SENTENCES = ("interacting, normalised", "interacting, contrast", "separate, normalised")


def words_of(text: str) -> list[str]:
    return text.lower().replace(".", " ").replace("?", " ").split()


class Words:
    """Numbers of words; 0 for unknown ones and padding."""

    def __init__(self, texts: Sequence[str]) -> None:
        known = sorted({word for text in texts for word in words_of(text)})
        self.number = {word: index + 1 for index, word in enumerate(known)}

    def bag(self, texts: Sequence[str], length: int) -> Tensor:
        """(N, length) numbers."""
        rows = [[self.number.get(word, 0) for word in words_of(t)][:length] for t in texts]
        return torch.tensor([row + [0] * (length - len(row)) for row in rows])


class LabelEnergy(nn.Module):
    """(N, labels) energies: of the state with each label's vector, or a softmax classifier's."""

    def __init__(self, words: int, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, WIDTH, padding_idx=0)
        self.state = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.labels = nn.Embedding(2, WIDTH)
        self.joint = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.classifier = nn.Linear(WIDTH, 2)
        self.kind = kind

    def forward(self, texts: Tensor) -> Tensor:
        state = self.state(self.embedding(texts))[0].amax(1)
        if self.kind == "softmax classifier":
            energies: Tensor = -self.classifier(state)
            return energies
        pairs = [torch.cat([state, self.labels.weight[y].expand_as(state)], 1) for y in (0, 1)]
        return torch.cat([self.joint(pair) for pair in pairs], 1)


class StoryEnergy(nn.Module):
    """(N, answers) energies of stories (N, S, W words) with each of the answers (A,)."""

    def __init__(self, words: int, kind: str, sentences: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, WIDTH, padding_idx=0)
        self.position = nn.Parameter(torch.randn(sentences + 2, WIDTH) * 0.1)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.interacting = kind.startswith("interacting")

    def forward(self, stories: Tensor, answers: Tensor) -> Tensor:
        vectors = self.embedding(stories).sum(2) + self.position[: stories.shape[1]]
        scores = []
        for answer in answers:
            last = (self.embedding(answer) + self.position[-1]).expand(len(stories), 1, -1)
            whole = torch.cat([vectors, last], 1)
            states = self.layers(whole) if self.interacting else whole
            scores.append(self.energy(states).sum((1, 2)))
        return torch.stack(scores, 1)


def loss_of(energies: Tensor, right: Tensor, kind: str) -> Tensor:
    """Normalised over all answers, or contrasted with one other."""
    if not kind.endswith("contrast"):
        return F.cross_entropy(-energies, right)
    others = (right + torch.randint(1, energies.shape[1], right.shape)) % energies.shape[1]
    good, bad = (energies.gather(1, y[:, None]) for y in (right, others))
    return -(F.logsigmoid(-good) + F.logsigmoid(bad)).mean()


def fit(model: nn.Module, inputs: tuple[Tensor, ...], right: Tensor, kind: str) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(right)).split(64):
            optimiser.zero_grad()
            energies = model(inputs[0][rows], *inputs[1:])
            loss_of(energies, right[rows], kind).backward()
            optimiser.step()


def labels(data: str, kind: str) -> Record:
    def rows(part: str, count: int) -> tuple[list[str], Tensor]:
        with (Path(data) / "sst2" / f"{part}.tsv").open(encoding="utf-8") as file:
            read = [(r[0], int(r[1])) for r in islice(csv.reader(file, delimiter="\t"), 1, count)]
        return [text for text, _ in read], torch.tensor([y for _, y in read])

    texts, right = rows("train", ROWS)
    held_out, held_out_right = rows("test", 900)
    words = Words(texts)
    model = LabelEnergy(len(words.number), kind)
    fit(model, (words.bag(texts, 30),), right, kind)
    with torch.no_grad():
        energies = model(words.bag(held_out, 30))
    return {
        "right": float((energies.argmin(1) == held_out_right).float().mean()),
        "nats per label, normalised": float(F.cross_entropy(-energies, held_out_right)),
    }


def read_babi(path: Path) -> list[tuple[list[str], str]]:
    """Stories with a question as their last sentence, and the answers."""
    stories, story = [], list[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        number, text = line.split(" ", 1)
        story = [] if number == "1" else story
        if "\t" in text:
            question, answer, _ = text.split("\t")
            stories.append(([*story[-8:], question], answer))
        else:
            story = [*story, text]
    return stories


def sentences(data: str, kind: str) -> Record:
    train, test = (read_babi(Path(data) / "babi" / f"qa1_{p}.txt") for p in ("train", "test"))
    words = Words([text for story, _ in train for text in story] + [a for _, a in train])
    places = sorted({answer for _, answer in train})
    answers = torch.tensor([words.number[place] for place in places])

    def tensors(rows: list[tuple[list[str], str]]) -> tuple[Tensor, Tensor]:
        padded = [[""] * (9 - len(story)) + story for story, _ in rows]
        stories = torch.stack([words.bag(story, 7) for story in padded])
        return stories, torch.tensor([places.index(answer) for _, answer in rows])

    stories, right = tensors(train)
    model = StoryEnergy(len(words.number), kind, 9)
    fit(model, (stories, answers), right, kind)
    held_out, held_out_right = tensors(test)
    with torch.no_grad():
        energies = model(held_out, answers)
    return {"right": float((energies.argmin(1) == held_out_right).float().mean())}


def main() -> None:
    options = parse_arguments(__doc__, "energy-levels")
    torch.set_num_threads(1)

    def measure(level: str, kind: str, seed: int) -> Record:
        torch.manual_seed(seed)
        return {"labels": labels, "sentences": sentences}[level](options.data, kind)

    configurations = [{"level": "labels", "kind": kind} for kind in LABELS]
    configurations += [{"level": "sentences", "kind": kind} for kind in SENTENCES]
    settings: Record = {"width": WIDTH, "rate": RATE, "rows": ROWS, "epochs": EPOCHS}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("level", "kind"))


if __name__ == "__main__":
    main()
