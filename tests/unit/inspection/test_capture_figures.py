"""Captures become the figure that fits their axes, with the right values and labels."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from lmlab.core.batch import Batch
from lmlab.core.capture import AXES, NON_NEGATIVE, UNIT_INTERVAL, Capture
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.capture_axes import (
    AXIS_TITLES,
    MAX_CHOICES,
    MAX_MATRIX_SIDE,
    MAX_POSITIONS,
    MAX_STATES,
    AxisLabels,
    state_names,
)
from lmlab.inspection.capture_collection import stack_captures
from lmlab.inspection.capture_figures import (
    MAX_PANELS,
    capture_figure,
    capture_figures,
    safe_file_name,
)
from lmlab.inspection.source_attention import SourceAttention
from lmlab.inspection.source_attention import source_attention_figure as source_figure
from lmlab.plotting.charts import colour_scale
from lmlab.plotting.figure import FigureSpec, canvas, render_figure
from lmlab.training.system_building import build_tiny

WORDS = ("<s>", "the", "cat", "sleeps", "</s>")
LABELS = AxisLabels(token=lambda id: f"w{id}", tokens=WORDS)
TIME = len(WORDS) - 1


def capture(values: object, *axes: str) -> Capture:
    return Capture(values=torch.as_tensor(values), axes=axes, caption="How to read it")


def make_spec(values: object, *axes: str, labels: AxisLabels = LABELS) -> FigureSpec:
    spec = capture_figure("a name", capture(values, *axes), labels)
    assert spec is not None
    return spec


def draw_figure(spec: FigureSpec) -> Figure:
    with canvas(spec.name, width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
        return figure


def tick_labels(figure: Figure, axis: str, axes_index: int = 0) -> list[str]:
    return [
        label.get_text() for label in getattr(figure.axes[axes_index], f"get_{axis}ticklabels")()
    ]


def image(figure: Figure, axes_index: int = 0) -> np.ma.MaskedArray:
    return figure.axes[axes_index].images[0].get_array()


def causal(time: int) -> torch.Tensor:
    """Rows are uniform distributions over earlier positions: 1/(i + 1) each."""
    mask = torch.ones(time, time).tril()
    return mask / mask.sum(1, keepdim=True)


def test_every_capture_axis_has_a_title() -> None:
    assert set(AXIS_TITLES) == set(AXES)


def test_posterior_heat_map_has_target_rows_and_input_columns() -> None:
    values = causal(TIME)
    figure = draw_figure(make_spec(values[None], "batch", "time", "source"))
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("predicted token", "input token")
    assert tick_labels(figure, "y") == ["the", "cat", "sleeps", "</s>"]
    assert tick_labels(figure, "x") == ["<s>", "the", "cat", "sleeps"]
    values_drawn = image(figure)
    # Later positions are masked, not zero.
    assert values_drawn.mask.tolist() == torch.ones(TIME, TIME).triu(1).bool().tolist()
    np.testing.assert_allclose(values_drawn.filled(0), values.numpy(), rtol=1e-6)
    assert [text.get_text() for text in figure.texts] == ["a name"]


def test_source_by_time_capture_is_transposed() -> None:
    values = causal(TIME)
    figure = draw_figure(make_spec(values.t()[None], "batch", "source", "time"))
    np.testing.assert_allclose(image(figure).filled(0), values.numpy(), rtol=1e-6)


def test_weights_on_later_positions_are_not_masked() -> None:
    values = torch.full((TIME, TIME), 1 / TIME)
    figure = draw_figure(make_spec(values[None], "batch", "time", "source"))
    assert not np.ma.getmaskarray(image(figure)).any()


def test_states_per_token_are_labelled_with_every_token() -> None:
    figure = draw_figure(make_spec(torch.rand(1, TIME + 1, 3), "batch", "time", "state"))
    assert tick_labels(figure, "x") == list(WORDS)
    assert figure.axes[0].get_xlabel() == "token"
    assert tick_labels(figure, "y") == ["0", "1", "2"]


def test_seriation_restores_shuffled_block_matrix() -> None:
    """Two groups of 4 that hardly mix: after seriation the matrix has two blocks."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.block_diag(torch.full((4, 4), 0.24), torch.full((4, 4), 0.24)) + 0.005
    shuffle = torch.randperm(8, generator=generator)
    figure = draw_figure(make_spec(blocks[shuffle][:, shuffle], "state", "next state"))
    np.testing.assert_allclose(image(figure), blocks.numpy(), atol=1e-6)
    # Rows and columns in the same order, and named after the states they are.
    order = [int(name) for name in tick_labels(figure, "y")]
    assert order == [int(name) for name in tick_labels(figure, "x")]
    groups = [int(shuffle[index]) < 4 for index in order]
    assert groups in ([True] * 4 + [False] * 4, [False] * 4 + [True] * 4)


