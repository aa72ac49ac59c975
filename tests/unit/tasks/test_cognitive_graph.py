"""The cognitive graph (CogQA): expansion, paths, training examples and figures."""

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
from lmlab.layers.span_pointers import CogQAConfig, PointedSpan
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


class ScriptedReader:
    """A reader that extracts the given words wherever a paragraph has them."""

    def __init__(self, hops=(), answers=(), **settings):
        self.hops, self.answers = set(hops), set(answers)
        self.settings = CogQAConfig(**settings)
        self.inputs: list[str] = []

    def extract(self, inputs):
        return [self._extract_one(each) for each in inputs]

    def _extract_one(self, tokens):
        words = [TOKENIZER.token(token) for token in tokens]
        self.inputs.append(" ".join(words))
        first = [position for position, word in enumerate(words) if word == "</s>"][1]

        def spans(names):
            return [
                PointedSpan(first=position, last=position, probability=0.5)
                for position in range(first, len(words))
                if words[position] in names
            ]

        return ExtractedSpans(
            hops=spans(self.hops),
            answers=spans(self.answers),
            no_answer_probability=0.5,
            semantics=torch.tensor([float(len(self.inputs))]),
        )


def question(**changes):
    fields = {"text": ROW["question"], "start": ("axle",), "paragraphs": PARAGRAPHS, **changes}
    return MultihopQuestion(**fields)


def test_node_is_encoded_with_question_and_clues():
    reader = ScriptedReader(hops={"wheel"})
    [expanded] = expand_graphs(reader, ENCODER, [question()])
    prefix = "<s> what is the kind of the whole of axle ? </s>"
    assert reader.inputs == [
        f"{prefix} </s> {PARAGRAPHS['axle']} </s>",
        f"{prefix} the whole of it is wheel . </s> {PARAGRAPHS['wheel']} </s>",
    ]
    assert [node.name for node in expanded.graph.nodes] == ["axle", "wheel"]


def test_answer_nodes_are_encoded_but_not_expanded():
    reader = ScriptedReader(hops={"wheel"}, answers={"machine", "rod"})
    [expanded] = expand_graphs(reader, ENCODER, [question()])
    assert expanded.graph.steps() == (("axle", "wheel"), ("wheel", "machine"))
    assert reader.inputs[-1].endswith("</s> it is a kind of machine . </s> </s>")
    assert expanded.semantics.flatten().tolist() == [1.0, 2.0, 3.0]


def test_new_edge_to_existing_node_re_encodes_it():
    """wheel names axle, from which it was reached: axle is encoded again with that clue."""
    reader = ScriptedReader(hops={"wheel", "axle"})
    [expanded] = expand_graphs(reader, ENCODER, [question()])
    assert set(expanded.graph.links) == {(0, 1), (1, 0)}
    assert len(reader.inputs) == 3
    assert "a part of wheel is axle . </s> axle is a kind" in reader.inputs[2]
    assert expanded.semantics.flatten().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_graph_size_is_limited(limit):
    reader = ScriptedReader(hops={"wheel", "shaft", "rod", "machine"}, max_graph_nodes=limit)
    [expanded] = expand_graphs(reader, ENCODER, [question()])
    assert len(expanded.graph) == limit
    assert expanded.semantics.shape == (limit, 1)


def test_batched_expansion_equals_single_expansion():
    questions = [question(), question(start=("wheel",)), question(start=("axle", "shaft"))]
    batched = expand_graphs(
        ScriptedReader(hops={"wheel", "rod"}, answers={"machine"}), ENCODER, questions
    )
    for single_question, expanded in zip(questions, batched, strict=True):
        [alone] = expand_graphs(
            ScriptedReader(hops={"wheel", "rod"}, answers={"machine"}), ENCODER, [single_question]
        )
        assert alone.graph.as_dict() == expanded.graph.as_dict()


def test_overlong_question_is_reported():
    short = NodeEncoder(TOKENIZER, TOKENIZER.vocabulary, 12)
    with pytest.raises(
        UserError, match="the question has 10 tokens, and this system takes at most 12"
    ):
        expand_graphs(ScriptedReader(), short, [question()])


