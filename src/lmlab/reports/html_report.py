"""HTML report of a comparison, one offline file: tables, curves, samples, surprisal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmlab import __version__
from lmlab.core.atomic_files import telling_disk_errors, write_text
from lmlab.core.score import SCORE_KINDS, TokenScore
from lmlab.inspection.figure_files import figures_html
from lmlab.plotting.figure import colour
from lmlab.plotting.html import Html, TableCell, html_page, html_table, join_html, number_cell, tag
from lmlab.plotting.training_curves import LossBar, draw_loss_bars, draw_training_curves
from lmlab.reports.report_sections import ReportSection, SampledText
from lmlab.scoring.comparison_records import ComparedSentence, Comparison, ComparisonRow, Difference
from lmlab.scoring.comparison_tables import caption
from lmlab.scoring.formatting import KIND_DESCRIPTIONS, describe_convention
from lmlab.training.reporting import format_exact_duration

SURPRISAL_SCALE = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Surprisals, in nats, in the colour legend."""


def write_report(path: Path, chapters: Sequence[ReportSection], *, title: str) -> Path:
    """Write the report to a file, atomically."""
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_report(chapters, title=title))
    return path


def render_report(chapters: Sequence[ReportSection], *, title: str) -> str:
    """Render the page; the same sections give the same bytes."""
    chapters = assign_colours(chapters)
    head = [
        tag("h1", title),
        tag("p", f"Written by lmlab {__version__}. Lower is better throughout.", class_="faint"),
    ]
    if len(chapters) > 1:
        links = [
            tag("li", tag("a", chapter.comparison.corpus, href=f"#{_anchor(place)}"))
            for place, chapter in enumerate(chapters)
        ]
        head.append(tag("nav", tag("ul", *links)))
    body = [_chapter(chapter, _anchor(place)) for place, chapter in enumerate(chapters)]
    return html_page(title, *head, *body, _kinds(chapters))


def assign_colours(chapters: Sequence[ReportSection]) -> list[ReportSection]:
    """Assign each name a palette index, the same in every section."""
    names = [row.name for chapter in chapters for row in chapter.comparison.rows]
    looks = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return [
        replace(
            chapter,
            colour_indices=looks,
            curves=tuple(
                replace(curve, colour_index=looks[curve.name]) for curve in chapter.curves
            ),
        )
        for chapter in chapters
    ]


def _anchor(place: int) -> str:
    return f"corpus-{place + 1}"


def _chapter(chapter: ReportSection, anchor: str) -> Html:
    comparison = chapter.comparison
    parts = [
        tag("h2", f"{comparison.corpus}, {comparison.split} split"),
        tag("p", *_lead(comparison), class_="lead"),
        tag("p", caption(comparison), class_="faint"),
        _rows(chapter),
        _notes(comparison),
        _bars(chapter),
        _curves(chapter),
        _differences(comparison.differences),
        _surprisal(chapter),
        _samples(chapter),
        _inside(chapter),
        _conventions(comparison),
        _commands(chapter),
    ]
    return tag("section", *parts, id=anchor)


def _lead(comparison: Comparison) -> list[str]:
    """The result in a sentence; per character where rows do not compare per token."""
    if not _same_tokens(comparison):
        able = _by_character(comparison)
        if not able:
            return ["These scores don't compare: tokens differ, and none has bits per character."]
        bits, best = min(able, key=lambda pair: pair[0])
        figure = f"{bits:.3f} bits per character"
        return ["Best by character: ", tag("strong", best.name), f" with {figure}."]
    best = min(comparison.rows, key=lambda row: row.nats_per_token)
    said = [tag("strong", best.name), f" does best: {best.nats_per_token:.3f} nats per token"]
    if best.perplexity is not None:
        said.append(f", perplexity {best.perplexity:,.2f}")
    if best.floor is not None and best.regret is not None:
        said.append(
            f". The entropy of the language is {best.floor:.3f} on this split, so "
            f"{best.regret:.3f} nats per token are left to learn"
        )
    return [*said, "."]


def _by_character(comparison: Comparison) -> list[tuple[float, ComparisonRow]]:
    """Bits per character and their rows; rows without are left out."""
    bits = ((row.bits_per_character, row) for row in comparison.rows)
    return [(each, row) for each, row in bits if each is not None]


def _same_tokens(comparison: Comparison) -> bool:
    return len({(row.kind, row.tokenization) for row in comparison.rows}) == 1


@dataclass(frozen=True)
class _Column:
    """A table column: heading, and the cell of a row."""

    heading: str
    show: Callable[[ComparisonRow], TableCell]


