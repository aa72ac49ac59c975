"""Text encoders for a retrieval index, from a run with `Encode` or a Hugging Face checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.compute_options import current_compute
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import Encode, require
from lmlab.core.retrieval_protocols import EncodeQueries, WithDocuments
from lmlab.interop.hf.checkpoint_files import HUB_FILE_PATTERNS
from lmlab.interop.hf.sentence_encoders import SentenceEncoderCheckpoint, load_sentence_encoder
from lmlab.interop.load_model import is_hub_checkpoint, load_model
from lmlab.layers.model_placement import place_model
from lmlab.retrieval.exact_search import Floats
from lmlab.retrieval.retrieval_encoder import EncoderDescription, RetrievalEncoder
from lmlab.retrieval.stored_index import IndexDescription, StoredIndex
from lmlab.training.run_folder import TrainedModel

READ_CHUNK_BYTES = 2**20
MIN_TOKENS = 2
"""Minimum number of tokens of a text: start and end token."""


def open_encoder(path: Path | str) -> RetrievalEncoder:
    """Open the encoder of a run or checkpoint folder, on the device of `current_compute`."""
    folder = Path(path)
    if is_hub_checkpoint(folder):
        checkpoint = load_sentence_encoder(folder)
        place_model(checkpoint.module, current_compute())
        return CheckpointEncoder(checkpoint, folder)
    return RunEncoder(load_model(folder))


def find_encoder(path: Path, about: IndexDescription) -> RetrievalEncoder:
    """The encoder that an index was built with, from its recorded path."""
    assert about.encoder is not None, "words need no encoder"
    if not about.encoder.path or not Path(about.encoder.path).is_dir():
        raise UserError(
            f"the encoder of {path} ({about.encoder.name}) is not at "
            f"{about.encoder.path or 'any path'}; give its path with --encoder."
        )
    return open_encoder(about.encoder.path)


def vectors_of_model(index: StoredIndex, model: TrainedModel) -> Floats | None:
    """(N, W) vectors of an index made by this model at its own document length; else None."""
    system, built = model.system, index.about.encoder
    if built is None or not isinstance(system, WithDocuments):
        return None
    if built.max_length != system.max_document_length or built.fingerprint != model_fingerprint(
        model
    ):
        return None
    return index.all_vectors()


class RunEncoder:
    """Encoder from a run (`Encode`), with separate queries if it has them (`EncodeQueries`).

    Documents of a retrieval model are truncated as in the model itself.
    """

    def __init__(self, model: TrainedModel) -> None:
        system = model.system
        encoder = require(system, Encode, "encoding documents")
        self._model = model
        self._documents = encoder.encode
        self._queries = (
            system.encode_queries if isinstance(system, EncodeQueries) else encoder.encode
        )
        self.window = None if system.window is None else system.window + 1
        self.truncated = 0
        self.description = EncoderDescription(
            name=model.card.name,
            path=str(model.path.resolve()) if model.stored else "",
            fingerprint=model_fingerprint(model),
            max_length=system.max_document_length
            if isinstance(system, WithDocuments)
            else self.window,
        )
        self.width = self.encode_documents(["a"]).shape[1]

    def encode_documents(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each document."""
        return self._encode(texts, self._documents, self.description.max_length)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each query."""
        return self._encode(texts, self._queries, self.window)

    def _encode(
        self, texts: Sequence[str], encode: Callable[[Batch], Tensor], max_length: int | None
    ) -> Floats:
        if not texts:
            return np.empty((0, self.width), dtype=np.float32)
        tokenizer, system = self._model.effective_source_tokenizer, self._model.system
        vocabulary = tokenizer.vocabulary
        end = [] if vocabulary.end is None else [vocabulary.end]
        token_ids = tokenizer.encode_batch(list(texts))
        if max_length is not None:
            max_text_tokens = max_length - MIN_TOKENS
            self.truncated += sum(len(ids) > max_text_tokens for ids in token_ids)
            token_ids = [ids[:max_text_tokens] for ids in token_ids]
        rows = [[vocabulary.bos, *ids, *end] for ids in token_ids]
        batch = Batch.collate(rows, pad=vocabulary.pad).to(device_of(system))
        with evaluation_mode(system):
            return encode(batch).float().cpu().numpy()


class CheckpointEncoder:
    """Encoder from a Hugging Face checkpoint, pooled as in sentence-transformers."""

    def __init__(self, checkpoint: SentenceEncoderCheckpoint, folder: Path) -> None:
        self._checkpoint = checkpoint
        self.window = checkpoint.window
        self.truncated = 0
        self.description = EncoderDescription(
            name=checkpoint.name, path=str(folder.resolve()), fingerprint=folder_fingerprint(folder)
        )
        self.width = self._encode(["a"], "").shape[1]

    def encode_documents(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each document."""
        return self._encode(texts, self._checkpoint.conventions.document_prompt)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each query."""
        return self._encode(texts, self._checkpoint.conventions.query_prompt)

    def _encode(self, texts: Sequence[str], prompt: str) -> Floats:
        if not texts:
            return np.empty((0, self.width), dtype=np.float32)
        with torch.no_grad():
            vectors, cut = self._checkpoint.vectors([prompt + text for text in texts])
        self.truncated += cut
        return vectors.float().cpu().numpy()


def model_fingerprint(model: TrainedModel) -> str:
    """Hash of a model's settings, weights and tokenizer in memory, as some have no files."""
    digest = hashlib.blake2b(digest_size=16)
    settings = model.config.system_config
    for part in (model.card.name, repr(settings), model.effective_source_tokenizer.fingerprint()):
        digest.update(f"{part}\n".encode())
    for name, value in sorted(model.system.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """Hash of a checkpoint's files, including those of its modules."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted({path for pattern in HUB_FILE_PATTERNS for path in folder.rglob(pattern)}):
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while part := file.read(READ_CHUNK_BYTES):
                digest.update(part)
    return digest.hexdigest()


def as_encoder(encoder: str | Path | TrainedModel | RetrievalEncoder) -> RetrievalEncoder:
    """Resolve a path, a model or an encoder to an encoder."""
    if isinstance(encoder, (str, Path)):
        return open_encoder(encoder)
    return RunEncoder(encoder) if isinstance(encoder, TrainedModel) else encoder
