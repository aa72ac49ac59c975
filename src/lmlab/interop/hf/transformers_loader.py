"""Loads unknown Hugging Face checkpoints with transformers: causal or masked LM, and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.tensor_files import check_finite
from lmlab.interop.hf.checkpoint_files import read_config, weight_files
from lmlab.interop.hf.family import families
from lmlab.interop.hf.tokenizer_files import (
    SENTENCEPIECE_FILES,
    read_special_tokens,
    read_tokenizer,
)
from lmlab.interop.module_wrapper import wrap_module
from lmlab.training.run_folder import TrainedModel
from lmlab.training.stored_model_guard import stored_model_guard

CLASS_SUFFIXES = {
    "causal": ("ForCausalLM", "LMHeadModel"),
    "masked": ("ForMaskedLM", "ForPreTraining"),
}
"""Suffixes of transformers' causal and masked LM classes."""


def wrap_checkpoint(folder: Path) -> TrainedModel:
    """Load a checkpoint with transformers as a wrapped causal or masked LM.

    Only safetensors are read, as float32; remote code is never run.
    """
    config = read_config(folder)
    kind = _kind(folder, config)
    files = weight_files(folder)
    module = _load(folder, config, kind, sum(path.stat().st_size for path in files))
    return wrap_module(
        module,
        _tokenizer(folder),
        kind=kind,
        name=folder.resolve().name,
        roles=read_special_tokens(folder) or None,
        path=folder,
    )


def _kind(folder: Path, config: Mapping[str, Any]) -> str:
    """causal or masked, by the checkpoint's architecture."""
    listed = config.get("architectures")
    classes = [str(architecture) for architecture in listed] if isinstance(listed, list) else []
    if not config.get("is_encoder_decoder"):
        for kind, endings in CLASS_SUFFIXES.items():
            if any(name.endswith(endings) for name in classes):
                return kind
    raise UserError(
        f"{folder} holds a {config.get('model_type')!r} checkpoint ({', '.join(classes) or '?'}); "
        f"lmlab loads those of {', '.join(families())}, and others whose class ends in "
        f"{', '.join(ending for endings in CLASS_SUFFIXES.values() for ending in endings)}."
    )


def _load(folder: Path, config: Mapping[str, Any], kind: str, size: int) -> Any:
    """Load the module, whose weights have `size` bytes on disk."""
    try:
        # Imported late: an optional dependency, and slow.
        import transformers
    except ImportError as error:
        raise UserError(
            f"{folder} holds a {config.get('model_type')!r} checkpoint, which lmlab does not "
            "implement itself; to run it with transformers: pip install 'lmlab[hf]'."
        ) from error
    auto = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
    }[kind]
    try:
        with stored_model_guard(folder, size):
            module, loading_info = auto.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype="float32",
                output_loading_info=True,
            )
    except UserError:
        raise
    except Exception as error:  # the library raises dozens of types
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"transformers can't load {folder} ({reason.rstrip('. ')}).") from error
    if missing := sorted(loading_info["missing_keys"]):
        raise UserError(
            f"the checkpoint {folder} lacks weights of its language modelling head or body "
            f"({missing[0]}); use a model saved whole."
        )
    check_finite(folder, module.state_dict(), dict(module.named_parameters()))
    return module.eval()


def _tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, read by lmlab; by transformers if it has only SentencePiece files."""
    # For any other folder, transformers would make up a missing tokenizer.
    if (folder / "tokenizer.json").exists() or not any(
        (folder / name).exists() for name in SENTENCEPIECE_FILES
    ):
        return read_tokenizer(folder)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception:  # the library raises dozens of types; our error says what to do
        return read_tokenizer(folder)
