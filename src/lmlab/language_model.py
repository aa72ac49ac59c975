"""`LanguageModel`: a trained model that scores, generates, fills and answers; see `lmlab.load`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.core.score import Score, Summary, summarise
from lmlab.core.untrusted_input import (
    check_seed,
    check_text,
    check_texts,
    check_whole_number,
    checked_texts,
)
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.inference.decoding import GeneratedSequence
from lmlab.interop.load_model import load_model
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import greedy_search as decode_greedily
from lmlab.sampling.decoding import sample_sequences as draw
from lmlab.sampling.mask_filling import FilledText, MaskFiller
from lmlab.sampling.prompts import EncodedPrefix, encode_prefix, encode_source
from lmlab.sampling.translation import Translation, make_translator
from lmlab.scoring.conditional import ConditionalScore, conditional_scores, with_separator
from lmlab.scoring.minimal_pairs import MinimalPairsReport, score_minimal_pair_files
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.source_scoring import SourceScorer, check_takes_source, pair_with_sources
from lmlab.training.run_folder import TrainedModel

if TYPE_CHECKING:
    from lmlab.core.capture import Capture
    from lmlab.retrieval.dense_index import DenseIndex
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.stored_index import StoredIndex
    from lmlab.sampling.mcmc.diagnostics import McmcResult
    from lmlab.sampling.question_answering import AnsweredQuestion
    from lmlab.scoring.entity_linking import LinkedText
    from lmlab.scoring.replaced_tokens_detection import DetectedText
    from lmlab.scoring.text_embeddings import TextEmbedding

DECODING_OPTIONS = {
    "ancestral": ("temperature", "top_k", "top_p"),
    "greedy": (),
    "beam": ("beam", "length_penalty"),
}
"""Decoding methods, and the options of each."""
MCMC_METHODS = ("gibbs", "metropolis")
"""MCMC methods, which have a method of their own (`chains`)."""
TOKENS_AT_ONCE = 2**16
"""Most tokens generated in one batch, which bounds memory."""
DEFAULT_BEAM_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A generated text."""

    text: str
    log_prob: float | None
    """Log-probability in nats after the prefix, untempered and untruncated; None if unknown."""
    tokens: int
    """Tokens generated after the prefix, including the end token if generated."""
    finished: bool
    """Whether the model generated the end token; else the maximum length cut it off."""


