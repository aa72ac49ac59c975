"""The laboratory in Python: the verbs of the command line, on objects.

>>> import lmlab
>>> result = lmlab.train("ngram", data="capitals", out="runs/capitals", quiet=True)
>>> model = lmlab.load("runs/capitals")
>>> [score] = model.score(["中国的首都是北京"])
>>> score.kind, score.tokens, score.convention.end
('exact', 9, True)
>>> [text] = model.sample(1, prefix="中国的首都", method="greedy")
>>> text.text.startswith("中国的首都")
True
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.registry import catalogue
from lmlab.core.score import Score, Summary, summarise
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.diagnostics.writing import writer_for
from lmlab.interop.opening import is_checkpoint, open_model
from lmlab.interop.wrapping import NO_COURSE, wrap_module
from lmlab.sampling.beam import Beam, beam_search
from lmlab.sampling.decode import Generated
from lmlab.sampling.decode import greedy as decode_greedily
from lmlab.sampling.decode import sample as draw
from lmlab.sampling.filling import Filled, Filler
from lmlab.sampling.judging import Evaluation, ValidationBleu, evaluate_translators
from lmlab.sampling.prefix import Prefix, encode_prefix
from lmlab.sampling.translating import Translation, make_translator
from lmlab.scoring.compare import compare as compare_models
from lmlab.scoring.comparison import Comparison
from lmlab.scoring.conditional import ConditionalScore, conditional_scores, spaced
from lmlab.scoring.pairs import PairsReport, judge_files
from lmlab.scoring.score import Scorer
from lmlab.training.runs import Model
from lmlab.training.train import RunResult
from lmlab.training.train import train as train_system

if TYPE_CHECKING:
    from lmlab.diagnostics.ablation import Ablation
    from lmlab.diagnostics.doctor.records import Examination
    from lmlab.diagnostics.inspection import Inspection
    from lmlab.diagnostics.showing import ShownObjective
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.encoders import TextEncoder
    from lmlab.retrieval.stored import StoredIndex
    from lmlab.sampling.asking import Asked
    from lmlab.sampling.chain_report import Chains
    from lmlab.scoring.links import LinkedText

__all__ = [
    "LanguageModel",
    "RunResult",
    "Text",
    "ablate",
    "build_index",
    "compare",
    "doctor",
    "evaluate",
    "inspect",
    "load",
    "open_index",
    "show_objective",
    "systems",
    "train",
    "wrap",
]

METHODS = {
    "ancestral": ("temperature", "top_k", "top_p"),
    "greedy": (),
    "beam": ("beam", "length_penalty"),
}
"""The ways to write a text, and which options each has a use for."""
CHAINS = ("gibbs", "metropolis")
"""The ways that are Markov chains, which have a verb of their own."""
BEAM_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text that a model wrote."""

    text: str
    log_prob: float | None
    """The model's own log-probability, in nats, of what follows the prefix; no temperature or
    truncation in it. None where the system can't tell."""
    tokens: int
    """Tokens written after the prefix, the end included where it came."""
    finished: bool
    """Whether the model ended it; if not, the greatest length cut it off."""


@wraps(train_system)
def train(*arguments: Any, **options: Any) -> RunResult:
    """`lmlab.training.train.train`, with a judge where weights are kept by translations."""
    return train_system(*arguments, **{"judge": ValidationBleu, **options})