def test_paragraphs_are_truncated_before_clues():
    """1 + 10 + 3 of 24 tokens leave 10: half of them at least are the paragraph's."""
    short = NodeEncoder(TOKENIZER, TOKENIZER.vocabulary, 24)
    encoded = short(ROW["question"], "wheel " * 3, PARAGRAPHS["axle"])
    assert len(encoded.tokens) == 24 and encoded.truncated
    assert sum(low < high for low, high in encoded.spans) == 7
    encoded = short(ROW["question"], "wheel " * 30, PARAGRAPHS["axle"])
    assert sum(low < high for low, high in encoded.spans) == 5


def test_gold_graph_span_labels():
    """axle: a hop to wheel; wheel: the answer; shaft: nothing, so position 0."""
    row = MultihopRow.from_row(ROW)
    examples, cut = span_examples([row], ENCODER)
    assert cut == 0
    label_words = []
    for each in examples:
        words = [TOKENIZER.token(token) for token in each.input.tokens]
        label_words.append(
            [[words[position] for position in positions] for positions in each.labels]
        )
    assert label_words == [
        [["wheel"], ["wheel"], ["<s>"], ["<s>"]],
        [["<s>"], ["<s>"], ["machine"], ["machine"]],
        [["<s>"], ["<s>"], ["<s>"], ["<s>"]],
    ]


def test_gold_graph_includes_negative_answer_nodes():
    graph = gold_graph(MultihopRow.from_row(ROW))
    assert [graph.nodes[node].name for node in graph.answers()] == ["machine", "shaft"]
    example = graph_example(MultihopRow.from_row(ROW), ENCODER)
    assert example.candidates[example.target] == graph.node_index("machine", answer=True)


def test_expanded_graph_without_answer_gives_no_example():
    [expanded] = expand_graphs(ScriptedReader(hops={"wheel"}), ENCODER, [question()])
    assert graph_example(MultihopRow.from_row(ROW), ENCODER, expanded) is None


def test_best_path_has_the_highest_probability():
    """0 → 2 by 0.3 or over 1 by 0.8 · 0.5 = 0.4."""
    graph = CognitiveGraph()
    for name, start in (("a", True), ("b", False), ("c", False)):
        graph.add(name, start=start)
    graph.connect(0, 2, "", 0.3)
    graph.connect(0, 1, "", 0.8)
    graph.connect(1, 2, "", 0.5)
    assert graph.best_path(2) == (("a", "b"), ("b", "c"))
    assert graph.best_path(0) == ()


def test_path_is_right_only_if_all_gold_steps_match():
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
def test_question_kind_is_inferred_from_wording(text, start, kind):
    assert question_kind(text, start) == kind


def test_start_entities_are_found_in_the_question():
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
    ("change", "message"),
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
def test_invalid_rows_are_reported(change, message):
    with pytest.raises(UserError, match=message):
        MultihopRowChecker().check_row({**ROW, **change})


def test_cognitive_graph_figure_is_written(tmp_path):
    [expanded] = expand_graphs(
        ScriptedReader(hops={"wheel", "shaft"}, answers={"machine"}), ENCODER, [question()]
    )
    positions = layout_graph(expanded.graph)
    assert [column for column, _ in positions] == [0, 1, 1, 2]
    assert len(set(positions)) == len(positions)
    answer = MultihopAnswer(
        question=ROW["question"],
        answer="machine",
        kind="special",
        probability=1.0,
        path=(("axle", "wheel"), ("wheel", "machine")),
        graph=expanded.graph,
        evidence=(),
    )
    [file] = write_cognitive_graphs([answer], tmp_path / "graph.svg")
    svg = file.read_text(encoding="utf-8")
    assert svg.startswith("<svg") and all(f">{n.name}<" in svg for n in expanded.graph.nodes)
    with pytest.raises(UserError, match=r"must end in \.svg or "):
        write_cognitive_graphs([answer], tmp_path / "graph.jpg")


def test_only_answer_path_edges_are_highlighted():
    """wheel is an entity on the path and a candidate answer too; the path uses the entity."""
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
