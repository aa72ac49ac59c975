"""The notes' tables of proteins and characters (003), and a published HMM.

Minutes are estimates by the tokens of a text, where nothing was recorded.
"""

from __future__ import annotations

from rows import Row, Table

FORCED = "decoder=teacher-forced"
OF_WIDTH_20 = ("width=20", "latent=20")
GPT = {"system": "gpt", "label": "DLM40 W8 D6", "recipe": "glosses", "group": "gpt"}
"""The notes' minGPT: W heads, D layers. There is no recipe for it on these texts."""


def gpt(length: int, minutes: float, at_20: float | None = None, at_30: float | None = None) -> Row:
    settings = ("heads=8", "layers=6", "width=128", f"length={length}")
    return Row(**GPT, settings=settings, minutes=minutes, notes_20=at_20, notes_30=at_30)


PROTEINS_20 = Table(
    name="cath-l20",
    title="Proteins of at most 20 letters",
    protocol="cath-l20",
    group="cath-l20",
    seeds_group="cath-l20",
    rows=(
        Row(
            system="lstm-mixture",
            label="DLM26 -1",
            seeds=3,
            minutes=5,
            notes_20=1.817,
            notes_30=1.774,
        ),
        Row(
            system="gru-minimal",
            label="DLM46 -1",
            seeds=3,
            minutes=5,
            notes_20=1.855,
            notes_30=1.801,
        ),
        Row(
            system="mgru",
            label="DLM47 4,6",
            off=(4, 6),
            seeds=3,
            minutes=5,
            notes_20=1.998,
            notes_30=1.943,
        ),
        Row(
            system="rnn-mixture",
            label="DLM29 -1",
            seeds=3,
            minutes=5,
            notes_20=2.419,
            notes_30=2.508,
        ),
        gpt(20, 60, 2.819, 2.810),
    ),
)
PROTEINS_100 = Table(
    name="cath-l100",
    title="Proteins of at most 100 letters",
    protocol="cath-l100",
    group="cath-l100",
    seeds_group="more seeds",
    rows=(
        Row(
            system="lstm-mixture",
            label="DLM26 -1",
            seeds=3,
            minutes=35,
            notes_20=2.575,
            notes_30=2.524,
        ),
        Row(system="gru-minimal", label="DLM46 -1", seeds=3, minutes=35, notes_20=2.591),
        Row(
            system="mgru",
            label="DLM47 4,6",
            off=(4, 6),
            seeds=3,
            minutes=35,
            notes_20=2.689,
            notes_30=2.641,
        ),
        Row(
            system="rnn-mixture",
            label="DLM29 -1",
            seeds=3,
            minutes=35,
            notes_20=2.805,
            notes_30=2.777,
        ),
        gpt(100, 300, 2.865),
    ),
)
CHARACTERS = Table(
    name="characters",
    title="English characters, at most 100",
    protocol="multi30k-char-l100",
    group="characters",
    seeds_group="more seeds",
    rows=(
        Row(system="gru-vae", label="DLM51 -1", minutes=35, notes_20=1.000, notes_30=0.949),
        Row(
            system="lstm-mixture",
            label="DLM26 -1",
            seeds=3,
            minutes=28,
            notes_20=1.004,
            notes_30=0.944,
        ),
        Row(
            system="gru-minimal",
            label="DLM46 -1",
            seeds=3,
            minutes=28,
            notes_20=1.009,
            notes_30=0.969,
        ),
        Row(
            system="gru-minimal",
            label="DLM46 W5",
            settings=("starts=5",),
            seeds=3,
            minutes=35,
            notes_20=1.011,
            notes_30=0.955,
        ),
        Row(
            system="mgru",
            label="DLM47 4,6",
            off=(4, 6),
            seeds=3,
            minutes=28,
            notes_20=1.254,
            notes_30=1.155,
        ),
        Row(
            system="rnn-mixture",
            label="DLM29 W5",
            settings=("starts=5",),
            seeds=3,
            minutes=35,
            notes_20=1.115,
            notes_30=1.068,
        ),
        Row(
            system="rnn-mixture",
            label="DLM29 W1",
            seeds=3,
            minutes=28,
            notes_20=1.119,
            notes_30=1.081,
        ),
        Row(system="mgru", label="DLM47 -1", seeds=3, minutes=28, notes_20=1.136, notes_30=1.078),
        Row(
            system="lstm-mixture",
            label="DLM26 E64",
            settings=("width=64",),
            minutes=20,
            notes_20=1.167,
            notes_30=1.105,
        ),
        Row(system="rnn-vae", label="DLM50 -1", minutes=35),
        gpt(100, 300),
    ),
)
OF_100 = ("length=100", "states=90")
CHARACTER_AUTOENCODERS = Table(
    name="character-autoencoders",
    title="Autoencoders of English characters, at most 100 (reconstruction, not a likelihood)",
    protocol="multi30k-char-l100",
    group="autoencoders, characters",
    rows=(
        Row(
            system="linear-autoencoder",
            label="DLM55 E128, K90",
            settings=OF_100,
            minutes=30,
            notes_20=0.561,
            notes_30=0.4609,
        ),
        Row(
            system="gru-autoencoder",
            label="DLM53 E128, K90",
            settings=("states=90", FORCED),
            minutes=30,
            notes_20=0.933,
            notes_30=0.857,
        ),
        Row(
            system="gru-autoencoder",
            label="DLM53 E20, K90",
            settings=("states=90", *OF_WIDTH_20, FORCED),
            minutes=30,
            notes_20=1.507,
            notes_30=1.434,
        ),
    ),
)
HMM = Table(
    name="hmm",
    title="A neural hidden Markov model on the Penn Treebank, perplexity",
    protocol="ptb-sentence",
    group="hmm",
    perplexity=True,
    rows=(
        # 1,024 states; Chiu and Rush have 32,768 on a GPU.
        Row(
            system="hmm",
            label="Chiu and Rush 2020",
            recipe="ptb",
            epochs=40,
            minutes=60,
            notes_last=125,
        ),
    ),
)