class LanguageModel:
    """A trained model: what `lmlab.load(run)` and `lmlab.wrap(module, tokenizer)` give."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"LanguageModel({self.model.card.name}, {str(self.path)!r})"

    @property
    def card(self) -> Card:
        """The system's card: paper, source, kind, what it can do."""
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
        """From text to ids and back."""
        return self.model.tokenizer

    def scorer(self, **options: Any) -> Scorer:
        """A `Scorer` of this model, with options such as `window=`, `stride=`, `cut=`."""
        return Scorer(self.model.system, self.model.tokenizer, self.model.layout, **options)

    def score(self, texts: Sequence[str], **options: Any) -> list[Score]:
        """The log-probability of each text, by token, in nats; options as of a `Scorer`.

        `method` is another way to score: simple, raw, norm, within-word, k-mask (with `positions`)
        for masked models, with `head="none"` by token embeddings; exact, bound or energy.

        >>> model = lmlab.load("runs/ngram")
        >>> [score] = model.score(["the cat sleeps"])
        >>> [token.token for token in score.per_token]
        ['the', 'cat', 'sleeps', '</s>']
        >>> abs(score.total - sum(token.log_prob for token in score.per_token)) < 1e-9
        True
        """
        if isinstance(texts, str):
            raise UserError("score takes a list of texts, and one text came; put it in a list.")
        return list(self.score_stream(texts, **options))

    def score_stream(
        self, texts: Iterable[str], *, per_token: bool = True, **options: Any
    ) -> Iterator[Score]:
        """Scores of any number of texts, one by one, in constant memory."""
        return self.scorer(**options).score(texts, per_token=per_token)

    def score_given(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        end: bool = False,
        separator: str | None = "",
        **options: Any,
    ) -> Iterator[ConditionalScore]:
        """log p(continuation | prefix) of each pair, one by one; see `conditional_scores`.

        `separator` stands between the two where neither has a space there; None is a space, but
        nothing for models of characters. `end` counts the end as well. `options` as of `score`.

        >>> model = lmlab.load("runs/ngram")
        >>> [found] = model.score_given([("the cat", " sleeps")])
        >>> found.kind, [token.token for token in found.per_token]
        ('exact', ['sleeps'])
        """
        if separator is None:
            separator = "" if self.tokenizer.kind == "char" else " "
        joined = ((p, spaced(p, c, separator)) for p, c in pairs)
        return conditional_scores(self.scorer(**options), joined, end=end)

    def summary(self, texts: Iterable[str], **options: Any) -> Summary:
        """Perplexity, nats per token and bits per character of all the texts together.

        >>> summary = lmlab.load("runs/ngram").summary(["the cat sleeps", "a dog sees mary"])
        >>> summary.tokens, round(summary.nats_per_token, 6) == round(-summary.total / 9, 6)
        (9, True)
        """
        return summarise(self.score_stream(texts, per_token=False, **options))

    def pairs(self, *files: Path | str) -> PairsReport:
        """Accuracy on minimal pairs, JSON lines of `sentence_good` and `sentence_bad` (BLiMP).

        >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
        >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
        >>> lmlab.load("runs/ngram").pairs("agreement.jsonl").overall.accuracy
        1.0
        """
        return judge_files(self.scorer(), files)

    def encode_prefix(self, text: str) -> Prefix:
        """The ids that a prefix is fed as, and the words of it that the model does not know."""
        return encode_prefix(text, self.tokenizer)

    def sample(
        self,
        n: int = 1,
        *,
        prefix: str = "",
        method: str = "ancestral",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int = 100,
        seed: int = 0,
    ) -> list[Text]:
        """Write `n` texts: drawn (ancestral), the likeliest token each time (greedy), or searched.

        `n` texts of a beam search are its n best. The same seed gives the same texts.

        >>> model = lmlab.load("runs/ngram")
        >>> model.sample(3, seed=0) == model.sample(3, seed=0)
        True
        >>> first, second = model.sample(2, method="beam", beam=8)
        >>> first.log_prob >= second.log_prob
        True
        """
        if method in CHAINS:
            raise UserError(f"Markov chains give a record: call chains(n, method={method!r}).")
        if method not in METHODS:
            raise unknown_name("method", method, (*METHODS, *CHAINS))
        if not 0 <= seed < 2**31:
            raise UserError(f"a seed must be from 0 to {2**31 - 1}, and {seed} came.")
        given = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "beam": beam,
            "length_penalty": length_penalty,
        }
        options = {name: value for name, value in given.items() if value is not None}
        for name in options:
            if name not in METHODS[method]:
                raise UserError(
                    f"the method {method} has no use for {name.replace('_', '-')}; leave it out."
                )
        ids = list(self.encode_prefix(prefix).ids)
        written = self._write(n, method, ids, max_length, seed, options)
        return [self._text(each) for each in written]

    def chains(
        self,
        n: int = 1,
        *,
        lm: Path | str | LanguageModel | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        **options: Any,
    ) -> Chains:
        """Texts by Markov chains (gibbs, metropolis), with what tells whether they have mixed.

        `options` are those of `lmlab.sampling.chain_settings.ChainSettings`: method, start, text,
        template, prefix, length, steps, masks, order, temperature, energy … `lm` is whose samples
        a start from an lm takes; its own unless given. For systems with `Fill` or `Energy`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/states", size="tiny", steps=2, quiet=True
        ... )
        >>> found = lmlab.load("runs/states").chains(
        ...     2, method="metropolis", template="the <mask> sleeps", steps=40
        ... )
        >>> [text.text.startswith("the ") for text in found.texts], found.energy
        ([True, True], 'own')
        """
        # Imported late: no other verb needs it.
        from lmlab.sampling.chain_settings import ChainSettings
        from lmlab.sampling.chains import ChainRunner

        settings = ChainSettings(n=n, **options)
        if isinstance(lm, (str, Path)):
            lm = load(lm)
        runner = ChainRunner(
            self.system,
            self.tokenizer,
            self.model.layout,
            settings,
            corpus_texts=lambda: corpus_of([self.model], None, None).split("train").texts(),
            lm=None if lm is None else (lm.system, lm.tokenizer),
        )
        return runner.run(progress)

    def fill(self, texts: Sequence[str], **options: Any) -> list[Filled]:
        """What stands where each text has `<mask>` or `[MASK]`; options as of `fill_stream`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/hmm", size="tiny", steps=2, quiet=True
        ... )
        >>> [filled] = lmlab.load("runs/hmm").fill(["the <mask> sleeps"], top=3)
        >>> [option.probability > 0 for option in filled.gaps[0].options]
        [True, True, True]
        """
        if isinstance(texts, str):
            raise UserError("fill takes a list of texts, and one text came; put it in a list.")
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
    ) -> Iterator[Filled]:
        """What stands in the gaps of any number of texts, one by one, in constant memory.

        The likeliest tokens of each gap by itself, or of all together (`joint`); for systems with
        `Infill` blanks of any length (`blanks`, or where the system has no `Fill`), drawn where a
        seed is given. `among` are the only candidates. `options`: `top`, `beam`, `max_length`.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        model = self.model
        filler = Filler(
            system=model.system, tokenizer=model.tokenizer, layout=model.layout, **options
        )
        return filler.fill(texts, joint=joint, blanks=blanks, among=among, generator=generator)

    def translate(self, texts: Sequence[str], **options: Any) -> list[Translation]:
        """Each text in the other language; options as of `lmlab translate`.

        >>> _ = open("pairs.tsv", "w").write("eins\\tone\\nzwei\\ttwo\\n" * 50)
        >>> _ = lmlab.train("seq2seq", data="pairs.tsv", out="runs/seq2seq", size="tiny",
        ...                 settings={"learning_rate": 0.02}, epochs=100, quiet=True)
        >>> [each.text for each in lmlab.load("runs/seq2seq").translate(["zwei", "eins"])]
        ['two', 'one']
        """
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts, and one came; put it in a list.")
        return list(self.translate_stream([texts], **options))

    def translate_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[Translation]:
        """Texts that come some at a time, translated in their order."""
        if not self.card.conditional:
            raise UserError(
                f"{self.card.name} writes texts that are given nothing; translating needs a system "
                "with a source (seq2seq, seq2seq-attention, transformer …)."
            )
        model = self.model
        translator = make_translator(model.system, model.tokenizer, model.reads_by, **options)
        return translator.translate(chunks)

    def link(self, texts: Sequence[str]) -> list[LinkedText]:
        """The mentions of each text and the entities they are taken for, where it has `Link`."""
        if isinstance(texts, str):
            raise UserError("link takes a list of texts, and one text came; put it in a list.")
        return list(self.link_stream(texts))

    def link_stream(self, texts: Iterable[str]) -> Iterator[LinkedText]:
        """The same for any number of texts, one by one, in constant memory."""
        # Imported late: no other verb needs it.
        from lmlab.scoring.links import link_texts

        return link_texts(self.system, self.tokenizer, self.model.layout, texts)

    def ask(
        self,
        questions: Sequence[str],
        *,
        documents: str | Path | Documents | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> list[Asked]:
        """Each question answered, with what the answers rest on; for systems with `Ask`.

        `documents` to look up instead of the run's own: a built-in set, a file, a folder, an
        index, or `Documents`. For a memory of facts (FaE) `knowledge` has other facts about the
        same entities, and `facts` are changed: (subject, relation, object). `options`: `answers`
        (how many for each), and for systems that write their answers `method` (RAG: thorough,
        fast, beam, greedy, sample), `beam`, `max_length`, `seed`.

        >>> _ = lmlab.train("rag-token", data="capitals-questions", out="runs/rag", size="tiny",
        ...                 settings={"retriever_width": 512}, steps=2, quiet=True)
        >>> [asked] = lmlab.load("runs/rag").ask(["what is the capital of Chad ?"], method="greedy")
        >>> asked.answers[0].evidence[0].text
        "the capital of Chad is N'Djamena"
        """
        if isinstance(questions, str):
            raise UserError("ask takes a list of questions, and one came; put it in a list.")
        return list(
            self.ask_stream(
                [questions], documents=documents, knowledge=knowledge, facts=facts, **options
            )
        )

    def ask_stream(
        self,
        chunks: Iterable[Sequence[str]],
        *,
        documents: str | Path | Documents | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> Iterator[Asked]:
        """Questions that come some at a time, answered in their order."""
        # Imported late: no other verb needs it.
        from lmlab.core.answers import Ask
        from lmlab.core.protocols import require
        from lmlab.retrieval.documents import open_documents
        from lmlab.sampling.asking import Asker, with_documents, with_facts

        system = self.model.system
        require(system, Ask, "asking")
        if documents is not None:
            if isinstance(documents, (str, Path)):
                documents = open_documents(documents)
            system = with_documents(system, documents)
        if knowledge is not None or facts:
            system = with_facts(system, knowledge, facts)
        return Asker(system=system, tokenizer=self.model.tokenizer, **options).ask(chunks)

    def _write(
        self, n: int, method: str, prefix: list[int], most: int, seed: int, options: dict[str, Any]
    ) -> Sequence[Generated]:
        if method == "beam":
            # The same width whatever n, or the best text would depend on how many are asked for.
            width = options.pop("beam", BEAM_WIDTH)
            beam = Beam(width=width, best=n, max_length=most, **options)
            return beam_search(self.system, beam, prefix=prefix)[0]
        if method == "greedy":
            return decode_greedily(self.system, n, max_length=most, prefix=prefix)
        generator = torch.Generator().manual_seed(seed)
        return draw(self.system, n, max_length=most, prefix=prefix, generator=generator, **options)

    def _text(self, written: Generated) -> Text:
        return Text(
            text=self.tokenizer.decode(written.tokens),
            log_prob=written.log_prob,
            tokens=len(written.tokens) - written.given + written.finished,
            finished=written.finished,
        )


def load(run: Path | str) -> LanguageModel:
    """The trained model of a run's folder, ready to score and to write.

    A folder in the Hub's format (config.json, model.safetensors, tokenizer.json) will do too: it
    is read each time afresh and nothing is written; `transformers` reads the architectures that
    lmlab does not know.

    >>> lmlab.load("runs/ngram").card.family
    'counting'
    """
    return LanguageModel(open_model(run))


def wrap(
    module: torch.nn.Module,
    tokenizer: Any,
    *,
    kind: Literal["causal", "masked"] = "causal",
    name: str | None = None,
    window: int | None = None,
    count_end: bool = True,
    **symbols: str | int | None,
) -> LanguageModel:
    """Anybody's torch module in the laboratory: scored, sampled, compared, inspected like a run.

    `module` maps ids (B, T) to logits (B, T, V), as a tensor or as `.logits`, of the next token
    (`causal`) or of what stands at a mask (`masked`). An attention_mask is handed to it where its
    forward takes one; where padding changes its scores, texts of equal length are read together.
    `tokenizer` is one of lmlab, tokenizers or transformers, or any object with encode, decode and
    vocab_size. `symbols` are start, end, unknown, mask and pad by spelling or id, None for what
    there is not; the tokeniser's own where they are not given. Where there is no start, the end
    stands before a text (GPT-2). `count_end` says whether the end is predicted and counted,
    `window` how many tokens the module reads at most, and `name` what tables call it.

    Padding, start and mask are never predicted, as in all of lmlab: the others share their mass.
    The module stays the caller's own: it is not copied, and its mode comes back after each verb.

    >>> from types import SimpleNamespace
    >>> letters = " abcdefghijklmnopqrstuvwxyz."
    >>> characters = SimpleNamespace(
    ...     vocab_size=len(letters),
    ...     encode=lambda text: [letters.index(letter) for letter in text],
    ...     decode=lambda ids: "".join(letters[id] for id in ids),
    ... )
    >>> uniform = torch.nn.Embedding.from_pretrained(torch.zeros(28, 28))
    >>> model = lmlab.wrap(uniform, characters, end=".")
    >>> [score] = model.score(["a cat"])
    >>> score.kind, score.tokens, round(score.total, 3)  # 6 · log 1/28
    ('exact', 6, -19.993)
    """
    return LanguageModel(
        wrap_module(
            module,
            tokenizer,
            kind=kind,
            name=name,
            window=window,
            count_end=count_end,
            symbols=symbols,
        )
    )


def compare(
    runs: Sequence[Path | str | LanguageModel],
    *,
    data: str | Path | Corpus | None = None,
    split: str = "test",
    out: Path | str | None = None,
    seed: int = 0,
    errors: str | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Score trained models on one split and set them side by side, differences tested.

    `data` is what they were trained on unless it is given. `out` also writes the comparison: a
    report (.html), a table (.md, .tex) or its numbers (.json).

    >>> found = lmlab.compare(["runs/window", "runs/ngram"], out="report.html")
    >>> [(row.name, row.kind, row.regret > 0) for row in found.rows]
    [('ngram', 'exact', True), ('window', 'exact', True)]
    """
    if isinstance(runs, (str, Path)):
        raise UserError("compare takes a list of runs, and one came by itself; put it in a list.")
    write = None if out is None else writer_for(Path(out))
    models = [run.model if isinstance(run, LanguageModel) else open_model(run) for run in runs]
    corpus = data if isinstance(data, Corpus) else corpus_of(models, data, errors)
    found = compare_models(models, corpus, split, seed=seed, progress=progress)
    if write is not None:
        write(found, models)
    return found


