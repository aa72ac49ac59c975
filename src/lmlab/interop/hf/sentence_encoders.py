"""Sentence encoders from Hugging Face checkpoints, by the conventions of sentence-transformers.

Reimers and Gurevych 2019: a Transformer's last hidden states, pooled into one vector, normalised
if `modules.json` says so. A folder without that file uses mean pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of
from lmlab.core.untrusted_input import read_json_file
from lmlab.interop.hf.checkpoint_files import read_config, read_json, weight_files
from lmlab.interop.hf.tokenizer_files import check_tokenizer_file
from lmlab.training.stored_model_guard import stored_model_guard

PoolingFunction = Callable[[Tensor, Tensor], Tensor]
"""Pools hidden states (B, T, W) under a padding mask (B, T) into vectors (B, W)."""


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def _mean_root(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1).sqrt()


def _weighted(states: Tensor, mask: Tensor) -> Tensor:
    """Position-weighted mean pooling (SGPT): position i has weight i."""
    weights = mask.cumsum(1) * mask
    return (states * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0]


def _last(states: Tensor, mask: Tensor) -> Tensor:
    last = (mask.sum(1).long() - 1).clamp(min=0)
    return states[torch.arange(len(states), device=states.device), last]


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)


POOLING_FUNCTIONS: dict[str, PoolingFunction] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_root,
    "weightedmean": _weighted,
    "lasttoken": _last,
}
"""By their names in 1_Pooling/config.json; several are concatenated in this order."""
MODULES = ("Transformer", "Pooling", "Normalize")
"""Supported modules of modules.json."""
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Names of prompts in config_sentence_transformers.json."""


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig:
    """Configuration of a sentence encoder: preprocessing of texts, pooling and normalisation."""

    poolings: tuple[str, ...]
    """Pooling functions, names in `POOLING_FUNCTIONS`."""
    normalized: bool
    """Whether vectors are scaled to length one."""
    lower: bool
    """Whether texts are lower-cased."""
    window: int | None
    """Maximum number of tokens of a text, if sentence_bert_config.json gives one."""
    query_prompt: str
    """Prefix of a query."""
    document_prompt: str
    """Prefix of a document."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceEncoderCheckpoint:
    """A Transformer run by transformers, with its tokenizer and pooling."""

    name: str
    """Model type."""
    module: Any
    tokenizer: Any
    window: int | None
    """Maximum number of tokens, special tokens included."""
    conventions: SentenceEncoderConfig

    def vectors(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """(B, W) a vector for each text, and the number of truncated texts."""
        try:
            return self._vectors(texts)
        except UserError:
            raise
        except Exception as error:  # a damaged model fails only when used, in dozens of ways
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            if "memory" in reason:
                raise
            raise UserError(
                f"the {self.name} encoder can't encode texts ({reason.rstrip('. ')[:200]}); check "
                "its config.json and tokenizer.json."
            ) from error

    def _vectors(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        rules = self.conventions
        normalised_texts = [text.lower() for text in texts] if rules.lower else list(texts)
        ids = self.tokenizer(normalised_texts, truncation=False, verbose=False)["input_ids"]
        cut = 0 if self.window is None else sum(len(row) > self.window for row in ids)
        inputs = self.tokenizer(
            normalised_texts,
            padding=True,
            truncation=self.window is not None,
            max_length=self.window,
            return_tensors="pt",
        ).to(device_of(self.module))
        states = self.module(**inputs).last_hidden_state
        mask = inputs["attention_mask"].to(states.dtype)
        pooled = torch.cat([POOLING_FUNCTIONS[name](states, mask) for name in rules.poolings], 1)
        return (F.normalize(pooled, dim=1) if rules.normalized else pooled), cut


def load_sentence_encoder(folder: Path) -> SentenceEncoderCheckpoint:
    """Load the encoder that a checkpoint's folder describes; remote code is never run."""
    config = read_config(folder)
    size = sum(file.stat().st_size for file in weight_files(folder))
    conventions = read_sentence_encoder_config(folder)
    check_tokenizer_file(folder)
    tokenizer, module = _load(folder, config, size)
    return SentenceEncoderCheckpoint(
        name=str(config.get("model_type")),
        module=module,
        tokenizer=tokenizer,
        window=_window(conventions, tokenizer, config),
        conventions=conventions,
    )


