"""Nearest neighbours in each embedding table by cosine, as a table and a PCA plot.

A word with two meanings attracts both groups of neighbours, which moves them closer together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lmlab.core.errors import UserError, nearest_names
from lmlab.core.html import TableCell
from lmlab.inspection.capture_figures import safe_file_name
from lmlab.inspection.inspected_models import InspectedModel, embedding_name
from lmlab.layers.input_embedding import scale_to_radius
from lmlab.plotting.charts import shorten_label
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, FigureSpec, FigureTable
from lmlab.plotting.figure_styling import TITLE
from lmlab.plotting.label_layout import place_labels
from lmlab.training.weight_statistics import token_vectors

DEFAULT_WORD_COUNT = 12
"""Default number of words."""
LISTED_NEIGHBOURS = 8
"""Neighbours listed per word."""
LINKED_NEIGHBOURS = 3
"""Neighbours plotted per word."""
MIN_OCCURRENCES = 3
"""Minimum count of a neighbour: vectors of rarer words are still near their initialisation."""
READING = (
    "Each query word (blue) is linked to its {linked} nearest by cosine, projected on the "
    "first two principal components ({share:.0%} of the variance), so that what is near here "
    "may yet be far. A word between two circles belongs to both."
)


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours:
    """A word and its nearest neighbours, best first."""

    word: int
    nearest: tuple[int, ...]
    cosines: tuple[float, ...]


def nearest_neighbour_figures(
    subject: InspectedModel, words: Sequence[str] = ()
) -> list[FigureSpec]:
    """A plot and a table for each embedding table of the system."""
    chosen = word_ids(subject, words) if words else frequent_words(subject)
    tables = token_vectors(subject.system)
    if not chosen or not tables:
        return []
    figures = []
    for name, vectors in tables.items():
        neighbours = nearest_by_cosine(vectors, chosen, _candidates(subject))
        part = embedding_name(name)
        title = f"nearest neighbours, {part}"
        file = "neighbours" if len(tables) == 1 else f"neighbours-{safe_file_name(part)}"
        figures.append(_figure(subject, neighbours, vectors, name=file, title=title))
    return figures


def check_known_words(subjects: Sequence[InspectedModel], words: Sequence[str]) -> None:
    """Raise a UserError for words that no run has a vector for, before plotting."""
    embedded = [subject for subject in subjects if token_vectors(subject.system)]
    if words and not embedded:
        raise UserError(
            "nearest neighbours need a system with a vector per word, which none of these "
            "has; remove --words."
        )
    for subject in embedded:
        word_ids(subject, words)


def word_ids(subject: InspectedModel, words: Sequence[str]) -> list[int]:
    """The ids of words; an unknown word is an error that suggests similar ones."""
    tokenizer, ids = subject.model.tokenizer, []
    for word in words:
        id = tokenizer.id(word)
        pieces = tokenizer.encode(word)
        if id is None and len(pieces) == 1 and pieces[0] != tokenizer.vocabulary.unknown:
            id = pieces[0]
        if id is None:
            tokens = [tokenizer.token(token_id) for token_id in range(tokenizer.vocabulary.size)]
            close = nearest_names(word, tokens)
            guess = f"did you mean {' or '.join(map(repr, close))}?" if close else "choose another."
            raise UserError(f"the run {subject.name} has no word {word!r} of one token; {guess}")
        ids.append(id)
    return list(dict.fromkeys(ids))


def frequent_words(subject: InspectedModel, count: int = DEFAULT_WORD_COUNT) -> list[int]:
    """Some frequent words, from rank 1 to 200, evenly spaced in log rank.

    Without the corpus, words of the sentences shown.
    """
    vocabulary = subject.system.vocabulary
    special_tokens = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    ids = [token for token, _ in subject.counts.most_common() if token not in special_tokens]
    if not ids:
        sentence_tokens = [token for sentence in subject.sentences for token in sentence.ids]
        ids = [token for token in dict.fromkeys(sentence_tokens) if token not in special_tokens]
    words = [token for token in ids if any(map(str.isalpha, subject.token(token)))] or ids
    ranks = np.unique(np.geomspace(1, min(len(words), 200), count).round().astype(int)) - 1
    return [words[rank] for rank in ranks] if words else []


def _candidates(subject: InspectedModel) -> list[int]:
    """Candidate neighbours: words of some frequency, or all if nothing was counted."""
    vocabulary = subject.system.vocabulary
    predictable = [id for id in range(vocabulary.size) if id not in vocabulary.unpredictable]
    frequent = [id for id in predictable if subject.counts[id] >= MIN_OCCURRENCES]
    return frequent if len(frequent) > LISTED_NEIGHBOURS else predictable


@torch.no_grad()
def nearest_by_cosine(
    vectors: torch.Tensor, words: Sequence[int], candidates: Sequence[int]
) -> list[NearestNeighbours]:
    """The candidates nearest to each word by cosine of rows of (V, W), itself excluded."""
    directions = scale_to_radius(vectors.detach().float().cpu())
    pool = torch.tensor(list(candidates))
    neighbours = []
    for word in words:
        cosines = directions[pool] @ directions[word]
        cosines[pool == word] = -torch.inf
        best = torch.topk(cosines, min(LISTED_NEIGHBOURS, int(torch.isfinite(cosines).sum())))
        neighbours.append(
            NearestNeighbours(
                word=word,
                nearest=tuple(pool[best.indices].tolist()),
                cosines=tuple(best.values.tolist()),
            )
        )
    return neighbours


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A 2D projection of words, with links between them."""

    points: NDArray[np.float64]
    """(N, 2)"""
    labels: tuple[str, ...]
    given: int
    """The first so many points are the query words."""
    links: tuple[tuple[int, int], ...]
    explained_variance: float
    """Explained variance of the unit vectors."""