def corpus_of(models: Sequence[Model], data: str | Path | None, errors: str | None) -> Corpus:
    """The corpus that is named, or the one that all models were trained on.

    A corpus that a model was trained on is divided as it was then, or its test split would hold
    what the model has seen.
    """
    if data is not None:
        trained = [model.config["corpus"] for model in models]
        seeds = {corpus["seed"] for corpus in trained if corpus["spec"] == str(data)}
        if len(seeds) > 1:
            raise UserError(f"these runs divided {data} by different seeds, so no split is unseen.")
        return open_corpus(data, errors=errors or "strict", seed=seeds.pop() if seeds else 0)
    found = {model.config["corpus"]["fingerprint"]: model.config["corpus"] for model in models}
    found.pop("", None)  # a model from elsewhere doesn't know its corpus, and fits any
    if not found:
        raise UserError(
            "these models were not trained here; say by --data what to compare them on."
        )
    if len(found) != 1:
        names = ", ".join(sorted({str(corpus["spec"]) for corpus in found.values()}))
        raise UserError(
            f"these runs were trained on different corpora ({names}); say by --data which one to "
            "compare them on."
        )
    [(fingerprint, trained_on)] = found.items()
    how = errors or trained_on.get("errors", "strict")
    try:
        corpus = open_corpus(trained_on["spec"], errors=how, seed=trained_on["seed"])
    except UserError as error:
        raise UserError(
            f"what the runs were trained on can't be read here ({str(error).rstrip('.')}); say by "
            "--data where it is."
        ) from error
    if corpus.fingerprint() != fingerprint:
        raise UserError(
            f"{trained_on['spec']} has changed since the runs were trained on it; say by --data "
            "what to compare them on."
        )
    return corpus


