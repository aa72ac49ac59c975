"""The cognitive graph: how it grows, what leads where, what is trained of it."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import train_tokenizer
from lmlab.inspection.cognitive_graph_figure import (
    answer_path_edges,
    layout_graph,
    write_cognitive_graphs,
)
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.layers.span_pointers import PointedSpan
from lmlab.models.cogqa import ExtractedSpans
from lmlab.tasks.multihop.answer_selection import MultihopAnswer, path_is_right
from lmlab.tasks.multihop.cognitive_graph import CognitiveGraph, NodeEncoder
from lmlab.tasks.multihop.graph_examples import gold_graph, graph_example, span_examples
from lmlab.tasks.multihop.graph_expansion import expand_graphs
from lmlab.tasks.multihop.multihop_rows import (
    MultihopQuestion,
    MultihopRow,
    MultihopRowChecker,
    question_kind,
)
from lmlab.tasks.multihop.paragraph_store import common_names, start_entities

PARAGRAPHS = {
    "axle": "axle is a kind of shaft . the whole of it is wheel . it turns .",
    "wheel": "a part of wheel is axle . it is a kind of machine . it is round .",
    "shaft": "shaft is a kind of rod .",
}
ROW = {
    "question": "what is the kind of the whole of axle ?",
    "start": ["axle"],
    "answer": "machine",
    "path": [["axle", "wheel"], ["wheel", "machine"]],
    "irrelevant": [["axle", "shaft"]],
    "paragraphs": PARAGRAPHS,
}
TOKENIZER = train_tokenizer("word", [ROW["question"], *PARAGRAPHS.values()])
ENCODER = NodeEncoder(TOKENIZER, TOKENIZER.vocabulary, 64)


class Scripted:
    """A reader that finds what it is told to, by the words of a paragraph."""

    def __init__(self, hops=(), answers=(), **settings):
        self.hops, self.answers = set(hops), set(answers)
        self.settings = CogQAConfig(**settings)
        self.read: list[str] = []

    def extract(self, inputs):
        return [self._found(each) for each in inputs]

    def _found(self, read):
        words = [TOKENIZER.token(token) for token in read]
        self.read.append(" ".join(words))
        first = [place for place, word in enumerate(words) if word == "</s>"][1]

        def spans(names):
            return [
                PointedSpan(first=place, last=place, probability=0.5)
                for place in range(first, len(words))
                if words[place] in names
            ]

        return ExtractedSpans(
            hops=spans(self.hops),
            answers=spans(self.answers),
            no_answer_probability=0.5,
            semantics=torch.tensor([float(len(self.read))]),
        )


def question(**changes):
    told = {"text": ROW["question"], "start": ("axle",), "paragraphs": PARAGRAPHS, **changes}
    return MultihopQuestion(**told)


def test_a_node_is_read_with_the_question_and_the_clues():
    reader = Scripted(hops={"wheel"})
    [grown] = expand_graphs(reader, ENCODER, [question()])
    asked = "<s> what is the kind of the whole of axle ? </s>"
    assert reader.read == [
        f"{asked} </s> {PARAGRAPHS['axle']} </s>",
        f"{asked} the whole of it is wheel . </s> {PARAGRAPHS['wheel']} </s>",
    ]
    assert [node.name for node in grown.graph.nodes] == ["axle", "wheel"]


def test_answers_are_read_but_lead_nowhere_and_the_unknown_have_empty_paragraphs():
    reader = Scripted(hops={"wheel"}, answers={"machine", "rod"})
    [grown] = expand_graphs(reader, ENCODER, [question()])
    assert grown.graph.steps() == (("axle", "wheel"), ("wheel", "machine"))
    assert reader.read[-1].endswith("</s> it is a kind of machine . </s> </s>")
    assert grown.semantics.flatten().tolist() == [1.0, 2.0, 3.0]


def test_a_new_link_to_a_known_node_makes_it_read_again():
    """wheel names axle, from which it was reached: axle is read a second time, with that clue."""
    reader = Scripted(hops={"wheel", "axle"})
    [grown] = expand_graphs(reader, ENCODER, [question()])
    assert set(grown.graph.links) == {(0, 1), (1, 0)}
    assert len(reader.read) == 3
    assert "a part of wheel is axle . </s> axle is a kind" in reader.read[2]
    assert grown.semantics.flatten().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_graph_that_is_large_enough_grows_no_more(limit):
    reader = Scripted(hops={"wheel", "shaft", "rod", "machine"}, max_graph_nodes=limit)
    [grown] = expand_graphs(reader, ENCODER, [question()])
    assert len(grown.graph) == limit
    assert grown.semantics.shape == (limit, 1)


def test_graphs_grow_side_by_side_as_they_do_alone():
    questions = [question(), question(start=("wheel",)), question(start=("axle", "shaft"))]
    together = expand_graphs(
        Scripted(hops={"wheel", "rod"}, answers={"machine"}), ENCODER, questions
    )
    for asked, grown in zip(questions, together, strict=True):
        [alone] = expand_graphs(
            Scripted(hops={"wheel", "rod"}, answers={"machine"}), ENCODER, [asked]
        )
        assert alone.graph.as_dict() == grown.graph.as_dict()


def test_a_question_longer_than_the_window_is_told():
    short = NodeEncoder(TOKENIZER, TOKENIZER.vocabulary, 12)
    with pytest.raises(
        UserError, match="the question has 10 tokens, and this system takes at most 12"
    ):
        expand_graphs(Scripted(), short, [question()])


def test_too_long_paragraphs_are_cut_before_clues():
    """1 + 10 + 3 of 24 tokens leave 10: half of them at least are the paragraph's."""
    short = NodeEncoder(TOKENIZER, TOKENIZER.vocabulary, 24)
    read = short(ROW["question"], "wheel " * 3, PARAGRAPHS["axle"])
    assert len(read.tokens) == 24 and read.truncated
    assert sum(low < high for low, high in read.spans) == 7
    read = short(ROW["question"], "wheel " * 30, PARAGRAPHS["axle"])
    assert sum(low < high for low, high in read.spans) == 5


