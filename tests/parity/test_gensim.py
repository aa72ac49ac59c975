"""Word vectors against gensim: distributions, similarities within error, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.wordnet.noun_similarity import SimilarityPair
from lmlab.interop.word2vec import read_word2vec, write_word2vec
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.scoring.word_vectors import WordVectors, word_vectors
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

gensim = pytest.importorskip("gensim", reason="the oracle is gensim")
pytest.importorskip("numba", reason="compiled code needs numba: pip install lmlab[words]")

TOPICS, WORDS, SEEDS = 6, 10, 3
SETTINGS = {"width": 20, "window": 3, "negatives": 5, "sample": 0.01, "min_count": 1}


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    """Sentences about one topic or, one word in three, about its neighbour on a ring of six."""
    generator = np.random.default_rng(0)
    result = []
    for topic in generator.integers(0, TOPICS, 1500):
        aside = generator.random(10) < 1 / 3
        which = np.where(aside, (topic + 1) % TOPICS, topic)
        # The first words of a topic are far more frequent than its last.
        ranks = np.minimum(generator.geometric(0.25, 10) - 1, WORDS - 1)
        result.append([f"t{t}w{rank}" for t, rank in zip(which, ranks, strict=True)])
    return result


def test_noise_and_subsampling_equal_gensim(sentences: list[list[str]]):
    """Its tables are of whole numbers, to 2³¹ and 2³²."""
    peer = gensim.models.Word2Vec(sentences, vector_size=2, sample=0.01, min_count=1, epochs=1)
    words = peer.wv.index_to_key
    position = {word: number for number, word in enumerate(words, 5)}
    distribution = UnigramDistribution(Vocabulary(size=5 + len(words)), power=0.75, sample=0.01)
    distribution.count(np.array([position[word] for sentence in sentences for word in sentence]))
    noise = np.diff(peer.cum_table.astype(np.float64), prepend=0) / 2**31
    assert distribution.noise()[5:].numpy() == pytest.approx(noise, abs=1e-6)
    kept = [min(1.0, peer.wv.get_vecattr(word, "sample_int") / 2**32) for word in words]
    assert distribution.keep_probabilities()[5:].numpy() == pytest.approx(np.array(kept), abs=1e-6)


def similarity(vectors: WordVectors) -> float:
    """Agreement with the truth: the nearer two topics are on the ring, the more alike."""
    pairs = []
    for first in vectors.words:
        for second in vectors.words:
            if first < second:
                apart = abs(int(first[1]) - int(second[1]))
                near = -min(apart, TOPICS - apart)
                pairs.append(SimilarityPair(first=first, second=second, similarity=near))
    return vectors.similarity_correlation(pairs).spearman


@pytest.mark.parametrize("name", ["skipgram", "cbow"])
def test_similarity_is_at_least_gensims(sentences: list[list[str]], tmp_path: Path, name: str):
    """Means over seeds, ours at most three standard errors of the difference below gensim's."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, lines in (("train", sentences), ("valid", sentences[:10])):
        (folder / f"{split}.txt").write_text("\n".join(map(" ".join, lines)) + "\n")
    ours, theirs = [], []
    for seed in range(SEEDS):
        run = train(
            name,
            data=str(folder),
            out=tmp_path / f"run{seed}",
            settings={**SETTINGS, "learning_rate": 0.05, "evaluate_every": 10**6},
            epochs=10,
            seed=seed,
            quiet=True,
        )
        model = load_run(run.path)
        ours.append(similarity(word_vectors(model.system, model.tokenizer)))
        peer = gensim.models.Word2Vec(
            sentences,
            vector_size=20,
            window=3,
            negative=5,
            sample=0.01,
            min_count=1,
            alpha=0.05,
            sg=int(name == "skipgram"),
            epochs=10,
            workers=1,
            seed=seed + 1,
        )
        theirs.append(similarity(WordVectors(peer.wv.index_to_key, peer.wv.vectors)))
    error = np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / SEEDS)
    assert np.mean(theirs) > 0.3, "the oracle itself must have learnt something"
    assert np.mean(ours) > np.mean(theirs) - 3 * error


@pytest.mark.parametrize("binary", [False, True])
def test_word2vec_files_are_interchangeable(tmp_path: Path, binary: bool):
    words = ["the", "北京", "e-mail"]
    vectors = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    path = tmp_path / ("ours.bin" if binary else "ours.txt")
    write_word2vec(path, WordVectors(words, vectors))
    peer = gensim.models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert peer.index_to_key == words and np.array_equal(peer.vectors, vectors)
    peer.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    back = read_word2vec(tmp_path / "theirs")
    assert back.words == words and np.array_equal(back.vectors, vectors)
