"""Latent space figures: robustness of reconstruction to noise, and interpolation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.html import TableCell
from lmlab.core.protocols import LogProbs
from lmlab.inspection.inspected_models import InspectedModel, batches_by_length, collate_sentences
from lmlab.plotting.charts import TextTable, draw_text_table
from lmlab.plotting.figure import FigureSpec, FigureTable, add_legend, line_style, printable_name
from lmlab.plotting.figure_styling import TITLE

LATENT_NOISES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
"""Latent noise, relative to the latent's norm."""
TOKEN_DROPOUT_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Token noise: the share of encoder tokens erased."""
INTERPOLATION_STEPS = 9
"""Interpolation steps, both ends included."""
MAX_LINE_LENGTH = 90
NOISE_CAPTION = (
    "Reconstruction loss when noise is added to the latent: a steep line is a latent space "
    "that is not smooth, a flat one a code that is robust to noise."
)
TOKEN_DROPOUT_CAPTION = "On the right, the same with words of the encoder's input erased."
INTERPOLATION_CAPTION = (
    "The sentence decoded from each point on the line between the latents of two sentences: "
    "words that change one after another show a smooth space, a jump or broken text shows a "
    "hole in it."
)


@runtime_checkable
class Reconstructor(Protocol):
    """Reconstructs a sentence through a latent with optional noise."""

    def reconstruct(
        self,
        batch: Batch,
        *,
        latent_noise: float = 0.0,
        token_noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> LogProbs: ...


@runtime_checkable
class DecodesLatents(Protocol):
    """Encodes sentences as latents and decodes latents to sentences."""

    def encode(self, batch: Batch) -> Tensor: ...

    def decode(self, latents: Tensor, *, max_length: int = 100) -> list[list[int]]: ...


Line = list[tuple[float, float]]
"""Pairs of noise and nats per token."""


def latent_noise_figures(subjects: Sequence[InspectedModel]) -> list[FigureSpec]:
    """Reconstruction loss against noise, all runs in one figure; none without a reconstructor."""
    able = [s for s in subjects if isinstance(s.system, Reconstructor)]
    if not able:
        return []
    latent = {s.name: reconstruction_loss_by_noise(s, "latent_noise", LATENT_NOISES) for s in able}
    tokens = {
        s.name: reconstruction_loss_by_noise(s, "token_noise", TOKEN_DROPOUT_RATES) for s in able
    }
    return [
        FigureSpec(
            name="latent-noise",
            title="reconstruction under noise",
            caption=f"{NOISE_CAPTION} {TOKEN_DROPOUT_CAPTION}",
            draw=partial(draw_noise_robustness, latent=latent, tokens=tokens),
            width=7.0,
            height=2.6,
            fixed_layout=True,
        )
    ]


def reconstruction_loss_by_noise(
    subject: InspectedModel, noise: str, amounts: Sequence[float]
) -> Line:
    """Reconstruction loss in nats per token for each amount of noise.

    The same noise sample is scaled, so that the curve is smooth.
    """
    system, curve = subject.system, []
    assert isinstance(system, Reconstructor)
    batches = batches_by_length(system, (*subject.sentences, *subject.sample))
    device = device_of(system)
    with evaluation_mode(system):
        for amount in amounts:
            generator = torch.Generator(device=device).manual_seed(0)
            total, count = 0.0, 0
            for batch in batches:
                output = system.reconstruct(
                    batch.to(device), generator=generator, **{noise: amount}
                )
                total -= float(output.per_token.double().sum())
                count += batch.count
            curve.append((amount, total / max(count, 1)))
    return curve


def draw_noise_robustness(
    figure: Figure, latent: Mapping[str, Line], tokens: Mapping[str, Line]
) -> None:
    """Two panels on one scale, a line per run."""
    figure.subplots_adjust(wspace=0.12, left=0, right=1, bottom=0, top=1)
    latent_axes, token_axes = figure.subplots(1, 2, sharey=True)
    for axes, curves, name in (
        (latent_axes, latent, "latent noise, relative to the latent's norm"),
        (token_axes, tokens, "share of words erased"),
    ):
        for i, (run, curve) in enumerate(curves.items()):
            label = printable_name(run)
            axes.plot(
                *zip(*curve, strict=True), marker="o", markersize=4, label=label, **line_style(i)
            )
        axes.set_xlabel(name)
        axes.set_ylim(bottom=0)
    latent_axes.set_title("reconstruction under noise", loc="left", fontsize=11).set_label(TITLE)
    latent_axes.set_ylabel("nats per token")
    if len(latent) > 1:
        add_legend(token_axes)


def interpolation_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Decoded texts between the latents of the first two sentences."""
    if not isinstance(subject.system, DecodesLatents) or len(subject.sentences) < 2:
        return []
    rows = interpolate_latents(subject)
    table_rows = tuple((f"{share:.3g}", _cut(text)) for share, text in rows)
    listing = TextTable(
        header=("interpolation", "decoded"), rows=table_rows, column_positions=(0.0, 0.95)
    )
    title = "between two sentences"
    return [
        FigureSpec(
            name="interpolation",
            title=title,
            caption=INTERPOLATION_CAPTION,
            draw=partial(draw_text_table, listing=listing, title=title),
            width=8.5,
            height=listing.height,
            fixed_layout=True,
            text=f"{subject.sentences[0].text} → {subject.sentences[1].text}",
            table=FigureTable(
                header=("interpolation", "decoded"),
                rows=tuple(
                    (TableCell(f"{share:.3g}", share), TableCell(text)) for share, text in rows
                ),
            ),
        )
    ]


def interpolate_latents(
    subject: InspectedModel, steps: int = INTERPOLATION_STEPS
) -> list[tuple[float, str]]:
    """Interpolation weights between the first two sentences' latents, and the decoded texts."""
    system = subject.system
    assert isinstance(system, DecodesLatents)
    device = device_of(system)
    with evaluation_mode(system):
        ends = [
            system.encode(collate_sentences(subject.system, [sentence]).to(device))[0]
            for sentence in subject.sentences[:2]
        ]
        shares = torch.linspace(0, 1, steps, device=device)
        latents = torch.lerp(ends[0], ends[1], shares[:, None])
        decoded = system.decode(latents, max_length=60)
    decode = subject.model.tokenizer.decode
    return [(float(share), decode(ids)) for share, ids in zip(shares, decoded, strict=True)]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE_LENGTH else text[: MAX_LINE_LENGTH - 1] + "…"
