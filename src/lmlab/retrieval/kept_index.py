"""An approximate index of a run's vectors, kept in its folder so that it is built once.

RUN/memory/  index.faiss  index.json
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.files import write_json
from lmlab.core.json_text import read_json_object
from lmlab.retrieval.exact import Floats
from lmlab.retrieval.index import RECALL, DenseIndex, Kind

INDEX, ABOUT = "index.faiss", "index.json"


class KeptIndex:
    """The index of the vectors (N, width) that a run was loaded with, or one built instead.

    index.json holds a hash of the vectors and one of index.faiss, so that what belongs to other
    weights, was cut short or is damaged is not searched. It can be built again at any time, so it
    is no part of the run's manifest. Cost: vectors and file are read once.
    """

    def __init__(self, folder: Path, vectors: Tensor) -> None:
        self.path, self.about = folder / INDEX, folder / ABOUT
        self._own = vectors, vectors._version
        self._damaged = False

    def of(self, vectors: Tensor, kind: Kind) -> DenseIndex:
        """An index of these vectors: that of the folder if it is of them, else a new one.

        It is written only where the vectors are still the run's own: of edited documents, say,
        nothing is kept.
        """
        every = vectors.detach().float().cpu().numpy()
        content = _fingerprint(every, kind)
        if (kept := self._read(content)) is not None:
            return kept
        built = DenseIndex.build(every, kind=kind)
        if vectors is self._own[0] and vectors._version == self._own[1]:
            self._write(built, content)
        return built

    def _read(self, content: str) -> DenseIndex | None:
        """What is kept, if it is whole and of these vectors."""
        try:
            told = read_json_object(self.about)
            if told["vectors"] != content:
                return None  # training has gone on since, say
            if told["file"] == _file_hash(self.path):
                return DenseIndex.load(self.path, recall=told["recall"])
        except (OSError, ValueError, KeyError, TypeError, UserError):
            pass
        self._damaged = self.path.exists() or self.about.exists()
        return None

    def _write(self, index: DenseIndex, content: str) -> None:
        """First the index, then what tells of it: between the two nothing fits, and it is built
        again."""
        if self._damaged:
            warnings.warn(
                f"{self.path} was damaged, cut short or lost; it was built anew.",
                LmlabWarning,
                stacklevel=2,
            )
        try:
            index.save(self.path)
            told: dict[str, Any] = {"vectors": content, "file": _file_hash(self.path)}
            write_json(self.about, {**told, "kind": index.kind, "recall": index.recall})
        except UserError as error:  # whoever may only read a run can still search it
            told_why = f"the index is built at each loading of this run: {error}"
            warnings.warn(told_why, LmlabWarning, stacklevel=2)


def _fingerprint(vectors: Floats, kind: Kind) -> str:
    """A hash of all that an index is built of."""
    digest = hashlib.blake2b(f"{kind} {RECALL} {vectors.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
