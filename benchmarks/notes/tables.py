"""The notes' own tables (003, CATSMILE-9020): their figures and the runs that reproduce them.

`notes_20` and `notes_30` are the figures of the notes at epochs 20 and 30, None where the notes
have none. Rows of 20 epochs were run before; they are not made again.
"""

from __future__ import annotations

from rows import Row, Table
from sequence_tables import (
    CHARACTER_AUTOENCODERS,
    CHARACTERS,
    FORCED,
    HMM,
    OF_WIDTH_20,
    PROTEINS_20,
    PROTEINS_100,
)

PARENTS_GROUP = "parents, windows, slots"


def minimal(off: tuple[int, ...], at_20: float, at_30: float | None = None) -> Row:
    label = f"DLM46 {','.join(map(str, off)) or '-1'}"
    return Row(system="gru-minimal", label=label, off=off, seeds=3, notes_20=at_20, notes_30=at_30)


def mgru(off: tuple[int, ...], at_20: float, at_30: float | None = None) -> Row:
    label = f"DLM47 {','.join(map(str, off)) or '-1'}"
    return Row(system="mgru", label=label, off=off, seeds=3, notes_20=at_20, notes_30=at_30)


CELLS = Table(
    name="cells",
    title="Gated cells with terms knocked out, multi30k-l20",
    protocol="multi30k-l20",
    group="words",
    # The rows that decide the claims come first, so that they are run first.
    rows=(
        minimal((), 3.8209, 3.72316),
        minimal((4,), 3.7434, 3.62257),
        mgru((4, 6), 3.739, 3.560),
        minimal((0, 2, 4, 5), 3.7811),
        minimal((0, 4, 5), 3.745),
        Row(system="rnn-mixture", label="DLM29 -1", seeds=3, notes_20=4.31308, notes_30=4.28537),
        mgru((4,), 4.527, 4.348),
        minimal((7,), 4.31114, 4.11738),
        minimal((6,), 4.21133, 4.1882),
        minimal((1,), 4.0029, 3.89041),
        minimal((5,), 3.7914, 3.70547),
        minimal((0,), 3.80641, 3.76959),
        minimal((2,), 3.81147, 3.73109),
        minimal((3,), 3.81406, 3.72296),
        minimal((2, 3, 4, 5), 4.296, 4.091),
        mgru((5,), 4.03182, 3.86436),
        mgru((4, 6, 7), 3.921),
        mgru((4, 6, 8), 4.242),
        mgru((4, 6, 9), 3.859),
        mgru((4, 6, 10), 4.052, 3.779),
        mgru((4, 6, 11), 4.03, 3.85),
        Row(system="lstm-mixture", label="DLM26 -1", seeds=3),
        Row(system="gru-mixture", label="DLM44 W=1", seeds=3),
        Row(system="gru-mixture", label="DLM44 W=5", settings=("starts=5",), seeds=3),
        Row(system="rnn-mixture", label="DLM29 W=5", settings=("starts=5",), seeds=3),
        Row(
            system="gru-vae",
            label="DLM51 0,4,5",
            off=(0, 4, 5),
            settings=("cell=gru-minimal",),
            seeds=3,
            notes_20=3.775,
            notes_30=3.709,
        ),
    ),
)

SPHERE = Table(
    name="sphere",
    title="With and without the sphere, at equal tuning, multi30k-l20",
    protocol="multi30k-l20",
    group="words",
    rows=(
        Row(system="window-remix", label="DLM20", seeds=3),
        Row(system="window-remix-sphere", label="DLM22", seeds=3),
        Row(
            system="lstm",
            label="DLM12",
            seeds=3,
            minutes=20,
            record_20="quality/multi30k-l20.lstm.tuned.seed0",
        ),
        Row(
            system="lstm-sphere",
            label="DLM23",
            seeds=3,
            minutes=20,
            record_20="quality/multi30k-l20.lstm-sphere.tuned.seed0",
        ),
        Row(system="gru", label="DLM43", seeds=3),
        Row(system="gru", label="DLM43 on the sphere", settings=("emission=sphere",), seeds=3),
        Row(system="window-remix-free", label="DLM21", minutes=40, group=PARENTS_GROUP),
        Row(
            system="window",
            label="DLM1",
            seeds=3,
            minutes=20,
            record_20="quality/multi30k-l20.window.tuned.seed0",
        ),
    ),
)

