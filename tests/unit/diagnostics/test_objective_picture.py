"""A view drawn: words, colours and squares are those of the view, whatever the objective."""

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
from lmlab.objective_figures.figure_layout import (
    ALLOWED_COLOUR,
    ALLOWED_PALE_COLOUR,
    STYLE_COLOURS,
    arrange_contents,
    objective_figure_spec,
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
NO = NO_TARGET


def texts(panel: CellPanel, name: str) -> list[str]:
    return ["" if cell is None else cell.text for cell in panel.row(name).cells]


def looks(panel: CellPanel, name: str) -> list[str]:
    return ["" if cell is None else cell.style for cell in panel.row(name).cells]


def hidden(showing: ObjectiveContents) -> list[str]:
    [strip] = [s for panel in showing.panels for s in panel.rows if s.name == "text"]
    return [cell.text for cell in strip.cells if cell is not None and cell.style == "hidden"]


def drawn(showing: ObjectiveContents) -> Figure:
    picture = objective_figure_spec(showing, name="test", title="a: b")
    with canvas(picture.name, width=picture.width, height=picture.height) as figure:
        picture.draw(figure)
        return figure


def masked(places: list[int], fed: list[int]) -> View:
    """Some places asked, with other tokens fed there."""
    chosen = torch.zeros_like(TOKENS, dtype=torch.bool)
    chosen[0, places] = True
    return View(
        inputs=TOKENS.masked_scatter(chosen, torch.tensor(fed)),
        lengths=BATCH.lengths,
        attention_mask=FullMask(),
        targets=TOKENS.masked_fill(~chosen, NO),
        clean_positions=torch.arange(10)[None].masked_fill(~chosen, -1),
    )


def test_masked_words_are_hidden_and_others_are_not() -> None:
    """Of three asked words one is masked, one changed into 国 and one kept (80/10/10)."""
    showing = view_contents(masked([2, 4, 8], [4, 6, 12]), BATCH, NAMES)
    [panel] = showing.panels
    assert [strip.name for strip in panel.rows] == [
        "place", "text", "fed", "position", "target", "from place",
    ]  # fmt: skip
    assert texts(panel, "text") == [WORDS[id] for id in CLEAN]
    assert texts(panel, "fed")[2] == "<mask>"
    assert hidden(showing) == ["国", "首"]
    assert looks(panel, "fed") == ["plain"] * 2 + ["mask", "plain", "changed"] + ["plain"] * 5
    assert texts(panel, "target") == ["", "", "国", "", "首", "", "", "", "京", ""]
    assert texts(panel, "from place") == ["", "", "2", "", "4", "", "", "", "8", ""]


def test_left_to_right_hides_by_sight_alone() -> None:
    showing = view_contents(causal_view(BATCH), BATCH, NAMES)
    [panel], [matrix] = showing.panels, showing.matrices
    assert hidden(showing) == []
    # The last token is never fed: its column holds the clean text alone.
    assert texts(panel, "fed") == [*(WORDS[id] for id in CLEAN[:-1]), ""]
    assert looks(panel, "fed") == ["plain", *["answer"] * 8, ""]
    assert texts(panel, "target") == [*(WORDS[id] for id in CLEAN[1:]), ""]
    assert matrix.targets == tuple(WORDS[id] for id in CLEAN[1:])
    assert matrix.allowed == tuple(tuple(c <= r for c in range(9)) for r in range(9))


def test_two_streams_have_a_matrix_each() -> None:
    """The turns are 0 2 1 3 …: 国 is predicted before 中, and the last third is asked."""
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
        targets=TOKENS.masked_fill(~late, NO),
        clean_positions=torch.arange(10)[None].masked_fill(~late, -1),
        labels=torch.tensor([1]),
    )
    showing = view_contents(view, BATCH, NAMES)
    first, second = showing.matrices
    assert (first.name, second.name) == ("content stream", "query stream")
    assert torch.equal(torch.tensor(first.allowed), content)
    assert torch.equal(torch.tensor(second.allowed), query)
    assert first.targets == ("",) * 10
    assert second.targets == ("",) * 7 + ("北", "京", "</s>")
    # They are fed for the sake of the others, and not seen by the query that asks for them.
    assert hidden(showing) == ["北", "京", "</s>"]
    [panel] = showing.panels
    assert looks(panel, "fed")[-3:] == ["answer"] * 3
    assert texts(panel, "turn") == ["0", "2", "1", "3", "4", "5", "6", "7", "8", "9"]
    assert texts(panel, "segment") == ["0"] * 4 + ["1"] * 6
    assert showing.notes == ("Label of the whole text: 1.",)