def test_large_matrix_shows_most_visited_states() -> None:
    count = MAX_MATRIX_SIDE + 30
    matrix = torch.full((count, count), 1e-3)
    matrix[:, :MAX_MATRIX_SIDE] = 1.0
    spec = make_spec(matrix / matrix.sum(1, keepdim=True), "state", "next state")
    listed = {int(name) for name in tick_labels(draw_figure(spec), "y")}
    assert listed == set(range(MAX_MATRIX_SIDE))
    assert f"{MAX_MATRIX_SIDE} of {count} states most visited in the long run" in spec.caption


def test_state_shares_are_sorted_bars_with_effective_number() -> None:
    shares = torch.tensor([0.1, 0.6, 0.3])
    spec = make_spec(shares, "state", labels=AxisLabels(token=str, states=("a", "b", "c")))
    figure = draw_figure(spec)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.6, 0.3, 0.1])
    assert tick_labels(figure, "y") == ["1 b", "2 c", "0 a"]
    entropy = -sum(p * math.log(p) for p in (0.1, 0.6, 0.3))
    assert axes.get_title(loc="right") == f"effective number {math.exp(entropy):.1f} of 3"
    assert "dashed line is an equal share" in spec.caption


def test_many_state_shares_are_a_sorted_log_scale_outline() -> None:
    shares = torch.softmax(torch.randn(300, generator=torch.Generator().manual_seed(0)), 0)
    figure = draw_figure(make_spec(shares, "state"))
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    top = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(float(shares.max()), rel=1e-6)


def test_values_that_are_not_shares_have_no_effective_number() -> None:
    spec = make_spec(torch.tensor([4.0, 5.0]), "state")
    assert "dashed" not in spec.caption
    assert draw_figure(spec).axes[0].get_xlabel() == "value"


def test_distance_bars_keep_their_order_and_start_at_one() -> None:
    figure = draw_figure(make_spec(torch.tensor([0.2, 0.5, 0.3]), "distance"))
    assert tick_labels(figure, "x") == ["1", "2", "3"]
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([0.2, 0.5, 0.3])
    assert figure.axes[0].get_xlabel() == "positions back"


def test_choices_are_numbered_from_zero_and_moves_centred() -> None:
    assert tick_labels(draw_figure(make_spec(torch.tensor([0.2, 0.8]), "choice")), "x") == [
        "0",
        "1",
    ]
    assert tick_labels(draw_figure(make_spec(torch.full((5,), 0.2), "move")), "x") == [
        "-2",
        "-1",
        "0",
        "1",
        "2",
    ]


