"""Cells against each other with a plain softmax: 002's variants, and 003's MGRU and its switches.

    python benchmarks/notes/cell_variants.py --data DATA [--only letters] [--seeds 3]

On letters (multi30k-char-l100), proteins (cath-l20, cath-l100) and words (multi30k-l20), all cells
have the same width, optimiser, steps and output layer, and no future words leak. Held-out nats per
token. `starts=1` everywhere, since a state of `mgru` without 4 and 6 can't begin at zero. The
notes' own rows with a mixture of 400 states are those of `run.py`.

Of 002: peephole and coupled gates against the LSTM, its GRU (`gru-notes`) against the usual one.
Of 003: MGRU (`mgru` without 4 and 6) against LSTM and GRU; does 6 complete 4 (2 x 2); the switches
0, 2, 3 and 5 of `gru-minimal`, 0 and 3 together being refused as they hide the input; 9 of `mgru`.
"""

from __future__ import annotations

import torch
from claim_records import Record, held_out_loss, measure_missing, parse_arguments, print_means

CELLS = (
    ("rnn", ""),
    ("lstm", ""),
    ("lstm-peephole", ""),
    ("lstm-coupled", ""),
    ("gru", ""),
    ("gru-notes", ""),
    ("gru-minimal", ""),
    *(("gru-minimal", off) for off in ("0", "2", "3", "4", "5")),
    ("mgru", ""),
    *(("mgru", off) for off in ("4", "6", "4,6", "4,6,9")),
)
CORPORA = {
    "letters": ("multi30k-char-l100", 1000),
    "proteins": ("cath-l20", 600),
    "long proteins": ("cath-l100", 1000),
    "words": ("multi30k-l20", 3000),
}
"""Protocols, and the steps of a training."""
SETTINGS: Record = {
    "width": 128,
    "dropout": 0.1,
    "starts": 1,
    "tied": True,
    "emission": "softmax",
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 2048,
    "evaluate_every": 10**6,
}


def main() -> None:
    options = parse_arguments(__doc__, "cell-variants")
    torch.set_num_threads(1)

    def measure(corpus: str, cell: str, off: str, seed: int) -> Record:
        protocol, steps = CORPORA[corpus]
        settings = SETTINGS | ({"off": off} if off else {})
        loss, parameters = held_out_loss(
            cell, f"{protocol}:{options.data}", settings, seed=seed, steps=steps
        )
        return {"nats per token": loss, "parameters": parameters}

    configurations = [
        {"corpus": corpus, "cell": cell, "off": off} for corpus in CORPORA for cell, off in CELLS
    ]
    settings = SETTINGS | {"corpora": CORPORA}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("corpus", "cell", "off"))


if __name__ == "__main__":
    main()
