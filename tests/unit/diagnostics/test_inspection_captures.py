"""Inner values become the picture that their axes ask for, with the right numbers in it."""

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
from lmlab.training.run_folder import build_tiny

WORDS = ("<s>", "the", "cat", "sleeps", "</s>")
LABELS = AxisLabels(token=lambda id: f"w{id}", tokens=WORDS)
TIME = len(WORDS) - 1


def capture(values: object, *axes: str) -> Capture:
    return Capture(values=torch.as_tensor(values), axes=axes, caption="How to read it")


def picture(values: object, *axes: str, labels: AxisLabels = LABELS) -> FigureSpec:
    found = capture_figure("a name", capture(values, *axes), labels)
    assert found is not None
    return found


def drawn(each: FigureSpec) -> Figure:
    with canvas(each.name, width=each.width, height=each.height) as figure:
        each.draw(figure)
        return figure


def names(figure: Figure, axis: str, place: int = 0) -> list[str]:
    return [label.get_text() for label in getattr(figure.axes[place], f"get_{axis}ticklabels")()]


def image(figure: Figure, place: int = 0) -> np.ma.MaskedArray:
    return figure.axes[place].images[0].get_array()


def causal(time: int) -> torch.Tensor:
    """Rows of a distribution over what came before: 1/(i + 1) each."""
    mask = torch.ones(time, time).tril()
    return mask / mask.sum(1, keepdim=True)


def test_every_axis_has_a_name_in_pictures() -> None:
    assert set(AXIS_TITLES) == set(AXES)


def test_a_posterior_is_a_heat_map_of_predicted_and_given_words() -> None:
    values = causal(TIME)
    figure = drawn(picture(values[None], "batch", "time", "source"))
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("predicted token", "input token")
    assert names(figure, "y") == ["the", "cat", "sleeps", "</s>"]
    assert names(figure, "x") == ["<s>", "the", "cat", "sleeps"]
    held = image(figure)
    # What comes later is blank, not zero.
    assert held.mask.tolist() == torch.ones(TIME, TIME).triu(1).bool().tolist()
    np.testing.assert_allclose(held.filled(0), values.numpy(), rtol=1e-6)
    assert [text.get_text() for text in figure.texts] == ["a name"]


def test_a_posterior_given_the_other_way_round_is_turned() -> None:
    values = causal(TIME)
    figure = drawn(picture(values.t()[None], "batch", "source", "time"))
    np.testing.assert_allclose(image(figure).filled(0), values.numpy(), rtol=1e-6)


def test_weights_on_what_comes_later_stay() -> None:
    values = torch.full((TIME, TIME), 1 / TIME)
    figure = drawn(picture(values[None], "batch", "time", "source"))
    assert not np.ma.getmaskarray(image(figure)).any()


def test_states_at_all_tokens_get_all_tokens() -> None:
    figure = drawn(picture(torch.rand(1, TIME + 1, 3), "batch", "time", "state"))
    assert names(figure, "x") == list(WORDS)
    assert figure.axes[0].get_xlabel() == "token"
    assert names(figure, "y") == ["0", "1", "2"]


