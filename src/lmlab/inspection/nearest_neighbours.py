"""Words' neighbours: the nearest words in each table of vectors, listed and drawn on a plane.

A word of two circles draws both together, and so words of one nearer to those of the other: 000's
secondary attraction (张李胡 | 王 | 帝侯爵).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lmlab.core.errors import UserError, nearest
from lmlab.inspection.capture_figures import file_name
from lmlab.inspection.inspected_models import (
    Subject,
    table_name,
)
from lmlab.layers.sphere_embedding import on_sphere
from lmlab.plotting.canvas import (
    COLOURS,
    INK,
)
from lmlab.plotting.charts import short_label
from lmlab.plotting.figure import (
    Picture,
    Rows,
)
from lmlab.plotting.html import Cell
from lmlab.plotting.label_layout import spread_labels
from lmlab.training.weight_statistics import token_vectors

WORDS = 12
"""Words chosen where none are given."""
NEAREST = 8
"""Neighbours listed for each."""
LINKED = 3
"""Neighbours drawn for each."""
FEWEST_SEEN = 3
"""A word seen less often in the counted texts is no neighbour: chance placed its vector."""
READING = (
    "Each word given (blue) is joined to its {linked} nearest by cosine, on the plane on which "
    "these words spread most ({share:.0%} of their variance), so that what is near here may yet be "
    "far. A word between two circles belongs to both and draws them together."
)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """A word and those nearest to it, best first."""

    word: int
    nearest: tuple[int, ...]
    cosines: tuple[float, ...]


def neighbour_pictures(subject: Subject, words: Sequence[str] = ()) -> list[Picture]:
    """A picture and a table for each table of vectors that the system has; often one or two."""
    chosen = word_ids(subject, words) if words else frequent_words(subject)
    tables = token_vectors(subject.system)
    if not chosen or not tables:
        return []
    pictures = []
    for name, vectors in tables.items():
        found = find_neighbours(vectors, chosen, _candidates(subject))
        part = table_name(name)
        title = f"neighbours of words, {part}"
        file = "neighbours" if len(tables) == 1 else f"neighbours-{file_name(part)}"
        pictures.append(_picture(subject, found, vectors, name=file, title=title))
    return pictures


def check_words(subjects: Sequence[Subject], words: Sequence[str]) -> None:
    """An error, before anything is drawn, for words that no run has a vector for."""
    able = [subject for subject in subjects if token_vectors(subject.system)]
    if words and not able:
        raise UserError(
            "words have neighbours where a system has a vector for each, and none of these has; "
            "leave out --words."
        )
    for subject in able:
        word_ids(subject, words)


def word_ids(subject: Subject, words: Sequence[str]) -> list[int]:
    """The ids of words; one that is not in the vocabulary is an error that names near ones."""
    tokenizer, found = subject.model.tokenizer, []
    for word in words:
        id = tokenizer.id(word)
        pieces = tokenizer.encode(word)
        if id is None and len(pieces) == 1 and pieces[0] != tokenizer.vocabulary.unknown:
            id = pieces[0]
        if id is None:
            known = [tokenizer.token(each) for each in range(tokenizer.vocabulary.size)]
            close = nearest(word, known)
            guess = f"did you mean {' or '.join(map(repr, close))}?" if close else "choose another."
            raise UserError(f"the run {subject.name} has no word {word!r} of one token; {guess}")
        found.append(id)
    return list(dict.fromkeys(found))


def frequent_words(subject: Subject, count: int = WORDS) -> list[int]:
    """Some frequent words, from the commonest to the two hundredth, evenly by powers.

    Where the corpus is gone, those of the sentences that are shown.
    """
    vocabulary = subject.system.vocabulary
    symbols = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    ids = [token for token, _ in subject.counts.most_common() if token not in symbols]
    if not ids:
        shown = [token for sentence in subject.sentences for token in sentence.ids]
        ids = [token for token in dict.fromkeys(shown) if token not in symbols]
    words = [token for token in ids if any(map(str.isalpha, subject.token(token)))] or ids
    ranks = np.unique(np.geomspace(1, min(len(words), 200), count).round().astype(int)) - 1
    return [words[rank] for rank in ranks] if words else []


def _candidates(subject: Subject) -> list[int]:
    """Words that may be neighbours: those seen a few times, or all where nothing was counted."""
    vocabulary = subject.system.vocabulary
    predictable = [id for id in range(vocabulary.size) if id not in vocabulary.unpredictable]
    seen = [id for id in predictable if subject.counts[id] >= FEWEST_SEEN]
    return seen if len(seen) > NEAREST else predictable


@torch.no_grad()
def find_neighbours(
    vectors: torch.Tensor, words: Sequence[int], candidates: Sequence[int]
) -> list[Neighbours]:
    """The candidates nearest to each word by the cosine of rows of (V, W), itself left out."""
    directions = on_sphere(vectors.detach().float().cpu())
    pool = torch.tensor(list(candidates))
    found = []
    for word in words:
        cosines = directions[pool] @ directions[word]
        cosines[pool == word] = -torch.inf
        best = torch.topk(cosines, min(NEAREST, int(torch.isfinite(cosines).sum())))
        found.append(
            Neighbours(
                word=word,
                nearest=tuple(pool[best.indices].tolist()),
                cosines=tuple(best.values.tolist()),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Plane:
    """Words on a plane, and lines between them."""

    points: NDArray[np.float64]
    """(N, 2)"""
    labels: tuple[str, ...]
    given: int
    """How many of the first are the words that were asked for."""
    links: tuple[tuple[int, int], ...]
    share: float
    """Of the variance of these words' directions."""


