"""Each family of pictures: what it measures, what it draws, and when it has nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.system import System
from lmlab.inference.inside import ParseTree
from lmlab.inspection.capture_collection import collect_captures, state_token_capture
from lmlab.inspection.gradient_flow import GradientByDistance
from lmlab.inspection.inspected_models import (
    InspectedModel,
    make_inspected_model,
    make_inspected_models,
    tokenize_sentence,
)
from lmlab.inspection.latent_space import (
    INTERPOLATION_STEPS,
    LATENT_NOISES,
    TOKEN_DROPOUT_RATES,
    interpolation_figures,
    latent_noise_figures,
    reconstruction_loss_by_noise,
)
from lmlab.inspection.nearest_neighbours import (
    LISTED_NEIGHBOURS,
    frequent_words,
    nearest_by_cosine,
    nearest_neighbour_figures,
    project_embeddings,
    word_ids,
)
from lmlab.inspection.parse_trees import TreeNode, draw_parse_tree, parse_tree_figures, to_tree_node
from lmlab.inspection.surprisal import input_dependence_figures, surprisal_figures
from lmlab.inspection.training_dynamics import (
    draw_gradient_by_distance,
    gradient_figures,
    norm_figures,
    norms_over_training,
    retrieval_figures,
    retrieval_over_training,
)
from lmlab.plotting.figure import FigureSpec, canvas
from lmlab.plotting.label_layout import place_labels
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

pytestmark = pytest.mark.xdist_group("families")  # its costly fixtures are made once


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedModel]:
    folder = tmp_path_factory.mktemp("runs")
    for system in ("ngram", "gru"):
        train(system, data="grammar", out=folder / system, size="tiny", steps=3, quiet=True)
    return {path.name: load_run(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def gru(models: dict[str, TrainedModel]) -> InspectedModel:
    return make_inspected_model(models["gru"], ["the cat sleeps", "a dog sees mary"])


class Fake(System):
    """Everything that a picture may ask for, with answers that can be worked out by hand."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.vocabulary = model.system.vocabulary
        self.embedding = nn.Embedding(self.vocabulary.size, 3)

    def log_prob(
        self, batch: Batch, *, state: object = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """Each token costs as many nats as its place."""
        per_token = -torch.arange(1.0, batch.tokens.shape[1]).expand(len(batch), -1)
        return LogProbs(per_token=per_token * batch.targets_mask()[:, 1:], kind="bound")

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        rows, time = len(batch), batch.tokens.shape[1] - 1
        # Half of the predictions at even tokens: an average that padding would spoil.
        shares = torch.tensor([float(time % 2), 1 - float(time % 2)])
        return {
            "use": Capture(values=shares, axes=("state",), caption="Use."),
            "posterior": Capture(
                values=torch.eye(time).expand(rows, -1, -1),
                axes=("batch", "time", "source"),
                caption="Posterior.",
            ),
            "latents": Capture(
                values=batch.lengths[:, None].float().expand(-1, 2),
                axes=("batch", "unit"),
                caption="Latents.",
            ),
        }

    def encode(self, batch: Batch) -> Tensor:
        return batch.tokens[:, 1:3].float()

    def decode(self, latents: Tensor, *, max_length: int = 100) -> list[list[int]]:
        """The nearest ids."""
        return latents.round().long().tolist()

    def reconstruct(
        self,
        batch: Batch,
        *,
        latent_noise: float = 0.0,
        token_noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        lost = (latent_noise + 2 * token_noise) * batch.targets_mask()[:, 1:]
        return LogProbs(per_token=-lost, kind="reconstruction")

    def best_tree(self, batch: Batch) -> list[ParseTree | None]:
        return [
            ParseTree(
                0,
                0,
                3,
                (ParseTree(1, 0, 1), ParseTree(2, 1, 3, (ParseTree(3, 1, 2), ParseTree(4, 2, 3)))),
            )
        ]


@pytest.fixture(scope="module")
def fake(gru: InspectedModel) -> InspectedModel:
    return replace(gru, model=replace(gru.model, system=Fake(gru.model)), name="fake")


def drawn(picture: FigureSpec) -> Figure:
    with canvas(picture.name, width=picture.width, height=picture.height) as figure:
        picture.draw(figure)
        return figure


def labels(figure: Figure, axis: str = "x") -> list[str]:
    return [text.get_text() for text in getattr(figure.axes[0], f"get_{axis}ticklabels")()]


# Subjects


def test_sentences_are_framed_as_the_model_was_trained(gru: InspectedModel) -> None:
    assert gru.sentences[0].tokens == ("<s>", "the", "cat", "sleeps", "</s>")


def test_without_texts_some_of_the_corpus_are_shown_and_counted(
    models: dict[str, TrainedModel],
) -> None:
    found = make_inspected_model(models["gru"])
    assert len(found.sentences) == 3
    assert found.note == ""
    assert not set(found.sentences) & set(found.sample)
    assert found.counts.total() > 1000


def test_where_the_corpus_is_gone_the_model_writes_itself(models: dict[str, TrainedModel]) -> None:
    model = models["gru"]
    gone = {**model.config, "corpus": {**model.config["corpus"], "spec": "no/such.txt"}}
    found = make_inspected_model(replace(model, config=gone))
    assert len(found.sentences) == 3
    assert "generated itself" in found.note
    assert not found.counts


def test_runs_are_shown_the_same_sentences(models: dict[str, TrainedModel]) -> None:
    first, second = make_inspected_models([models["gru"], models["ngram"]])
    assert [each.text for each in first.sentences] == [each.text for each in second.sentences]


def test_an_empty_text_is_refused(models: dict[str, TrainedModel]) -> None:
    with pytest.raises(UserError, match="got an empty text"):
        make_inspected_models([models["gru"]], ["  "])


# Captures of sentences and of the model


def test_averages_know_no_padding(fake: InspectedModel) -> None:
    """3 sentences of 3 words (4 predictions, even) and 1 of 4 words (5, odd)."""
    texts = ("the cat sleeps", "a dog sleeps", "the dog sleeps", "a dog sees mary")
    sentences = [tokenize_sentence(fake.model, text) for text in texts]
    found = collect_captures(fake.system, sentences[:1], sentences[1:])
    odd = 5 / (3 * 4 + 5)
    assert found.model["use"].values.tolist() == pytest.approx([odd, 1 - odd])
    assert found.model["latents"].values[:, 0].tolist() == [5, 5, 5, 6]
    assert list(found.sentences[0]) == ["posterior"]


def test_a_mixture_tells_the_words_of_its_states(gru: InspectedModel, tmp_path: Path) -> None:
    assert state_token_capture(gru.system) == {}
    train("remix", data="grammar", out=tmp_path / "remix", size="tiny", steps=1, quiet=True)
    system = load_run(tmp_path / "remix").system
    table = state_token_capture(system)["words of the states"].values
    # A distribution over tokens for each state.
    torch.testing.assert_close(table.sum(0), torch.ones(table.shape[1]))


# Surprisal and sight


def test_surprisal_bars_are_minus_log_p(fake: InspectedModel) -> None:
    pictures = surprisal_figures([fake])
    assert [picture.name for picture in pictures] == ["surprisal-1", "surprisal-2"]
    figure = drawn(pictures[0])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1.0, 2.0, 3.0, 4.0]
    assert labels(figure) == ["the", "cat", "sleeps", "</s>"]
    assert pictures[0].text == "the cat sleeps"
    assert "The figures are bound" in pictures[0].caption


def test_there_is_no_surprisal_of_a_text_that_is_scored_as_a_whole(
    fake: InspectedModel, gru: InspectedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros would say that each token is certain; beside another run the other is shown alone."""
    by_token = fake.system.log_prob

    def whole(*given: Any, **words: Any) -> LogProbs:
        found = by_token(*given, **words)  # type: ignore[operator]
        nothing = torch.zeros_like(found.per_token)
        return replace(found, per_token=nothing, per_sequence=found.totals, whole_text_only=True)

    monkeypatch.setattr(fake.system, "log_prob", whole)
    assert surprisal_figures([fake]) == []
    [first, _] = surprisal_figures([fake, gru])
    assert len(drawn(first).axes[0].patches) == 4, "the bars of one run: the cat sleeps </s>"


def test_surprisals_of_several_runs_are_lines_on_one_picture(
    fake: InspectedModel, gru: InspectedModel, models: dict[str, TrainedModel]
):
    [first, _] = surprisal_figures([fake, gru])
    axes = drawn(first).axes[0]
    assert axes.get_lines()[0].get_ydata().tolist() == [1.0, 2.0, 3.0, 4.0]
    [score] = [each for each in axes.get_lines() if each.get_label() == "gru"]
    batch = Batch.collate([gru.sentences[0].ids], pad=0)
    expected = -gru.system.log_prob(batch).per_token[0]  # type: ignore[operator]
    np.testing.assert_allclose(score.get_ydata(), expected.detach(), rtol=1e-5)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fake", "gru"]


def test_who_sees_whom_is_the_causal_triangle(gru: InspectedModel, fake: InspectedModel) -> None:
    [picture] = input_dependence_figures(gru)
    figure = drawn(picture)
    used, hidden = figure.axes[0].collections
    below = {(column + 0.5, row + 0.5) for row in range(4) for column in range(row + 1)}
    assert {tuple(place) for place in used.get_offsets().tolist()} == below
    assert len(hidden.get_offsets()) == 16 - len(below)
    assert labels(figure) == ["<s>", "the", "cat", "sleeps"]
    assert input_dependence_figures(fake) == []


# The course of training


METRICS = [
    {"event": "train", "count": 10, "gradient_norm": 2.0, "vector_norms": {"emission.weight": 1.0}},
    {"event": "validation", "loss": 3.0},
    {
        "event": "train",
        "count": 30,
        "gradient_norm": math.inf,
        "update_ratio": 0.01,
        "vector_norms": {"emission.weight": 1.5, "backbone.embedding.weight": 4.0},
    },
]


def test_documents_are_followed_over_training_and_zero_where_they_were_not_found(
    fake: InspectedModel,
) -> None:
    lines = [
        {"event": "train", "step": 5, "loss": 2.0},
        {"event": "looked up", "step": 5, "texts": [{"text": "a", "documents": {"x": 0.75}}]},
        {"event": "looked up", "step": 9, "texts": [{"text": "a", "documents": {"y": 0.5}}]},
    ]
    assert retrieval_over_training(lines) == ([5, 9], {"a": {"x": [0.75, 0.0], "y": [0.0, 0.5]}})
    [picture] = retrieval_figures(replace(fake, metrics=tuple(lines)))
    lines_drawn = drawn(picture).axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines_drawn] == [[0.75, 0.0], [0.0, 0.5]]
    assert retrieval_figures(replace(fake, metrics=tuple(lines[:2]))) == []


def test_norms_by_training_tokens_seen() -> None:
    lengths, gradient, change = norms_over_training(METRICS).values()
    assert lengths == {"emission": ((10.0, 1.0), (40.0, 1.5)), "embedding": ((40.0, 4.0),)}
    assert gradient == {"": ((10.0, 2.0),)}  # what is not finite is left out
    assert change == {"": ((40.0, 0.01),)}


def test_norms_are_panels_with_a_line_for_each_table(
    gru: InspectedModel, models: dict[str, TrainedModel]
) -> None:
    [picture] = norm_figures([replace(gru, metrics=tuple(METRICS))])
    figure = drawn(picture)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "norm of the token embeddings",
        "gradient before clipping",
        "step against weights",
    ]
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["emission", "embedding"]
    assert figure.axes[0].get_lines()[0].get_xydata().tolist() == [[10.0, 1.0], [40.0, 1.5]]
    assert norm_figures([make_inspected_model(models["ngram"], ["the cat"])]) == []


def test_the_gradient_against_distance_is_a_line_a_run_with_its_factor() -> None:
    """Halved at every step: the factor is 0.50, and the line is straight on a scale of powers."""
    halves = GradientByDistance(
        distances=(1, 2, 3, 4), norms=(1.0, 0.5, 0.25, 0.125), sentences=(9, 9, 9, 9)
    )
    figure = Figure()
    draw_gradient_by_distance(
        figure, {"rnn": halves, "lstm": replace(halves, norms=(1.0, 1.0, 1.0, 1.0))}
    )
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_lines()[0].get_ydata().tolist() == [1.0, 0.5, 0.25, 0.125]
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert said == ["rnn, × 0.50 per step", "lstm, × 1.00 per step"]


def test_gradients_of_what_learns_by_gradient_alone(
    gru: InspectedModel, models: dict[str, TrainedModel]
) -> None:
    counted = make_inspected_model(models["ngram"], ["the cat sleeps"])
    [picture] = gradient_figures([gru, counted])
    assert len(drawn(picture).axes[0].get_lines()) == 1
    assert gradient_figures([counted]) == []


# Neighbours


def test_neighbours_are_those_of_the_smallest_angle() -> None:
    """In the plane: word 0 at 0°, 1 at 10°, 2 at 90°, 3 at 170° and long, 4 a copy of 1."""
    angles = torch.tensor([0.0, 10.0, 90.0, 170.0, 10.0]).deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1], [2], [1], [9], [1]])
    [found] = nearest_by_cosine(vectors, [0], [0, 1, 2, 3])
    assert found.nearest == (1, 2, 3)
    cosines = [math.cos(math.radians(angle)) for angle in (10, 90, 170)]
    assert found.cosines == pytest.approx(cosines, abs=1e-6)


def test_a_plane_keeps_all_of_what_is_flat() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(6, 2, generator=generator) @ torch.randn(2, 5, generator=generator)
    found = nearest_by_cosine(flat, [0, 1], range(6))
    plane = project_embeddings(flat, found, [f"w{id}" for id in range(6)])
    assert plane.explained_variance == pytest.approx(1.0)
    assert plane.labels[:2] == ("w0", "w1")
    # Distances between directions are kept: it is a turn, no distortion.
    directions = torch.nn.functional.normalize(flat[:2].double(), dim=1)
    expected = float((directions[0] - directions[1]).norm())
    assert np.linalg.norm(plane.points[0] - plane.points[1]) == pytest.approx(expected)


def test_pictures_of_neighbours_have_a_table(gru: InspectedModel) -> None:
    pictures = nearest_neighbour_figures(gru, ["cat", "sleeps"])
    assert [picture.name for picture in pictures] == ["neighbours-embedding", "neighbours-emission"]
    table = pictures[0].table
    assert table is not None
    assert [row[0].shown for row in table.rows] == ["cat", "sleeps"]
    assert table.rows[0][1].shown.count(" · ") == LISTED_NEIGHBOURS - 1
    written = [text.get_text() for text in drawn(pictures[0]).axes[0].texts]
    assert written[:2] == ["cat", "sleeps"]


def test_a_word_that_is_not_known_names_near_ones(gru: InspectedModel) -> None:
    with pytest.raises(UserError, match="no word 'slepes' of one token; did you mean 'sleeps'"):
        word_ids(gru, ["slepes"])


def test_frequent_words_are_words_and_no_symbols(models: dict[str, TrainedModel]) -> None:
    subject = make_inspected_model(models["gru"], ["the cat sleeps"])
    words = [subject.token(id) for id in frequent_words(subject)]
    assert words[0] == subject.token(
        next(id for id, _ in subject.counts.most_common() if subject.token(id).isalpha())
    )
    assert not {"<s>", "</s>", "<unk>", ",", "<pad>"} & set(words)


def test_names_beside_points_do_not_cover_each_other() -> None:
    generator = np.random.default_rng(0)
    figure = Figure(figsize=(7, 5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-3, 3)
    axes.set_ylim(-3, 3)
    points = generator.normal(size=(30, 2))
    boxes = place_labels(axes, points, [f"word{place}" for place in range(30)], strong=3)
    for place, (left, bottom, right, top) in enumerate(boxes):
        for other in boxes[:place]:
            assert left >= other[2] or right <= other[0] or bottom >= other[3] or top <= other[1]
    assert [text.get_fontweight() for text in axes.texts[:4]] == ["bold"] * 3 + ["normal"]


# Latents


def test_reconstruction_against_noise(fake: InspectedModel, gru: InspectedModel) -> None:
    """The fake loses its noise a token, and twice that for erased words."""
    for noise, lost in reconstruction_loss_by_noise(fake, "latent_noise", LATENT_NOISES):
        assert lost == pytest.approx(noise)
    [picture] = latent_noise_figures([fake, gru])
    left, right = drawn(picture).axes
    assert left.get_lines()[0].get_ydata() == pytest.approx(list(LATENT_NOISES))
    assert right.get_lines()[0].get_ydata() == pytest.approx(
        [2 * share for share in TOKEN_DROPOUT_RATES]
    )
    assert (left.get_ylabel(), right.get_xlabel()) == ("nats per token", "share of words erased")
    assert latent_noise_figures([gru]) == []


def test_sentences_between_two_latents(fake: InspectedModel, gru: InspectedModel) -> None:
    """Latents are the ids of the first two words, so both ends come back."""
    [picture] = interpolation_figures(fake)
    assert picture.table is not None
    written = [row[1].shown for row in picture.table.rows]
    assert len(written) == INTERPOLATION_STEPS
    assert (written[0], written[-1]) == ("the cat", "a dog")
    assert [row[0].value for row in picture.table.rows][:3] == [0.0, 1 / 8, 2 / 8]
    assert "the cat" in [text.get_text() for text in drawn(picture).axes[0].texts]
    assert interpolation_figures(gru) == []


# Trees


def leaf_places(figure: Figure) -> Iterator[tuple[str, float]]:
    for text in figure.axes[0].texts:
        if not text.get_text().isdigit():
            yield text.get_text(), text.get_position()[0]


def test_a_tree_stands_over_its_words(fake: InspectedModel, gru: InspectedModel) -> None:
    pictures = parse_tree_figures(fake)
    assert [picture.name for picture in pictures] == ["tree-1", "tree-2"]
    figure = drawn(pictures[0])
    assert list(leaf_places(figure)) == [("the", 0.0), ("cat", 1.0), ("sleeps", 2.0)]
    symbols = [t for t in figure.axes[0].texts if t.get_text().isdigit()]
    places = {text.get_text(): text.xy for text in symbols}  # type: ignore[attr-defined]
    # 2 covers words 1 and 2; 0 covers word 0 and 2's place, and is the highest.
    assert places["2"] == (1.5, 2)
    assert places["0"] == (0.75, 3)
    assert parse_tree_figures(gru) == []


def test_lines_of_a_tree_go_across_and_down() -> None:
    tree = TreeNode(label="0", children=(TreeNode(label="a"), TreeNode(label="b")))
    figure = Figure()
    draw_parse_tree(figure, tree)
    for line in figure.axes[0].get_lines():
        (_, y0), (x1, y1), (x2, y2) = line.get_xydata().tolist()
        assert y0 == y1 == 1.0
        assert x1 == x2
        assert y2 < y1


def test_a_tree_over_places_gets_its_words() -> None:
    node = to_tree_node(
        ParseTree(0, 0, 2, (ParseTree(5, 0, 1), ParseTree(6, 1, 2))), ["dogs", "bark"]
    )
    assert node.leaves == ("dogs", "bark")
    assert node.height == 2
