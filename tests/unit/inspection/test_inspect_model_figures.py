"""Each kind of inspection figure: its values, its plot, and when there is none."""

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

pytestmark = pytest.mark.xdist_group("families")  # share the costly fixtures


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
    """Implements everything that figures may call, with values computable by hand."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.vocabulary = model.system.vocabulary
        self.embedding = nn.Embedding(self.vocabulary.size, 3)

    def log_prob(
        self, batch: Batch, *, state: object = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """Each token costs as many nats as its position."""
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


def draw_figure(spec: FigureSpec) -> Figure:
    with canvas(spec.name, width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
        return figure


def tick_labels(figure: Figure, axis: str = "x") -> list[str]:
    return [text.get_text() for text in getattr(figure.axes[0], f"get_{axis}ticklabels")()]


# Inspected models


def test_sentences_have_start_and_end_tokens(gru: InspectedModel) -> None:
    assert gru.sentences[0].tokens == ("<s>", "the", "cat", "sleeps", "</s>")


def test_default_sentences_come_from_the_corpus(models: dict[str, TrainedModel]) -> None:
    inspected = make_inspected_model(models["gru"])
    assert len(inspected.sentences) == 3
    assert inspected.note == ""
    assert not set(inspected.sentences) & set(inspected.sample)
    assert inspected.counts.total() > 1000


def test_missing_corpus_falls_back_to_generated_sentences(models: dict[str, TrainedModel]) -> None:
    model = models["gru"]
    config = model.config
    gone = replace(config, corpus=replace(config.corpus, spec="no/such.txt"))
    inspected = make_inspected_model(replace(model, config=gone))
    assert len(inspected.sentences) == 3
    assert "generated itself" in inspected.note
    assert not inspected.counts


def test_all_runs_are_inspected_on_the_same_sentences(models: dict[str, TrainedModel]) -> None:
    first, second = make_inspected_models([models["gru"], models["ngram"]])
    assert [sentence.text for sentence in first.sentences] == [
        sentence.text for sentence in second.sentences
    ]


def test_empty_text_is_refused(models: dict[str, TrainedModel]) -> None:
    with pytest.raises(UserError, match="got an empty text"):
        make_inspected_models([models["gru"]], ["  "])


# Captures of sentences and of the model


def test_capture_averages_ignore_padding(fake: InspectedModel) -> None:
    """3 sentences of 3 words (4 predictions, even) and 1 of 4 words (5, odd)."""
    texts = ("the cat sleeps", "a dog sleeps", "the dog sleeps", "a dog sees mary")
    sentences = [tokenize_sentence(fake.model, text) for text in texts]
    captures = collect_captures(fake.system, sentences[:1], sentences[1:])
    odd = 5 / (3 * 4 + 5)
    assert captures.model["use"].values.tolist() == pytest.approx([odd, 1 - odd])
    assert captures.model["latents"].values[:, 0].tolist() == [5, 5, 5, 6]
    assert list(captures.sentences[0]) == ["posterior"]


@pytest.mark.parametrize("name", ["remix", "independent"])
def test_state_token_capture_is_a_distribution_per_state(
    gru: InspectedModel, tmp_path: Path, name: str
) -> None:
    assert state_token_capture(gru.system) == {}
    train(name, data="grammar", out=tmp_path / name, size="tiny", epochs=1, quiet=True)
    system = load_run(tmp_path / name).system
    table = state_token_capture(system)["words of the states"].values
    # A distribution over tokens for each state.
    torch.testing.assert_close(table.sum(0), torch.ones(table.shape[1]))


# Surprisal and input dependence


def test_surprisal_bars_are_negative_log_probabilities(fake: InspectedModel) -> None:
    specs = surprisal_figures([fake])
    assert [spec.name for spec in specs] == ["surprisal-1", "surprisal-2"]
    figure = draw_figure(specs[0])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1.0, 2.0, 3.0, 4.0]
    assert tick_labels(figure) == ["the", "cat", "sleeps", "</s>"]
    assert specs[0].text == "the cat sleeps"
    assert "The figures are bound" in specs[0].caption


def test_no_surprisal_figure_for_whole_text_scores(
    fake: InspectedModel, gru: InspectedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros would mean that each token is certain; with two runs only the other is shown."""
    by_token = fake.system.log_prob

    def score_whole_text(*args: Any, **kwargs: Any) -> LogProbs:
        scores = by_token(*args, **kwargs)  # type: ignore[operator]
        nothing = torch.zeros_like(scores.per_token)
        return replace(scores, per_token=nothing, per_sequence=scores.totals, whole_text_only=True)

    monkeypatch.setattr(fake.system, "log_prob", score_whole_text)
    assert surprisal_figures([fake]) == []
    [first, _] = surprisal_figures([fake, gru])
    assert len(draw_figure(first).axes[0].patches) == 4, "the bars of one run: the cat sleeps </s>"


