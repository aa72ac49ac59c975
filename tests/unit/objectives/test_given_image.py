"""Images as the text that another text is given: numbers, intensities, patches."""

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


class Pieces:
    """Ids 5 to 9 are the numbers 0, 1, 2, 3 and 4; 10 is a word."""

    kind = "word"

    def token(self, id: int) -> str:
        return {10: "three"}.get(id, str(id - 5) if id >= 5 else f"<{id}>")

    def encode(self, text: str) -> list[int]:
        return [5 + int(word) for word in text.split()]


def objective(side: int = 2, patch: int = 1) -> ImageConditionalLM:
    made = ImageConditionalLM(VOCABULARY, side=side, patch=patch)
    made.setup_tokenizer(Pieces())
    return made


def image(*numbers: int) -> Batch:
    return Batch.collate([[2, *(5 + number for number in numbers), 3]], pad=0)


def test_numbers_become_intensities_from_minus_one_to_one():
    """0, 1, 2, 3, 4 of at most 4: -1, -1/2, 0, 1/2, 1."""
    view = objective().source_view(image(0, 1, 3, 4), 1, torch.device("cpu"))
    assert view.inputs.flatten().tolist() == [-1.0, -0.5, 0.5, 1.0]
    assert view.inputs.shape == (1, 4, 1)
    assert view.lengths.tolist() == [4]


def test_what_is_no_number_is_half():
    intensity = objective().intensity.tolist()
    assert intensity == [0.0] * 5 + [-1.0, -0.5, 0.0, 0.5, 1.0] + [0.0]


def test_patches_are_cut_as_torch_unfolds_them():
    pixels = torch.arange(2 * 64, dtype=torch.float32).view(2, 8, 8)
    expected = F.unfold(pixels[:, None], kernel_size=4, stride=4).transpose(1, 2)
    assert torch.equal(patchify(pixels, 4), expected)
    # By hand: the second patch of the first image starts at row 0, column 4.
    assert patchify(pixels, 4)[0, 1, :5].tolist() == [4, 5, 6, 7, 12]


def test_without_an_image_it_is_an_empty_one():
    given = objective().source_view(image(0, 0, 0, 0), 1, torch.device("cpu"))
    nothing = objective().source_view(None, 1, torch.device("cpu"))
    assert torch.equal(nothing.inputs, given.inputs)


def test_an_image_of_another_size_is_told():
    with pytest.raises(UserError, match="2 × 2 = 4 pixels, got 3"):
        objective().source_view(image(0, 1, 2), 1, torch.device("cpu"))


def test_a_side_that_patches_do_not_divide_is_told():
    with pytest.raises(UserError, match="image_size must be a multiple of patch, got 8 and 3"):
        vit.Config(patch=3)


def test_the_image_changes_what_is_predicted_and_words_after_do_not_change_the_label():
    torch.manual_seed(0)
    system = vit.build(
        vit.Config(width=8, layers=2, heads=2, image_size=2, patch=1), VOCABULARY
    ).eval()
    system.setup_tokenizer(Pieces())
    found = []
    for numbers, text in (((0, 1, 2, 3), [2, 10, 3]), ((0, 1, 4, 3), [2, 10, 3])):
        batch = Batch.collate([text], pad=0, condition=image(*numbers))
        found.append(system.log_prob(batch).per_token[0, 0].item())
    longer = Batch.collate([[2, 10, 10, 10, 3]], pad=0, condition=image(0, 1, 2, 3))
    assert abs(found[0] - found[1]) > 1e-6
    assert system.log_prob(longer).per_token[0, 0].item() == pytest.approx(found[0], abs=1e-6)


def test_the_corpus_of_digits_is_that_of_scikit_learn():
    """Every image once over the splits, beside its name; another seed shuffles otherwise."""
    pytest.importorskip("sklearn")
    images, labels = load_images()
    corpus = open_corpus("digits")
    sizes = {name: len(list(split)) for name, split in corpus.splits.items()}
    assert sizes == {"train": 1197, "validation": 300, "test": 300}
    told = [(e.text, e.condition) for split in corpus.splits.values() for e in split]
    expected = [
        (NAMES[label], " ".join(str(pixel) for pixel in picture.flatten()))
        for picture, label in zip(images, labels, strict=True)
    ]
    assert sorted(told) == sorted(expected)
    assert corpus.fingerprint() != open_corpus("digits", seed=1).fingerprint()


def test_without_scikit_learn_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest, **words):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **words)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'lmlab\[vision\]'"):
        open_corpus("digits")
