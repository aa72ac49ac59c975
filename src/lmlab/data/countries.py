"""Countries and capitals in Chinese and English (table), and a Zipf-Mandelbrot distribution."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class Country:
    """A country, its capital and optionally another city, in Chinese and English."""

    country_zh: str
    country_en: str
    capital_zh: str
    capital_en: str
    city_zh: str = ""
    """A well-known city that is not the capital, or empty."""
    city_en: str = ""


@cache
def country_table() -> tuple[Country, ...]:
    """The members of the United Nations with one undisputed capital, best known first.

    Left out because their capital is divided, disputed, moving or absent: Bolivia, Equatorial
    Guinea, Eswatini, Israel, Nauru, South Africa, Sri Lanka.
    """
    text = files(__package__).joinpath("countries.tsv").read_text(encoding="utf-8")
    return tuple(Country(**row) for row in csv.DictReader(text.splitlines(), delimiter="\t"))


def country_distribution(*, flatness: float = 10.0) -> tuple[float, ...]:
    """Zipf-Mandelbrot distribution over `country_table()`: p(r) ∝ 1 / (r + flatness).

    With flatness 10, the first country is twenty times as frequent as the last, so that a few
    thousand sentences still mention every country.
    """
    weights = [1.0 / (rank + flatness) for rank in range(1, len(country_table()) + 1)]
    return tuple(weight / sum(weights) for weight in weights)
