"""Entity mentions, annotated in the corpus or found by a lexicon, and masked whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.data.corpus import open_corpus
from lmlab.data.corpus_encoding import corpus_entities
from lmlab.data.languages import capitals, capitals_en
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.mention_units import (
    MentionUnits,
    country_names,
    read_lexicon,
    wordnet_phrases,
)
from lmlab.objectives.masking.token_masking import maskable_positions
from lmlab.objectives.masking.whole_word_masking import WholeWordMasking, WordUnits
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import training_data
from lmlab.training.train import train


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encoded(tokenizer: Tokenizer, texts: list[str]) -> Batch:
    vocabulary = tokenizer.vocabulary
    rows = [[vocabulary.start, *tokenizer.encode(text), vocabulary.end] for text in texts]
    return Batch.collate(rows, pad=vocabulary.pad)


def mentions_in(tokenizer: Tokenizer, names: list[str]) -> MentionUnits:
    units = MentionUnits(lambda: names, WordUnits(tokenizer.vocabulary))
    units.setup_tokenizer(tokenizer)
    return units


def test_mentions_are_longest_matches_at_word_boundaries():
    texts = ["new york city is in new york", "romeo left rome for new york"]
    tokenizer = train_tokenizer("char", texts)
    mentions = mentions_in(tokenizer, ["rome", "new york", "new york city", "york", "paris"])
    batch = encoded(tokenizer, texts)
    covering = mentions.mention_ids(batch, maskable_positions(batch, tokenizer.vocabulary))

    def mentions_in_row(row: int, text: str) -> list[tuple[str, int]]:
        mentions_found, position = [], 0
        while position < len(text):
            name = int(covering[row, position + 1])
            end = position
            while end < len(text) and int(covering[row, end + 1]) == name:
                end += 1
            if name >= 0:
                mentions_found.append((text[position:end], name))
            position = end
        return mentions_found

    assert mentions_in_row(0, texts[0]) == [("new york city", 2), ("new york", 1)]
    # Not in romeo, where the word continues.
    assert mentions_in_row(1, texts[1]) == [("rome", 0), ("new york", 1)]


@pytest.mark.parametrize(("language", "kind"), [(capitals, "char"), (capitals_en, "word")])
def test_mentions_are_masked_whole_or_not_at_all(language, kind: str):
    """The languages of capitals, by characters and by words, under their own lexicon."""
    texts = list(language.truth().probabilities)[:200]
    tokenizer = train_tokenizer(kind, texts)
    mentions = mentions_in(tokenizer, list(country_names()))
    batch = encoded(tokenizer, texts)
    allowed = maskable_positions(batch, tokenizer.vocabulary)
    masked = WholeWordMasking(mentions, 0.15)(batch, allowed, generator=seeded())
    covering = mentions.mention_ids(batch, allowed)
    number = mentions.starts(batch, allowed).cumsum(1).masked_fill(covering < 0, 0)
    several = 0
    for row in range(len(batch)):
        assert (covering[row] >= 0).any(), "every sentence names a country"
        for unit in number[row].unique().tolist():
            inside = masked[row][number[row] == unit]
            assert unit == 0 or inside.all() or not inside.any()
            several += int(unit > 0 and inside.sum() > 1)
    assert several > 10


def test_text_outside_mentions_is_masked_word_by_word():
    texts = ["in new york it rains", "it rains here"]
    tokenizer = train_tokenizer("char", texts)
    batch = encoded(tokenizer, texts)
    allowed = maskable_positions(batch, tokenizer.vocabulary)
    mentions = mentions_in(tokenizer, ["new york", "atlantis"])
    starts, words = mentions.starts(batch, allowed), mentions.words.starts(batch, allowed)
    assert torch.equal(starts[1], words[1])
    # new york is one unit and not two words and a space
    assert int(words[0].sum() - starts[0].sum()) == 2


def test_ernie_view_holds_mention_ids():
    module = system_module("ernie")
    tokenizer = train_tokenizer("char", ["中国的首都是北京", "法国的首都是巴黎"])
    system = module.build(module.SIZES["tiny"], tokenizer.vocabulary)
    batch = encoded(tokenizer, ["中国的首都是北京"])
    before = system.objective.view(batch, generator=seeded())
    assert (before.mentions == -1).all()
    system.setup_tokenizer(tokenizer)
    view = system.objective.view(batch, generator=seeded())
    names = system.objective.units.names
    mention_names = [names[i] if i >= 0 else "" for i in view.mentions[0].tolist()]
    assert mention_names == ["", "中国", "中国", "", "", "", "", "北京", "北京", ""]


ANNOTATED = [
    # A name that is in no lexicon, and one that ends within a word of characters.
    {"text": "old Zorro of Paris sleeps", "mentions": [[0, 9, "Zorro"]]},
    {"text": "New Yorkers like Zorro", "mentions": [[0, 8, "New York"], [17, 22, "Zorro"]]},
    {"text": "nobody sleeps in Paris", "mentions": []},
]


def annotated_corpus(folder):
    path = folder / "annotated.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ANNOTATED * 4), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["char", "word"])
def test_annotated_mentions_override_the_lexicon(tmp_path, kind: str):
    """Annotated mentions are one unit each; the lexicon applies where nothing is annotated.

    By words `Yorkers` is one token and belongs to the mention that holds a part of it.
    """
    corpus = open_corpus(annotated_corpus(tmp_path))
    tokenizer = train_tokenizer(kind, [row["text"] for row in ANNOTATED])
    entities = corpus_entities(corpus)
    assert entities is not None and entities.names == ("New York", "Zorro")
    config = TrainingConfig(tokens_per_batch=10_000)
    data = training_data(corpus, tokenizer, config, progress=False, entities=entities)
    batch = next(data.train.epoch(0))
    mentions = mentions_in(tokenizer, ["Paris"])
    allowed = maskable_positions(batch, tokenizer.vocabulary)
    starts, covering = mentions.starts(batch, allowed), mentions.mention_ids(batch, allowed)
    mentions_by_text = {}
    for row in range(len(batch)):
        positions = allowed[row].nonzero().flatten().tolist()
        units: list[tuple[str, int]] = []
        for position in positions:
            piece = tokenizer.token(int(batch.tokens[row, position]))
            if starts[row, position]:
                units.append((piece, int(covering[row, position])))
            else:
                joint = " " if kind == "word" else ""
                units[-1] = (units[-1][0] + joint + piece, units[-1][1])
        text = tokenizer.decode(batch.tokens[row, positions].tolist())
        mentions_by_text[text] = [unit for unit in units if unit[1] >= 0 or unit[0] == "ers"]
    # Number 0 is the lexicon's Paris, 1 and 2 the corpus's New York and Zorro.
    york = [("New Yorkers", 1)] if kind == "word" else [("New York", 1), ("ers", -1)]
    assert mentions_by_text == {
        ANNOTATED[0]["text"]: [("old Zorro", 2)],
        ANNOTATED[1]["text"]: [*york, ("Zorro", 2)],
        ANNOTATED[2]["text"]: [("Paris", 0)],
    }


def test_ernie_trains_on_annotated_mentions(tmp_path, monkeypatch):
    """The annotations reach the objective."""
    batches, view = [], BERTObjective.view

    def recording_view(self, batch, **words):
        batches.append(batch)
        return view(self, batch, **words)

    monkeypatch.setattr(BERTObjective, "view", recording_view)
    train(
        "ernie",
        data=annotated_corpus(tmp_path),
        out=tmp_path / "run",
        size="tiny",
        steps=1,
        quiet=True,
    )
    entity_ids = {int(number) for batch in batches for number in batch.entities.unique()}
    assert entity_ids == {-1, 0, 1}


def test_unannotated_corpus_has_no_entities(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a b\nb a\n" * 5, encoding="utf-8")
    assert corpus_entities(open_corpus(path)) is None


def test_lexicons_are_joined_and_read_from_files(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Ada Lovelace\n\n  北京 \n", encoding="utf-8")
    assert read_lexicon(str(path)) == ("Ada Lovelace", "北京")
    both = read_lexicon(f"countries, {path}")
    assert both[: len(set(country_names()))] == tuple(dict.fromkeys(country_names()))
    assert both[-1] == "Ada Lovelace" and both.count("北京") == 1
    assert {"中国", "北京", "China", "Beijing"} <= set(country_names())


def test_wordnet_phrases_have_several_words():
    phrases = wordnet_phrases()
    assert len(phrases) > 50_000
    assert all(" " in phrase for phrase in phrases)
    assert {"ice cream", "prime minister"} <= set(phrases)


def test_missing_lexicon_is_reported_at_training_not_build():
    """So that a run can score where its lexicon file is missing."""
    module, tokenizer = system_module("ernie"), train_tokenizer("char", ["ab"])
    config = replace(module.SIZES["tiny"], mentions="nowhere.txt")
    system = module.build(config, tokenizer.vocabulary)
    assert system.log_prob(encoded(tokenizer, ["ab"])).kind == "pseudo"
    with pytest.raises(UserError, match=r"can't read 'nowhere\.txt'"):
        system.setup_tokenizer(tokenizer)


def test_unknown_lexicon_is_reported():
    with pytest.raises(UserError, match=r"countries or wordnet or a UTF-8 file.*'atlantis'"):
        read_lexicon("atlantis")