def evaluate(
    runs: Sequence[Path | str | LanguageModel],
    *,
    data: str | Path | None = None,
    errors: str | None = None,
    **options: Any,
) -> Evaluation:
    """Translate a corpus of pairs with each run, and judge them by sacreBLEU on the same texts.

    `data` is what the runs were trained on unless given; options are those of
    `evaluate_translators` (split, metrics, limit …) and of translating (method, beam …).
    """
    models = [run if isinstance(run, LanguageModel) else load(run) for run in runs]
    corpus = corpus_of([each.model for each in models], data, errors)
    named = {each.model.name: each.model for each in models}
    if len(named) < len(models):
        raise UserError("two runs have the same folder name; rename one, to tell them apart.")
    return evaluate_translators(named, corpus, **options)


def inspect(
    runs: Sequence[Path | str | LanguageModel],
    *,
    texts: Sequence[str] = (),
    words: Sequence[str] = (),
    out: Path | str | None = None,
    progress: Callable[[str], None] = lambda title: None,
) -> Inspection:
    """Draw what goes on inside trained models, as SVG, PNG and a page; several side by side.

    `texts` are the sentences shown and `words` those whose neighbours are; some of the run's own
    unless given. `out` is a folder, one run's own figures unless given.

    >>> found = lmlab.inspect(["runs/window"], texts=["the cat sleeps"], out="pictures")
    >>> [shot.name for shot in found.shots if shot.text]
    ['surprisal', 'view']
    """
    # Imported late: pictures need matplotlib, and no other verb should wait for it.
    from lmlab.diagnostics.inspection import inspect_models

    if isinstance(runs, (str, Path)):
        raise UserError("inspect takes a list of runs, and one came by itself; put it in a list.")
    if isinstance(texts, str) or isinstance(words, str):
        raise UserError("inspect takes lists of texts and words; put a single one in a list.")
    models = [run.model if isinstance(run, LanguageModel) else open_model(run) for run in runs]
    folder = None if out is None else Path(out)
    return inspect_models(models, out=folder, texts=texts, words=words, progress=progress)


