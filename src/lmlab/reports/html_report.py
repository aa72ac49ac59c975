"""HTML report of a model comparison, one offline file: tables, curves, samples, surprisal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmlab import __version__
from lmlab.core.html import Html, join_html, tag
from lmlab.core.score import SCORE_KINDS
from lmlab.core.score_descriptions import KIND_DESCRIPTIONS, describe_convention
from lmlab.core.score_html import surprisal_legend, token_html
from lmlab.inspection.figure_files import figures_html
from lmlab.plotting.html import html_page
from lmlab.plotting.training_curves import LossBar, draw_loss_bars, draw_training_curves
from lmlab.reports.comparison_files import write_with_folder
from lmlab.reports.comparison_html import (
    comparison_table,
    differences_table,
    direction_sentence,
    metric_legend,
    swatch,
)
from lmlab.reports.report_sections import ReportSection, SampledText
from lmlab.scoring.comparison_records import ComparedSentence, Comparison, ComparisonRow
from lmlab.scoring.comparison_tables import caption


def write_report(path: Path, sections: Sequence[ReportSection], *, title: str) -> Path:
    """Write the report to a file, atomically."""
    write_with_folder(path, render_report(sections, title=title))
    return path


def render_report(sections: Sequence[ReportSection], *, title: str) -> str:
    """Render the page; the same sections give the same bytes."""
    sections = assign_colours(sections)
    head = [
        tag("h1", title),
        tag("p", f"Written by lmlab {__version__}. {direction_sentence(sections)}", class_="faint"),
    ]
    if len(sections) > 1:
        links = [
            tag("li", tag("a", section.comparison.corpus, href=f"#{_anchor(number)}"))
            for number, section in enumerate(sections)
        ]
        head.append(tag("nav", tag("ul", *links)))
    body = [_section(section, _anchor(number)) for number, section in enumerate(sections)]
    return html_page(title, *head, *body, _score_kinds(sections))


def assign_colours(sections: Sequence[ReportSection]) -> list[ReportSection]:
    """Assign each name a palette index, the same in every section."""
    names = [row.name for section in sections for row in section.comparison.rows]
    indices = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return [
        replace(
            section,
            colour_indices=indices,
            curves=tuple(
                replace(curve, colour_index=indices[curve.name]) for curve in section.curves
            ),
        )
        for section in sections
    ]


def _anchor(number: int) -> str:
    return f"corpus-{number + 1}"


def _section(section: ReportSection, anchor: str) -> Html:
    comparison = section.comparison
    parts = [
        tag("h2", f"{comparison.corpus}, {comparison.split} split"),
        tag("p", *_best_model_sentence(comparison), class_="lead"),
        tag("p", caption(comparison), class_="faint"),
        comparison_table(section),
        _notes(comparison),
        _bars(section),
        _curves(section),
        differences_table(comparison),
        _surprisal(section),
        _samples(section),
        _inspection_figures(section),
        _conventions(comparison),
        _commands(section),
    ]
    return tag("section", *parts, id=anchor)


def _best_model_sentence(comparison: Comparison) -> list[str]:
    """The result in a sentence; per character where rows do not compare per token."""
    if not _comparable_per_token(comparison):
        candidates = _bits_per_character(comparison)
        if not candidates:
            return ["These scores don't compare: tokens differ, and none has bits per character."]
        bits, best = min(candidates, key=lambda pair: pair[0])
        figure = f"{bits:.3f} bits per character"
        return ["Best by character: ", tag("strong", best.name), f" with {figure}."]
    best = min(comparison.rows, key=lambda row: row.nats_per_token)
    parts = [tag("strong", best.name), f" does best: {best.nats_per_token:.3f} nats per token"]
    perplexity, floor, regret = (best[name] for name in ("perplexity", "floor", "regret"))
    if perplexity is not None:
        parts.append(f", perplexity {perplexity:,.2f}")
    if floor is not None and regret is not None:
        parts.append(
            f". The entropy of the language is {floor:.3f} on this split, so "
            f"{regret:.3f} nats per token are left to learn"
        )
    return [*parts, "."]


def _bits_per_character(comparison: Comparison) -> list[tuple[float, ComparisonRow]]:
    """Bits per character and their rows; rows without are left out."""
    values = ((row["bits_per_character"], row) for row in comparison.rows)
    return [(bits, row) for bits, row in values if bits is not None]


def _comparable_per_token(comparison: Comparison) -> bool:
    return len({(row.kind, row.tokenization) for row in comparison.rows}) == 1


def _notes(comparison: Comparison) -> Html:
    if not comparison.notes:
        return Html("")
    return tag("ul", *(tag("li", note) for note in comparison.notes), class_="note")


def _bars(section: ReportSection) -> Html:
    comparison, rows = section.comparison, section.comparison.rows
    if _comparable_per_token(comparison):
        bars = [_loss_bar(row, section.colour_index(row.name)) for row in rows]
        return _figure(draw_loss_bars(bars, floor=rows[0]["floor"]), "Loss on the split.")
    bars = [
        LossBar(name=row.name, value=bits, colour_index=section.colour_index(row.name))
        for bits, row in _bits_per_character(comparison)
    ]
    if not bars:
        return Html("")
    floor = None if comparison.floor is None else comparison.floor.bits_per_character
    svg = draw_loss_bars(bars, floor=floor, unit="bits per character")
    return _figure(svg, "Bits per character, which compare whatever the tokens are.")


def _loss_bar(row: ComparisonRow, colour_index: int) -> LossBar:
    value, spread = row.nats_per_token, row["seed_std"]
    return LossBar(
        name=row.name,
        value=value,
        low=None if spread is None else value - spread,
        high=None if spread is None else value + spread,
        colour_index=colour_index,
    )


def _curves(section: ReportSection) -> Html:
    if not any(curve.train or curve.held_out for curve in section.curves):
        return Html("")
    svg = draw_training_curves(section.curves, floor=section.entropy)
    legend = "Thick: held-out text. Thin: training text, with dropout where a model has it."
    single = [curve for curve in section.curves if len(curve.held_out) == 1]
    if any(curve.single_epoch for curve in single):
        legend += " A line across: a model fitted in one pass."
    if any(not curve.single_epoch for curve in single):
        legend += " A point alone: a training that was validated once."
    if any(curve.another_loss for curve in section.curves):
        legend += " Another loss than the held-out one: compare its trend, not its level."
    return join_html([tag("h3", "Training"), _figure(svg, legend)])


def _figure(svg: str, text: str) -> Html:
    return tag("figure", Html(svg), tag("figcaption", text))


def _surprisal(section: ReportSection) -> Html:
    if not section.comparison.sentences:
        return Html("")
    return join_html(
        [
            tag("h3", "Surprisal, token by token"),
            tag("p", surprisal_legend(), class_="faint"),
            *(_sentence(sentence, section) for sentence in section.comparison.sentences),
        ]
    )


def _sentence(sentence: ComparedSentence, section: ReportSection) -> Html:
    lines: list[Html] = []
    if sentence.source is not None:
        lines += [tag("div", "source", class_="name"), tag("div", sentence.source)]
    for row in section.comparison.rows:
        tokens = sentence.tokens.get(row.name, ())
        lines.append(tag("div", swatch(section.colour_index(row.name)), row.name, class_="name"))
        lines.append(tag("div", *map(token_html, tokens)))
    return tag("div", *lines, class_="tokens")


def _samples(section: ReportSection) -> Html:
    items = [
        tag(
            "section",
            tag("h4", swatch(section.colour_index(row.name)), row.name),
            _sample_list(section.samples[row.name]),
        )
        for row in section.comparison.rows
        if section.samples.get(row.name)
    ]
    if not items:
        return Html("")
    note = "Ancestral samples, with the model's own log-probability in nats."
    return join_html(
        [tag("h3", "Samples"), tag("p", note, class_="faint"), tag("div", *items, class_="samples")]
    )


def _inspection_figures(section: ReportSection) -> Html:
    """Figures that show several runs, once; those of each row's run collapsed."""
    by_row = {
        row.name: section.inspection_figures.get(row.name, ()) for row in section.comparison.rows
    }
    shared = {item.svg: item for figures in by_row.values() for item in figures if not item.run}
    per_run = {name: [item for item in figures if item.run] for name, figures in by_row.items()}
    folds = [
        tag(
            "details",
            tag("summary", swatch(section.colour_index(name)), f"{name}, {len(figures)} figures"),
            figures_html(figures),
        )
        for name, figures in per_run.items()
        if figures
    ]
    if not shared and not folds:
        return Html("")
    note = "Figures that lmlab inspect plotted of these runs, each with how to read it."
    head = [tag("h3", "Inside"), tag("p", note, class_="faint")]
    return join_html([*head, figures_html(list(shared.values())), *folds])