def _columns(chapter: ReportSection) -> list[_Column]:
    """The columns that have a value in this comparison."""
    rows = chapter.comparison.rows
    chosen = [
        _Column("model", lambda row: _name(row, chapter)),
        _Column("kind", lambda row: TableCell(row.kind)),
        _Column("nats/token", _nats),
        _Column("perplexity", lambda row: number_cell(row.perplexity, 2)),
        _Column("bits/character", lambda row: number_cell(row.bits_per_character, 4)),
    ]
    if any(row.floor is not None for row in rows):
        chosen.append(_Column("floor", lambda row: number_cell(row.floor, 4)))
        chosen.append(_Column("regret", lambda row: number_cell(row.regret, 4)))
    chosen.append(_Column("parameters", lambda row: number_cell(row.parameters or None, 0)))
    if any(row.unknown for row in rows):
        chosen.append(_Column("unknown", _unknown))
    chosen.append(_Column("training", lambda row: _time(row.train_seconds)))
    if len({row.convention.tokenizer for row in rows}) > 1:
        chosen.append(_Column("tokeniser", lambda row: TableCell(row.convention.tokenizer)))
    return chosen


def _rows(chapter: ReportSection) -> Html:
    columns = _columns(chapter)
    shown = [[column.show(row) for column in columns] for row in chapter.comparison.rows]
    return html_table([column.heading for column in columns], shown)


def _name(row: ComparisonRow, chapter: ReportSection) -> TableCell:
    seeds = f" ({len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
    name = row.name if row.system in row.name else f"{row.name} ({row.system})"
    return TableCell(join_html([_swatch(chapter.colour_index(row.name)), name + seeds]))


def _nats(row: ComparisonRow) -> TableCell:
    mean = number_cell(row.nats_per_token, 4)
    return (
        mean
        if row.seed_std is None
        else TableCell(f"{mean.shown} ± {row.seed_std:.4f}", mean.value)
    )


def _unknown(row: ComparisonRow) -> TableCell:
    share = row.unknown / max(row.tokens, 1)
    return TableCell(f"{share:.1%}", share)


def _time(seconds: float | None) -> TableCell:
    if seconds is None:
        return TableCell("–")
    return TableCell(format_exact_duration(seconds), seconds)


def _swatch(look: int) -> Html:
    return tag("span", class_="swatch", style=f"background:{colour(look)}")


def _notes(comparison: Comparison) -> Html:
    if not comparison.notes:
        return Html("")
    return tag("ul", *(tag("li", note) for note in comparison.notes), class_="note")


def _bars(chapter: ReportSection) -> Html:
    comparison, rows = chapter.comparison, chapter.comparison.rows
    if _same_tokens(comparison):
        bars = [
            LossBar(
                name=row.name,
                value=row.nats_per_token,
                low=None if row.seed_std is None else row.nats_per_token - row.seed_std,
                high=None if row.seed_std is None else row.nats_per_token + row.seed_std,
                colour_index=chapter.colour_index(row.name),
            )
            for row in rows
        ]
        return _figure(draw_loss_bars(bars, floor=rows[0].floor), "Loss on the split.")
    bars = [
        LossBar(name=row.name, value=bits, colour_index=chapter.colour_index(row.name))
        for bits, row in _by_character(comparison)
    ]
    if not bars:
        return Html("")
    floor = None if comparison.floor is None else comparison.floor.bits_per_character
    picture = draw_loss_bars(bars, floor=floor, unit="bits per character")
    return _figure(picture, "Bits per character, which compare whatever the tokens are.")


def _curves(chapter: ReportSection) -> Html:
    if not any(curve.train or curve.held_out for curve in chapter.curves):
        return Html("")
    picture = draw_training_curves(chapter.curves, floor=chapter.entropy)
    words = "Thick: held-out text. Thin: training text, with dropout where a model has it."
    once = [curve for curve in chapter.curves if len(curve.held_out) == 1]
    if any(curve.single_epoch for curve in once):
        words += " A line across: a model fitted in one pass."
    if any(not curve.single_epoch for curve in once):
        words += " A point alone: a training that was validated once."
    if any(curve.sampled_loss for curve in chapter.curves):
        words += " A sampled loss is not a loss per token: compare its trend, not its level."
    return join_html([tag("h3", "Training"), _figure(picture, words)])


def _figure(picture: str, words: str) -> Html:
    return tag("figure", Html(picture), tag("figcaption", words))


def _differences(differences: Sequence[Difference]) -> Html:
    if not differences:
        return Html("")
    rows = [
        [
            TableCell(each.first),
            TableCell(each.second),
            TableCell(f"{each.nats:+.4f}".replace("-", "−"), each.nats),
            TableCell(f"{each.low:+.4f} … {each.high:+.4f}".replace("-", "−"), each.low),
            number_cell(each.p_value, 4),
            TableCell(each.unit),
        ]
        for each in differences
    ]
    header = ("model", "against", "difference", "95 % interval", "p", "nats per")
    words = (
        "Below zero the first is better. Paired bootstrap over texts: both models are scored "
        "on the same resampled texts; p-values are not corrected for multiple comparisons."
    )
    return join_html(
        [tag("h3", "Differences"), html_table(header, rows), tag("p", words, class_="faint")]
    )


