"""Translation metrics by sacreBLEU: BLEU and chrF with signatures (Post 2018); utility for MBR.

Tokenisation and counting are sacreBLEU's, so that figures are comparable with published ones; `pip
install 'lmlab[translation]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.errors import UserError, unknown_name

TRANSLATION_METRICS = ("bleu", "chrf")
BOOTSTRAP_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class TranslationScore:
    """A metric over all translations of one system."""

    system: str
    metric: str
    score: float
    """As printed by sacreBLEU's command line."""
    mean: float
    interval: float
    """Half-width of the 95 % bootstrap interval around the bootstrap mean."""
    p_value: float | None
    """Difference to the first system, by the paired bootstrap (Koehn 2004); None for the first."""
    signature: str
    """sacreBLEU's signature: references, tokenisation, version, resampling."""
    texts: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def score_translations(
    metrics: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    tokenize: str = "none",
) -> list[TranslationScore]:
    """Compute every metric of every system's translations, on the same references.

    `tokenize` is BLEU's tokenisation; none where texts are tokenised already.
    """
    _check(systems, references)
    sacrebleu_metrics = {metric: make_metric(metric, tokenize=tokenize) for metric in metrics}
    from sacrebleu.significance import PairedTest

    scores: list[TranslationScore] = []
    for name, metric in sacrebleu_metrics.items():
        named: list[tuple[str, Sequence[str]]] = list(systems.items())
        test = PairedTest(
            named, {name: metric}, [list(references)], test_type="bs", n_samples=BOOTSTRAP_RESAMPLES
        )
        signatures, columns = test()
        [key] = signatures
        results: list[Any] = list(columns[key])
        signature = str(signatures[key])
        scores += [
            TranslationScore(
                system=system,
                metric=name,
                score=float(result.score),
                mean=float(result.mean),
                interval=float(result.ci),
                p_value=_p_value(result, results[0]),
                signature=signature,
                texts=len(references),
            )
            for system, result in zip(systems, results, strict=True)
        ]
    return scores


def _p_value(result: Any, first: Any) -> float | None:
    """sacreBLEU's p-value, except where there is no difference, which it reports as significant."""
    if result.p_value is None:
        return None
    return 1.0 if result.score == first.score else float(result.p_value)


def check_metrics(metrics: Sequence[str], tokenize: str) -> None:
    """A UserError where a metric or tokenisation is not available."""
    if not metrics:
        raise UserError(f"give a metric to evaluate by: {' or '.join(TRANSLATION_METRICS)}.")
    for metric in metrics:
        make_metric(metric, tokenize=tokenize)


def make_metric(name: str, *, tokenize: str = "none", single: bool = False) -> Any:
    """The sacreBLEU metric of a name; `single` for one that scores single sentences."""
    if name not in TRANSLATION_METRICS:
        raise unknown_name("metric", name, TRANSLATION_METRICS)
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise UserError(
            "translations are evaluated by sacreBLEU; pip install 'lmlab[translation]'."
        ) from error
    if tokenize not in BLEU.TOKENIZERS:
        raise UserError(
            f"sacreBLEU has no tokenisation {tokenize!r}; choose from "
            f"{', '.join(sorted(BLEU.TOKENIZERS))}."
        )
    if name == "chrf":
        return CHRF()
    # Tokenised input is what "none" is for: no warning needed. A short text may have no n-gram of
    # the highest orders: those are then left out of its score.
    tokenised = tokenize == "none"
    try:
        return BLEU(tokenize=tokenize, effective_order=single, force=tokenised)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"sacreBLEU can't tokenise by {tokenize!r} here ({' '.join(str(error).split())}); "
            "install what it needs, or choose another --tokenize."
        ) from error


class SentenceUtility:
    """Sentence-level metric as the utility of minimum Bayes risk decoding."""

    def __init__(self, metric: str) -> None:
        self.metric = make_metric(metric, single=True)

    def __call__(self, text: str, reference: str) -> float:
        return float(self.metric.sentence_score(text, [reference]).score)


def _check(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    if not references:
        raise UserError("there is no text to evaluate translations on.")
    for name, translations in systems.items():
        if len(translations) != len(references):
            raise UserError(
                f"{name} has {len(translations):,} translations for {len(references):,} "
                "references; give one for each."
            )