def blanks() -> View:
    """首都 and 京 taken out and written again after the text, as GLM does; ids 13, 14 its own."""
    fed = [2, 5, 6, 7, 4, 10, 11, 4, 3, 13, 12, 13, 8, 9]
    size, given = len(fed), 9
    sight = torch.zeros(size, size, dtype=torch.bool)
    sight[:, :given] = True
    sight[given:, given:] = torch.ones(size - given, size - given).tril().bool()
    pairs = [(place, 0) for place in range(given)] + [(7, 1), (7, 2), (4, 1), (4, 2), (4, 3)]
    return View(
        inputs=torch.tensor([fed]),
        lengths=torch.tensor([size]),
        attention_mask=ExplicitMask(sight[None]),
        positions=torch.tensor([pairs]),
        targets=torch.tensor([[NO] * given + [12, 14, 8, 9, 14]]),
        clean_positions=torch.tensor([[-1] * given + [8, -1, 4, 5, -1]]),
    )


def test_blanks_that_are_written_again_are_hidden() -> None:
    showing = view_contents(blanks(), BATCH, NAMES)
    text, view = showing.panels
    assert hidden(showing) == ["首", "都", "京"]
    assert [strip.name for strip in text.rows] == ["place", "text"]
    assert texts(view, "fed")[9:] == ["⟨1⟩", "京", "⟨1⟩", "首", "都"]
    assert looks(view, "fed")[9:] == ["mask", "answer", "mask", "answer", "answer"]
    assert texts(view, "position 1") == [*"012345678", *"77444"]
    assert texts(view, "position 2") == [*"000000000", *"12123"]
    assert texts(view, "target")[9:] == ["京", "⟨2⟩", "首", "都", "⟨2⟩"]


def test_symbols_of_an_objective_have_its_names() -> None:
    named = TokenNames(
        token=WORDS.__getitem__, vocabulary=Vocabulary(size=SIZE), symbols={13: "[S]"}
    )
    _, view = view_contents(blanks(), BATCH, named).panels
    assert texts(view, "fed")[9:] == ["[S]", "京", "[S]", "首", "都"]


def spans() -> View:
    """的首 and 北京 dropped, each for a sentinel, and written by a decoder, as T5 does."""
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


def test_encoder_and_decoder_have_their_own_rows_and_three_matrices() -> None:
    showing = view_contents(spans(), BATCH, NAMES)
    text, encoder, decoder = showing.panels
    assert (text.name, encoder.name, decoder.name) == ("", "encoder", "decoder")
    assert hidden(showing) == ["的", "首", "北", "京"]
    assert texts(encoder, "fed") == ["<s>", "中", "国", "⟨1⟩", "都", "是", "⟨2⟩", "</s>"]
    assert [s.name for s in encoder.rows] == ["fed", "position"]
    assert looks(decoder, "fed") == [
        "plain", "mask", "answer", "answer", "mask", "answer", "answer", "mask",
    ]  # fmt: skip
    own, writes, across = showing.matrices
    assert all(map(all, own.allowed)) and all(map(all, across.allowed))
    assert writes.allowed == tuple(tuple(c <= r for c in range(8)) for r in range(8))
    assert across.targets == ("⟨1⟩", "的", "首", "⟨2⟩", "北", "京", "⟨3⟩", "</s>")
    assert [cell.text for cell in across.columns] == texts(encoder, "fed")
    assert (across.show_targets, writes.show_targets) == (True, False)


