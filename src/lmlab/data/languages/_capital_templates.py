"""Sentence templates about capitals (Chinese, English), with the exact distribution of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from lmlab.data.countries import Country, country_distribution, country_table
from lmlab.data.languages._sampled_corpus import FiniteTruth


@dataclass(frozen=True, kw_only=True)
class SentenceTemplate:
    """A sentence template over the fields of `Country`, with its probability."""

    text: str
    probability: float

    @property
    def names_city(self) -> bool:
        """Whether it mentions a city, so that only countries with one can fill it."""
        return "{city" in self.text

    def fill(self, country: Country) -> str:
        """Fill the template with a country."""
        return self.text.format(**asdict(country))


def filled_templates(template: SentenceTemplate) -> Iterator[tuple[str, float]]:
    """Every sentence of the template with its probability given the template."""
    candidates = [
        (country, weight)
        for country, weight in zip(country_table(), country_distribution(), strict=True)
        if country.city_en or not template.names_city
    ]
    mass = sum(weight for _, weight in candidates)
    for country, weight in candidates:
        yield template.fill(country), weight / mass


def capitals_truth(
    templates: tuple[SentenceTemplate, ...], *, count_tokens: Callable[[str], int]
) -> FiniteTruth:
    """p(text) = Σ p(template) p(country | template) over the pairs that yield the text."""
    derivations = (
        (text, template.probability * probability)
        for template in templates
        for text, probability in filled_templates(template)
    )
    return FiniteTruth(derivations, count_tokens=count_tokens)
