"""Handwritten digits (scikit-learn, 8 × 8): image-conditioned text, p(label | image).

1,797 images of 8 × 8 pixels in 17 grey levels (Alpaydın and Kaynak 1998, at UCI), as pairs: "three"
given "0 0 7 15 13 1 0 0 …", the pixels row by row, 0 for background and 16 for ink. A label is a
text of one word, so any sequence-to-sequence system can learn it. Real data: the true distribution
is unknown.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.readers import Example

DESCRIPTION = "handwritten digits, 8 × 8 pixels in 17 greys, with their names (needs scikit-learn)"

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT = 300
"""Size of the validation split, and of the test split."""


def corpus(seed: int = 0) -> Corpus:
    """All images, shuffled by seed; 1,197 for training."""
    images, labels = load_images()
    order = np.random.default_rng(seed).permutation(len(images))
    cuts = {
        "train": order[2 * HELD_OUT :],
        "validation": order[:HELD_OUT],
        "test": order[HELD_OUT : 2 * HELD_OUT],
    }
    splits = {}
    for name, rows in cuts.items():
        examples = [Example(NAMES[labels[row]], condition=as_text(images[row])) for row in rows]
        digest = hashlib.blake2b(repr(examples).encode(), digest_size=16).hexdigest()
        splits[name] = Split.from_list(examples, identity=f"digits:{digest}", name=name)
    return Corpus(
        name="digits",
        splits=splits,
        layout=Layout(kind="pairs"),
        tokenizer="word",
        description=DESCRIPTION,
    )


def load_images() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(1797, 8, 8) grey levels from 0 to 16, and (1797,) digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "the corpus digits comes with scikit-learn, which is not installed here; install it "
            "with pip install 'lmlab[vision]'."
        ) from error
    digits = load_digits()
    return digits.images.astype(np.int64), digits.target.astype(np.int64)


def as_text(image: NDArray[np.int64]) -> str:
    """The grey levels of an image row by row, separated by spaces."""
    return " ".join(map(str, image.reshape(-1).tolist()))
