"""What a fine-tuning begins with: a trained run, or what an earlier fine-tuning made of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmlab.core.registry import full_card, system_module
from lmlab.data.corpus import Layout
from lmlab.tasks.finetuned_model import load_task
from lmlab.training.external_memory import load_external_memory
from lmlab.training.run_folder import (
    RunFolder,
    TrainedModel,
    build_from_config,
    load_run,
    load_source_tokenizer,
)


def load_pretrained(path: Path | str) -> TrainedModel:
    """The system of a run; of one that was put to a task, the system under the task's head.

    So a task is learnt in stages: from short texts before long ones, from many rows of others
    before a few of one's own. The head is left behind, as the next task may have another; so are
    memrecall's judge, and the graph network of hops.
    """
    run = RunFolder(Path(path))
    config = run.read_config()
    if not config.get("task", {}).get("head"):
        return load_run(path)
    fine_tuned = load_task(path)
    under_head: Any = fine_tuned.system.base
    # Built anew, since a frozen fine-tuning has taken the gradients of its parameters away.
    memories = load_external_memory(config, run.memory)
    system = build_from_config(config, under_head.vocabulary, memories)
    if memories.given():
        system.setup_tokenizer(fine_tuned.tokenizer)
    system.load_state_dict(under_head.state_dict())
    return TrainedModel(
        system=system.eval(),
        tokenizer=fine_tuned.tokenizer,
        source_tokenizer=load_source_tokenizer(config, run),
        layout=Layout(**config["layout"]),
        config={key: value for key, value in config.items() if key != "task"},
        card=full_card(system_module(config["system"])),
        path=run.path,
    )