def _sample_list(samples: Sequence[SampledText]) -> Html:
    items = []
    for sample in samples:
        figure = "" if sample.log_prob is None else f" {sample.log_prob:.1f}".replace("-", "−")
        items.append(
            tag("li", sample.text or "(an empty text)", tag("small", figure, class_="faint"))
        )
    return tag("ol", *items)


def _conventions(comparison: Comparison) -> Html:
    by_convention: dict[str, list[str]] = {}
    for row in comparison.rows:
        by_convention.setdefault(describe_convention(row.convention), []).append(row.name)
    entries = [
        entry
        for convention, names in by_convention.items()
        for entry in (tag("dt", ", ".join(names)), tag("dd", convention))
    ]
    return join_html([tag("h3", "How it was measured"), tag("dl", *entries)])


def _commands(section: ReportSection) -> Html:
    lines = [line for row in section.comparison.rows for line in section.commands.get(row.name, ())]
    if not lines:
        return Html("")
    return join_html(
        [tag("h3", "To repeat it"), *(tag("pre", tag("code", line)) for line in lines)]
    )


def _score_kinds(sections: Sequence[ReportSection]) -> Html:
    """Explanation of the score kinds; those that do not occur are collapsed."""
    present = {row.kind for section in sections for row in section.comparison.rows}
    entries = {
        kind: Html(tag("dt", kind) + tag("dd", KIND_DESCRIPTIONS[kind])) for kind in SCORE_KINDS
    }
    others = tag("dl", *(entry for kind, entry in entries.items() if kind not in present))
    rest = tag("details", tag("summary", "Kinds that do not occur here"), others)
    return tag(
        "section",
        tag("h2", "Kinds of figures"),
        tag("dl", *(entry for kind, entry in entries.items() if kind in present)),
        rest if entries.keys() - present else Html(""),
        tag("p", metric_legend(sections)),
    )
