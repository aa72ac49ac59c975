"""Run folder of a trained model (config, weights, tokenizer, metrics): write, verify and load.

RUN/  config.json  tokenizer.json  model.safetensors  manifest.json
      trainer/  metrics.jsonl  environment.json; memory/ for external memory
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lmlab.core.atomic_files import inner_folder, json_bytes, telling_disk_errors, write_json
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.manifest import DamageError, check_files, verifies, verify_files, write_files
from lmlab.core.recorded_systems import recorded_system
from lmlab.core.registry import find_system
from lmlab.core.system import System
from lmlab.core.tensor_files import check_finite, read_tensors, tensor_bytes
from lmlab.core.untrusted_input import read_json_object
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.retrieval_base import DocumentStoreModel
from lmlab.training import checkpoints
from lmlab.training.external_memory import MEMORY_FILES, ExternalMemory, load_external_memory
from lmlab.training.run_config import RUN_FORMAT, IncompleteConfig, RunConfig
from lmlab.training.stored_model_guard import stored_model_guard
from lmlab.training.system_building import build_from_config

CONFIG, TOKENIZER, SOURCE_TOKENIZER = "config.json", "tokenizer.json", "source_tokenizer.json"
WEIGHTS = "model.safetensors"
PARTS = (
    CONFIG,
    TOKENIZER,
    SOURCE_TOKENIZER,
    WEIGHTS,
    *(f"memory/{name}" for name in (*MEMORY_FILES.values(), "paragraphs.jsonl.gz")),
)
"""Every file that loading a run may read; those that exist are listed in its manifest."""
RESTORE = "restore it from a copy"
"""Advice on a damaged file."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def tokenizer(self) -> Path:
        return self.path / TOKENIZER

    @property
    def source_tokenizer(self) -> Path:
        """The source tokenizer, where it is a different one."""
        return self.path / SOURCE_TOKENIZER

    @property
    def memory(self) -> Path:
        """Documents and knowledge base, where the system uses any."""
        return self.path / "memory"

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / "trainer"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def exists(self) -> bool:
        """Whether a run exists here."""
        return self.config.exists()

    def create(self) -> None:
        """Make the folder; a UserError where that fails."""
        with telling_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def read_config(self) -> RunConfig:
        """config.json, checked to be one that this version can read, of a system at hand."""
        if not self.path.exists():
            raise UserError(f"there is no run at {self.path}; check the path.")
        if not self.config.exists():
            raise UserError(f"{self.path} is not a run: it has no config.json.")
        if not is_hub_config(self.config):
            verify_files(self.path, [CONFIG], advice=RESTORE)
        try:
            values = read_json_object(self.config)
            format_version = int(values["format"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if is_hub_config(self.config):
                raise UserError(
                    f"{self.path} is a checkpoint in the Hub's format, not a run; convert it "
                    "with lmlab import-hf."
                ) from error
            raise UserError(f"{self.config} is not the config.json of a run.") from error
        if format_version > RUN_FORMAT:
            raise UserError(
                f"{self.path} was saved by a later lmlab ({values.get('lmlab', '?')}, format "
                f"{format_version}), and this one supports formats up to {RUN_FORMAT}; "
                "upgrade lmlab."
            )
        try:
            config = RunConfig.from_json(values)
        except IncompleteConfig as error:
            raise UserError(f"{self.config} is not the config.json of a run: {error}.") from error
        except ValueError as error:
            raise UserError(
                f"{self.config} is damaged ({error}); restore it, or train the run again."
            ) from error
        recorded_system(config.system, config.plugin, str(self.path))
        return config

    def resumed_config(self) -> RunConfig:
        """config.json of a run to resume; verifies all files but the weights, which a checkpoint
        can replace."""
        config = self.read_config()
        verify_files(self.path, parts=PARTS, skip={WEIGHTS}, advice=RESTORE)
        return config

    def verify(self) -> None:
        """A UserError where a file of the run is damaged; see `core/manifest.py`."""
        trained = self.metrics.exists()  # and not imported
        advice = f"{RESTORE}, train on with --resume" if trained else RESTORE
        verify_files(self.path, parts=PARTS, advice=advice)

    def write_description(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        *,
        source_tokenizer: Tokenizer | None = None,
        memories: ExternalMemory | None = None,
        extra_files: Mapping[str, bytes] | None = None,
        weights: System | None = None,
        new_run: bool = True,
        device: torch.device | None = None,
    ) -> None:
        """Write all files that loading needs, config.json last, as it makes the folder a run.

        `source_tokenizer` is given where it is a different one; `extra_files` are further files by
        name. Without `weights` those follow by `save_weights`. A resumed run is not a `new_run`.
        """
        self.create()
        self.write_environment(device)
        contents = {TOKENIZER: tokenizer.to_bytes()}
        if source_tokenizer is not None:
            contents[SOURCE_TOKENIZER] = source_tokenizer.to_bytes()
        for name, part in (ExternalMemory() if memories is None else memories).given().items():
            contents[f"memory/{MEMORY_FILES[name]}"] = part.to_bytes()
        contents |= extra_files or {}
        if weights is not None:
            contents[WEIGHTS] = tensor_bytes(weights.state_dict())
        if not new_run:  # keep existing files
            contents = {n: part for n, part in contents.items() if not (self.path / n).exists()}
        contents[CONFIG] = json_bytes(config.to_json())
        write_files(self.path, contents, parts=PARTS, fresh=new_run)

    def write_environment(self, device: torch.device | None = None) -> None:
        """Write environment.json: platform, device and package versions, for reproduction."""
        packages = ("torch", "numpy", "tokenizers", "safetensors", "accelerate")
        write_json(
            self.environment,
            {
                "python": sys.version.split()[0],
                "platform": platform.platform(),
                "processor": platform.machine(),
                # Other CPU instructions round sums differently, so that a seed gives other weights.
                "instructions": torch.backends.cpu.get_cpu_capability(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "device": str(device or torch.device("cpu")),
                "packages": {name: version(name) for name in packages},
            },
        )

    def save_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Write model.safetensors atomically, from the state dict of a system."""
        contents = {WEIGHTS: tensor_bytes(dict(weights))}
        write_files(self.path, contents, parts=PARTS)

    def has_weights(self) -> bool:
        """Whether model.safetensors exists and is intact; --no-verify checks its header only."""
        try:
            if verifies():
                check_files(self.path, [WEIGHTS])
            with safe_open(self.weights, framework="pt"):
                return True
        except (OSError, SafetensorError, DamageError):
            return False

    def save_checkpoint(self, checkpoint: checkpoints.Checkpoint) -> None:
        inner_folder(self.checkpoints_folder, of=self.path)
        checkpoints.save_checkpoint(self.checkpoints_folder, checkpoint)

    def load_checkpoint(self, report: Callable[[str], None]) -> checkpoints.Checkpoint | None:
        return checkpoints.load_checkpoint(self.checkpoints_folder, report)


def is_hub_config(path: Path) -> bool:
    """Whether a config.json is in the Hub's format, and not of a run."""
    try:
        config = read_json_object(path)
    except (OSError, ValueError, UserError):
        return False
    return "model_type" in config and "format" not in config


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A trained system with all that is needed to use it."""

    system: System
    """In evaluation mode."""
    tokenizer: Tokenizer
    layout: Layout
    config: RunConfig
    """config.json."""
    card: Card
    path: Path
    stored: bool = True
    """Whether `path` is a run folder, in which figures may be saved."""
    source_tokenizer: Tokenizer | None = None
    """The source tokenizer, where it is a different one."""

    @property
    def effective_source_tokenizer(self) -> Tokenizer:
        """The source tokenizer, which defaults to `tokenizer`."""
        return self.source_tokenizer or self.tokenizer

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.name


def load_run(path: Path | str) -> TrainedModel:
    """Load the trained system of a run folder."""
    run = RunFolder(Path(path))
    config = run.read_config()
    if config.task is not None and config.task.head:
        raise UserError(
            f"{run.path} was fine-tuned to {config.task.name} and is no longer a "
            "language model; use lmlab predict."
        )
    run.verify()
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has no tokenizer.json any more; train it again.")
    tokenizer = Tokenizer.load(run.tokenizer)
    vocabulary = _vocabulary(config, tokenizer, run)
    memories = load_external_memory(config.memories, run.memory)
    with stored_model_guard(run.path, run.weights):
        system = build_from_config(config, vocabulary, memories, tokenizer)
    load_weights(system, run)
    if isinstance(system, DocumentStoreModel):
        system.document_memory.cache_index(run.memory)
    return TrainedModel(
        system=system.eval(),
        tokenizer=tokenizer,
        source_tokenizer=load_source_tokenizer(config, run),
        layout=config.layout,
        config=config,
        card=find_system(config.system),
        path=run.path,
    )


def _vocabulary(config: RunConfig, tokenizer: Tokenizer, run: RunFolder) -> Vocabulary:
    """The system's vocabulary, checked against the run's tokenizer."""
    vocabulary = config.vocabulary
    same = config.tokenizer_fingerprint in (None, tokenizer.fingerprint())
    if replace(vocabulary, first=None) != tokenizer.vocabulary or not same:
        raise UserError(
            f"the tokenizer.json of {run.path} is not the one that the run was trained with; "
            "restore it, or train the run again."
        )
    return vocabulary


def load_source_tokenizer(config: RunConfig, run: RunFolder) -> Tokenizer | None:
    """Load the source tokenizer, where the run has one."""
    if config.source_vocabulary is None:
        return None
    if not run.source_tokenizer.exists():
        raise UserError(
            f"the run {run.path} has no source_tokenizer.json any more; train it again."
        )
    tokenizer = Tokenizer.load(run.source_tokenizer)
    if tokenizer.vocabulary != config.source_vocabulary:
        raise UserError(
            f"the source_tokenizer.json of {run.path} is not the one that the run was trained "
            "with; restore it, or train the run again."
        )
    return tokenizer


def load_weights(system: nn.Module, run: RunFolder) -> None:
    """Load the weights of a run into a system, checked for shape and finiteness."""
    if not run.weights.exists():
        raise UserError(
            f"the run {run.path} has no model.safetensors yet; train it on with --resume."
        )
    try:
        tensors = read_tensors(run.weights)
        check_finite(run.weights, tensors, dict(system.named_parameters()))
        system.load_state_dict(tensors)
    except (SafetensorError, ValueError, OSError) as error:
        raise UserError(
            f"{run.weights} is damaged ({error}); train on with --resume, which starts from the "
            "last good checkpoint."
        ) from error
    except RuntimeError as error:
        reason = str(error).split("\n\t")[-1].strip()
        raise UserError(
            f"the weights of {run.path} do not fit its config.json ({reason}); restore the pair "
            "that belongs together."
        ) from error