def show_objective(
    system: str | Path | LanguageModel,
    *,
    text: str | None = None,
    condition: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
) -> ShownObjective:
    """Draw what an objective shows of one text and what it asks: a system of the zoo, or a run.

    A system of the zoo is built small over the words of the text, with `settings` of one's own;
    `condition` is what the text is given. `out` also writes the picture, as .svg or .png.

    >>> shown = lmlab.show_objective("bert", text="the cat sat on the mat", seed=0, out="bert.svg")
    >>> [matrix.name for matrix in shown.showing.matrices]
    ['who may see whom']
    """
    # Imported late: pictures need matplotlib, and no other verb should wait for it.
    from lmlab.diagnostics.showing import check_form
    from lmlab.diagnostics.showing import show_objective as show

    if out is not None:
        check_form(Path(out))
    asked: str | Path | Model = system.model if isinstance(system, LanguageModel) else system
    if not isinstance(asked, Model) and is_checkpoint(Path(asked)):
        asked = open_model(asked)
    shown = show(asked, text=text, condition=condition, seed=seed, settings=settings)
    if out is not None:
        shown.write(Path(out))
    return shown


def doctor(
    run: Path | str | LanguageModel,
    *,
    data: str | Path | Corpus | None = None,
    out: Path | str | None = None,
) -> Examination:
    """Is this normal? Look a run over, of any system, and say what a healthy one would not have.

    It looks at a training's course, so that a model from elsewhere has nothing for it. `data`
    says where its corpus is, if it has moved; `out` is a folder for the picture of the curve beside
    what it can be held against.

    >>> found = lmlab.doctor("runs/ngram")
    >>> found.healthy, [level.name for level in found.levels]
    (True, ['uniform', 'unigram', 'bigram', 'entropy'])
    """
    # Imported late: no other verb looks at so much.
    from lmlab.diagnostics.doctor.examine import examine

    if isinstance(run, LanguageModel) and not run.model.stored:
        raise UserError(NO_COURSE.format(name=run.model.name))
    if isinstance(run, LanguageModel):
        run = run.path
    elif is_checkpoint(Path(run)):
        raise UserError(NO_COURSE.format(name=run))
    found = examine(run, data=data)
    if out is not None:
        from lmlab.diagnostics.doctor.picture import write_picture

        write_picture(found, Path(out))
    return found


