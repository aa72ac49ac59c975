"""`lmlab words RUN|FILE nearest|analogy|similarity|export …`: queries of word vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import print, print_json, print_table
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError, unknown_name
from lmlab.verbs import resources as verbs

if TYPE_CHECKING:
    from lmlab.scoring.word_vectors import Neighbour, WordVectors

ARGUMENT_COUNTS = {
    "nearest": (1, 1, "a word"),
    "analogy": (3, 3, "three words: A is to B as C is to what"),
    "similarity": (0, 2, "a file of pairs, two words, or nothing"),
    "export": (1, 1, "a file, .txt or .bin"),
}
"""Minimum and maximum number of arguments of each query, and what they are."""


@terminal(verbs.words)
def words(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="The folder of a run, or a file of word2vec, fastText or GloVe.",
        ),
    ],
    question: Annotated[
        str, typer.Argument(metavar="nearest|analogy|similarity|export", help="What to do.")
    ],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD... | FILE]",
            help="nearest WORD; analogy A B C (A is to B as C is to what); similarity of two "
            "words, or of the pairs of a file (word, word, number) against their order, or of "
            "nouns against WordNet; export OUT.txt or OUT.bin.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="Number of neighbours.")] = 10,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
) -> None:
    if question not in ARGUMENT_COUNTS:
        raise unknown_name("question to word vectors", question, ARGUMENT_COUNTS)
    minimum, maximum, expected = ARGUMENT_COUNTS[question]
    given = given or []
    if not minimum <= len(given) <= maximum:
        raise UserError(f"{question} takes {expected}, got {len(given)} arguments.")

    vectors = verbs.words(source)
    if question == "nearest":
        _show_neighbours(vectors.nearest(given[0], count), as_json)
    elif question == "analogy":
        _show_neighbours(vectors.analogy(given[0], given[1], given[2], count), as_json)
    elif question == "similarity":
        _show_similarity(vectors, given, as_json)
    else:
        _export(vectors, given[0], as_json)


def _show_neighbours(neighbours: list[Neighbour], as_json: bool) -> None:
    if as_json:
        print_json(
            [{"word": neighbour.word, "cosine": neighbour.cosine} for neighbour in neighbours]
        )
        return
    print_table(
        ("word", "cosine"),
        [(neighbour.word, f"{neighbour.cosine:.4f}") for neighbour in neighbours],
    )


def _show_similarity(vectors: WordVectors, given: list[str], as_json: bool) -> None:
    if len(given) == 2:
        cosine = vectors.cosine(*given)
        if as_json:
            print_json({"words": given, "cosine": cosine})
        else:
            print(f"{cosine:.4f}")
        return
    if given:
        from lmlab.scoring.word_vectors import read_similarity_pairs

        pairs, name = read_similarity_pairs(given[0]), given[0]
    else:
        from lmlab.data.wordnet.noun_similarity import similar_nouns

        pairs, name = list(similar_nouns()), "nouns of WordNet by path similarity"
    correlation = vectors.similarity_correlation(pairs)
    if as_json:
        print_json({"pairs of": name, **correlation.as_dict()})
        return
    print_table(
        ("pairs of", "spearman", "pairs", "left out"),
        [(name, f"{correlation.spearman:.4f}", str(correlation.pairs), str(correlation.left_out))],
    )


def _export(vectors: WordVectors, out: str, as_json: bool) -> None:
    verbs.export_words(vectors, out)
    width = vectors.vectors.shape[1]
    if as_json:
        print_json({"file": out, "words": len(vectors), "width": width})
    else:
        print(f"{len(vectors):,} words of dimension {width}: {out}")
