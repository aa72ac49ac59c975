"""Countries and their capitals, the table that both `capitals` languages speak of."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class Country:
    """A country, its capital and sometimes another city of it, in Chinese and English."""

    country_zh: str
    country_en: str
    capital_zh: str
    capital_en: str
    city_zh: str = ""
    """A well-known city that is not the capital, or empty."""
    city_en: str = ""


@cache
def country_table() -> tuple[Country, ...]:
    """The members of the United Nations with one undisputed capital, the best known first.

    Left out because their capital is divided, disputed, moving or absent: Bolivia, Equatorial
    Guinea, Eswatini, Israel, Nauru, South Africa, Sri Lanka.
    """
    text = files(__package__).joinpath("countries.tsv").read_text(encoding="utf-8")
    return tuple(Country(**row) for row in csv.DictReader(text.splitlines(), delimiter="\t"))


def country_distribution(*, flatness: float = 10.0) -> tuple[float, ...]:
    """The probability of each country in `country_table()`: Zipf-Mandelbrot, p(r) ∝ 1 / (r +
    flatness).

    With ten, the first country comes twenty times as often as the last, so that a corpus of a few
    thousand sentences still mentions every one of them.
    """
    weights = [1.0 / (rank + flatness) for rank in range(1, len(country_table()) + 1)]
    return tuple(weight / sum(weights) for weight in weights)
