"""Run folders: everything about one trained system, enough to load and to reproduce it.

RUN/  config.json  tokenizer.json  model.safetensors  manifest.json
      trainer/  metrics.jsonl  environment.json; memory/ for external memory
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lmlab.core.atomic_files import (
    inner_folder,
    json_bytes,
    telling_disk_errors,
    write_bytes,
    write_json,
)
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.manifest import (
    DamageError,
    check_files,
    hash_file,
    verifies,
    verify_files,
    write_files,
)
from lmlab.core.memory_budget import memory_budget
from lmlab.core.registry import find_system, full_card, system_module
from lmlab.core.system import System
from lmlab.core.tensor_files import check_finite, read_tensors, tensor_bytes
from lmlab.core.untrusted_input import read_json_object
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.retrieval_base import DocumentStoreModel
from lmlab.objectives.sampled_losses import SampledLossConfig, apply_sampled_loss
from lmlab.training import checkpoints
from lmlab.training.config import apply_settings
from lmlab.training.external_memory import (
    MEMORY_FILES,
    ExternalMemory,
    load_external_memory,
    tiny_external_memory,
)
from lmlab.training.run_config import check_run_config, stored_model_guard

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
AVERAGING_PREFIX = "weights-"
"""File name prefix of the weights to be averaged at the end."""
RESTORE = "restore it from a copy"
"""Advice on a damaged file."""
RUN_FORMAT = 1
"""Version of the folder format; a larger one was written by a later lmlab."""
REQUIRED_FIELDS = (
    "system",
    "size",
    "recipe",
    "system_config",
    "vocabulary",
    "tokenizer",
    "layout",
    "corpus",
    "training",
)
"""Fields that every config.json has."""


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
        """The source tokeniser, where it is a different one."""
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

    def read_config(self) -> dict[str, Any]:
        """config.json, checked to be one that this version can read."""
        if not self.path.exists():
            raise UserError(f"there is no run at {self.path}; check the path.")
        if not self.config.exists():
            raise UserError(f"{self.path} is not a run: it has no config.json.")
        if not is_hub_config(self.config):
            verify_files(self.path, [CONFIG], advice=RESTORE)
        try:
            config = read_json_object(self.config)
            written = int(config["format"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if is_hub_config(self.config):
                raise UserError(
                    f"{self.path} is a checkpoint in the Hub's format, not a run; convert it "
                    "with lmlab import-hf."
                ) from error
            raise UserError(f"{self.config} is not the config.json of a run.") from error
        if written > RUN_FORMAT:
            raise UserError(
                f"{self.path} was saved by a later lmlab ({config.get('lmlab', '?')}, format "
                f"{written}), and this one supports formats up to {RUN_FORMAT}; upgrade lmlab."
            )
        missing = [name for name in REQUIRED_FIELDS if name not in config]
        if missing:
            raise UserError(
                f"{self.config} is not the config.json of a run: it lacks {', '.join(missing)}."
            )
        try:
            check_run_config(config)
        except ValueError as error:
            raise UserError(
                f"{self.config} is damaged ({error}); restore it, or train the run again."
            ) from error
        return config

    def resumed_config(self) -> dict[str, Any]:
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
        config: Mapping[str, Any],
        tokenizer: Tokenizer,
        *,
        sources: Tokenizer | None = None,
        memories: ExternalMemory | None = None,
        others: Mapping[str, bytes] | None = None,
        weights: System | None = None,
        begins: bool = True,
    ) -> None:
        """Write all files that loading needs, config.json last, as it makes the folder a run.

        `sources` is the source tokeniser, where it is a different one; `others` are further files
        by name. Without `weights` those follow by `save_weights`. `begins` is false for a resumed
        run.
        """
        self.create()
        self.write_environment()
        contents = {TOKENIZER: tokenizer.to_bytes()}
        if sources is not None:
            contents[SOURCE_TOKENIZER] = sources.to_bytes()
        for name, part in (ExternalMemory() if memories is None else memories).given().items():
            contents[f"memory/{MEMORY_FILES[name]}"] = part.to_bytes()
        contents |= others or {}
        if weights is not None:
            contents[WEIGHTS] = tensor_bytes(weights.state_dict())
        about = {"format": RUN_FORMAT, "lmlab": lmlab_version(), **config}
        if not begins:  # keep existing files
            contents = {n: each for n, each in contents.items() if not (self.path / n).exists()}
        contents[CONFIG] = json_bytes(about)
        write_files(self.path, contents, parts=PARTS, fresh=begins)

    def write_environment(self) -> None:
        """Write environment.json: platform and package versions, for reproduction."""
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
                "packages": {name: version(name) for name in packages},
            },
        )

    def save_weights(self, system: System) -> None:
        """Write model.safetensors atomically."""
        contents = {WEIGHTS: tensor_bytes(system.state_dict())}
        write_files(self.path, contents, parts=PARTS)

    def save_averaging_weights(self, system: System, step: int, *, keep: int) -> None:
        """Save the current weights for averaging, and keep the last `keep`."""
        inner_folder(self.checkpoints_folder, of=self.path)
        content = tensor_bytes(system.state_dict())
        name = f"{AVERAGING_PREFIX}{step:09d}-{hashlib.sha256(content).hexdigest()}.safetensors"
        write_bytes(self.checkpoints_folder / name, content)
        for old in self._remembered()[:-keep]:
            old.unlink(missing_ok=True)

    def average_weights(self) -> dict[str, torch.Tensor] | None:
        """Checkpoint averaging: the mean of the saved weights (integers: the last), or None."""
        every = [_read_remembered(path) for path in self._remembered()]
        if not every:
            return None
        return {
            name: torch.stack([each[name].double() for each in every]).mean(0).to(last.dtype)
            if last.is_floating_point()
            else last
            for name, last in every[-1].items()
        }

    def remove_averaging_weights(self, *, after: int = 0) -> None:
        """Remove the saved weights of steps later than `after`."""
        for path in self._remembered():
            if int(path.stem.removeprefix(AVERAGING_PREFIX).partition("-")[0]) > after:
                path.unlink(missing_ok=True)

    def _remembered(self) -> list[Path]:
        return sorted(
            self.checkpoints_folder.glob(f"{AVERAGING_PREFIX}{'[0-9]' * 9}-*.safetensors")
        )

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

    def load_checkpoint(self, tell: Callable[[str], None]) -> checkpoints.Checkpoint | None:
        return checkpoints.load_checkpoint(self.checkpoints_folder, tell)


def _read_remembered(path: Path) -> dict[str, torch.Tensor]:
    """Read weights saved for averaging; a UserError where the hash in their name differs."""
    if not path.stem.endswith(hash_file(path)):
        raise UserError(f"{path} does not match its checksum; remove it to average the others.")
    return read_tensors(path)


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
    config: dict[str, Any]
    """config.json."""
    card: Card
    path: Path
    stored: bool = True
    """Whether `path` is a run folder, in which figures may be saved."""
    source_tokenizer: Tokenizer | None = None
    """The source tokeniser, where it is a different one."""

    @property
    def effective_source_tokenizer(self) -> Tokenizer:
        """The source tokeniser, which defaults to `tokenizer`."""
        return self.source_tokenizer or self.tokenizer

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.name


def load_run(path: Path | str) -> TrainedModel:
    """Load the trained system of a run folder."""
    run = RunFolder(Path(path))
    config = run.read_config()
    if config.get("task", {}).get("head"):
        raise UserError(
            f"{run.path} was fine-tuned to {config['task']['name']} and is no longer a "
            "language model; use lmlab predict."
        )
    run.verify()
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has no tokenizer.json any more; train it again.")
    tokenizer = Tokenizer.load(run.tokenizer)
    vocabulary = _vocabulary(config, tokenizer, run)
    module = system_module(config["system"])
    memories = load_external_memory(config, run.memory)
    with stored_model_guard(run.path, run.weights):
        system = build_from_config(config, vocabulary, memories)
        if memories.given():
            system.setup_tokenizer(tokenizer)  # the memory is built from texts
    load_weights(system, run)
    if isinstance(system, DocumentStoreModel):
        system.document_memory.cache_index(run.memory)
    return TrainedModel(
        system=system.eval(),
        tokenizer=tokenizer,
        source_tokenizer=load_source_tokenizer(config, run),
        layout=Layout(**config["layout"]),
        config=config,
        card=full_card(module),
        path=run.path,
    )


def _vocabulary(config: Mapping[str, Any], tokenizer: Tokenizer, run: RunFolder) -> Vocabulary:
    """The system's vocabulary, checked against the run's tokeniser."""
    vocabulary = Vocabulary(**config["vocabulary"])
    known = config.get("tokenizer_fingerprint", tokenizer.fingerprint())
    if replace(vocabulary, first=None) != tokenizer.vocabulary or known != tokenizer.fingerprint():
        raise UserError(
            f"the tokenizer.json of {run.path} is not the one that the run was trained with; "
            "restore it, or train the run again."
        )
    return vocabulary


def load_source_tokenizer(config: Mapping[str, Any], run: RunFolder) -> Tokenizer | None:
    """Load the source tokeniser, where the run has one."""
    if "source_vocabulary" not in config:
        return None
    if not run.source_tokenizer.exists():
        raise UserError(
            f"the run {run.path} has no source_tokenizer.json any more; train it again."
        )
    tokenizer = Tokenizer.load(run.source_tokenizer)
    if tokenizer.vocabulary != Vocabulary(**config["source_vocabulary"]):
        raise UserError(
            f"the source_tokenizer.json of {run.path} is not the one that the run was trained "
            "with; restore it, or train the run again."
        )
    return tokenizer


def build_from_config(
    config: Mapping[str, Any], vocabulary: Vocabulary, memories: ExternalMemory | None = None
) -> System:
    """Build the system of a config.json, with its base where it has one; untrained."""
    described, source = config.get("base"), config.get("source_vocabulary")
    return build_system(
        config["system"],
        config["system_config"],
        vocabulary,
        seed=0,
        base=None if described is None else build_from_config(described, vocabulary),
        source=None if source is None else Vocabulary(**source),
        memories=memories,
    )


def build_tiny(name: str, vocabulary: Vocabulary, *, seed: int = 0) -> System:
    """Build a system at size tiny, on its card's base where it needs one; untrained."""
    card, config = find_system(name), asdict(system_module(name).SIZES["tiny"])
    base = build_tiny(card.base, vocabulary, seed=seed) if card.base else None
    memories = tiny_external_memory(card)
    return build_system(name, config, vocabulary, seed=seed, base=base, memories=memories)