def plane_of(vectors: torch.Tensor, found: Sequence[Neighbours], names: Sequence[str]) -> Plane:
    """The first two principal components of the directions of the words and their nearest."""
    words = [each.word for each in found]
    near = [id for each in found for id in each.nearest[:LINKED]]
    ids = list(dict.fromkeys([*words, *near]))
    place = {id: at for at, id in enumerate(ids)}
    directions = on_sphere(vectors.detach().double().cpu()).numpy()[ids]
    centred = directions - directions.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes, sizes = axes[:2], np.square(sizes)
    # Principal axes have no sign of their own: the largest entry is made positive.
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    points = np.zeros((len(ids), 2))
    points[:, : len(axes)] = centred @ axes.T
    return Plane(
        points=points,
        labels=tuple(names[id] for id in ids),
        given=len(words),
        links=tuple((place[e.word], place[id]) for e in found for id in e.nearest[:LINKED]),
        share=float(sizes[:2].sum() / max(sizes.sum(), 1e-30)),
    )


def draw_plane(figure: Figure, plane: Plane, *, title: str) -> None:
    """Words with lines to their nearest; names stand beside their points, not on each other."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_title(title, loc="left", fontsize=11)
    for one, other in plane.links:
        pair = plane.points[[one, other]]
        axes.plot(*pair.T, color=INK, linewidth=0.6, alpha=0.25, zorder=1)
    first, rest = plane.points[: plane.given], plane.points[plane.given :]
    axes.scatter(rest[:, 0], rest[:, 1], s=14, color=COLOURS[1], zorder=2)
    axes.scatter(first[:, 0], first[:, 1], s=26, color=COLOURS[0], zorder=3)
    axes.margins(0.08)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second")
    labels = [short_label(label) for label in plane.labels]
    spread_labels(axes, plane.points, labels, strong=plane.given)


def _picture(
    subject: Subject, found: Sequence[Neighbours], vectors: torch.Tensor, *, name: str, title: str
) -> Picture:
    names = [subject.token(id) for id in range(subject.system.vocabulary.size)]
    plane = plane_of(vectors, found, names)
    rows = tuple(
        (
            Cell(names[each.word]),
            Cell(" · ".join(f"{names[id]} {c:.2f}" for id, c in _pairs(each))),
        )
        for each in found
    )
    return Picture(
        name=name,
        title=title,
        reading=READING.format(linked=LINKED, share=plane.share),
        draw=partial(draw_plane, plane=plane, title=title),
        width=7.0,
        height=5.2,
        table=Rows(header=("word", "nearest by cosine"), rows=rows),
    )


def _pairs(each: Neighbours) -> list[tuple[int, float]]:
    return list(zip(each.nearest, each.cosines, strict=True))