def test_gate_heat_map_groups_similar_units() -> None:
    """Units 0 and 2 rise, 1 and 3 fall: similar units are adjacent."""
    rise = torch.linspace(0, 1, TIME)
    gates = torch.stack([rise, 1 - rise, rise, 1 - rise], dim=1)
    figure = draw_figure(make_spec(gates[None], "batch", "time", "unit"))
    assert tick_labels(figure, "x") == ["the", "cat", "sleeps", "</s>"]
    rows = image(figure).filled(np.nan)
    assert rows.shape == (4, TIME)
    np.testing.assert_allclose(rows[0], rows[1])
    np.testing.assert_allclose(rows[2], rows[3])
    assert np.abs(rows[0] - rows[3]).max() == pytest.approx(1.0)


def test_colour_scale_of_signed_values_is_symmetric() -> None:
    assert colour_scale(np.array([-0.5, 2.0])).low == -2.0
    assert colour_scale(np.array([0.1, 0.9])).high == 1.0
    assert colour_scale(np.array([0.1, 0.3])).high == pytest.approx(0.3)
    assert colour_scale(np.array([0.0, np.nan])).high == 1.0


def test_heaviest_states_are_shown_in_order_of_time() -> None:
    time, states = TIME, MAX_STATES + 10
    weights = torch.zeros(1, time, states)
    for position, state in enumerate((7, 3, 33, 1)):
        weights[0, position, state] = 1.0
    spec = make_spec(weights, "batch", "time", "state")
    listed = [int(name) for name in tick_labels(draw_figure(spec), "y")]
    assert len(listed) == MAX_STATES
    assert [state for state in listed if state in (7, 3, 33, 1)] == [7, 3, 33, 1]
    assert f"{MAX_STATES} of {states} states" in spec.caption


def test_slots_are_panels_that_share_a_colour_scale() -> None:
    values = torch.stack([causal(TIME), torch.eye(TIME)])
    figure = draw_figure(make_spec(values[None], "batch", "slot", "time", "source"))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["slot 1", "slot 2"]
    np.testing.assert_allclose(image(figure, 1).filled(0), np.eye(TIME))
    assert figure.axes[0].images[0].norm.vmax == figure.axes[1].images[0].norm.vmax == 1.0
    assert tick_labels(figure, "y", 1) == []


def test_number_of_heat_map_panels_is_limited_with_a_note() -> None:
    values = torch.rand(MAX_PANELS + 3, 2, 2)
    spec = make_spec(values, "choice", "state", "next state")
    assert f"{MAX_PANELS} of {MAX_PANELS + 3} heat maps" in spec.caption
    assert len([axes for axes in draw_figure(spec).axes if axes.images]) == MAX_PANELS


def test_tokens_of_states_are_listed_by_probability() -> None:
    table = torch.tensor([[0.1, 0.7], [0.6, 0.2], [0.3, 0.1]])  # (token, state)
    figure = draw_figure(make_spec(table, "token", "state"))
    lines = [text.get_text() for text in figure.axes[0].texts]
    assert "w1 0.6 · w2 0.3 · w0 0.1" in lines
    assert "w0 0.7 · w1 0.2 · w2 0.1" in lines
    assert state_names({"x": capture(table, "token", "state")}, LABELS) == ("w1/w2", "w0/w1")


def test_token_lists_are_sorted_by_state_use() -> None:
    table = torch.tensor([[0.1, 0.7], [0.6, 0.2], [0.3, 0.1]])
    specs = capture_figures(
        {
            "use": capture(torch.tensor([0.25, 0.75]), "state"),
            "words": capture(table, "token", "state"),
        },
        LABELS,
    )
    lines = [text.get_text() for text in draw_figure(specs[1]).axes[0].texts]
    assert lines.index("w0 0.7 · w1 0.2 · w2 0.1") < lines.index("w1 0.6 · w2 0.3 · w0 0.1")


def test_one_row_per_sentence_is_labelled_by_sentence() -> None:
    labels = AxisLabels(token=str, sentences=("one sentence", "another sentence"))
    figure = draw_figure(
        make_spec(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "batch", "unit", labels=labels)
    )
    assert tick_labels(figure, "y") == ["one sentence", "another sentence"]
    bars = draw_figure(make_spec(torch.tensor([2.0, 1.0]), "batch", labels=labels))
    assert [bar.get_width() for bar in bars.axes[0].patches] == [2.0, 1.0]