def test_an_encoder_that_is_asked_too_hides_its_own() -> None:
    """国 masked in an encoder that fills it in, 北京 left to a decoder, as PALM does.

    Origins are told at every place of the encoder; only where something is asked do they count.
    """
    asked = torch.tensor([[NO, NO, 6, NO, NO, NO, NO, NO]])
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
        targets=asked,
        clean_positions=torch.arange(8)[None],
        decoder=decoder,
    )
    showing = view_contents(view, BATCH, NAMES)
    assert hidden(showing) == ["国", "北", "京"]
    encoder = showing.panels[1]
    assert texts(encoder, "from place") == ["", "", "2", "", "", "", "", ""]
    assert showing.matrices[0].targets == ("", "", "国", "", "", "", "", "")


def test_a_source_is_no_part_of_the_text() -> None:
    """A translator: the encoder reads 北京, which the text has as well, and nothing is hidden."""
    source = Batch.collate([[2, 11, 12, 3]], pad=0)
    batch = Batch.collate([CLEAN], pad=0, condition=source)
    view = View(
        inputs=source.tokens,
        lengths=source.lengths,
        attention_mask=FullMask(),
        decoder=causal_view(batch),
    )
    showing = view_contents(view, batch, NAMES)
    encoder, decoder = showing.panels
    assert hidden(showing) == []
    assert texts(encoder, "fed") == ["<s>", "北", "京", "</s>"]
    assert texts(decoder, "text")[1:4] == ["中", "国", "的"]


def test_words_that_changed_places_are_still_the_texts_own() -> None:
    """Two halves exchanged (BART): every word is shown, none hidden, none foreign."""
    view = View(
        inputs=torch.tensor([[2, 10, 11, 12, 5, 6, 7, 8, 9, 3]]),
        lengths=BATCH.lengths,
        attention_mask=FullMask(),
        decoder=causal_view(BATCH),
    )
    showing = view_contents(view, BATCH, NAMES)
    assert hidden(showing) == []
    assert set(looks(showing.panels[1], "fed")) == {"plain"}


def test_words_of_another_text_are_told_apart() -> None:
    """中国 and then 北京 of the second row; a target from there is not the first row's place 2."""
    batch = Batch.collate([[*CLEAN[:4], 3], [2, 10, 11, 12, 3]], pad=0)
    view = View(
        inputs=torch.tensor([[2, 5, 6, 3, 11, 12, 3]] * 2),
        lengths=torch.tensor([7, 7]),
        attention_mask=FullMask(),
        segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1]] * 2),
        targets=torch.tensor([[NO, NO, NO, NO, 11, NO, NO]] * 2),
        clean_positions=torch.tensor([[-1, -1, -1, -1, 2, -1, -1]] * 2),
    )
    showing = view_contents(view, batch, NAMES)
    assert looks(showing.panels[1], "fed")[3:6] == ["plain", "other", "other"]
    assert hidden(showing) == []


def test_weights_are_told_where_they_differ() -> None:
    view = causal_view(BATCH)
    weights = torch.ones_like(view.inputs, dtype=torch.float)
    weights[0, 3] = 0.25
    told = View(
        inputs=view.inputs, lengths=view.lengths, attention_mask=CausalMask(), targets=view.targets,
        clean_positions=view.clean_positions, weights=weights,
    )  # fmt: skip
    [panel] = view_contents(told, BATCH, NAMES).panels
    assert texts(panel, "weight")[2:5] == ["1", "0.25", "1"]


def test_vectors_are_numbered() -> None:
    view = View(
        inputs=torch.zeros(1, 3, 7),
        lengths=torch.tensor([3]),
        attention_mask=FullMask(),
        labels=torch.tensor([4]),
    )
    showing = view_contents(view, BATCH, NAMES)
    assert texts(showing.panels[-1], "fed") == ["patch 1", "patch 2", "patch 3"]
    assert showing.notes == ("Label of the whole text: 4.",)