def project_embeddings(
    vectors: torch.Tensor, neighbours: Sequence[NearestNeighbours], names: Sequence[str]
) -> Projection:
    """PCA to two dimensions of the unit vectors of the words and their neighbours."""
    words = [entry.word for entry in neighbours]
    neighbour_ids = [id for entry in neighbours for id in entry.nearest[:LINKED_NEIGHBOURS]]
    ids = list(dict.fromkeys([*words, *neighbour_ids]))
    index = {id: at for at, id in enumerate(ids)}
    directions = scale_to_radius(vectors.detach().double().cpu()).numpy()[ids]
    centred = directions - directions.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes, sizes = axes[:2], np.square(sizes)
    # Fix the sign of each component: the largest entry is positive.
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    points = np.zeros((len(ids), 2))
    points[:, : len(axes)] = centred @ axes.T
    return Projection(
        points=points,
        labels=tuple(names[id] for id in ids),
        given=len(words),
        links=tuple(
            (index[e.word], index[id]) for e in neighbours for id in e.nearest[:LINKED_NEIGHBOURS]
        ),
        explained_variance=float(sizes[:2].sum() / max(sizes.sum(), 1e-30)),
    )


def draw_projection(figure: Figure, plane: Projection, *, title: str) -> None:
    """Words with lines to their neighbours; labels do not overlap."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_title(title, loc="left", fontsize=11).set_label(TITLE)
    for first_index, second_index in plane.links:
        pair = plane.points[[first_index, second_index]]
        axes.plot(*pair.T, color=FOREGROUND_COLOUR, linewidth=0.6, alpha=0.25, zorder=1)
    queries, others = plane.points[: plane.given], plane.points[plane.given :]
    axes.scatter(others[:, 0], others[:, 1], s=14, color=COLOURS[1], zorder=2)
    axes.scatter(queries[:, 0], queries[:, 1], s=26, color=COLOURS[0], zorder=3)
    axes.margins(0.08)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second")
    labels = [shorten_label(label) for label in plane.labels]
    place_labels(axes, plane.points, labels, strong=plane.given)


def _figure(
    subject: InspectedModel,
    neighbours: Sequence[NearestNeighbours],
    vectors: torch.Tensor,
    *,
    name: str,
    title: str,
) -> FigureSpec:
    names = [subject.token(id) for id in range(subject.system.vocabulary.size)]
    plane = project_embeddings(vectors, neighbours, names)
    rows = tuple(
        (
            TableCell(names[entry.word]),
            TableCell(
                " · ".join(
                    f"{names[id]} {c:.2f}"
                    for id, c in zip(entry.nearest, entry.cosines, strict=True)
                )
            ),
        )
        for entry in neighbours
    )
    return FigureSpec(
        name=name,
        title=title,
        caption=READING.format(linked=LINKED_NEIGHBOURS, share=plane.explained_variance),
        draw=partial(draw_projection, plane=plane, title=title),
        width=7.0,
        height=5.2,
        table=FigureTable(header=("word", "nearest by cosine"), rows=rows),
    )