def test_long_sentence_is_truncated_with_a_note() -> None:
    time = MAX_POSITIONS + 5
    labels = AxisLabels(token=str, tokens=tuple(map(str, range(time + 1))))
    spec = make_spec(causal(time)[None], "batch", "time", "source", labels=labels)
    assert spec.caption.count(f"first {MAX_POSITIONS} of {time} positions") == 1
    assert image(draw_figure(spec)).shape == (MAX_POSITIONS, MAX_POSITIONS)


def test_prior_without_a_sentence_is_labelled_by_position() -> None:
    figure = draw_figure(make_spec(causal(3), "time", "source", labels=AxisLabels(token=str)))
    assert tick_labels(figure, "y") == ["1", "2", "3"]
    assert tick_labels(figure, "x") == ["0", "1", "2"]


def test_constant_or_infinite_captures_give_no_figure() -> None:
    assert capture_figure("x", capture(torch.tensor([0.5]), "choice"), LABELS) is None
    always = torch.ones(1, TIME, 1)
    assert capture_figure("x", capture(always, "batch", "time", "choice"), LABELS) is None
    nothing = torch.full((1, 3), -torch.inf)
    assert capture_figure("x", capture(nothing, "batch", "time"), LABELS) is None


def test_five_axes_still_give_a_figure() -> None:
    values = torch.rand(1, 2, TIME, 3, 3)
    spec = make_spec(values, "batch", "slot", "time", "state", "next state")
    assert len([axes for axes in draw_figure(spec).axes if axes.images]) == TIME


def test_caption_ends_with_a_period_and_file_names_are_safe() -> None:
    assert make_spec(torch.eye(2), "slot", "distance").caption.startswith("How to read it.")
    assert safe_file_name("Posterior over parents (1)") == "posterior-over-parents-1"
    assert safe_file_name("先验") == "picture"


