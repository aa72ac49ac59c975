"""`train vit --data digits`: from scikit-learn's images to a run that classifies them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

pytest.importorskip("sklearn")

SETTINGS = {"tokens_per_batch": 64 * 66, "learning_rate": 5e-3}


def test_loaded_vit_run_classifies_most_digits(tmp_path: Path):
    """After 80 steps at the tiny size over half of 300 test images are right; chance is 10 %."""
    train(
        "vit",
        data="digits",
        out=tmp_path / "run",
        size="tiny",
        settings=SETTINGS,
        steps=80,
        quiet=True,
    )
    model = load_run(tmp_path / "run")
    system, vocabulary = model.system.eval(), model.system.vocabulary
    # Pixels are scaled after loading too: 0 is -1 and 16 is 1.
    white, ink = model.tokenizer.encode("0 16")
    assert system.objective.intensity[[white, ink]].tolist() == [-1.0, 1.0]
    examples = list(open_corpus("digits").splits["test"])
    images = [
        [vocabulary.start, *model.tokenizer.encode(example.condition), vocabulary.end]
        for example in examples
    ]
    with torch.no_grad():
        state = system.start(300, condition=Batch.collate(images, pad=vocabulary.pad))
        predicted = system.peek(state).log_probs.argmax(-1).tolist()
    correct = [
        model.tokenizer.token(token) == example.text
        for token, example in zip(predicted, examples, strict=True)
    ]
    assert sum(correct) > 150


def test_images_of_another_size_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="4 × 4 = 16 pixels, got 64"):
        train(
            "vit",
            data="digits",
            out=tmp_path / "run",
            size="tiny",
            settings={"image_size": 4, "patch": 2},
            steps=1,
            quiet=True,
        )
