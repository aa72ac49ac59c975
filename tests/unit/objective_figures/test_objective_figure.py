"""Objective figures: tokens, styles and mask squares match the view of the objective."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET, View, causal_view
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.inspection.inspected_models import TokenNames
from lmlab.objective_figures.figure_contents import CellPanel, ObjectiveContents
from lmlab.objective_figures.figure_layout import arrange_contents, objective_figure_spec
from lmlab.objective_figures.layout_elements import (
    ALLOWED_COLOUR,
    ALLOWED_PALE_COLOUR,
    STYLE_COLOURS,
)
from lmlab.objective_figures.objective_figure import show_objective, space_words
from lmlab.objective_figures.view_contents import view_contents
from lmlab.objectives.masking.token_masking import IndependentMasking
from lmlab.objectives.unified_lm import UniLMMode, UniLMObjective
from lmlab.plotting.figure import canvas, render_figure

WORDS = [*SPECIAL_TOKENS, "中", "国", "的", "首", "都", "是", "北", "京"]
SIZE = len(WORDS)
NAMES = TokenNames(token=WORDS.__getitem__, vocabulary=Vocabulary(size=SIZE), symbols={})
CLEAN = [2, 5, 6, 7, 8, 9, 10, 11, 12, 3]
"""<s> 中 国 的 首 都 是 北 京 </s>"""
BATCH = Batch.collate([CLEAN], pad=0)
TOKENS = BATCH.tokens
IGNORED = NO_TARGET


def cell_texts(panel: CellPanel, name: str) -> list[str]:
    return ["" if cell is None else cell.text for cell in panel.row(name).cells]


def cell_styles(panel: CellPanel, name: str) -> list[str]:
    return ["" if cell is None else cell.style for cell in panel.row(name).cells]


def hidden_texts(contents: ObjectiveContents) -> list[str]:
    [strip] = [s for panel in contents.panels for s in panel.rows if s.name == "text"]
    return [cell.text for cell in strip.cells if cell is not None and cell.style == "hidden"]


def draw_contents(contents: ObjectiveContents) -> Figure:
    spec = objective_figure_spec(contents, name="test", title="a: b")
    with canvas(spec.name, width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
        return figure


def masked_view(positions: list[int], input_ids: list[int]) -> View:
    """A masked LM view with targets at some positions and other input tokens there."""
    chosen = torch.zeros_like(TOKENS, dtype=torch.bool)
    chosen[0, positions] = True
    return View(
        inputs=TOKENS.masked_scatter(chosen, torch.tensor(input_ids)),
        lengths=BATCH.lengths,
        attention_mask=FullMask(),
        targets=TOKENS.masked_fill(~chosen, IGNORED),
        clean_positions=torch.arange(10)[None].masked_fill(~chosen, -1),
    )


def test_masked_and_replaced_tokens_are_marked_hidden() -> None:
    """Of three targets one is masked, one replaced by 国 and one unchanged (80/10/10)."""
    contents = view_contents(masked_view([2, 4, 8], [4, 6, 12]), BATCH, NAMES)
    [panel] = contents.panels
    assert [strip.name for strip in panel.rows] == [
        "text position", "text", "input", "position", "target", "from position",
    ]  # fmt: skip
    assert cell_texts(panel, "text") == [WORDS[id] for id in CLEAN]
    assert cell_texts(panel, "input")[2] == "<mask>"
    assert hidden_texts(contents) == ["国", "首"]
    assert (
        cell_styles(panel, "input") == ["plain"] * 2 + ["mask", "plain", "changed"] + ["plain"] * 5
    )
    assert cell_texts(panel, "target") == ["", "", "国", "", "首", "", "", "", "京", ""]
    assert cell_texts(panel, "from position") == ["", "", "2", "", "4", "", "", "", "8", ""]


def test_causal_lm_hides_targets_by_attention_mask_alone() -> None:
    contents = view_contents(causal_view(BATCH), BATCH, NAMES)
    [panel], [matrix] = contents.panels, contents.matrices
    assert hidden_texts(contents) == []
    # The last token is never an input: its column holds only the clean text.
    assert cell_texts(panel, "input") == [*(WORDS[id] for id in CLEAN[:-1]), ""]
    assert cell_styles(panel, "input") == ["plain", *["answer"] * 8, ""]
    assert cell_texts(panel, "target") == [*(WORDS[id] for id in CLEAN[1:]), ""]
    assert matrix.targets == tuple(WORDS[id] for id in CLEAN[1:])
    assert matrix.allowed == tuple(tuple(c <= r for c in range(9)) for r in range(9))


def test_two_stream_view_has_a_matrix_per_stream() -> None:
    """The order is 0 2 1 3 …: 国 is predicted before 中, and the last third are targets."""
    order = torch.tensor([[0, 2, 1, 3, 4, 5, 6, 7, 8, 9]])
    turn = order[0]
    content, query = turn[None] <= turn[:, None], turn[None] < turn[:, None]
    late = turn >= 7
    view = View(
        inputs=TOKENS,
        lengths=BATCH.lengths,
        attention_mask=ExplicitMask(content[None]),
        query_attention_mask=ExplicitMask(query[None]),
        order=order,
        segments=torch.tensor([[0] * 4 + [1] * 6]),
        targets=TOKENS.masked_fill(~late, IGNORED),
        clean_positions=torch.arange(10)[None].masked_fill(~late, -1),
        labels=torch.tensor([1]),
    )
    contents = view_contents(view, BATCH, NAMES)
    first, second = contents.matrices
    assert (first.name, second.name) == ("content stream", "query stream")
    assert torch.equal(torch.tensor(first.allowed), content)
    assert torch.equal(torch.tensor(second.allowed), query)
    assert first.targets == ("",) * 10
    assert second.targets == ("",) * 7 + ("北", "京", "</s>")
    # They are inputs for other positions, and not visible to the query that predicts them.
    assert hidden_texts(contents) == ["北", "京", "</s>"]
    [panel] = contents.panels
    assert cell_styles(panel, "input")[-3:] == ["answer"] * 3
    assert cell_texts(panel, "order") == ["0", "2", "1", "3", "4", "5", "6", "7", "8", "9"]
    assert cell_texts(panel, "segment") == ["0"] * 4 + ["1"] * 6
    assert contents.notes == ("Label of the whole text: 1.",)


def glm_view() -> View:
    """首都 and 京 blanked out and generated after the text (GLM); 13, 14 are its special ids."""
    input_ids = [2, 5, 6, 7, 4, 10, 11, 4, 3, 13, 12, 13, 8, 9]
    size, prefix_length = len(input_ids), 9
    allowed = torch.zeros(size, size, dtype=torch.bool)
    allowed[:, :prefix_length] = True
    allowed[prefix_length:, prefix_length:] = (
        torch.ones(size - prefix_length, size - prefix_length).tril().bool()
    )
    pairs = [(position, 0) for position in range(prefix_length)] + [
        (7, 1),
        (7, 2),
        (4, 1),
        (4, 2),
        (4, 3),
    ]
    return View(
        inputs=torch.tensor([input_ids]),
        lengths=torch.tensor([size]),
        attention_mask=ExplicitMask(allowed[None]),
        positions=torch.tensor([pairs]),
        targets=torch.tensor([[IGNORED] * prefix_length + [12, 14, 8, 9, 14]]),
        clean_positions=torch.tensor([[-1] * prefix_length + [8, -1, 4, 5, -1]]),
    )


def test_glm_blanks_are_marked_hidden() -> None:
    contents = view_contents(glm_view(), BATCH, NAMES)
    text, view = contents.panels
    assert hidden_texts(contents) == ["首", "都", "京"]
    assert [strip.name for strip in text.rows] == ["text position", "text"]
    assert cell_texts(view, "input")[9:] == ["⟨1⟩", "京", "⟨1⟩", "首", "都"]
    assert cell_styles(view, "input")[9:] == ["mask", "answer", "mask", "answer", "answer"]
    assert cell_texts(view, "position 1") == [*"012345678", *"77444"]
    assert cell_texts(view, "position 2") == [*"000000000", *"12123"]
    assert cell_texts(view, "target")[9:] == ["京", "⟨2⟩", "首", "都", "⟨2⟩"]


def test_special_tokens_of_an_objective_are_named() -> None:
    named = TokenNames(
        token=WORDS.__getitem__, vocabulary=Vocabulary(size=SIZE), symbols={13: "[S]"}
    )
    _, view = view_contents(glm_view(), BATCH, named).panels
    assert cell_texts(view, "input")[9:] == ["[S]", "京", "[S]", "首", "都"]


def t5_view() -> View:
    """的首 and 北京 replaced by sentinels and generated by a decoder (T5)."""
    decoder = View(
        inputs=torch.tensor([[2, 13, 7, 8, 14, 11, 12, 15]]),
        lengths=torch.tensor([8]),
        attention_mask=CausalMask(),
        targets=torch.tensor([[13, 7, 8, 14, 11, 12, 15, 3]]),
        clean_positions=torch.tensor([[-1, 3, 4, -1, 7, 8, -1, 9]]),
    )
    return View(
        inputs=torch.tensor([[2, 5, 6, 13, 9, 10, 14, 3]]),
        lengths=torch.tensor([8]),
        attention_mask=FullMask(),
        decoder=decoder,
    )


def test_encoder_decoder_view_has_three_matrices() -> None:
    contents = view_contents(t5_view(), BATCH, NAMES)
    text, encoder, decoder = contents.panels
    assert (text.name, encoder.name, decoder.name) == ("", "encoder", "decoder")
    assert hidden_texts(contents) == ["的", "首", "北", "京"]
    assert cell_texts(encoder, "input") == ["<s>", "中", "国", "⟨1⟩", "都", "是", "⟨2⟩", "</s>"]
    assert [s.name for s in encoder.rows] == ["input", "position"]
    assert cell_styles(decoder, "input") == [
        "plain", "mask", "answer", "answer", "mask", "answer", "answer", "mask",
    ]  # fmt: skip
    encoder_mask, decoder_mask, cross_mask = contents.matrices
    assert all(map(all, encoder_mask.allowed)) and all(map(all, cross_mask.allowed))
    assert decoder_mask.allowed == tuple(tuple(c <= r for c in range(8)) for r in range(8))
    assert cross_mask.targets == ("⟨1⟩", "的", "首", "⟨2⟩", "北", "京", "⟨3⟩", "</s>")
    assert [cell.text for cell in cross_mask.columns] == cell_texts(encoder, "input")
    assert (cross_mask.show_targets, decoder_mask.show_targets) == (True, False)


def test_encoder_with_its_own_targets_hides_them() -> None:
    """国 masked and predicted in the encoder, 北京 left to the decoder (PALM).

    Clean positions are given at every encoder position; they count only at targets.
    """
    targets = torch.tensor([[IGNORED, IGNORED, 6, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED]])
    decoder = View(
        inputs=torch.tensor([[2, 11, 12]]),
        lengths=torch.tensor([3]),
        attention_mask=CausalMask(),
        targets=torch.tensor([[11, 12, 3]]),
        clean_positions=torch.tensor([[7, 8, 9]]),
    )
    view = View(
        inputs=torch.tensor([[2, 5, 4, 7, 8, 9, 10, 3]]),
        lengths=torch.tensor([8]),
        attention_mask=FullMask(),
        targets=targets,
        clean_positions=torch.arange(8)[None],
        decoder=decoder,
    )
    contents = view_contents(view, BATCH, NAMES)
    assert hidden_texts(contents) == ["国", "北", "京"]
    encoder = contents.panels[1]
    assert cell_texts(encoder, "from position") == ["", "", "2", "", "", "", "", ""]
    assert contents.matrices[0].targets == ("", "", "国", "", "", "", "", "")


def test_translation_source_is_not_part_of_the_text() -> None:
    """Translation: the source has 北京, which the target has as well, and nothing is hidden."""
    source = Batch.collate([[2, 11, 12, 3]], pad=0)
    batch = Batch.collate([CLEAN], pad=0, condition=source)
    view = View(
        inputs=source.tokens,
        lengths=source.lengths,
        attention_mask=FullMask(),
        decoder=causal_view(batch),
    )
    contents = view_contents(view, batch, NAMES)
    encoder, decoder = contents.panels
    assert hidden_texts(contents) == []
    assert cell_texts(encoder, "input") == ["<s>", "北", "京", "</s>"]
    assert cell_texts(decoder, "text")[1:4] == ["中", "国", "的"]


def test_permuted_tokens_still_belong_to_the_text() -> None:
    """Two halves swapped (BART): every token is visible, none hidden, none from elsewhere."""
    view = View(
        inputs=torch.tensor([[2, 10, 11, 12, 5, 6, 7, 8, 9, 3]]),
        lengths=BATCH.lengths,
        attention_mask=FullMask(),
        decoder=causal_view(BATCH),
    )
    contents = view_contents(view, BATCH, NAMES)
    assert hidden_texts(contents) == []
    assert set(cell_styles(contents.panels[1], "input")) == {"plain"}


def test_tokens_of_another_text_are_marked_other() -> None:
    """中国 and then 北京 of the second row; a target from there is not position 2 of row 1."""
    batch = Batch.collate([[*CLEAN[:4], 3], [2, 10, 11, 12, 3]], pad=0)
    view = View(
        inputs=torch.tensor([[2, 5, 6, 3, 11, 12, 3]] * 2),
        lengths=torch.tensor([7, 7]),
        attention_mask=FullMask(),
        segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1]] * 2),
        targets=torch.tensor([[IGNORED, IGNORED, IGNORED, IGNORED, 11, IGNORED, IGNORED]] * 2),
        clean_positions=torch.tensor([[-1, -1, -1, -1, 2, -1, -1]] * 2),
    )
    contents = view_contents(view, batch, NAMES)
    assert cell_styles(contents.panels[1], "input")[3:6] == ["plain", "other", "other"]
    assert hidden_texts(contents) == []


def test_loss_weights_are_shown_where_they_differ() -> None:
    view = causal_view(BATCH)
    weights = torch.ones_like(view.inputs, dtype=torch.float)
    weights[0, 3] = 0.25
    weighted = View(
        inputs=view.inputs, lengths=view.lengths, attention_mask=CausalMask(), targets=view.targets,
        clean_positions=view.clean_positions, weights=weights,
    )  # fmt: skip
    [panel] = view_contents(weighted, BATCH, NAMES).panels
    assert cell_texts(panel, "weight")[2:5] == ["1", "0.25", "1"]


def test_image_patches_are_numbered() -> None:
    view = View(
        inputs=torch.zeros(1, 3, 7),
        lengths=torch.tensor([3]),
        attention_mask=FullMask(),
        labels=torch.tensor([4]),
    )
    contents = view_contents(view, BATCH, NAMES)
    assert cell_texts(contents.panels[-1], "input") == ["patch 1", "patch 2", "patch 3"]
    assert contents.notes == ("Label of the whole text: 4.",)


def test_every_cell_style_has_its_own_colour() -> None:
    contents = view_contents(masked_view([2, 4, 8], [4, 6, 12]), BATCH, NAMES)
    axes = draw_contents(contents).axes[0]
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    for style, count in (("hidden", 2), ("mask", 1), ("changed", 1), ("target", 3)):
        ground, rim = STYLE_COLOURS[style]
        matching = [box for box in boxes if same_color(box.get_facecolor(), ground)]
        # One more in the legend.
        assert len(matching) == count + 1
        assert all(same_color(box.get_edgecolor(), rim) for box in matching)
    grounds = {
        STYLE_COLOURS[style][0] for style in ("hidden", "mask", "changed", "other", "target")
    }
    assert len(grounds) == 5


def test_squares_show_the_attention_mask() -> None:
    """9 · 10 / 2 = 45 squares of 81 are allowed by a causal mask of nine inputs."""
    sheet = arrange_contents(view_contents(causal_view(BATCH), BATCH, NAMES), title="a: b")
    assert len(sheet.squares["masked"]) == 36
    assert len(sheet.squares["attends"]) == 45 + 1  # and one in the legend
    assert "attends pale" not in sheet.squares
    filled = {(x, y) for x, y, side in sheet.squares["attends"] if side != 0.2}
    empty = {(x, y) for x, y, _ in sheet.squares["masked"]}
    rows = sorted({y for _, y in filled | empty})
    columns = sorted({x for x, _ in filled | empty})
    mask = torch.tensor([[(x, y) in filled for x in columns] for y in rows])
    assert torch.equal(mask, CausalMask().mask(torch.tensor([9]), 9)[0])


def test_mask_rows_without_a_target_are_pale() -> None:
    contents = view_contents(masked_view([2], [4]), BATCH, NAMES)
    axes = draw_contents(contents).axes[0]
    counts = {
        collection.get_label(): len(collection.get_offsets()) for collection in axes.collections
    }
    assert counts == {"attends": 10 + 1, "attends pale": 90 + 1}
    colours = {
        collection.get_label(): collection.get_facecolor()[0] for collection in axes.collections
    }
    assert same_color(colours["attends"], ALLOWED_COLOUR)
    assert same_color(colours["attends pale"], ALLOWED_PALE_COLOUR)


def test_layout_boxes_do_not_overlap() -> None:
    sheet = arrange_contents(view_contents(t5_view(), BATCH, NAMES), title="a: b", note="c")
    boxes = sorted(sheet.boxes, key=lambda box: (box.top, box.left))
    for one, two in pairwise(boxes):
        same_line = one.top == two.top
        assert not same_line or one.left + one.width <= two.left + 1e-9
    assert max(box.left + box.width for box in boxes) <= sheet.width
    assert max(box.top + box.height for box in boxes) <= sheet.height


def test_long_text_wraps_to_a_second_line() -> None:
    batch = Batch.collate([[2, *[5, 6, 7, 8] * 13, 3]], pad=0)
    sheet = arrange_contents(view_contents(causal_view(batch), batch, NAMES), title="a: b")
    assert sheet.width < 13
    row_names = [label for label in sheet.words if label.text == "text"]
    assert len(row_names) == 2


def test_svg_is_valid_deterministic_and_contains_the_tokens() -> None:
    contents = view_contents(masked_view([2], [4]), BATCH, NAMES)
    first, second = (
        render_figure(objective_figure_spec(contents, name="test", title="a: b")) for _ in range(2)
    )
    assert first == second
    root = ElementTree.fromstring(first.svg)
    labels = [text for node in root.iter() if (text := (node.text or "").strip())]
    # 国 in the text and as a target, and next to its row after an arrow.
    assert labels.count("国") == 2
    assert "→ 国" in labels
    assert first.png.startswith(b"\x89PNG")


def test_show_objective_takes_a_system_name() -> None:
    shown = show_objective("gpt", text="中国 has a wall")
    [panel] = shown.contents.panels
    assert cell_texts(panel, "text") == ["<s>", "中", "国", "has", "a", "wall", "</s>"]
    assert not shown.random
    assert "prefers-color-scheme: dark" in shown.svg
    assert shown.card.name == "gpt"


def test_seed_is_reproducible_and_default_has_targets() -> None:
    first, again = (show_objective("bert", text="a b c d e f", seed=5) for _ in range(2))
    assert first.contents == again.contents and first.seed == 5 and first.random
    assert torch.equal(first.view.inputs, again.view.inputs)
    unseeded = show_objective("bert", text="a b c")
    assert unseeded.view.targets is not None
    assert bool((unseeded.view.targets[0] != IGNORED).any())


def test_settings_change_the_objective() -> None:
    """Nine tenths of sixty tokens: fewer than half masked has a probability below 1e-15."""
    text = " ".join(f"w{position}" for position in range(60))
    shown = show_objective("roberta", text=text, seed=0, settings={"rate": "0.9"})
    assert shown.view.targets is not None
    assert int((shown.view.targets[0] != IGNORED).sum()) > 30


def test_translation_system_is_shown_with_a_source() -> None:
    encoder, decoder = show_objective("transformer").contents.panels
    assert cell_texts(encoder, "input")[1:3] == ["le", "chat"]
    assert cell_texts(decoder, "text")[1:3] == ["the", "cat"]
    contents = show_objective("transformer", text="a dog", condition="ein Hund").contents
    assert cell_texts(contents.panels[0], "input") == ["<s>", "ein", "Hund", "</s>"]


@pytest.mark.parametrize("name", ["lstm", "hmm", "ngram", "gru-autoencoder", "parent"])
def test_other_model_families_have_views(name: str) -> None:
    shown = show_objective(name, text="a b a")
    [panel], [matrix] = shown.contents.panels, shown.contents.matrices
    assert cell_texts(panel, "text") == ["<s>", "a", "b", "a", "</s>"]
    assert [word for word in cell_texts(panel, "target") if word] == ["a", "b", "a", "</s>"]
    time = shown.view.inputs.shape[1]
    mask = shown.view.attention_mask.mask(shown.view.lengths, time)[0]
    length = int(shown.view.lengths[0])
    assert torch.equal(torch.tensor(matrix.allowed), mask[:length, :length])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"system": "pcfg"}, "it gives a probability to the text as a whole"),
        ({"system": "gpt", "text": " "}, "must have at least one word"),
        ({"system": "gpt", "text": "a " * 80}, "room for 64 tokens, got 82"),
        ({"system": "gpt", "condition": "a"}, "--condition does not apply to gpt"),
        ({"system": "gpt", "settings": {"layer": "3"}}, "did you mean 'layers'"),
        ({"system": "gtp"}, "did you mean"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        show_objective(**arguments)


def test_chinese_characters_are_split_into_words() -> None:
    assert space_words("中国的 capital 是北京。") == "中 国 的 capital 是 北 京 。"


def test_vit_image_is_shown_with_patches_and_mask() -> None:
    """The built-in 3: 64 pixels, 16 patches of four; <s> and patches attend to each other."""
    shown = show_objective("vit")
    image, patches, text = shown.contents.panels
    [whole] = image.row("given").cells
    input_cells = patches.row("input").cells
    assert whole is not None and len(input_cells) == 16
    # 13 and 15 are below each other, and 15 is the maximum, which maps to 1.
    assert [row[4] for row in whole.pixels[:2]] == pytest.approx([2 * 13 / 15 - 1, 1])
    assert all(cell is not None for cell in input_cells)
    assert [cell.pixels[1] for cell in input_cells if cell][1] == whole.pixels[1][2:4]
    assert cell_texts(patches, "position") == [str(position) for position in range(1, 17)]
    assert cell_texts(text, "position") == ["0", "17", ""]
    [matrix] = shown.contents.matrices
    assert matrix.targets == ("three", *[""] * 16, "</s>")
    expected = [[True] * 17 + [row == 17] for row in range(18)]
    assert torch.equal(torch.tensor(matrix.allowed), torch.tensor(expected))
    sheet = arrange_contents(shown.contents, title="a: b")
    assert len(sheet.pixels) == 64 + 16 * 4
    assert sorted({round(grey, 3) for *_, grey in sheet.pixels})[0] == 0


def test_spanbert_spans_are_masked_and_predicted_from_boundary() -> None:
    """Seed 0 leaves its span unchanged (10 %), so without a seed another is sampled."""
    unmasked = show_objective("spanbert", seed=0).contents
    assert hidden_texts(unmasked) == []
    shown = show_objective("spanbert").contents
    [panel] = shown.panels
    positions = [int(position) for position in cell_texts(panel, "from position") if position]
    first, last = positions[0], positions[-1]
    assert positions == list(range(first, last + 1)) and len(hidden_texts(shown)) == len(positions)
    boundaries = [cell for cell in cell_texts(panel, "boundary") if cell]
    assert boundaries == [f"{first - 1}, {last + 1}"] * len(positions)
    own, again = shown.matrices
    assert [word for word in own.targets if word] == list(again.targets)
    for row in again.allowed:
        assert [position for position, allowed in enumerate(row) if allowed] == [
            first - 1,
            last + 1,
        ]


def test_whole_word_masking_masks_all_subwords() -> None:
    shown = show_objective("bert-wwm").contents
    inputs = cell_texts(shown.panels[-1], "input")
    assert inputs[:4] == ["<s>", "<mask>", "<mask>", "<mask>"] and inputs[4:6] == ["kitten", "##s"]
    assert hidden_texts(shown)[:3] == ["un", "##happ", "##y"]


def test_ernie_mentions_are_named() -> None:
    [panel] = show_objective("ernie", settings={"mentions": "countries"}).contents.panels
    named = cell_texts(panel, "mention")
    assert named[4:6] == ["New Zealand", "New Zealand"] and named[9] == "Paris"


def test_star_and_set_transformer_show_their_sparse_mask() -> None:
    """A star's word attends to its ring neighbours, itself and the relay; the relay to all."""
    [matrix] = show_objective("star-transformer", text="a b c d").contents.matrices
    near = [[min((r - c) % 6, (c - r) % 6) <= 1 for c in range(6)] + [True] for r in range(6)]
    assert matrix.allowed == (*map(tuple, near), (True,) * 7)
    assert [cell.text for cell in matrix.rows][-2:] == ["</s>", "the relay"]
    [points] = show_objective(
        "set-transformer", text="a b", settings={"points": 5}
    ).contents.matrices
    assert points.columns[-1].text == "5 points"
    assert points.allowed[1] == (False, True, False, False, True)