def test_two_groups_of_states_that_were_shuffled_stand_together_again() -> None:
    """Two groups of 4 that hardly mix: after ordering, the matrix is two blocks."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.block_diag(torch.full((4, 4), 0.24), torch.full((4, 4), 0.24)) + 0.005
    shuffle = torch.randperm(8, generator=generator)
    figure = drawn(picture(blocks[shuffle][:, shuffle], "state", "next state"))
    np.testing.assert_allclose(image(figure), blocks.numpy(), atol=1e-6)
    # Rows and columns in the same order, and named after the states they are.
    order = [int(name) for name in names(figure, "y")]
    assert order == [int(name) for name in names(figure, "x")]
    groups = [int(shuffle[place]) < 4 for place in order]
    assert groups in ([True] * 4 + [False] * 4, [False] * 4 + [True] * 4)


def test_a_large_matrix_shows_the_most_visited_states() -> None:
    count = MAX_MATRIX_SIDE + 30
    matrix = torch.full((count, count), 1e-3)
    matrix[:, :MAX_MATRIX_SIDE] = 1.0
    shown = picture(matrix / matrix.sum(1, keepdim=True), "state", "next state")
    found = {int(name) for name in names(drawn(shown), "y")}
    assert found == set(range(MAX_MATRIX_SIDE))
    assert f"{MAX_MATRIX_SIDE} of {count} states most visited in the long run" in shown.caption


def test_shares_of_states_are_sorted_bars_with_their_effective_number() -> None:
    shares = torch.tensor([0.1, 0.6, 0.3])
    shown = picture(shares, "state", labels=AxisLabels(token=str, states=("a", "b", "c")))
    figure = drawn(shown)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.6, 0.3, 0.1])
    assert names(figure, "y") == ["1 b", "2 c", "0 a"]
    entropy = -sum(p * math.log(p) for p in (0.1, 0.6, 0.3))
    assert axes.get_title(loc="right") == f"effective number {math.exp(entropy):.1f} of 3"
    assert "dashed line is an equal share" in shown.caption


def test_many_states_are_an_outline_from_the_largest_down() -> None:
    shares = torch.softmax(torch.randn(300, generator=torch.Generator().manual_seed(0)), 0)
    figure = drawn(picture(shares, "state"))
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    top = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(float(shares.max()), rel=1e-6)


def test_numbers_that_are_no_shares_have_no_effective_number() -> None:
    shown = picture(torch.tensor([4.0, 5.0]), "state")
    assert "dashed" not in shown.caption
    assert drawn(shown).axes[0].get_xlabel() == "value"


def test_distances_stay_in_their_order_and_begin_with_one() -> None:
    figure = drawn(picture(torch.tensor([0.2, 0.5, 0.3]), "distance"))
    assert names(figure, "x") == ["1", "2", "3"]
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([0.2, 0.5, 0.3])
    assert figure.axes[0].get_xlabel() == "positions back"


def test_choices_keep_their_numbers_and_moves_are_centred() -> None:
    assert names(drawn(picture(torch.tensor([0.2, 0.8]), "choice")), "x") == ["0", "1"]
    assert names(drawn(picture(torch.full((5,), 0.2), "move")), "x") == ["-2", "-1", "0", "1", "2"]


def test_gates_lie_along_the_words_with_like_units_together() -> None:
    """Units 0 and 2 rise, 1 and 3 fall: those that rise stand side by side."""
    rise = torch.linspace(0, 1, TIME)
    gates = torch.stack([rise, 1 - rise, rise, 1 - rise], dim=1)
    figure = drawn(picture(gates[None], "batch", "time", "unit"))
    assert names(figure, "x") == ["the", "cat", "sleeps", "</s>"]
    rows = image(figure).filled(np.nan)
    assert rows.shape == (4, TIME)
    np.testing.assert_allclose(rows[0], rows[1])
    np.testing.assert_allclose(rows[2], rows[3])
    assert np.abs(rows[0] - rows[3]).max() == pytest.approx(1.0)


def test_values_on_both_sides_of_nothing_have_a_scale_that_is_even() -> None:
    assert colour_scale(np.array([-0.5, 2.0])).low == -2.0
    assert colour_scale(np.array([0.1, 0.9])).high == 1.0
    assert colour_scale(np.array([0.1, 0.3])).high == pytest.approx(0.3)
    assert colour_scale(np.array([0.0, np.nan])).high == 1.0


def test_many_states_beside_words_are_the_weightiest_in_order_of_time() -> None:
    time, states = TIME, MAX_STATES + 10
    weights = torch.zeros(1, time, states)
    for place, state in enumerate((7, 3, 33, 1)):
        weights[0, place, state] = 1.0
    shown = picture(weights, "batch", "time", "state")
    listed = [int(name) for name in names(drawn(shown), "y")]
    assert len(listed) == MAX_STATES
    assert [state for state in listed if state in (7, 3, 33, 1)] == [7, 3, 33, 1]
    assert f"{MAX_STATES} of {states} states" in shown.caption


def test_slots_are_heat_maps_beside_each_other_on_one_scale() -> None:
    values = torch.stack([causal(TIME), torch.eye(TIME)])
    figure = drawn(picture(values[None], "batch", "slot", "time", "source"))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["slot 1", "slot 2"]
    np.testing.assert_allclose(image(figure, 1).filled(0), np.eye(TIME))
    assert figure.axes[0].images[0].norm.vmax == figure.axes[1].images[0].norm.vmax == 1.0
    assert names(figure, "y", 1) == []


def test_many_heat_maps_are_cut_and_say_so() -> None:
    values = torch.rand(MAX_PANELS + 3, 2, 2)
    shown = picture(values, "choice", "state", "next state")
    assert f"{MAX_PANELS} of {MAX_PANELS + 3} heat maps" in shown.caption
    assert len([axes for axes in drawn(shown).axes if axes.images]) == MAX_PANELS


def test_tokens_of_states_are_listed_by_probability() -> None:
    table = torch.tensor([[0.1, 0.7], [0.6, 0.2], [0.3, 0.1]])  # (token, state)
    figure = drawn(picture(table, "token", "state"))
    lines = [text.get_text() for text in figure.axes[0].texts]
    assert "w1 0.6 · w2 0.3 · w0 0.1" in lines
    assert "w0 0.7 · w1 0.2 · w2 0.1" in lines
    assert state_names({"x": capture(table, "token", "state")}, LABELS) == ("w1/w2", "w0/w1")


def test_the_busiest_states_are_listed_first() -> None:
    table = torch.tensor([[0.1, 0.7], [0.6, 0.2], [0.3, 0.1]])
    found = capture_figures(
        {
            "use": capture(torch.tensor([0.25, 0.75]), "state"),
            "words": capture(table, "token", "state"),
        },
        LABELS,
    )
    lines = [text.get_text() for text in drawn(found[1]).axes[0].texts]
    assert lines.index("w0 0.7 · w1 0.2 · w2 0.1") < lines.index("w1 0.6 · w2 0.3 · w0 0.1")


def test_sentences_with_one_row_each_stand_below_each_other() -> None:
    labels = AxisLabels(token=str, sentences=("one sentence", "another sentence"))
    figure = drawn(picture(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "batch", "unit", labels=labels))
    assert names(figure, "y") == ["one sentence", "another sentence"]
    bars = drawn(picture(torch.tensor([2.0, 1.0]), "batch", labels=labels))
    assert [bar.get_width() for bar in bars.axes[0].patches] == [2.0, 1.0]


def test_a_long_sentence_is_cut_with_a_note() -> None:
    time = MAX_POSITIONS + 5
    labels = AxisLabels(token=str, tokens=tuple(map(str, range(time + 1))))
    shown = picture(causal(time)[None], "batch", "time", "source", labels=labels)
    assert shown.caption.count(f"first {MAX_POSITIONS} of {time} positions") == 1
    assert image(drawn(shown)).shape == (MAX_POSITIONS, MAX_POSITIONS)


def test_a_prior_without_a_sentence_counts_its_places() -> None:
    figure = drawn(picture(causal(3), "time", "source", labels=AxisLabels(token=str)))
    assert names(figure, "y") == ["1", "2", "3"]
    assert names(figure, "x") == ["0", "1", "2"]


def test_a_single_number_and_nothing_at_all_are_no_picture() -> None:
    assert capture_figure("x", capture(torch.tensor([0.5]), "choice"), LABELS) is None
    always = torch.ones(1, TIME, 1)
    assert capture_figure("x", capture(always, "batch", "time", "choice"), LABELS) is None
    nothing = torch.full((1, 3), -torch.inf)
    assert capture_figure("x", capture(nothing, "batch", "time"), LABELS) is None


def test_more_axes_than_a_page_has_still_give_a_picture() -> None:
    values = torch.rand(1, 2, TIME, 3, 3)
    shown = picture(values, "batch", "slot", "time", "state", "next state")
    assert len([axes for axes in drawn(shown).axes if axes.images]) == TIME


def test_the_reading_ends_as_a_sentence_and_names_are_fit_for_files() -> None:
    assert picture(torch.eye(2), "slot", "distance").caption.startswith("How to read it.")
    assert safe_file_name("Posterior over parents (1)") == "posterior-over-parents-1"
    assert safe_file_name("先验") == "picture"


def test_words_at_the_axes_do_not_overlap() -> None:
    """Twenty words of ten letters: no two labels share a place on the page."""
    words = ("<s>", *(f"extraordin{place}" for place in range(20)))
    labels = AxisLabels(token=str, tokens=words)
    shown = picture(causal(20)[None], "batch", "time", "source", labels=labels)
    with canvas("overlap", width=shown.width, height=shown.height) as figure:
        shown.draw(figure)
        figure.canvas.draw()
        rows = [t.get_window_extent() for t in figure.axes[0].get_yticklabels()]
        columns = figure.axes[0].get_xticklabels()
        assert all(a.y0 >= b.y1 or b.y0 >= a.y1 for a, b in pairwise(rows))
        # Slanted by 50°: neighbours are apart by the step times the sine, a line's height or more.
        step = columns[1].get_window_extent().x1 - columns[0].get_window_extent().x1
        assert step * math.sin(math.radians(50)) >= columns[0].get_fontsize() * figure.dpi / 72


def test_the_same_value_gives_the_same_bytes() -> None:
    shown = picture(causal(TIME)[None], "batch", "time", "source")
    first, second = render_figure(shown), render_figure(shown)
    assert first == second
    assert first.png.startswith(b"\x89PNG")


def test_rows_that_name_their_choices_differently_stand_under_their_own_names() -> None:
    """A document found for one text is not shown as found for another."""

    def found(shares: list[float], *named: str) -> Capture:
        values, axes = torch.tensor([shares]), ("batch", "choice")
        return Capture(values=values, axes=axes, caption="Found.", names={"choice": named})

    stacked = stack_captures(
        [found([0.75, 0.25], "a", "b"), found([0.5, 0.375, 0.125], "c", "a", "d")]
    )
    labels = AxisLabels(token=str, sentences=("first", "second"))
    shown = capture_figure("documents", stacked, labels)
    assert shown is not None
    figure = drawn(shown)
    assert (names(figure, "y"), names(figure, "x")) == (["first", "second"], ["a", "b", "c", "d"])
    held = image(figure)
    assert held.filled(-1).tolist() == [[0.75, 0.25, -1, -1], [0.375, -1, 0.5, 0.125]]


def test_of_many_choices_those_with_most_weight_are_shown() -> None:
    values = torch.zeros(2, MAX_CHOICES + 2)
    values[0, 1:], values[1, 0] = 0.1, -0.01
    values[0, MAX_CHOICES // 2] = 0.05
    shown = picture(values, "batch", "choice", labels=AxisLabels(token=str, sentences=("a", "b")))
    left_out = {0, MAX_CHOICES // 2}
    kept = [str(place) for place in range(MAX_CHOICES + 2) if place not in left_out]
    assert names(drawn(shown), "x") == kept
    assert f"Shown are the {MAX_CHOICES} of {MAX_CHOICES + 2} choices" in shown.caption


def test_rounding_below_zero_does_not_hide_a_probability() -> None:
    """A posterior of 0.3 beside one of -1e-13 is drawn at 0.3 of the scale."""
    values = torch.tensor([[[1.0, -1e-13], [0.3, 0.7]]], dtype=torch.float64)
    posterior = Capture(
        values=values, axes=("batch", "time", "state"), caption="P(state).", sums_to_one="state"
    )
    shown = capture_figure("posterior", posterior, LABELS)
    assert shown is not None
    drawing = drawn(shown).axes[0].images[0]
    assert (drawing.norm.vmin, drawing.norm.vmax) == (0.0, 1.0)
    assert float(drawing.get_array().min()) == 0.0
    assert drawing.cmap(drawing.norm(0.3))[3] == pytest.approx(0.3, abs=0.01)


def test_a_scale_below_zero_is_for_values_that_can_be_below_zero() -> None:
    noise = np.array([-1e-13, 0.8])
    assert colour_scale(noise, NON_NEGATIVE).low == colour_scale(noise, UNIT_INTERVAL).low == 0.0
    assert colour_scale(noise).low == 0.0  # rounding, whatever the values are
    assert colour_scale(np.array([-0.01, 0.8])).low == -0.8


@pytest.mark.parametrize("share", [-0.9, -0.3, -0.1, 0.1, 0.3, 0.9])
def test_colours_on_both_sides_of_zero_deepen_evenly(share: float) -> None:
    """Opacity is |value| / largest, from zero on: no part of the scale is without colour."""
    scale = colour_scale(np.array([-2.0, 1.0]))
    red, _, blue, alpha = scale.colours(scale.norm(2.0 * share))
    assert alpha == pytest.approx(abs(share), abs=0.01)
    assert (blue > red) == (share > 0)


@pytest.mark.parametrize(
    ("axes", "shape", "over", "said"),
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
def test_the_caption_says_which_way_sums_to_one(axes, shape, over, said) -> None:
    """The caption names rows or columns as they are drawn, and the drawn ones do sum to one."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    values = torch.softmax(values, dim=axes.index(over))
    shown = capture_figure(
        "x", Capture(values=values, axes=axes, caption="p.", sums_to_one=over), LABELS
    )
    assert shown is not None
    assert said in shown.caption
    if "over all" not in said:
        drawing = image(drawn(shown)).filled(0)
        np.testing.assert_allclose(drawing.sum(0 if "column" in said else 1), 1, atol=1e-6)