def read_sentence_encoder_config(folder: Path) -> SentenceEncoderConfig:
    """Read the sentence-transformers files in a checkpoint's folder, if there are any."""
    modules = _modules(folder)
    bert_config = _optional(folder / "sentence_bert_config.json")
    prompts = _optional(folder / "config_sentence_transformers.json").get("prompts") or {}
    max_length = bert_config.get("max_seq_length")
    return SentenceEncoderConfig(
        poolings=_pools(folder, modules),
        normalized="Normalize" in modules,
        lower=bool(bert_config.get("do_lower_case")),
        window=max_length if type(max_length) is int and max_length > 0 else None,
        query_prompt=_prompt(prompts, QUERY_PROMPTS),
        document_prompt=_prompt(prompts, DOCUMENT_PROMPTS),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _modules(folder: Path) -> dict[str, str]:
    """Module types and their folders, in order; empty without modules.json."""
    path = folder / "modules.json"
    if not path.exists():
        return {}
    try:
        rows = read_json_file(path)
        modules = {str(row["type"]).rpartition(".")[2]: str(row["path"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a list of modules; restore it.") from error
    for kind in modules:
        if kind not in MODULES:
            raise UserError(
                f"{path} names a module {kind}, but lmlab supports {', '.join(MODULES)}; choose "
                "another encoder."
            )
    return modules


def _pools(folder: Path, modules: Mapping[str, str]) -> tuple[str, ...]:
    path = folder / modules.get("Pooling", "") / "config.json"
    if "Pooling" not in modules:
        return ("mean",)
    settings = read_json(path)
    mode = settings.get("pooling_mode")  # later versions store one name, or several
    if mode is not None:
        chosen = [mode] if isinstance(mode, str) else list(mode)
    else:
        spelled = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"}
        spelled |= {"mean_sqrt_len": "mean_sqrt_len_tokens", "weightedmean": "weightedmean_tokens"}
        chosen = [n for n in POOLING_FUNCTIONS if settings.get(f"pooling_mode_{spelled.get(n, n)}")]
    if not chosen or not set(chosen) <= POOLING_FUNCTIONS.keys():
        raise UserError(
            f"{path} names no pooling that lmlab supports: {', '.join(POOLING_FUNCTIONS)}."
        )
    return tuple(name for name in POOLING_FUNCTIONS if name in chosen)


def _prompt(prompts: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((str(prompts[name]) for name in names if prompts.get(name)), "")


def _window(rules: SentenceEncoderConfig, tokenizer: Any, config: Mapping[str, Any]) -> int | None:
    """The minimum of the lengths in the files; transformers writes huge numbers for none."""
    candidates = (
        rules.window,
        getattr(tokenizer, "model_max_length", None),
        config.get("max_position_embeddings"),
    )
    sensible = [number for number in candidates if isinstance(number, int) and 0 < number < 10**9]
    return min(sensible, default=None)


def _load(folder: Path, config: Mapping[str, Any], size: int) -> tuple[Any, Any]:
    try:
        # Imported late: an optional dependency, and slow.
        import transformers
    except ImportError as error:
        raise UserError(
            f"{folder} holds a checkpoint of the Hub, and to encode texts with it lmlab needs "
            "transformers: pip install 'lmlab[hf]'."
        ) from error
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    bars, enabled = (
        transformers.utils.logging,
        transformers.utils.logging.is_progress_bar_enabled(),
    )
    bars.disable_progress_bar()  # lmlab has its own
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe)
        with stored_model_guard(folder, size):
            module = transformers.AutoModel.from_pretrained(
                folder, use_safetensors=True, dtype="float32", **safe
            )
    except UserError:
        raise
    except Exception as error:  # the library raises dozens of types
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"transformers can't load {folder} ({reason.rstrip('. ')}).") from error
    finally:
        if enabled:
            bars.enable_progress_bar()
    if config.get("is_encoder_decoder"):
        module = module.get_encoder()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"  # so that the first position is a token of the text
    return tokenizer, module.eval()