def test_surprisals_of_several_runs_are_lines_in_one_figure(
    fake: InspectedModel, gru: InspectedModel, models: dict[str, TrainedModel]
):
    [first, _] = surprisal_figures([fake, gru])
    axes = draw_figure(first).axes[0]
    assert axes.get_lines()[0].get_ydata().tolist() == [1.0, 2.0, 3.0, 4.0]
    [score] = [line for line in axes.get_lines() if line.get_label() == "gru"]
    batch = Batch.collate([gru.sentences[0].ids], pad=0)
    expected = -gru.system.log_prob(batch).per_token[0]  # type: ignore[operator]
    np.testing.assert_allclose(score.get_ydata(), expected.detach(), rtol=1e-5)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fake", "gru"]


def test_input_dependence_of_a_gru_is_causal(gru: InspectedModel, fake: InspectedModel) -> None:
    [spec] = input_dependence_figures(gru)
    figure = draw_figure(spec)
    used, masked = figure.axes[0].collections
    below = {(column + 0.5, row + 0.5) for row in range(4) for column in range(row + 1)}
    assert {tuple(offset) for offset in used.get_offsets().tolist()} == below
    assert len(masked.get_offsets()) == 16 - len(below)
    assert tick_labels(figure) == ["<s>", "the", "cat", "sleeps"]
    assert input_dependence_figures(fake) == []


# Training dynamics


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


def test_retrieved_documents_over_training_default_to_zero(fake: InspectedModel) -> None:
    lines = [
        {"event": "train", "step": 5, "loss": 2.0},
        {"event": "looked up", "step": 5, "texts": [{"text": "a", "documents": {"x": 0.75}}]},
        {"event": "looked up", "step": 9, "texts": [{"text": "a", "documents": {"y": 0.5}}]},
    ]
    assert retrieval_over_training(lines) == ([5, 9], {"a": {"x": [0.75, 0.0], "y": [0.0, 0.5]}})
    [spec] = retrieval_figures(replace(fake, metrics=tuple(lines)))
    lines_drawn = draw_figure(spec).axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines_drawn] == [[0.75, 0.0], [0.0, 0.5]]
    assert retrieval_figures(replace(fake, metrics=tuple(lines[:2]))) == []


def test_norms_are_indexed_by_training_tokens() -> None:
    lengths, gradient, change = norms_over_training(METRICS).values()
    assert lengths == {"emission": ((10.0, 1.0), (40.0, 1.5)), "embedding": ((40.0, 4.0),)}
    assert gradient == {"": ((10.0, 2.0),)}  # what is not finite is left out
    assert change == {"": ((40.0, 0.01),)}


def test_norm_figure_has_a_line_per_embedding_table(
    gru: InspectedModel, models: dict[str, TrainedModel]
) -> None:
    [spec] = norm_figures([replace(gru, metrics=tuple(METRICS))])
    figure = draw_figure(spec)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "norm of the token embeddings",
        "gradient before clipping",
        "step against weights",
    ]
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["emission", "embedding"]
    assert figure.axes[0].get_lines()[0].get_xydata().tolist() == [[10.0, 1.0], [40.0, 1.5]]
    assert norm_figures([make_inspected_model(models["ngram"], ["the cat"])]) == []


def test_gradient_by_distance_has_a_line_and_factor_per_run() -> None:
    """Halved at every step: the factor is 0.50, and the line is straight on a log scale."""
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
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["rnn, × 0.50 per step", "lstm, × 1.00 per step"]


def test_gradient_figures_skip_models_without_gradients(
    gru: InspectedModel, models: dict[str, TrainedModel]
) -> None:
    counted = make_inspected_model(models["ngram"], ["the cat sleeps"])
    [spec] = gradient_figures([gru, counted])
    assert len(draw_figure(spec).axes[0].get_lines()) == 1
    assert gradient_figures([counted]) == []


# Neighbours


def test_nearest_neighbours_have_the_largest_cosine() -> None:
    """In the plane: word 0 at 0°, 1 at 10°, 2 at 90°, 3 at 170° and long, 4 a copy of 1."""
    angles = torch.tensor([0.0, 10.0, 90.0, 170.0, 10.0]).deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1], [2], [1], [9], [1]])
    [neighbours] = nearest_by_cosine(vectors, [0], [0, 1, 2, 3])
    assert neighbours.nearest == (1, 2, 3)
    cosines = [math.cos(math.radians(angle)) for angle in (10, 90, 170)]
    assert neighbours.cosines == pytest.approx(cosines, abs=1e-6)


def test_projection_of_planar_embeddings_is_isometric() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(6, 2, generator=generator) @ torch.randn(2, 5, generator=generator)
    neighbours = nearest_by_cosine(flat, [0, 1], range(6))
    plane = project_embeddings(flat, neighbours, [f"w{id}" for id in range(6)])
    assert plane.explained_variance == pytest.approx(1.0)
    assert plane.labels[:2] == ("w0", "w1")
    # Distances between directions are preserved: it is a rotation.
    directions = torch.nn.functional.normalize(flat[:2].double(), dim=1)
    expected = float((directions[0] - directions[1]).norm())
    assert np.linalg.norm(plane.points[0] - plane.points[1]) == pytest.approx(expected)


