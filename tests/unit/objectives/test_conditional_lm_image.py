"""Image-conditional LM: pixel tokens, intensities and patches."""

from __future__ import annotations

import builtins

import pytest
import torch
import torch.nn.functional as F

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.data.languages.digits import NAMES, load_images
from lmlab.objectives.conditional_lm import ImageConditionalLM, patchify
from lmlab.zoo import vit

VOCABULARY = Vocabulary(size=11)


class StubTokenizer:
    """Ids 5 to 9 are the numbers 0, 1, 2, 3 and 4; 10 is a word."""

    kind = "word"

    def token(self, id: int) -> str:
        return {10: "three"}.get(id, str(id - 5) if id >= 5 else f"<{id}>")

    def encode(self, text: str) -> list[int]:
        return [5 + int(word) for word in text.split()]


def objective(side: int = 2, patch: int = 1) -> ImageConditionalLM:
    made = ImageConditionalLM(VOCABULARY, side=side, patch=patch)
    made.setup_tokenizer(StubTokenizer())
    return made


def image(*numbers: int) -> Batch:
    return Batch.collate([[2, *(5 + number for number in numbers), 3]], pad=0)


def test_pixel_values_are_scaled_to_minus_one_to_one():
    """0, 1, 2, 3, 4 of at most 4: -1, -1/2, 0, 1/2, 1."""
    view = objective().source_view(image(0, 1, 3, 4), 1, torch.device("cpu"))
    assert view.inputs.flatten().tolist() == [-1.0, -0.5, 0.5, 1.0]
    assert view.inputs.shape == (1, 4, 1)
    assert view.lengths.tolist() == [4]


def test_non_numeric_tokens_have_mid_intensity():
    intensity = objective().intensity.tolist()
    assert intensity == [0.0] * 5 + [-1.0, -0.5, 0.0, 0.5, 1.0] + [0.0]


def test_patchify_equals_torch_unfold():
    pixels = torch.arange(2 * 64, dtype=torch.float32).view(2, 8, 8)
    expected = F.unfold(pixels[:, None], kernel_size=4, stride=4).transpose(1, 2)
    assert torch.equal(patchify(pixels, 4), expected)
    # By hand: the second patch of the first image starts at row 0, column 4.
    assert patchify(pixels, 4)[0, 1, :5].tolist() == [4, 5, 6, 7, 12]


def test_missing_image_equals_an_empty_image():
    given = objective().source_view(image(0, 0, 0, 0), 1, torch.device("cpu"))
    nothing = objective().source_view(None, 1, torch.device("cpu"))
    assert torch.equal(nothing.inputs, given.inputs)


def test_image_of_wrong_size_is_reported():
    with pytest.raises(UserError, match="2 × 2 = 4 pixels, got 3"):
        objective().source_view(image(0, 1, 2), 1, torch.device("cpu"))


def test_image_size_must_be_a_multiple_of_patch():
    with pytest.raises(UserError, match="image_size must be a multiple of patch, got 8 and 3"):
        vit.Config(patch=3)


def test_label_depends_on_the_image_and_not_on_later_words():
    torch.manual_seed(0)
    system = vit.build(
        vit.Config(width=8, layers=2, heads=2, image_size=2, patch=1), VOCABULARY
    ).eval()
    system.setup_tokenizer(StubTokenizer())
    label_log_probs = []
    for numbers, text in (((0, 1, 2, 3), [2, 10, 3]), ((0, 1, 4, 3), [2, 10, 3])):
        batch = Batch.collate([text], pad=0, condition=image(*numbers))
        label_log_probs.append(system.log_prob(batch).per_token[0, 0].item())
    longer = Batch.collate([[2, 10, 10, 10, 3]], pad=0, condition=image(0, 1, 2, 3))
    assert abs(label_log_probs[0] - label_log_probs[1]) > 1e-6
    assert system.log_prob(longer).per_token[0, 0].item() == pytest.approx(
        label_log_probs[0], abs=1e-6
    )


def test_digits_corpus_equals_scikit_learn():
    """Every image once over the splits, with its name; another seed shuffles differently."""
    pytest.importorskip("sklearn")
    images, labels = load_images()
    corpus = open_corpus("digits")
    sizes = {name: len(list(split)) for name, split in corpus.splits.items()}
    assert sizes == {"train": 1197, "validation": 300, "test": 300}
    examples = [(e.text, e.condition) for split in corpus.splits.values() for e in split]
    expected = [
        (NAMES[label], " ".join(str(pixel) for pixel in picture.flatten()))
        for picture, label in zip(images, labels, strict=True)
    ]
    assert sorted(examples) == sorted(expected)
    assert corpus.fingerprint() != open_corpus("digits", seed=1).fingerprint()


def test_missing_scikit_learn_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest, **words):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **words)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'lmlab\[vision\]'"):
        open_corpus("digits")