def test_sampled_mode_is_described_in_words() -> None:
    masks = UniLMObjective(Vocabulary(size=SIZE), IndependentMasking(0.3))
    descriptions = [
        masks.explain(masks.view_in_modes(BATCH, torch.tensor([mode])))[0] for mode in UniLMMode
    ]
    names = ("bidirectional", "sequence to sequence", "left to right", "right to left")
    assert all(
        f": {name}," in description for name, description in zip(names, descriptions, strict=True)
    )
    swapped = show_objective("albert", seed=0).contents
    assert swapped.notes == (
        "Predicted at the first position: are the two segments in their original order? No, they "
        "are swapped (label 1).",
    )


def test_targets_from_another_text_are_labelled() -> None:
    """中国 and then 北京 of the second row: 北 is position 2 there, replaced 中 position 1 here."""
    batch = Batch.collate([[*CLEAN[:4], 3], [2, 10, 11, 12, 3]], pad=0)
    targets = torch.tensor([[IGNORED, 5, IGNORED, IGNORED, 11, IGNORED, IGNORED]] * 2)
    view = View(
        inputs=torch.tensor([[2, 9, 6, 3, 4, 12, 3]] * 2),
        lengths=torch.tensor([7, 7]),
        attention_mask=FullMask(),
        targets=targets,
        clean_positions=torch.tensor([[-1, 1, -1, -1, 2, -1, -1]] * 2),
        clean_rows=torch.tensor([[0, 0, 0, 0, 1, 1, 0]] * 2),
    )
    own, other, input_panel = view_contents(view, batch, NAMES).panels
    assert cell_styles(own, "text") == ["plain", "hidden", "plain", "plain", "plain"]
    assert cell_texts(other, "other text") == ["<s>", "是", "北", "京", "</s>"]
    assert cell_styles(other, "other text") == ["plain", "plain", "hidden", "plain", "plain"]
    assert cell_styles(input_panel, "input") == [
        "plain",
        "changed",
        "plain",
        "plain",
        "mask",
        "other",
        "plain",
    ]
    assert cell_texts(input_panel, "from position") == ["", "1", "", "", "other 2", "", ""]