class LanguageModel:
    """A trained model, from `lmlab.load(run)` or `lmlab.wrap(module, tokenizer)`."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"LanguageModel({self.model.card.name}, {str(self.path)!r})"

    @property
    def card(self) -> Card:
        """The system's card: paper, source, kind, capabilities."""
        return self.model.card

    @property
    def config(self) -> dict[str, Any]:
        """The run's config.json."""
        return self.model.config

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.model.path

    @property
    def system(self) -> Any:
        """The torch module, in evaluation mode."""
        return self.model.system

    @property
    def tokenizer(self) -> Any:
        """The tokeniser: text to ids and back."""
        return self.model.tokenizer

    def scorer(self, **options: Any) -> Scorer:
        """A `Scorer` of this model, with options such as `window=`, `stride=`, `cut=`."""
        return Scorer(self.model.system, self.model.tokenizer, self.model.layout, **options)

    def source_scorer(self, **options: Any) -> SourceScorer:
        """A scorer of texts conditioned on sources, without windows."""
        check_takes_source(self.card)
        model = self.model
        return SourceScorer(
            model.system, model.tokenizer, model.effective_source_tokenizer, model.layout, **options
        )

    def score(
        self, texts: Sequence[str], sources: Sequence[str] | None = None, **options: Any
    ) -> list[Score]:
        """Log-probability of each text, by token, in nats; options as of a `Scorer`.

        With `sources`, log p(text | source) for systems conditioned on one (translators). `method`
        selects another score: simple, raw, norm (or pll), within-word (or pll-within-word), k-mask
        (with `positions`) for masked models, with `head="none"` by token embeddings; exact, bound
        or energy.

        >>> model = lmlab.load("runs/ngram")
        >>> [score] = model.score(["the cat sleeps"])
        >>> [token.token for token in score.per_token]
        ['the', 'cat', 'sleeps', '</s>']
        >>> abs(score.total - sum(token.log_prob for token in score.per_token)) < 1e-9
        True
        """
        check_texts(texts, "score")
        if sources is not None:
            check_texts(sources, "score", what="source")
        return list(self.score_stream(texts, sources, **options))

    def score_stream(
        self,
        texts: Iterable[str],
        sources: Iterable[str] | None = None,
        *,
        per_token: bool = True,
        **options: Any,
    ) -> Iterator[Score]:
        """Scores of a stream of texts, one by one, in constant memory."""
        texts = checked_texts(texts)
        if sources is None:
            return self.scorer(**options).score(texts, per_token=per_token)
        pairs = pair_with_sources(checked_texts(sources), texts)
        return self.source_scorer(**options).score(pairs, per_token=per_token)

    def score_given(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        end: bool = False,
        separator: str | None = "",
        **options: Any,
    ) -> Iterator[ConditionalScore]:
        """log p(continuation | prefix) of each pair, one by one; see `conditional_scores`.

        `separator` joins the two if neither has a space there; None is a space, but empty for
        character models. `end` also scores the end token. `options` as of `score`.

        >>> model = lmlab.load("runs/ngram")
        >>> [found] = model.score_given([("the cat", " sleeps")])
        >>> found.kind, [token.token for token in found.per_token]
        ('exact', ['sleeps'])
        """
        if separator is None:
            separator = "" if self.tokenizer.kind == "char" else " "
        joined = ((p, with_separator(p, c, separator)) for p, c in pairs)
        return conditional_scores(self.scorer(**options), joined, end=end)

    def summary(
        self, texts: Iterable[str], sources: Iterable[str] | None = None, **options: Any
    ) -> Summary:
        """Perplexity, nats per token and bits per character over all texts.

        >>> summary = lmlab.load("runs/ngram").summary(["the cat sleeps", "a dog sees mary"])
        >>> summary.tokens, round(summary.nats_per_token, 6) == round(-summary.total / 9, 6)
        (9, True)
        """
        return summarise(self.score_stream(texts, sources, per_token=False, **options))

    def pairs(
        self, *files: Path | str, progress: Callable[[int], None] = lambda tokens: None
    ) -> MinimalPairsReport:
        """Accuracy on minimal pairs, JSON lines of `sentence_good` and `sentence_bad` (BLiMP).

        `progress` is called with the number of tokens scored so far.

        >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
        >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
        >>> lmlab.load("runs/ngram").pairs("agreement.jsonl").overall.accuracy
        1.0
        """
        return score_minimal_pair_files(self.scorer(progress=progress), files)

    def encode_prefix(self, text: str) -> EncodedPrefix:
        """The input ids of a prefix, and its unknown words."""
        return encode_prefix(text, self.tokenizer)

    def sample(
        self,
        n: int = 1,
        *,
        prefix: str = "",
        source: str | None = None,
        method: str = "ancestral",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int = 100,
        seed: int = 0,
    ) -> list[GeneratedText]:
        """Generate `n` texts by ancestral sampling, greedy decoding or beam search.

        Beam search gives its n best. The same seed gives the same texts. `source` is what a
        conditional model (a translator) is conditioned on.

        >>> model = lmlab.load("runs/ngram")
        >>> model.sample(3, seed=0) == model.sample(3, seed=0)
        True
        >>> first, second = model.sample(2, method="beam", beam=8)
        >>> first.log_prob >= second.log_prob
        True
        """
        if method in MCMC_METHODS:
            raise UserError(f"MCMC returns a record; call chains(n, method={method!r}).")
        if method not in DECODING_OPTIONS:
            raise unknown_name("method", method, (*DECODING_OPTIONS, *MCMC_METHODS))
        check_seed(seed)
        check_whole_number("the number of texts", n)
        check_whole_number("the greatest length", max_length)
        check_limit("texts", n, called="the number of texts")
        check_limit("length", max_length, called="the greatest length")
        given = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "beam": beam,
            "length_penalty": length_penalty,
        }
        options = {name: value for name, value in given.items() if value is not None}
        for name in options:
            if name not in DECODING_OPTIONS[method]:
                raise UserError(
                    f"{name.replace('_', '-')} does not apply to the method {method}; remove it."
                )
        ids = list(self.encode_prefix(check_text(prefix, "the prefix")).ids)
        condition = self._source_batch(source)
        written = self._generate(n, method, ids, condition, max_length, seed, options)
        return [self._generated_text(each) for each in written]

    def chains(
        self,
        n: int = 1,
        *,
        lm: Path | str | LanguageModel | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        **options: Any,
    ) -> McmcResult:
        """Sample texts by MCMC (gibbs, metropolis), with convergence diagnostics.

        `options` are those of `lmlab.sampling.mcmc.mcmc_config.McmcConfig`: method, start, text,
        template, prefix, length, steps, masks, order, temperature, energy … `lm` gives the samples
        for start="lm", default this model. For systems with `Fill` or `Energy`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/states", size="tiny", steps=2, quiet=True
        ... )
        >>> found = lmlab.load("runs/states").chains(
        ...     2, method="metropolis", template="the <mask> sleeps", steps=40
        ... )
        >>> [text.text.startswith("the ") for text in found.texts], found.energy
        ([True, True], 'own')
        """
        # Lazy import: no other method needs it.
        from lmlab.sampling.mcmc.mcmc_config import McmcConfig
        from lmlab.sampling.mcmc.sampler import McmcSampler

        settings = McmcConfig(n=n, **options)
        if lm is not None and settings.start != "lm":
            raise UserError(
                "lm is the model whose samples chains start from; give --start lm with it."
            )
        if isinstance(lm, (str, Path)):
            lm = LanguageModel(load_model(lm))
        runner = McmcSampler(
            self.system,
            self.tokenizer,
            self.model.layout,
            settings,
            corpus_texts=lambda: shared_corpus([self.model], None, None).split("train").texts(),
            lm=None if lm is None else (lm.system, lm.tokenizer),
        )
        return runner.run(progress)

    def fill(self, texts: Sequence[str], **options: Any) -> list[FilledText]:
        """Fill each `<mask>` or `[MASK]` of the texts; options as of `fill_stream`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/hmm", size="tiny", steps=2, quiet=True
        ... )
        >>> [filled] = lmlab.load("runs/hmm").fill(["the <mask> sleeps"], top=3)
        >>> [option.probability > 0 for option in filled.masks[0].options]
        [True, True, True]
        """
        check_texts(texts, "fill")
        return list(self.fill_stream(texts, **options))

    def fill_stream(
        self,
        texts: Iterable[str],
        *,
        joint: bool = False,
        blanks: bool = False,
        among: Sequence[str] = (),
        seed: int | None = None,
        **options: Any,
    ) -> Iterator[FilledText]:
        """Fill the masks of a stream of texts, one by one, in constant memory.

        The most probable tokens of each mask alone, or of all masks jointly (`joint`); for systems
        with `Infill`, blanks of any length (`blanks`, or if the system has no `Fill`), sampled if a
        seed is given. `among` restricts the candidates. `options`: `top`, `beam`, `max_length`.
        """
        generator = None if seed is None else torch.Generator().manual_seed(check_seed(seed))
        model = self.model
        filler = MaskFiller(
            system=model.system, tokenizer=model.tokenizer, layout=model.layout, **options
        )
        return filler.fill(
            checked_texts(texts), joint=joint, blanks=blanks, among=among, generator=generator
        )

    def translate(self, texts: Sequence[str], **options: Any) -> list[Translation]:
        """Translate texts; options as of `lmlab translate`.

        >>> _ = open("pairs.tsv", "w").write("eins\\tone\\nzwei\\ttwo\\n" * 50)
        >>> _ = lmlab.train("seq2seq", data="pairs.tsv", out="runs/seq2seq", size="tiny",
        ...                 settings={"learning_rate": 0.02}, epochs=100, quiet=True)
        >>> [each.text for each in lmlab.load("runs/seq2seq").translate(["zwei", "eins"])]
        ['two', 'one']
        """
        check_texts(texts, "translate")
        return list(self.translate_stream([texts], **options))

    def translate_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[Translation]:
        """Translate chunks of texts lazily, in order."""
        if not self.card.conditional:
            raise UserError(
                f"{self.card.name} does not condition on a source; translation needs a system "
                "that does (seq2seq, seq2seq-attention, transformer …)."
            )
        model = self.model
        translator = make_translator(
            model.system, model.tokenizer, model.effective_source_tokenizer, **options
        )
        return translator.translate(list(checked_texts(chunk)) for chunk in chunks)

    def link(self, texts: Sequence[str]) -> list[LinkedText]:
        """Entity linking: the mentions of each text and their entities, for systems with `Link`."""
        check_texts(texts, "link")
        return list(self.link_stream(texts))

    def link_stream(self, texts: Iterable[str]) -> Iterator[LinkedText]:
        """The same for a stream of texts, one by one, in constant memory."""
        # Lazy import: no other method needs it.
        from lmlab.scoring.entity_linking import link_entities

        return link_entities(self.system, self.tokenizer, self.model.layout, checked_texts(texts))

    def encode(self, texts: Sequence[str], **options: Any) -> list[TextEmbedding]:
        """Embed texts: a vector per text, or per token with `per_token`; see `encode_stream`.

        >>> _ = lmlab.train(
        ...     "gpt", data="grammar", out="runs/vectors", size="tiny", steps=2, quiet=True
        ... )
        >>> model = lmlab.load("runs/vectors")
        >>> [encoded] = model.encode(["the dog sleeps"], layer=-1, pooling="mean")
        >>> encoded.vector.shape
        (16,)
        >>> [encoded] = model.encode(["the dog sleeps"], per_token=True)
        >>> encoded.tokens, encoded.token_vectors.shape
        (('<s>', 'the', 'dog', 'sleeps', '</s>'), (5, 16))
        """
        check_texts(texts, "encode")
        return list(self.encode_stream(texts, **options))

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[TextEmbedding]:
        """Embed a stream of texts, one by one, in bounded memory.

        `options` are those of `lmlab.scoring.text_embeddings.TextEmbedder`: `per_token`; `layer` (0
        the embeddings, -1 the last layer; default the system's own vectors); `pooling` (own, mean,
        max, last, first). For all systems with hidden states.
        """
        # Lazy import: no other method needs it.
        from lmlab.scoring.text_embeddings import TextEmbedder

        model = self.model
        encoding = TextEmbedder(
            model.system,
            model.effective_source_tokenizer,
            model.layout,
            name=model.card.name,
            **options,
        )
        return encoding.encode(checked_texts(texts))

    def detect(self, texts: Sequence[str]) -> list[DetectedText]:
        """Replaced token detection: each token's probability of being replaced (ELECTRA).

        >>> _ = lmlab.train(
        ...     "electra", data="grammar", out="runs/electra", size="tiny", steps=2, quiet=True
        ... )
        >>> [detected] = lmlab.load("runs/electra").detect(["the dog sleeps"])
        >>> [(token.token, 0 < token.probability < 1) for token in detected.tokens]
        [('the', True), ('dog', True), ('sleeps', True)]
        """
        check_texts(texts, "detect")
        return list(self.detect_stream(texts))

    def detect_stream(self, texts: Iterable[str], **options: Any) -> Iterator[DetectedText]:
        """The same for a stream of texts, one by one, in bounded memory."""
        # Lazy import: no other method needs it.
        from lmlab.scoring.replaced_tokens_detection import detect_texts

        model = self.model
        return detect_texts(
            model.system, model.tokenizer, model.layout, checked_texts(texts), **options
        )

    def capture_internals(self, text: str, source: str | None = None) -> dict[str, Capture]:
        """Activations on a text by name: each layer's attention, sublayer outputs, hidden states.

        A `Capture` has values (a tensor with a batch of one), axes (the meaning of its dimensions)
        and a sentence on how to read it. Masked models get the unmasked text; `source` is a
        translator's.

        >>> _ = lmlab.train(
        ...     "gpt", data="grammar", out="runs/inside", size="tiny", steps=2, quiet=True
        ... )
        >>> found = lmlab.load("runs/inside").capture_internals("the dog sleeps")
        >>> found["layer 1 attention"].axes
        ('batch', 'head', 'time', 'source')
        """
        # Lazy import: it loads matplotlib.
        from lmlab.inspection.capture_collection import collect_text_captures

        return collect_text_captures(self.model, text, source)

    def ask(
        self,
        questions: Sequence[str],
        *,
        documents: str | Path | Documents | StoredIndex | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> list[AnsweredQuestion]:
        """Answer questions, with evidence; for systems with `Ask`.

        `documents` replace the run's own for retrieval: a built-in set, a file, a folder,
        `Documents`, or an index, whose vectors are reused if this model made them. For a fact
        memory (FaE), `knowledge` has other facts about the same entities, and `facts` are edits
        (subject, relation, object). `options`: `answers` (number per question), and for systems
        that generate answers `method` (RAG: thorough, fast, beam, greedy, sample), `beam`,
        `max_length`, `seed`.

        >>> _ = lmlab.train("rag-token", data="capitals-questions", out="runs/rag", size="tiny",
        ...                 settings={"retriever_width": 512}, steps=2, quiet=True)
        >>> [asked] = lmlab.load("runs/rag").ask(["what is the capital of Chad ?"], method="greedy")
        >>> asked.answers[0].evidence[0].text
        "the capital of Chad is N'Djamena"
        """
        check_texts(questions, "ask", what="question")
        return list(
            self.ask_stream(
                [questions], documents=documents, knowledge=knowledge, facts=facts, **options
            )
        )

    def ask_stream(
        self,
        chunks: Iterable[Sequence[str]],
        *,
        documents: str | Path | Documents | StoredIndex | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> Iterator[AnsweredQuestion]:
        """Answer chunks of questions lazily, in order."""
        # Lazy import: no other method needs it.
        from lmlab.core.answers import Ask
        from lmlab.core.protocols import require
        from lmlab.sampling.question_answering import QuestionAnswerer, with_documents, with_facts

        system = self.model.system
        require(system, Ask, "asking")
        if documents is not None:
            system = with_documents(system, *self._resolve_documents(documents))
        if knowledge is not None or facts:
            system = with_facts(system, knowledge, facts)
        return QuestionAnswerer(system=system, tokenizer=self.model.tokenizer, **options).ask(
            chunks
        )

    def _resolve_documents(
        self, documents: str | Path | Documents | StoredIndex
    ) -> tuple[Documents, torch.Tensor | None, DenseIndex | None]:
        """The documents; their vectors if this model made them; and their index if approximate."""
        from lmlab.interop.text_encoders import vectors_of_model
        from lmlab.retrieval.documents import BUILTIN_DOCUMENTS, Documents, load_documents
        from lmlab.retrieval.stored_index import StoredIndex, is_index, open_index

        if isinstance(documents, Documents):
            return documents, None, None
        if not isinstance(documents, StoredIndex):
            if str(documents) in BUILTIN_DOCUMENTS or not is_index(documents):
                return load_documents(documents), None, None
            documents = open_index(documents)
        vectors = vectors_of_model(documents, self.model)
        if vectors is None:
            return documents.documents, None, None
        index = None if documents.about.kind == "flat" else documents.vectors
        return documents.documents, torch.tensor(vectors), index

    def _source_batch(self, source: str | None) -> Batch | None:
        """The source as a batch of one row; a UserError if the model does not take one."""
        card, task = self.card, self.config.get("task", {})
        if source is not None:
            if not card.conditional:
                raise UserError(f"{card.name} does not condition on a source; remove it.")
            return encode_source(source, self.model.effective_source_tokenizer, self.system)
        if card.conditional and (self.model.layout.kind == "pairs" or task.get("head") is False):
            raise UserError(
                f"this {card.name} was trained to generate given a source, got none; give one "
                "by --source, or many to lmlab translate."
            )
        return None

    def _generate(
        self,
        n: int,
        method: str,
        prefix: list[int],
        condition: Batch | None,
        most: int,
        seed: int,
        options: dict[str, Any],
    ) -> Iterator[GeneratedSequence]:
        given: dict[str, Any] = {"prefix": prefix, "condition": condition}
        if method == "beam":
            # The same beam width for any n, or the best text would depend on n.
            width = options.pop("beam", DEFAULT_BEAM_WIDTH)
            beam = BeamConfig(width=width, best=n, max_length=most, **options)
            yield from beam_search(self.system, beam, **given)[0]
            return
        generator = torch.Generator().manual_seed(seed)
        at_once = max(1, TOKENS_AT_ONCE // most)
        for first in range(0, n, at_once):
            rows = min(at_once, n - first)
            if condition is not None:
                given["condition"] = condition.select(torch.zeros(rows, dtype=torch.long))
            if method == "greedy":
                yield from decode_greedily(self.system, rows, max_length=most, **given)
            else:
                drawn = {"generator": generator, **given, **options}
                yield from draw(self.system, rows, max_length=most, **drawn)

    def _generated_text(self, written: GeneratedSequence) -> GeneratedText:
        return GeneratedText(
            text=self.tokenizer.decode(written.tokens),
            log_prob=written.log_prob,
            tokens=len(written.tokens) - written.given + written.finished,
            finished=written.finished,
        )


def shared_corpus(
    models: Sequence[TrainedModel], data: str | Path | None, errors: str | None
) -> Corpus:
    """The given corpus, or the one that all models were trained on.

    A model's training corpus is split as in training; otherwise its test split would contain
    training texts.
    """
    if data is not None:
        trained = [model.config["corpus"] for model in models]
        seeds = {corpus["seed"] for corpus in trained if corpus["spec"] == str(data)}
        if len(seeds) > 1:
            raise UserError(f"these runs divided {data} by different seeds, so no split is unseen.")
        return open_corpus(data, errors=errors or "strict", seed=seeds.pop() if seeds else 0)
    found = {model.config["corpus"]["fingerprint"]: model.config["corpus"] for model in models}
    found.pop("", None)  # an imported model does not know its corpus, and fits any
    if not found:
        raise UserError(
            "these models were not trained here; give the corpus to compare them on by --data."
        )
    if len(found) != 1:
        names = ", ".join(sorted({str(corpus["spec"]) for corpus in found.values()}))
        raise UserError(
            f"these runs were trained on different corpora ({names}); choose one by --data."
        )
    [(fingerprint, trained_on)] = found.items()
    how = errors or trained_on.get("errors", "strict")
    try:
        corpus = open_corpus(trained_on["spec"], errors=how, seed=trained_on["seed"])
    except UserError as error:
        raise UserError(
            f"the training corpus of the runs can't be read ({str(error).rstrip('.')}); give "
            "its path by --data."
        ) from error
    if corpus.fingerprint() != fingerprint:
        raise UserError(
            f"{trained_on['spec']} has changed since the runs were trained on it; give the "
            "corpus to compare them on by --data."
        )
    return corpus