def test_a_large_matrix_shows_the_states_that_the_texts_use() -> None:
    """Not the first ones and not those that texts begin with, by their number and two words."""
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
    [shown] = [p for p in capture_figures(captures, labels) if p.title == "transition"]
    figure = drawn(shown)
    assert {int(name.split()[0]) for name in names(figure, "y")} == set(used.tolist())
    assert {name.split()[1] for name in names(figure, "x")} == {"w1/w3"}
    assert f"Shown are the {MAX_MATRIX_SIDE} of {count} states most used on these texts." in (
        shown.caption
    )


def test_a_large_grammar_shows_the_symbols_that_the_texts_use() -> None:
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
    shown = capture_figures(captures, AxisLabels(token=str))[0]
    figure = drawn(shown)
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == (
        "nonterminal A",
        "left child B",
    )
    assert names(figure, "y") == [str(n) for n in range(10, nonterminals)]
    assert names(figure, "x") == [str(n) for n in range(symbols - MAX_MATRIX_SIDE, symbols)]
    assert (
        f"{MAX_MATRIX_SIDE} of {nonterminals} rows and {MAX_MATRIX_SIDE} of {symbols}"
        in shown.caption
    )


def test_a_long_source_is_cut_with_a_note_in_the_figure() -> None:
    looked = SourceAttention(
        weights=np.full((3, 900), 1 / 900), target_tokens=("a",) * 3, source=("b",) * 900
    )
    figure = drawn(source_figure(looked, name="long"))
    assert image(figure).shape == (3, 60)
    assert figure.texts[0].get_text().endswith("the first 60 of 900 source tokens")


def test_what_belongs_to_input_tokens_is_labelled_by_them() -> None:
    """P(state | token) of a local HMM is of the token read, not of the one predicted next."""
    vocabulary = Vocabulary(size=9)
    system = build_tiny("local-hmm", vocabulary)
    found = system.capture_internals(Batch.collate([[2, 5, 6, 7, 3]], pad=0))["state posterior"]
    shown = capture_figure("state posterior", found, LABELS)
    assert shown is not None
    figure = drawn(shown)
    assert names(figure, "x") == list(WORDS[:-1])
    assert figure.axes[0].get_xlabel() == "input token"