def build_system(
    name: str,
    config: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    seed: int,
    base: System | None = None,
    encoder: System | None = None,
    source: Vocabulary | None = None,
    memories: ExternalMemory | None = None,
) -> System:
    """Build a system of the zoo; `seed` decides its initial weights, torch's own is unchanged.

    `base` is a trained system to build on, where one is needed; it is not changed. `encoder` is one
    whose weights initialise the system's own encoder; they are copied. `source` is the source
    vocabulary, where it differs; `memories` the external memory, where it is used.
    """
    module = system_module(name)
    if source is not None and "source" not in inspect.signature(module.build).parameters:
        raise UserError(
            f"--source-tokenizer does not apply to {name}, which has one vocabulary for "
            "sources and targets; remove it."
        )
    try:
        settings = apply_settings(module.Config(), _tuples(config))
    except TypeError as error:
        raise UserError(f"these settings are not those of {name} ({error}).") from error
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        given = {"base": base, "encoder": encoder, "source": source}
        words = {key: value for key, value in given.items() if value is not None}
        words |= {} if memories is None else memories.given()
        with memory_budget(f"{name} with these settings"):
            system: System = module.build(settings, vocabulary, **words)
    system.configured_length = getattr(settings, "length", None)
    if isinstance(settings, SampledLossConfig):
        apply_sampled_loss(settings, system)
    return system


def _tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples, and configs no lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in config.items()}


def load_weights(system: System, run: RunFolder) -> None:
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
        first = str(error).split("\n\t")[-1].strip()
        raise UserError(
            f"the weights of {run.path} do not fit its config.json ({first}); restore the pair "
            "that belongs together."
        ) from error


def lmlab_version() -> str:
    try:
        return version("lmlab")
    except PackageNotFoundError:
        return "0+source"