TEN_TIMES = ("activation=relu", "ffn_width=1280")
"""DLM56: relu, ten times as many hidden units as dimensions."""

AUTOENCODERS = Table(
    name="autoencoders",
    title="Autoencoders, multi30k-l20 (reconstruction, not a likelihood)",
    protocol="multi30k-l20",
    group="words",
    rows=(
        Row(
            system="linear-autoencoder", label="DLM55 E128", seeds=3, notes_20=2.464, notes_30=2.431
        ),
        Row(
            system="gru-autoencoder",
            label="DLM53 E128",
            settings=(FORCED,),
            seeds=3,
            notes_20=2.877,
            notes_30=2.712,
        ),
        Row(
            system="mlp-autoencoder",
            label="DLM56 E128",
            settings=TEN_TIMES,
            seeds=3,
            notes_20=3.593,
            notes_30=3.771,
        ),
        Row(
            system="linear-autoencoder",
            label="DLM55 E20",
            settings=OF_WIDTH_20,
            notes_20=3.878,
            notes_30=3.552,
        ),
        Row(
            system="gru-autoencoder",
            label="DLM53 E20",
            settings=(*OF_WIDTH_20, FORCED),
            notes_20=4.195,
            notes_30=3.901,
        ),
        Row(
            system="rnn-autoencoder",
            label="DLM54 E128",
            settings=(FORCED,),
            seeds=3,
            notes_20=4.131,
            notes_30=4.096,
        ),
        Row(
            system="autoencoder-vae",
            label="VAE over DLM55's latents",
            base="multi30k-l20.linear-autoencoder.epochs-30.seed0",
            minutes=20,
        ),
        # Run before, over 20 epochs: the decoders are free-running, and E20 is the latent alone.
        Row(system="gru-autoencoder", label="free-running, sphere mixture", epochs=20),
        Row(
            system="gru-autoencoder",
            label="free-running, softmax",
            settings=("emission=softmax",),
            epochs=20,
        ),
        Row(
            system="rnn-autoencoder",
            label="free-running, softmax",
            settings=("emission=softmax",),
            epochs=20,
        ),
        Row(
            system="gru-autoencoder",
            label="free-running, softmax, latent of 20",
            settings=("latent=20", "emission=softmax"),
            epochs=20,
        ),
        Row(system="linear-autoencoder", label="latent of 20", settings=("latent=20",), epochs=20),
        Row(system="mlp-autoencoder", label="tanh, 256 hidden units", epochs=20),
        Row(
            system="linear-autoencoder",
            label="trained with noise",
            settings=("latent_noise=0.5",),
            epochs=20,
        ),
    ),
)

PARENTS = Table(
    name="parents",
    title="Counting, windows, latent parents and slots, multi30k-l20",
    protocol="multi30k-l20",
    group=PARENTS_GROUP,
    rows=(
        *(
            Row(system=system, label=label, minutes=40)
            for system, label in (
                ("remix", "DLM10"),
                ("rnn", "DLM11"),
                ("window-mixture", "DLM4"),
                ("parent-prior", "DLM5"),
            )
        ),
        Row(system="remix-aligned", label="DLM13", settings=("snapshot_epochs=10,20",), minutes=40),
        *(
            Row(system=system, label=label, minutes=40)
            for system, label in (
                ("slots", "DLM30"),
                ("product-bound", "DLM19"),
                ("remix-rotated", "DLM18"),
                ("local-crf", "DLM16"),
                ("local-crf-2", "DLM17"),
                ("local-hmm", "DLM15"),
                ("parent", "DLM2"),
                ("parent-typed", "DLM6"),
                ("renewal", "DLM7"),
                ("renewal-typed", "DLM8"),
                ("two-parents", "DLM14"),
                ("slots-chain", "DLM31"),
            )
        ),
        # Six normalisers a position, one for each order of three words.
        Row(system="parent-permuted", label="DLM3", minutes=90),
        Row(system="independent", label="DLM9", settings=("states=400",), recipe="", minutes=10),
        Row(system="parent-prior", label="DLM5, longer", epochs=130, minutes=175, notes_last=5.857),
    ),
)

TABLES = (
    PROTEINS_20,
    CELLS,
    SPHERE,
    AUTOENCODERS,
    CHARACTERS,
    PROTEINS_100,
    PARENTS,
    HMM,
    CHARACTER_AUTOENCODERS,
)
"""All tables, in the order in which they are run."""
