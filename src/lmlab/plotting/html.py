"""Self-contained HTML pages: style, sorting of tables; built of `core.html`."""

from __future__ import annotations

from lmlab.core.html import Html, tag

PAGE_STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1d2430; --faint: #5d6778; --line: #dfe3ea; --panel: #f6f7f9;
  --accent: #2f5fc4; --heat: 224 106 34;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --ink: #e3e7ee; --faint: #98a2b3; --line: #2d333d; --panel: #1c2027;
    --accent: #8fb0f5; --heat: 178 78 18;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, "Helvetica Neue", Arial, "Noto Sans", "PingFang SC",
    "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.6rem 0 0.3rem; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 0.4rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.4rem; }
p, ul, dl { margin: 0.4rem 0 0.8rem; }
a { color: var(--accent); }
.faint, figcaption, .note { color: var(--faint); font-size: 0.9rem; }
.lead { font-size: 1.08rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; list-style: none; padding: 0; }
figure { margin: 0.8rem 0 1.2rem; }
figure { overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 28rem; max-width: 46rem; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.93rem; }
th, td { text-align: left; padding: 0.36rem 1.1rem 0.36rem 0; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
td { white-space: nowrap; }
td.number, th.number { text-align: right; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
  padding: 0; cursor: pointer; text-align: inherit; }
th button { white-space: nowrap; }
th button:hover { text-decoration: underline; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Noto Sans Mono",
  "Noto Sans Mono CJK SC", monospace; font-size: 0.86rem; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 0.6rem 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.3rem 0 0.9rem; }
.swatch { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px;
  margin-right: 0.45em; }
.tokens { display: grid; grid-template-columns: max-content 1fr; gap: 0.35rem 0.9rem;
  align-items: baseline; margin: 0.4rem 0 1.4rem; }
.tokens .name { color: var(--faint); font-size: 0.86rem; white-space: nowrap; }
.token { display: inline-block; padding: 0.05rem 0.22rem; margin: 0.08rem 0.06rem;
  border-radius: 4px; white-space: pre; color: var(--ink);
  background: rgb(var(--heat) / var(--s)); }
.token.unknown { text-decoration: underline wavy var(--faint); text-underline-offset: 3px; }
.scale { display: inline-flex; gap: 0.2rem; vertical-align: middle; }
.samples { columns: 2 20rem; column-gap: 2rem; }
.samples section { break-inside: avoid; margin-bottom: 1rem; }
.samples h4 { margin: 0 0 0.2rem; font-size: 0.95rem; }
.samples ol { margin: 0; padding-left: 1.4rem; }
.samples li { overflow-wrap: anywhere; }
dt { font-weight: 600; }
dd { margin: 0 0 0.5rem 1.2rem; }
details > summary { cursor: pointer; color: var(--accent); margin: 0.5rem 0; }
@media (max-width: 40rem) {
  main { padding: 1rem 0.8rem 3rem; }
  .tokens { grid-template-columns: 1fr; gap: 0.1rem; }
  .tokens .name { margin-top: 0.5rem; }
}
@media print { details > * { display: block; } }
"""

SORT_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, place) => {
    const cell = row.cells[place];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent;
  };
  const compare = (a, b) => {
    const numbers = (typeof a === "number") + (typeof b === "number");
    if (numbers === 2) return a - b;
    return numbers === 1 ? (typeof a === "number" ? -1 : 1) : a.localeCompare(b);
  };
  heads.forEach((head, place) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (up ? 1 : -1) * compare(key(a, place), key(b, place)));
    table.tBodies[0].append(...rows);
  }));
}
"""


def html_page(title: str, *sections: Html) -> str:
    """A self-contained page: style and script are inline."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(PAGE_STYLE)),
    )
    body = tag("body", tag("main", *sections), tag("script", Html(SORT_SCRIPT)))
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'
