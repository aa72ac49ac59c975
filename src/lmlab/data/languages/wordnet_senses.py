"""Word sense disambiguation (WSD) corpus: WordNet's examples with the sense of their word.

The task is to predict the sense of a word in an unseen sentence. Splits are by sentence, not by
synset: an example is held out by a hash of its words, wherever else it occurs, while other examples
of its synset or of related synsets may be in training. Half of the held-out senses have another
example in training; the rest are known by gloss and relations only. Definitions are all in
training, as in the knowledge base, without sense labels. The baseline is the most frequent sense.

A model evaluated on the held-out sentences must not have seen them: pretrain its base model on this
corpus too, not on `wordnet`, which splits the same texts differently.
"""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import SPLITS, Corpus
from lmlab.data.readers import Example, Mention
from lmlab.data.wordnet.database import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import split_by_hash, tokenize_gloss, wordnet_corpus
from lmlab.data.wordnet.inflections import find_longest_lemma

DESCRIPTION = "WordNet's example sentences with the sense of a word in each, and its definitions"

VERSION = 1
"""Incremented whenever the texts made from the same WordNet change."""
MIN_WORDS = 3
"""Minimum words of a held-out sentence; shorter ones say little about the sense."""


def corpus() -> Corpus:
    """Definitions and 90 % of the sentences for training, 5 % each held out; loaded lazily."""
    return wordnet_corpus(
        "wordnet-senses",
        lambda split: examples_by_split()[split],
        version=VERSION,
        min_count=2,
        description=DESCRIPTION,
    )


@cache
def examples_by_split() -> dict[str, tuple[Example, ...]]:
    """The texts of each split, in synset order; no text is in two splits."""
    wordnet = load_wordnet()
    mentions_by_text: dict[str, dict[str, tuple[Mention, ...]]] = {name: {} for name in SPLITS}
    for synset, definition, examples in wordnet.glosses():
        mentions_by_text["train"].setdefault(tokenize_gloss(definition), ())
        for text in map(tokenize_gloss, examples) if examples else ():
            mention = _mention(wordnet, synset, text)
            split = split_by_hash(text)
            if mention is None or len(text.split()) < MIN_WORDS:
                split = "train"  # unusable as a test item
            texts = mentions_by_text[split]
            texts[text] = _add_mention(texts.get(text, ()), mention)
    for name in SPLITS[1:]:
        for text in mentions_by_text[name].keys() & mentions_by_text["train"].keys():
            del mentions_by_text[name][text]  # a definition that is also an example
    return {
        name: tuple(Example(text, mentions=mentions) for text, mentions in texts.items() if text)
        for name, texts in mentions_by_text.items()
    }


def _mention(wordnet: WordNet, synset: str, text: str) -> Mention | None:
    """Span of the synset's lemma in one of its examples: the longest, inflected or not."""
    words = text.split()
    match = find_longest_lemma(words, wordnet[synset])
    if match is None:
        return None
    _, first, last = match
    start = sum(len(word) + 1 for word in words[:first])
    return Mention(start, start + len(" ".join(words[first : last + 1])), synset)


def _add_mention(mentions: tuple[Mention, ...], new: Mention | None) -> tuple[Mention, ...]:
    """Add a mention unless it overlaps one: a sentence may illustrate several synsets."""
    if new is None or any(new.start < other.end and other.start < new.end for other in mentions):
        return mentions
    return tuple(sorted((*mentions, new), key=lambda mention: mention.start))
