"""GPT against transformers' GPT-2 with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.compression_config import DistillationConfig
from lmlab.training.distillation import make_distillation
from lmlab.zoo import gpt

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=37)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3, "length": 20},
    "deep": {"width": 16, "layers": 5, "heads": 2, "length": 12, "ffn_width": 40},
    "relu": {"width": 16, "layers": 1, "heads": 4, "length": 32, "activation": "relu"},
}


def build_pair(settings: dict):
    """Our system with the weights of a random GPT-2."""
    config = gpt.Config(**{"activation": "gelu-tanh", **settings})
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY.size,
            n_positions=config.length,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.ffn_width or None,
            activation_function={"gelu-tanh": "gelu_new"}.get(config.activation, config.activation),
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        # Norms around one, so that positions differ.
        norm = ".ln_" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)
    ours = gpt.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.transformer.state_dict(), ours.state_dict()))
    return ours, theirs


def our_names(theirs: dict, ours: dict) -> dict:
    """GPT-2's names by hand; its linear maps are stored transposed."""
    body = "backbone.stack.blocks"
    converted = {
        "backbone.embedding.tokens.weight": theirs["wte.weight"],
        "emission.weight": theirs["wte.weight"],
        "backbone.embedding.positions.table.weight": theirs["wpe.weight"],
        "backbone.stack.norm.weight": theirs["ln_f.weight"],
        "backbone.stack.norm.bias": theirs["ln_f.bias"],
    }
    parts = {
        "mixer.qkv_projection": "attn.c_attn",
        "mixer.output": "attn.c_proj",
        "feed_forward.up_projection": "mlp.c_fc",
        "feed_forward.down_projection": "mlp.c_proj",
        "mixer_connection.norm": "ln_1",
        "feed_forward_connection.norm": "ln_2",
    }
    for name in ours:
        if not name.startswith(body):
            continue
        layer, _, rest = name.removeprefix(f"{body}.").partition(".")
        part, _, kind = rest.rpartition(".")
        value = theirs[f"h.{layer}.{parts[part]}.{kind}"]
        converted[name] = value.t() if kind == "weight" and value.ndim == 2 else value
    return converted


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_gpt2(settings: dict):
    ours, theirs = build_pair(settings)
    tokens = torch.randint(5, VOCABULARY.size, (3, 11))
    lengths = torch.tensor([11, 7, 4])
    padding = (torch.arange(11) < lengths[:, None]).long()
    with torch.no_grad():
        view = View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(tokens, attention_mask=padding).logits
    real = padding.bool()
    assert expected[real].std() > 1
    assert expected[real].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=0)


def test_cached_step_logits_equal_gpt2():
    ours, theirs = build_pair(CONFIGS["small"])
    tokens = torch.randint(5, VOCABULARY.size, (2, 9))
    memory, cache = ours.backbone.initial_state(2), None
    with torch.no_grad():
        for position in range(9):
            here = tokens[:, position : position + 1]
            view = View(inputs=here, lengths=torch.ones(2).long(), attention_mask=CausalMask())
            hidden = ours.hidden(view, memory)
            memory = hidden.state
            answer = theirs(here, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            logits = ours.emission.logits(hidden.values)
            torch.testing.assert_close(logits, answer.logits, atol=1e-4, rtol=0)


def test_distillation_loss_equals_that_of_two_gpt2s():
    """(1 - α) CE + α T² KL + β MSE with torch's own losses on the logits and hidden states of
    transformers: a student of two layers, width 24, and a teacher of five, width 16."""
    student, their_student = build_pair(CONFIGS["small"])
    teacher, their_teacher = build_pair(CONFIGS["deep"])
    config = DistillationConfig(
        soft_target_weight=0.3,
        soft_target_temperature=1.7,
        hidden_state_weight=0.6,
        hidden_state_layers=("0:0", "1:3"),
    )
    tokens = torch.randint(5, VOCABULARY.size, (3, 10))
    lengths = torch.tensor([10, 7, 4])
    batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(3))
    distillation = make_distillation(student, teacher, "teacher", config, batch)
    loss, _ = distillation.loss(batch)

    inputs, mask = tokens[:, :-1], torch.arange(9) < lengths[:, None] - 1
    outputs = [
        model(inputs, attention_mask=mask.long(), output_hidden_states=True)
        for model in (their_student, their_teacher)
    ]
    never = [VOCABULARY.pad, VOCABULARY.start, VOCABULARY.mask]
    possible = [id for id in range(VOCABULARY.size) if id not in never]
    own, other = (output.logits[mask][:, possible] for output in outputs)
    targets = torch.tensor([possible.index(id) for id in tokens[:, 1:][mask].tolist()])
    cross_entropy = torch.nn.CrossEntropyLoss(reduction="sum")(own, targets)
    divergence = torch.nn.KLDivLoss(reduction="sum", log_target=True)(
        (own / 1.7).log_softmax(-1), (other / 1.7).log_softmax(-1)
    )
    squared = 0.0
    for (m, n), projection in zip(
        ((0, 0), (1, 3)), distillation.matcher.projections[0], strict=True
    ):
        hidden, aim = outputs[0].hidden_states[m][mask], outputs[1].hidden_states[n][mask]
        error = torch.nn.MSELoss(reduction="none")(hidden @ projection.weight.T, aim)
        squared = squared + error.mean(-1).sum() / 2
    expected = 0.7 * cross_entropy + 0.3 * 1.7**2 * divergence + 0.6 * squared
    assert loss.count == mask.sum() == 18
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-3)