def _surprisal(chapter: ReportSection) -> Html:
    if not chapter.comparison.sentences:
        return Html("")
    key = [tag("span", f"{nats:g}", class_="token", style=_heat(nats)) for nats in SURPRISAL_SCALE]
    words = join_html(
        ["−log p of each token, in nats: ", tag("span", *key, class_="scale"), "; point at one "]
    )
    return join_html(
        [
            tag("h3", "Surprisal, token by token"),
            tag("p", words, "for its figure; unknown ones are underlined.", class_="faint"),
            *(_sentence(sentence, chapter) for sentence in chapter.comparison.sentences),
        ]
    )


def _sentence(sentence: ComparedSentence, chapter: ReportSection) -> Html:
    lines: list[Html] = []
    if sentence.source is not None:
        lines += [tag("div", "source", class_="name"), tag("div", sentence.source)]
    for row in chapter.comparison.rows:
        tokens = sentence.tokens.get(row.name, ())
        lines.append(tag("div", _swatch(chapter.colour_index(row.name)), row.name, class_="name"))
        lines.append(tag("div", *(_token(token) for token in tokens)))
    return tag("div", *lines, class_="tokens")


def _token(token: TokenScore) -> Html:
    nats = 0.0 - token.log_prob
    unknown = ", unknown to the model" if token.unknown else ""
    return tag(
        "span",
        token.token if token.token.strip() else "␣" * len(token.token),
        class_="token unknown" if token.unknown else "token",
        style=_heat(nats),
        title=f"{nats:.3f} nats, p = {math.exp(token.log_prob):.3g}{unknown}",
    )


def _heat(nats: float) -> str:
    """Opacity by surprisal s: 1 - e^(-s/3)."""
    return f"--s:{1 - math.exp(-max(nats, 0.0) / 3):.3f}"


def _samples(chapter: ReportSection) -> Html:
    sections = [
        tag(
            "section",
            tag("h4", _swatch(chapter.colour_index(row.name)), row.name),
            _texts(chapter.samples[row.name]),
        )
        for row in chapter.comparison.rows
        if chapter.samples.get(row.name)
    ]
    if not sections:
        return Html("")
    words = "Ancestral samples, with the model's own log-probability in nats."
    return join_html(
        [
            tag("h3", "Samples"),
            tag("p", words, class_="faint"),
            tag("div", *sections, class_="samples"),
        ]
    )


def _inside(chapter: ReportSection) -> Html:
    """Figures that show several runs, once; those of each row's run collapsed."""
    inside = {
        row.name: chapter.inspection_figures.get(row.name, ()) for row in chapter.comparison.rows
    }
    shared = {shot.svg: shot for shots in inside.values() for shot in shots if not shot.run}
    own = {name: [shot for shot in shots if shot.run] for name, shots in inside.items()}
    folds = [
        tag(
            "details",
            tag("summary", _swatch(chapter.colour_index(name)), f"{name}, {len(shots)} figures"),
            figures_html(shots),
        )
        for name, shots in own.items()
        if shots
    ]
    if not shared and not folds:
        return Html("")
    words = "Figures that lmlab inspect plotted of these runs, each with how to read it."
    head = [tag("h3", "Inside"), tag("p", words, class_="faint")]
    return join_html([*head, figures_html(list(shared.values())), *folds])


def _texts(written: Sequence[SampledText]) -> Html:
    items = []
    for each in written:
        figure = "" if each.log_prob is None else f" {each.log_prob:.1f}".replace("-", "−")
        items.append(
            tag("li", each.text or "(an empty text)", tag("small", figure, class_="faint"))
        )
    return tag("ol", *items)


def _conventions(comparison: Comparison) -> Html:
    by_convention: dict[str, list[str]] = {}
    for row in comparison.rows:
        by_convention.setdefault(describe_convention(row.convention), []).append(row.name)
    entries = [
        entry
        for words, names in by_convention.items()
        for entry in (tag("dt", ", ".join(names)), tag("dd", words))
    ]
    return join_html([tag("h3", "How it was measured"), tag("dl", *entries)])


def _commands(chapter: ReportSection) -> Html:
    lines = [line for row in chapter.comparison.rows for line in chapter.commands.get(row.name, ())]
    if not lines:
        return Html("")
    return join_html(
        [tag("h3", "To repeat it"), *(tag("pre", tag("code", line)) for line in lines)]
    )


def _kinds(chapters: Sequence[ReportSection]) -> Html:
    """Explanation of the score kinds; those that do not occur are collapsed."""
    present = {row.kind for chapter in chapters for row in chapter.comparison.rows}
    named = [tag("dt", kind) + tag("dd", KIND_DESCRIPTIONS[kind]) for kind in SCORE_KINDS]
    shown = [entry for kind, entry in zip(SCORE_KINDS, named, strict=True) if kind in present]
    others = [entry for kind, entry in zip(SCORE_KINDS, named, strict=True) if kind not in present]
    rest = tag(
        "details", tag("summary", "Kinds that do not occur here"), tag("dl", *map(Html, others))
    )
    return tag(
        "section",
        tag("h2", "Kinds of figures"),
        tag("dl", *map(Html, shown)),
        rest if others else Html(""),
        tag(
            "p",
            "Regret is the loss above what the true distribution itself gives on the same texts; "
            "bits per character compare across tokenisers, perplexities do not.",
        ),
    )