def ablate(
    system: str,
    *,
    data: str | Path,
    out: Path | str,
    switches: str | Sequence[Sequence[int | str]] | None = None,
    each: bool = False,
    pairs: bool = False,
    seeds: int = 3,
    epochs: int | None = None,
    at: Sequence[int] = (),
    size: str | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    tokenizer: str | None = None,
    jobs: int = 1,
    quiet: bool = False,
) -> Ablation:
    """Train a system whole and with terms switched off, and tell what each is worth.

    `switches` are sets of numbers or names, "4;0,4,5" or [[4], [0, 4, 5]]; `each` takes every
    switch by itself (so where nothing is asked for), `pairs` every two. What is off in `settings`
    is off in every row. Losses are told after the epochs `at`, the last if none. Trainings are runs
    in out/runs; those that are finished are not repeated, and one that was stopped goes on.

    >>> found = lmlab.ablate("gru-minimal", data="grammar", out="terms", switches="4;0,4",
    ...                      size="tiny", seeds=1, epochs=1, quiet=True)
    >>> sorted(row.terms for row in found.rows)
    ['0 gate-input, 4 candidate-hidden', '4 candidate-hidden', 'intact']
    """
    # Imported late: pictures need matplotlib, and no other verb should wait for it.
    from lmlab.diagnostics.ablation import ask
    from lmlab.diagnostics.ablation_runs import run_ablation
    from lmlab.diagnostics.ablation_tables import write_tables

    question = ask(
        system,
        data=str(data),
        switches=switches,
        each=each,
        pairs=pairs,
        seeds=seeds,
        epochs=epochs,
        at=at,
        size=size,
        settings=settings or {},
        tokenizer=tokenizer,
        recipe=recipe,
    )
    if jobs < 1:
        raise UserError(f"at least one training must run at a time, and {jobs} came.")

    def tell(sentence: str) -> None:
        if not quiet:
            print(sentence, file=sys.stderr, flush=True)

    found = run_ablation(question, Path(out), jobs=jobs, quiet=quiet, tell=tell)
    write_tables(found)
    return found