def test_right_spans_of_the_right_graph():
    """axle: a hop to wheel; wheel: the answer; shaft: nothing, so place 0."""
    row = MultihopRow.from_row(ROW)
    examples, cut = span_examples([row], ENCODER)
    assert cut == 0
    found = []
    for each in examples:
        words = [TOKENIZER.token(token) for token in each.input.tokens]
        found.append([[words[place] for place in places] for places in each.labels])
    assert found == [
        [["wheel"], ["wheel"], ["<s>"], ["<s>"]],
        [["<s>"], ["<s>"], ["machine"], ["machine"]],
        [["<s>"], ["<s>"], ["<s>"], ["<s>"]],
    ]


def test_the_right_graph_has_wrong_answers_too():
    graph = gold_graph(MultihopRow.from_row(ROW))
    assert [graph.nodes[place].name for place in graph.answers()] == ["machine", "shaft"]
    example = graph_example(MultihopRow.from_row(ROW), ENCODER)
    assert example.candidates[example.target] == graph.node_index("machine", answer=True)


def test_a_grown_graph_without_the_answer_teaches_nothing():
    [grown] = expand_graphs(Scripted(hops={"wheel"}), ENCODER, [question()])
    assert graph_example(MultihopRow.from_row(ROW), ENCODER, grown) is None


def test_the_likeliest_way():
    """0 → 2 by 0.3 or over 1 by 0.8 · 0.5 = 0.4."""
    graph = CognitiveGraph()
    for name, start in (("a", True), ("b", False), ("c", False)):
        graph.add(name, start=start)
    graph.connect(0, 2, "", 0.3)
    graph.connect(0, 1, "", 0.8)
    graph.connect(1, 2, "", 0.5)
    assert graph.best_path(2) == (("a", "b"), ("b", "c"))
    assert graph.best_path(0) == ()