def test_every_look_has_its_own_colour_in_the_drawing() -> None:
    showing = view_contents(masked([2, 4, 8], [4, 6, 12]), BATCH, NAMES)
    axes = drawn(showing).axes[0]
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    for look, count in (("hidden", 2), ("mask", 1), ("changed", 1), ("target", 3)):
        ground, rim = STYLE_COLOURS[look]
        found = [box for box in boxes if same_color(box.get_facecolor(), ground)]
        # One more in the legend.
        assert len(found) == count + 1
        assert all(same_color(box.get_edgecolor(), rim) for box in found)
    grounds = {STYLE_COLOURS[look][0] for look in ("hidden", "mask", "changed", "other", "target")}
    assert len(grounds) == 5


def test_squares_are_the_visibility() -> None:
    """9 · 10 / 2 = 45 squares of 81 are seen by a causal text of nine inputs."""
    sheet = arrange_contents(view_contents(causal_view(BATCH), BATCH, NAMES), title="a: b")
    assert len(sheet.squares["unseen"]) == 36
    assert len(sheet.squares["sees"]) == 45 + 1  # and one in the legend
    assert "sees pale" not in sheet.squares
    filled = {(x, y) for x, y, side in sheet.squares["sees"] if side != 0.2}
    empty = {(x, y) for x, y, _ in sheet.squares["unseen"]}
    rows = sorted({y for _, y in filled | empty})
    columns = sorted({x for x, _ in filled | empty})
    seen = torch.tensor([[(x, y) in filled for x in columns] for y in rows])
    assert torch.equal(seen, CausalMask().mask(torch.tensor([9]), 9)[0])


def test_rows_where_nothing_is_asked_are_pale() -> None:
    showing = view_contents(masked([2], [4]), BATCH, NAMES)
    axes = drawn(showing).axes[0]
    counts = {each.get_label(): len(each.get_offsets()) for each in axes.collections}
    assert counts == {"sees": 10 + 1, "sees pale": 90 + 1}
    colours = {each.get_label(): each.get_facecolor()[0] for each in axes.collections}
    assert same_color(colours["sees"], ALLOWED_COLOUR)
    assert same_color(colours["sees pale"], ALLOWED_PALE_COLOUR)


def test_nothing_stands_on_anything_else() -> None:
    sheet = arrange_contents(view_contents(spans(), BATCH, NAMES), title="a: b", note="c")
    boxes = sorted(sheet.boxes, key=lambda box: (box.top, box.left))
    for one, two in pairwise(boxes):
        same_line = one.top == two.top
        assert not same_line or one.left + one.width <= two.left + 1e-9
    assert max(box.left + box.width for box in boxes) <= sheet.width
    assert max(box.top + box.height for box in boxes) <= sheet.height


def test_a_long_text_goes_on_below() -> None:
    batch = Batch.collate([[2, *[5, 6, 7, 8] * 13, 3]], pad=0)
    sheet = arrange_contents(view_contents(causal_view(batch), batch, NAMES), title="a: b")
    assert sheet.width < 13
    shown = [words for words in sheet.words if words.text == "text"]
    assert len(shown) == 2


def test_the_svg_is_xml_with_its_words_and_the_same_every_time() -> None:
    showing = view_contents(masked([2], [4]), BATCH, NAMES)
    first, second = (
        render_figure(objective_figure_spec(showing, name="test", title="a: b")) for _ in range(2)
    )
    assert first == second
    root = ElementTree.fromstring(first.svg)
    written = [text for node in root.iter() if (text := (node.text or "").strip())]
    # 国 in the text and as a target, and beside its row after an arrow.
    assert written.count("国") == 2
    assert "→ 国" in written
    assert first.png.startswith(b"\x89PNG")


def test_a_system_of_the_zoo_is_shown_by_name() -> None:
    shown = show_objective("gpt", text="中国 has a wall")
    [panel] = shown.contents.panels
    assert texts(panel, "text") == ["<s>", "中", "国", "has", "a", "wall", "</s>"]
    assert not shown.random
    assert "prefers-color-scheme: dark" in shown.svg
    assert shown.card.name == "gpt"