def build_index(
    documents: str | Path | Documents,
    encoder: str | Path | LanguageModel | TextEncoder,
    out: Path | str,
    *,
    errors: str = "strict",
    **options: Any,
) -> StoredIndex:
    """Write an index of documents into a folder, all of it or nothing, and open it.

    `documents` are a built-in set (capitals, wordnet), a file, a folder, or `Documents`. `encoder`
    is a run or model with `Encode`, a folder in the Hub's format, or "bm25" for an index by words.
    `options` are those of `lmlab.retrieval.stored.build_index`: kind (flat, ivf, hnsw), recall,
    batch, seed, progress.

    >>> index = lmlab.build_index("capitals", "bm25", "indexes/capitals")
    >>> [hit.document.text for hit in index.search(["Peru"], k=1)[0]]
    ['the capital of Peru is Lima']
    """
    # Imported late: no other verb needs it.
    from lmlab.data.lines import check_errors
    from lmlab.interop.text_encoders import as_encoder
    from lmlab.retrieval.documents import open_documents
    from lmlab.retrieval.stored import BM25
    from lmlab.retrieval.stored import build_index as build

    if isinstance(documents, (str, Path)):
        documents = open_documents(documents, errors=check_errors(errors))
    given = encoder.model if isinstance(encoder, LanguageModel) else encoder
    return build(documents, None if given == BM25 else as_encoder(given), out, **options)


def open_index(
    path: Path | str, *, encoder: str | Path | LanguageModel | TextEncoder | None = None
) -> StoredIndex:
    """The index of a folder, to be searched by texts; vectors stay on the disk until looked at.

    `encoder` is the one that it was built with, from where it was then unless given.

    >>> index = lmlab.open_index("indexes/capitals")
    >>> len(index), [hit.number for hit in index.search(["the capital of Peru"], k=1)[0]]
    (186, [47])
    """
    from lmlab.interop.text_encoders import as_encoder, find_encoder
    from lmlab.retrieval.stored import open_index as open_stored

    if encoder is None:
        return open_stored(path, find_encoder=find_encoder)
    given = encoder.model if isinstance(encoder, LanguageModel) else encoder
    return open_stored(path, find_encoder=lambda *_: as_encoder(given))


def systems() -> list[Card]:
    """The cards of all systems, by name.

    >>> "lstm" in [card.name for card in lmlab.systems()]
    True
    """
    return list(catalogue().values())