def test_a_path_is_right_if_it_leads_all_the_way_by_right_steps():
    row = MultihopRow.from_row(ROW)
    assert path_is_right(row, [("axle", "wheel"), ("wheel", "Machine")])
    assert not path_is_right(row, [("axle", "wheel")])
    assert not path_is_right(row, [("axle", "machine")])
    assert not path_is_right(row, [])


@pytest.mark.parametrize(
    ("text", "start", "kind"),
    [
        ("what is the kind of axle or so ?", ["axle"], "special"),
        ("which is a kind of rod , shaft or wheel ?", ["shaft", "wheel"], "alternative"),
        ("Are shaft and wheel both a kind of rod ?", ["shaft", "wheel"], "yes-no"),
    ],
)
def test_kinds_of_questions_by_their_words(text, start, kind):
    assert question_kind(text, start) == kind


def test_entities_to_begin_from():
    names = {name: name for name in ("axle", "wheel", "kind", "spoke wheel")}
    assert start_entities("What is the kind of Axle?", names, ["kind"]) == ("axle",)
    assert start_entities("which is a kind , axle or spoke wheel ?", names, []) == (
        "axle",
        "spoke wheel",
    )
    rows = [
        {"question": f"what is the kind of {name} ?", "start": [name]}
        for name in ("axle", "wheel", "rod")
    ]
    assert common_names(rows, names) == ["kind"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": []}, "start must be a list"),
        ({"path": [["axle"]]}, "path must be a list of \\[from, to\\]"),
        ({"path": [["axle", "machine"]]}, "paragraph of 'axle' does not name 'machine'"),
        ({"path": [["wheel", "machine"]]}, "no hop of the path leads to 'wheel'"),
        ({"answer": "rod"}, "leads to the answer 'rod'"),
        ({"paragraphs": ["axle"]}, "paragraphs must be an object"),
        ({"question": " "}, "question must be a text"),
    ],
)
def test_bad_rows_are_told(change, told):
    with pytest.raises(UserError, match=told):
        MultihopRowChecker().check_row({**ROW, **change})


def test_the_graph_is_drawn(tmp_path):
    [grown] = expand_graphs(
        Scripted(hops={"wheel", "shaft"}, answers={"machine"}), ENCODER, [question()]
    )
    places = layout_graph(grown.graph)
    assert [column for column, _ in places] == [0, 1, 1, 2]
    assert len(set(places)) == len(places)
    answer = MultihopAnswer(
        question=ROW["question"],
        answer="machine",
        kind="special",
        probability=1.0,
        path=(("axle", "wheel"), ("wheel", "machine")),
        graph=grown.graph,
        evidence=(),
    )
    [file] = write_cognitive_graphs([answer], tmp_path / "graph.svg")
    drawn = file.read_text(encoding="utf-8")
    assert drawn.startswith("<svg") and all(f">{n.name}<" in drawn for n in grown.graph.nodes)
    with pytest.raises(UserError, match=r"must end in \.svg or \.png"):
        write_cognitive_graphs([answer], tmp_path / "graph.pdf")


def test_only_links_of_the_path_are_marked():
    """wheel is an entity on the way and a candidate answer too; the way goes by the entity."""
    graph = CognitiveGraph()
    axle, wheel = graph.add("axle", start=True), graph.add("wheel")
    wrong, machine = graph.add("wheel", answer=True), graph.add("machine", answer=True)
    for step in ((axle, wheel), (axle, wrong), (wheel, machine)):
        graph.connect(*step, "", 0.5)
    answer = MultihopAnswer(
        question="what is the kind of the whole of axle ?",
        answer="machine",
        kind="special",
        probability=1.0,
        path=(("axle", "wheel"), ("wheel", "machine")),
        graph=graph,
        evidence=(),
    )
    assert answer_path_edges(answer) == {(axle, wheel), (wheel, machine)}
