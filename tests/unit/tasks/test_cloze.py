"""Classification as cloze, and task prefixes of generation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.cloze_classifier import ClozeClassifier
from lmlab.tasks.classification import Classification
from lmlab.tasks.generation import Generation, prefixed_source
from lmlab.tasks.loading import load_task
from lmlab.zoo import glm

LETTERS = "abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny runs of GLM, T5 and BERT over letters, and rows."""
    folder = tmp_path_factory.mktemp("cloze")
    generator = np.random.default_rng(0)
    texts = [
        " ".join(LETTERS[i] for i in generator.integers(6, size=generator.integers(2, 6)))
        for _ in range(200)
    ]
    (folder / "letters.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for name in ("glm", "t5", "bert"):
        lmlab.train(
            name,
            data=folder / "letters.txt",
            out=folder / name,
            size="tiny",
            steps=5,
            settings={"learning_rate": "0.01"},
            quiet=True,
        )
    rows = [{"text": text, "label": "f" if "a" in text else "e d"} for text in texts]
    _write(folder / "labels.jsonl", rows)
    prefixes = {"first : ": 0, "last : ": -1}
    pairs = [
        {"prefix": prefix, "source": text, "target": text[index]}
        for text in texts[:60]
        for prefix, index in prefixes.items()
    ]
    _write(folder / "prefixes.jsonl", pairs)
    return folder


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_scores_are_those_of_filling_the_blank_word_by_word() -> None:
    """GLM's decoder of blanks, a step for each word and one for the end of the blank."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(size=12, mask=4)
    system = glm.build(glm.SIZES["tiny"], vocabulary).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    texts, labels = [[2, 5, 6, 7, 3], [2, 8, 3]], [[9], [10, 11], [5, 6, 7]]
    model = ClozeClassifier(system, Classification(list("xyz")), [[2, *k, 3] for k in labels])
    with torch.no_grad():
        scores = model.scores(Batch.collate(texts, pad=0))
        for row, text in enumerate(texts):
            blanked = Batch.collate([[*text[:-1], 4, 3]], pad=0)
            for column, label in enumerate(labels):
                decoder = system.infill_decoder(blanked)
                state, total = decoder.start(1), torch.zeros(())
                for token in (*label, 3):
                    total = total + decoder.peek(state).log_probs[0, token]
                    state = decoder.advance(state, torch.tensor([token]))
                torch.testing.assert_close(scores[row, column], total, atol=1e-4, rtol=0)
    assert scores.std() > 0.5


@pytest.mark.parametrize("name", ["glm", "t5"])
def test_cloze_learns_without_a_new_head(name: str, folder: Path, tmp_path: Path) -> None:
    result = lmlab.finetune(
        folder / name,
        task="cloze",
        data=folder / "labels.jsonl",
        out=tmp_path / "run",
        steps=50,
        settings={"learning_rate": "0.01", "tokens_per_batch": "512"},
        quiet=True,
    )
    assert result.metrics["accuracy"] > result.metrics["majority"]
    model = load_task(tmp_path / "run")
    assert model.predict([{"text": "a b a"}, {"text": "c d"}]) == ["f", "e d"]
    # Nothing is added, so that it is a language model with the parameters of its base.
    before, after = (lmlab.load(path).system for path in (folder / name, tmp_path / "run"))
    assert before.state_dict().keys() == after.state_dict().keys()
    assert after.parameter_count == before.parameter_count


def test_a_system_that_scores_no_text_given_another_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"the task cloze needs .* bert is none; use --task class"):
        lmlab.finetune(
            folder / "bert", task="cloze", data=folder / "labels.jsonl", out=tmp_path / "x"
        )


def test_a_task_prefix_comes_before_the_source(folder: Path, tmp_path: Path) -> None:
    """A prediction for a row with a prefix is that for its text with the prefix written out."""
    lmlab.finetune(
        folder / "t5",
        task="generate",
        data=folder / "prefixes.jsonl",
        out=tmp_path / "run",
        steps=3,
        quiet=True,
    )
    model = load_task(tmp_path / "run")
    assert prefixed_source({"prefix": "first : ", "source": "a b"}) == "first : a b"
    assert prefixed_source({"source": "a b"}) == "a b"
    rows = [{"prefix": "first : ", "source": "b c"}, {"source": "b c"}]
    encoded = model.reading.prepare(rows, training=False).encoded  # type: ignore[attr-defined]
    written = [{"source": "first : b c"}]
    [expected] = model.reading.prepare(written, training=False).encoded  # type: ignore[attr-defined]
    assert encoded[0].given == expected.given
    assert len(encoded[0].given) > len(encoded[1].given)
    assert model.predict(rows[:1]) == model.predict(written)


def test_a_prefix_must_be_a_text() -> None:
    with pytest.raises(UserError, match="prefix must be a text, got 3"):
        Generation.check_row({"source": "a", "target": "b", "prefix": 3})