def test_axis_labels_do_not_overlap() -> None:
    """Twenty words of ten letters: no two labels overlap."""
    words = ("<s>", *(f"extraordin{number}" for number in range(20)))
    labels = AxisLabels(token=str, tokens=words)
    spec = make_spec(causal(20)[None], "batch", "time", "source", labels=labels)
    with canvas("overlap", width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
        figure.canvas.draw()
        rows = [t.get_window_extent() for t in figure.axes[0].get_yticklabels()]
        columns = figure.axes[0].get_xticklabels()
        assert all(a.y0 >= b.y1 or b.y0 >= a.y1 for a, b in pairwise(rows))
        # Slanted by 50°: neighbours are apart by the step times the sine, a line's height or more.
        step = columns[1].get_window_extent().x1 - columns[0].get_window_extent().x1
        assert step * math.sin(math.radians(50)) >= columns[0].get_fontsize() * figure.dpi / 72


def test_rendering_a_capture_is_deterministic() -> None:
    spec = make_spec(causal(TIME)[None], "batch", "time", "source")
    first, second = render_figure(spec), render_figure(spec)
    assert first == second
    assert first.png.startswith(b"\x89PNG")


def test_stacked_captures_align_choices_by_name() -> None:
    """A document retrieved for one text is not shown as retrieved for another."""

    def document_capture(shares: list[float], *documents: str) -> Capture:
        values, axes = torch.tensor([shares]), ("batch", "choice")
        return Capture(values=values, axes=axes, caption="Found.", names={"choice": documents})

    stacked = stack_captures(
        [
            document_capture([0.75, 0.25], "a", "b"),
            document_capture([0.5, 0.375, 0.125], "c", "a", "d"),
        ]
    )
    labels = AxisLabels(token=str, sentences=("first", "second"))
    spec = capture_figure("documents", stacked, labels)
    assert spec is not None
    figure = draw_figure(spec)
    assert (tick_labels(figure, "y"), tick_labels(figure, "x")) == (
        ["first", "second"],
        ["a", "b", "c", "d"],
    )
    values_drawn = image(figure)
    assert values_drawn.filled(-1).tolist() == [[0.75, 0.25, -1, -1], [0.375, -1, 0.5, 0.125]]


def test_choices_with_most_weight_are_shown() -> None:
    values = torch.zeros(2, MAX_CHOICES + 2)
    values[0, 1:], values[1, 0] = 0.1, -0.01
    values[0, MAX_CHOICES // 2] = 0.05
    spec = make_spec(values, "batch", "choice", labels=AxisLabels(token=str, sentences=("a", "b")))
    left_out = {0, MAX_CHOICES // 2}
    selected = [str(choice) for choice in range(MAX_CHOICES + 2) if choice not in left_out]
    assert tick_labels(draw_figure(spec), "x") == selected
    assert f"Shown are the {MAX_CHOICES} of {MAX_CHOICES + 2} choices" in spec.caption


def test_negative_rounding_does_not_make_the_scale_signed() -> None:
    """A posterior of 0.3 next to one of -1e-13 is plotted at 0.3 of the scale."""
    values = torch.tensor([[[1.0, -1e-13], [0.3, 0.7]]], dtype=torch.float64)
    posterior = Capture(
        values=values, axes=("batch", "time", "state"), caption="P(state).", sums_to_one="state"
    )
    spec = capture_figure("posterior", posterior, LABELS)
    assert spec is not None
    drawing = draw_figure(spec).axes[0].images[0]
    assert (drawing.norm.vmin, drawing.norm.vmax) == (0.0, 1.0)
    assert float(drawing.get_array().min()) == 0.0
    assert drawing.cmap(drawing.norm(0.3))[3] == pytest.approx(0.3, abs=0.01)


def test_colour_scale_is_signed_only_for_signed_values() -> None:
    noise = np.array([-1e-13, 0.8])
    assert colour_scale(noise, NON_NEGATIVE).low == colour_scale(noise, UNIT_INTERVAL).low == 0.0
    assert colour_scale(noise).low == 0.0  # rounding, whatever the values are
    assert colour_scale(np.array([-0.01, 0.8])).low == -0.8


@pytest.mark.parametrize("share", [-0.9, -0.3, -0.1, 0.1, 0.3, 0.9])
def test_diverging_colours_have_linear_opacity(share: float) -> None:
    """Opacity is |value| / largest, from zero on: no part of the scale is without colour."""
    scale = colour_scale(np.array([-2.0, 1.0]))
    red, _, blue, alpha = scale.colours(scale.norm(2.0 * share))
    assert alpha == pytest.approx(abs(share), abs=0.01)
    assert (blue > red) == (share > 0)


@pytest.mark.parametrize(
    ("axes", "shape", "normalised_axis", "sentence"),
    [
        (("batch", "time", "state"), (1, TIME, 3), "state", "Each column sums to 1."),
        (("batch", "time", "source"), (1, TIME, TIME), "source", "Each row sums to 1."),
        (("state", "next state"), (3, 3), "next state", "Each row sums to 1."),
        (("next state", "state"), (3, 3), "next state", "Each row sums to 1."),
        (("batch", "slot", "time", "source"), (1, 2, TIME, TIME), "source", "Each row sums to 1."),
        (
            ("batch", "time", "state"),
            (1, TIME, MAX_STATES + 1),
            "state",
            f"Each column sums to 1 over all {MAX_STATES + 1}, of which {MAX_STATES} are shown.",
        ),
    ],
)
def test_caption_names_the_axis_that_sums_to_one(axes, shape, normalised_axis, sentence) -> None:
    """The caption names rows or columns as plotted, and those do sum to one."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    values = torch.softmax(values, dim=axes.index(normalised_axis))
    spec = capture_figure(
        "x", Capture(values=values, axes=axes, caption="p.", sums_to_one=normalised_axis), LABELS
    )
    assert spec is not None
    assert sentence in spec.caption
    if "over all" not in sentence:
        drawing = image(draw_figure(spec)).filled(0)
        np.testing.assert_allclose(drawing.sum(0 if "column" in sentence else 1), 1, atol=1e-6)


def test_large_matrix_shows_states_most_used_on_the_texts() -> None:
    """Not the first states and not the initial ones; labelled by number and two words."""
    count = MAX_MATRIX_SIDE + 44
    use = torch.zeros(count)
    used = torch.randperm(count, generator=torch.Generator().manual_seed(1))[:MAX_MATRIX_SIDE]
    use[used] = 1 / MAX_MATRIX_SIDE
    table = torch.zeros(4, count)
    table[1], table[3] = 0.6, 0.4
    captures = {
        "transition": capture(torch.full((count, count), 1 / count), "state", "next state"),
        "start": capture(torch.arange(count).flip(0) / sum(range(count)), "state"),
        "state use": capture(use, "state"),
        "words": capture(table, "token", "state"),
    }
    labels = AxisLabels(token=lambda id: f"w{id}")
    labels = replace(labels, states=state_names(captures, labels))
    [spec] = [p for p in capture_figures(captures, labels) if p.title == "transition"]
    figure = draw_figure(spec)
    assert {int(name.split()[0]) for name in tick_labels(figure, "y")} == set(used.tolist())
    assert {name.split()[1] for name in tick_labels(figure, "x")} == {"w1/w3"}
    assert f"Shown are the {MAX_MATRIX_SIDE} of {count} states most used on these texts." in (
        spec.caption
    )


def test_large_grammar_shows_symbols_most_used_on_the_texts() -> None:
    nonterminals, symbols = MAX_MATRIX_SIDE + 10, MAX_MATRIX_SIDE + 60
    use = torch.arange(symbols) / sum(range(symbols))  # the last ones most
    rules = torch.full((nonterminals, symbols), 1 / symbols)
    captures = {
        "left children": Capture(
            values=rules,
            axes=("state", "next state"),
            caption="P.",
            titles={"state": "nonterminal A", "next state": "left child B"},
        ),
        "symbol use": capture(use, "state"),
    }
    spec = capture_figures(captures, AxisLabels(token=str))[0]
    figure = draw_figure(spec)
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == (
        "nonterminal A",
        "left child B",
    )
    assert tick_labels(figure, "y") == [str(n) for n in range(10, nonterminals)]
    assert tick_labels(figure, "x") == [str(n) for n in range(symbols - MAX_MATRIX_SIDE, symbols)]
    assert (
        f"{MAX_MATRIX_SIDE} of {nonterminals} rows and {MAX_MATRIX_SIDE} of {symbols}"
        in spec.caption
    )


def test_long_source_is_truncated_with_a_note_in_the_figure() -> None:
    attention = SourceAttention(
        weights=np.full((3, 900), 1 / 900), target_tokens=("a",) * 3, source=("b",) * 900
    )
    figure = draw_figure(source_figure(attention, name="long"))
    assert image(figure).shape == (3, 60)
    assert figure.texts[0].get_text().endswith("the first 60 of 900 source tokens")


def test_state_posterior_is_labelled_by_input_tokens() -> None:
    """P(state | token) of a local HMM is of the input token, not of the one predicted next."""
    vocabulary = Vocabulary(size=9)
    system = build_tiny("local-hmm", vocabulary)
    posterior = system.capture_internals(Batch.collate([[2, 5, 6, 7, 3]], pad=0))["state posterior"]
    spec = capture_figure("state posterior", posterior, LABELS)
    assert spec is not None
    figure = draw_figure(spec)
    assert tick_labels(figure, "x") == list(WORDS[:-1])
    assert figure.axes[0].get_xlabel() == "input token"