def test_a_seed_is_kept_to_and_without_one_something_is_asked() -> None:
    first, again = (show_objective("bert", text="a b c d e f", seed=5) for _ in range(2))
    assert first.contents == again.contents and first.seed == 5 and first.random
    assert torch.equal(first.view.inputs, again.view.inputs)
    found = show_objective("bert", text="a b c")
    assert found.view.targets is not None
    assert bool((found.view.targets[0] != NO).any())


def test_settings_change_the_objective() -> None:
    """Nine tenths of sixty tokens: fewer than half hidden has a chance below 1e-15."""
    text = " ".join(f"w{place}" for place in range(60))
    shown = show_objective("roberta", text=text, seed=0, settings={"rate": "0.9"})
    assert shown.view.targets is not None
    assert int((shown.view.targets[0] != NO).sum()) > 30


def test_a_translator_is_shown_with_a_source() -> None:
    encoder, decoder = show_objective("transformer").contents.panels
    assert texts(encoder, "fed")[1:3] == ["le", "chat"]
    assert texts(decoder, "text")[1:3] == ["the", "cat"]
    told = show_objective("transformer", text="a dog", condition="ein Hund").contents
    assert texts(told.panels[0], "fed") == ["<s>", "ein", "Hund", "</s>"]


@pytest.mark.parametrize("name", ["lstm", "hmm", "ngram", "gru-autoencoder", "parent"])
def test_other_families_have_views_too(name: str) -> None:
    shown = show_objective(name, text="a b a")
    [panel], [matrix] = shown.contents.panels, shown.contents.matrices
    assert texts(panel, "text") == ["<s>", "a", "b", "a", "</s>"]
    assert [word for word in texts(panel, "target") if word] == ["a", "b", "a", "</s>"]
    time = shown.view.inputs.shape[1]
    mask = shown.view.attention_mask.mask(shown.view.lengths, time)[0]
    length = int(shown.view.lengths[0])
    assert torch.equal(torch.tensor(matrix.allowed), mask[:length, :length])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"system": "pcfg"}, "it gives a probability to the text as a whole"),
        ({"system": "gpt", "text": " "}, "must have at least one word"),
        ({"system": "gpt", "text": "a " * 80}, "room for 64 tokens, got 82"),
        ({"system": "gpt", "condition": "a"}, "--condition does not apply to gpt"),
        ({"system": "gpt", "settings": {"layer": "3"}}, "did you mean 'layers'"),
        ({"system": "gtp"}, "did you mean"),
    ],
)
def test_what_can_not_be_shown_is_told_in_a_sentence(arguments: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        show_objective(**arguments)


def test_chinese_letters_stand_by_themselves() -> None:
    assert space_words("中国的 capital 是北京。") == "中 国 的 capital 是 北 京 。"


def test_an_image_is_drawn_as_it_is_cut_and_read_by_one_stack() -> None:
    """The built-in 3: 64 pixels whole, 16 patches of four; <s> and the patches see each other."""
    shown = show_objective("vit")
    image, patches, text = shown.contents.panels
    [whole] = image.row("given").cells
    fed = patches.row("fed").cells
    assert whole is not None and len(fed) == 16
    # 13 and 15 stand below each other, and 15 is the highest number, which is 1.
    assert [row[4] for row in whole.pixels[:2]] == pytest.approx([2 * 13 / 15 - 1, 1])
    assert all(cell is not None for cell in fed)
    assert [cell.pixels[1] for cell in fed if cell][1] == whole.pixels[1][2:4]
    assert texts(patches, "position") == [str(place) for place in range(1, 17)]
    assert texts(text, "position") == ["0", "17", ""]
    [matrix] = shown.contents.matrices
    assert matrix.targets == ("three", *[""] * 16, "</s>")
    expected = [[True] * 17 + [row == 17] for row in range(18)]
    assert torch.equal(torch.tensor(matrix.allowed), torch.tensor(expected))
    sheet = arrange_contents(shown.contents, title="a: b")
    assert len(sheet.pixels) == 64 + 16 * 4
    assert sorted({round(grey, 3) for *_, grey in sheet.pixels})[0] == 0


def test_spans_are_hidden_without_a_seed_and_asked_from_around() -> None:
    """Seed 0 keeps its span, as one in ten is; so another is drawn."""
    kept = show_objective("spanbert", seed=0).contents
    assert hidden(kept) == []
    shown = show_objective("spanbert").contents
    [panel] = shown.panels
    places = [int(place) for place in texts(panel, "from place") if place]
    first, last = places[0], places[-1]
    assert places == list(range(first, last + 1)) and len(hidden(shown)) == len(places)
    around = [cell for cell in texts(panel, "from around") if cell]
    assert around == [f"{first - 1}, {last + 1}"] * len(places)
    own, again = shown.matrices
    assert [word for word in own.targets if word] == list(again.targets)
    for row in again.allowed:
        assert [place for place, read in enumerate(row) if read] == [first - 1, last + 1]


def test_words_in_pieces_are_hidden_whole() -> None:
    shown = show_objective("bert-wwm").contents
    fed = texts(shown.panels[-1], "fed")
    assert fed[:4] == ["<s>", "<mask>", "<mask>", "<mask>"] and fed[4:6] == ["kitten", "##s"]
    assert hidden(shown)[:3] == ["un", "##happ", "##y"]


def test_mentions_have_their_names() -> None:
    [panel] = show_objective("ernie", settings={"mentions": "countries"}).contents.panels
    named = texts(panel, "mention")
    assert named[4:6] == ["New Zealand", "New Zealand"] and named[9] == "Paris"


def test_a_layer_that_looks_at_less_shows_whom_it_looks_at() -> None:
    """A word of a star sees its neighbours on the ring, itself and the relay, which sees all."""
    [matrix] = show_objective("star-transformer", text="a b c d").contents.matrices
    near = [[min((r - c) % 6, (c - r) % 6) <= 1 for c in range(6)] + [True] for r in range(6)]
    assert matrix.allowed == (*map(tuple, near), (True,) * 7)
    assert [cell.text for cell in matrix.rows][-2:] == ["</s>", "the relay"]
    [points] = show_objective(
        "set-transformer", text="a b", settings={"points": 5}
    ).contents.matrices
    assert points.columns[-1].text == "5 points"
    assert points.allowed[1] == (False, True, False, False, True)


def test_what_was_drawn_is_said_in_words() -> None:
    masks = UniLMObjective(Vocabulary(size=SIZE), IndependentMasking(0.3))
    said = [
        masks.explain(masks.view_in_modes(BATCH, torch.tensor([mode])))[0] for mode in UniLMMode
    ]
    names = ("bidirectional", "sequence to sequence", "left to right", "right to left")
    assert all(f": {name}," in told for name, told in zip(names, said, strict=True))
    swapped = show_objective("albert", seed=0).contents
    assert swapped.notes == (
        "Predicted at the first position: are the two segments in their original order? No, they "
        "are swapped (label 1).",
    )


def test_what_comes_of_another_text_says_so() -> None:
    """中国 and then 北京 of the second row: 北 is place 2 there, and 中 changed is place 1 here."""
    batch = Batch.collate([[*CLEAN[:4], 3], [2, 10, 11, 12, 3]], pad=0)
    asked = torch.tensor([[NO, 5, NO, NO, 11, NO, NO]] * 2)
    view = View(
        inputs=torch.tensor([[2, 9, 6, 3, 4, 12, 3]] * 2),
        lengths=torch.tensor([7, 7]),
        attention_mask=FullMask(),
        targets=asked,
        clean_positions=torch.tensor([[-1, 1, -1, -1, 2, -1, -1]] * 2),
        clean_rows=torch.tensor([[0, 0, 0, 0, 1, 1, 0]] * 2),
    )
    own, other, fed = view_contents(view, batch, NAMES).panels
    assert looks(own, "text") == ["plain", "hidden", "plain", "plain", "plain"]
    assert texts(other, "other text") == ["<s>", "是", "北", "京", "</s>"]
    assert looks(other, "other text") == ["plain", "plain", "hidden", "plain", "plain"]
    assert looks(fed, "fed") == ["plain", "changed", "plain", "plain", "mask", "other", "plain"]
    assert texts(fed, "from place") == ["", "1", "", "", "other 2", "", ""]