def test_nearest_neighbour_figures_have_a_table(gru: InspectedModel) -> None:
    specs = nearest_neighbour_figures(gru, ["cat", "sleeps"])
    assert [spec.name for spec in specs] == ["neighbours-embedding", "neighbours-emission"]
    table = specs[0].table
    assert table is not None
    assert [row[0].shown for row in table.rows] == ["cat", "sleeps"]
    assert table.rows[0][1].shown.count(" · ") == LISTED_NEIGHBOURS - 1
    labels = [text.get_text() for text in draw_figure(specs[0]).axes[0].texts]
    assert labels[:2] == ["cat", "sleeps"]


def test_unknown_word_gets_a_suggestion(gru: InspectedModel) -> None:
    with pytest.raises(UserError, match="no word 'slepes' of one token; did you mean 'sleeps'"):
        word_ids(gru, ["slepes"])


def test_frequent_words_exclude_special_tokens(models: dict[str, TrainedModel]) -> None:
    inspected = make_inspected_model(models["gru"], ["the cat sleeps"])
    words = [inspected.token(id) for id in frequent_words(inspected)]
    assert words[0] == inspected.token(
        next(id for id, _ in inspected.counts.most_common() if inspected.token(id).isalpha())
    )
    assert not {"<s>", "</s>", "<unk>", ",", "<pad>"} & set(words)


def test_point_labels_do_not_overlap() -> None:
    generator = np.random.default_rng(0)
    figure = Figure(figsize=(7, 5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-3, 3)
    axes.set_ylim(-3, 3)
    points = generator.normal(size=(30, 2))
    boxes = place_labels(axes, points, [f"word{index}" for index in range(30)], strong=3)
    for index, (left, bottom, right, top) in enumerate(boxes):
        for other in boxes[:index]:
            assert left >= other[2] or right <= other[0] or bottom >= other[3] or top <= other[1]
    assert [text.get_fontweight() for text in axes.texts[:4]] == ["bold"] * 3 + ["normal"]


# Latents


def test_reconstruction_loss_by_noise(fake: InspectedModel, gru: InspectedModel) -> None:
    """The fake loses its noise per token, and twice that for dropped words."""
    for noise, lost in reconstruction_loss_by_noise(fake, "latent_noise", LATENT_NOISES):
        assert lost == pytest.approx(noise)
    [spec] = latent_noise_figures([fake, gru])
    left, right = draw_figure(spec).axes
    assert left.get_lines()[0].get_ydata() == pytest.approx(list(LATENT_NOISES))
    assert right.get_lines()[0].get_ydata() == pytest.approx(
        [2 * share for share in TOKEN_DROPOUT_RATES]
    )
    assert (left.get_ylabel(), right.get_xlabel()) == ("nats per token", "share of words erased")
    assert latent_noise_figures([gru]) == []


def test_latent_interpolation_reproduces_both_ends(
    fake: InspectedModel, gru: InspectedModel
) -> None:
    """Latents are the ids of the first two words, so both ends are reproduced."""
    [spec] = interpolation_figures(fake)
    assert spec.table is not None
    decoded = [row[1].shown for row in spec.table.rows]
    assert len(decoded) == INTERPOLATION_STEPS
    assert (decoded[0], decoded[-1]) == ("the cat", "a dog")
    assert [row[0].value for row in spec.table.rows][:3] == [0.0, 1 / 8, 2 / 8]
    assert "the cat" in [text.get_text() for text in draw_figure(spec).axes[0].texts]
    assert interpolation_figures(gru) == []


# Trees


def leaf_positions(figure: Figure) -> Iterator[tuple[str, float]]:
    for text in figure.axes[0].texts:
        if not text.get_text().isdigit():
            yield text.get_text(), text.get_position()[0]


def test_parse_tree_is_placed_over_its_words(fake: InspectedModel, gru: InspectedModel) -> None:
    specs = parse_tree_figures(fake)
    assert [spec.name for spec in specs] == ["tree-1", "tree-2"]
    figure = draw_figure(specs[0])
    assert list(leaf_positions(figure)) == [("the", 0.0), ("cat", 1.0), ("sleeps", 2.0)]
    node_labels = [t for t in figure.axes[0].texts if t.get_text().isdigit()]
    positions = {text.get_text(): text.xy for text in node_labels}  # type: ignore[attr-defined]
    # 2 covers words 1 and 2; 0 covers word 0 and node 2, and is the highest.
    assert positions["2"] == (1.5, 2)
    assert positions["0"] == (0.75, 3)
    assert parse_tree_figures(gru) == []


def test_parse_tree_edges_are_right_angled() -> None:
    tree = TreeNode(label="0", children=(TreeNode(label="a"), TreeNode(label="b")))
    figure = Figure()
    draw_parse_tree(figure, tree)
    for line in figure.axes[0].get_lines():
        (_, y0), (x1, y1), (x2, y2) = line.get_xydata().tolist()
        assert y0 == y1 == 1.0
        assert x1 == x2
        assert y2 < y1


def test_parse_tree_leaves_are_the_words() -> None:
    node = to_tree_node(
        ParseTree(0, 0, 2, (ParseTree(5, 0, 1), ParseTree(6, 1, 2))), ["dogs", "bark"]
    )
    assert node.leaves == ("dogs", "bark")
    assert node.height == 2
