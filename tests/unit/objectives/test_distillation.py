"""Knowledge distillation: soft targets, hidden states, which systems can teach which."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import prediction_mask
from lmlab.core.registry import catalogue
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.distillation import (
    StudentNetwork,
    Teacher,
    check_distillable,
    parse_layer_pairs,
    soft_target_losses,
    uniform_layer_pairs,
)
from lmlab.training.compression_config import DistillationConfig
from lmlab.training.distillation import make_distillation
from lmlab.training.system_building import build_system, build_tiny

VOCABULARY = Vocabulary(size=11)


def text_batch(source: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, 11, (3, 8), generator=generator)
    tokens[:, 0] = VOCABULARY.bos
    batch = Batch(tokens=tokens, lengths=torch.tensor([8, 6, 3]), rows=torch.arange(3))
    if not source:
        return batch
    return Batch(
        tokens=tokens,
        lengths=batch.lengths,
        rows=batch.rows,
        condition=text_batch().select([2, 0, 1]),
    )


def build(name: str, seed: int = 0, **settings: object) -> Assembly:
    tiny = build_tiny(name, VOCABULARY, seed=seed)
    if settings:
        from dataclasses import asdict

        from lmlab.core.registry import system_module

        config = asdict(system_module(name).SIZES["tiny"]) | settings
        tiny = build_system(name, config, VOCABULARY, seed=seed)
    assert isinstance(tiny, Assembly)
    return tiny


def test_soft_target_loss_by_hand():
    """Two tokens, T = 2: the teacher's odds 9 become 3 (¾, ¼), the student's 1 stay 1 (½, ½).

    KL = ¾ ln(¾ / ½) + ¼ ln(¼ / ½) = ¾ ln 1.5 - ¼ ln 2 = 0.1308; times T² = 4: 0.5232.
    """
    teacher, student = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    by_hand = 4 * (0.75 * math.log(1.5) - 0.25 * math.log(2))
    assert soft_target_losses(student, teacher, 2.0).item() == pytest.approx(by_hand, abs=1e-6)
    assert by_hand == pytest.approx(0.5232, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_soft_target_loss_and_gradient_equal_torchs_divergence(temperature: float):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.double)
    aims = torch.randn(5, 7, generator=generator, dtype=torch.double)
    student = logits.clone().requires_grad_()
    losses = soft_target_losses(student.log_softmax(-1), aims.log_softmax(-1), temperature)
    reference = logits.clone().requires_grad_()
    divergence = torch.nn.KLDivLoss(reduction="none", log_target=True)(
        (reference / temperature).log_softmax(-1), (aims / temperature).log_softmax(-1)
    )
    torch.testing.assert_close(losses, temperature**2 * divergence.sum(-1))
    losses.sum().backward()
    # The gradient by the formula: T (q_T - p_T) (Hinton et al. 2015, eq. 2).
    by_formula = temperature * (
        (logits / temperature).softmax(-1) - (aims / temperature).softmax(-1)
    )
    torch.testing.assert_close(student.grad, by_formula)
    assert torch.autograd.gradcheck(
        lambda x: soft_target_losses(x.log_softmax(-1), aims.log_softmax(-1), temperature),
        (student,),
    )


def test_tokens_that_are_never_predicted_add_nothing():
    """-inf in both: value and gradient are those of the other tokens alone."""
    student = torch.tensor([[0.3, -0.2, 0.9]]).requires_grad_()
    impossible = torch.tensor([[-torch.inf]])
    whole = torch.cat([student, impossible], 1).log_softmax(-1)
    aims = torch.tensor([[1.0, 0.0, -1.0, -torch.inf]]).log_softmax(-1)
    loss = soft_target_losses(whole, aims, 2.0)
    rest = soft_target_losses(student.log_softmax(-1), aims[:, :3], 2.0)
    assert loss.item() == pytest.approx(rest.item())
    loss.sum().backward()
    assert student.grad is not None and student.grad.isfinite().all()


def test_uniform_layers_and_parsing():
    """TinyBERT maps layer m of 4 to layer 3 m of 12."""
    assert uniform_layer_pairs(4, 12) == [(0, 0), (1, 3), (2, 6), (3, 9), (4, 12)]
    assert uniform_layer_pairs(2, 3) == [(0, 0), (1, 2), (2, 3)]
    assert parse_layer_pairs(("0:0", "2:4")) == [(0, 0), (2, 4)]
    for wrong in ("2", "2:", "a:1", "-1:2"):
        with pytest.raises(UserError, match="pairs such as 1:2,2:4"):
            parse_layer_pairs((wrong,))


TEACHERS = ("gpt", "bert", "transformer", "lstm", "window-mixture")


@pytest.mark.parametrize("name", TEACHERS)
def test_a_student_with_the_weights_of_its_teacher_has_only_its_own_loss(name: str):
    """KL and the errors of hidden states are 0, so that (1 - α) own remains; own is unchanged."""
    student, teacher = build(name), build(name)
    student.eval()
    hidden = 0.0 if name == "window-mixture" else 1.0  # it has no stack of layers
    config = DistillationConfig(soft_target_weight=0.25, hidden_state_weight=hidden)
    batch = text_batch(source=name == "transformer")
    distillation = make_distillation(student, teacher, "teacher", config, batch)
    loss, _ = distillation.loss(batch, generator=torch.Generator().manual_seed(1))
    own, _ = student.loss(batch, generator=torch.Generator().manual_seed(1))
    assert loss.parts["soft targets"].total.item() == pytest.approx(0, abs=1e-5)
    if hidden:
        assert loss.parts["hidden states"].total.item() == pytest.approx(0, abs=1e-6)
        assert loss.parts["hidden states"].count >= own.count
    torch.testing.assert_close(loss.parts["own"].total, own.total)
    torch.testing.assert_close(loss.total, 0.75 * own.total, atol=1e-4, rtol=1e-5)
    assert loss.count == own.count


def test_which_systems_teach_and_their_distributions():
    """Those whose distribution at a target follows from its hidden state: it sums to one, and holds
    what the system predicts at the targets."""
    kinds: dict[str, set[str]] = {}
    for name, card in catalogue().items():
        if card.needs or card.base:
            continue
        system = build_tiny(name, VOCABULARY).eval()
        try:
            student, _ = check_distillable(system, system, name)
        except UserError:
            continue
        kind = student.objective.prediction_kind
        kinds.setdefault(kind, set()).add(name)
        view = student.objective.view(
            text_batch(source=kind == "source and prefix"),
            generator=torch.Generator().manual_seed(0),
        )
        with torch.no_grad():
            log_probs = student.distributions(view, student.hidden(view))
            targets = student.target_log_probs(view).log_probs
            recorded = StudentNetwork(student).target_log_probs(view)
        assert log_probs.shape == (int(prediction_mask(view).sum()), VOCABULARY.size), name
        ones = torch.ones(len(log_probs), dtype=log_probs.dtype)
        torch.testing.assert_close(log_probs.exp().sum(-1), ones, atol=1e-4, rtol=0, msg=name)
        torch.testing.assert_close(recorded.log_probs, targets, atol=1e-4, rtol=1e-4, msg=name)
    assert {"gpt", "lstm", "ngram", "hmm", "transformer-xl"} <= kinds["prefix"]
    assert {"bert", "roberta", "albert", "spanbert", "star-transformer"} <= kinds["masked text"]
    assert {"transformer", "seq2seq-attention"} <= kinds["source and prefix"]
    others = {"xlnet", "electra", "t5", "glm", "pcfg", "ebm", "lstm-mixture", "elmo"}
    assert not others & {name for names in kinds.values() for name in names}


def test_teachers_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="predicts tokens given a prefix, and the student given a"):
        check_distillable(build("bert"), build("gpt"), "runs/gpt")
    with pytest.raises(UserError, match=r"which the run runs/pcfg does not have; use another"):
        check_distillable(build("gpt"), build_tiny("pcfg", VOCABULARY), "runs/pcfg")
    with pytest.raises(UserError, match="which this student does not have"):
        check_distillable(build_tiny("xlnet", VOCABULARY), build("gpt"), "runs/gpt")
    with pytest.raises(UserError, match="a sampled loss does not compute"):
        check_distillable(build("gpt", objective="nce"), build("gpt"), "runs/gpt")


def test_a_text_that_the_teacher_cannot_encode_is_refused():
    student, short = build("gpt"), build("gpt", length=4)
    teacher = Teacher(system=short, name="runs/short")
    with pytest.raises(UserError, match="runs/short encodes at most 4 positions, got 7"):
        teacher.predict(student.objective.view(text_batch()))


def test_hidden_states_of_other_widths_are_projected():
    """lstm of width 16 taught by a gpt of width 24: projections, which the loss trains too."""
    student, teacher = build("lstm"), build("gpt", width=24)
    config = DistillationConfig(hidden_state_weight=0.5, hidden_state_layers=("1:2",))
    batch = text_batch()
    distillation = make_distillation(student, teacher, "teacher", config, batch)
    loss, state = distillation.loss(batch)
    loss.mean.backward()
    assert distillation.matcher is not None
    (projection,) = distillation.matcher.projections.parameters()
    assert projection.shape[0] == 24 and projection.grad is not None and projection.grad.any()
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert not any("teacher" in name for name in distillation.state_dict())
    assert state is not None, "the LSTM's state is carried"


def test_layers_that_do_not_exist_are_refused():
    for pair in ("3:1", "1:9"):
        config = DistillationConfig(hidden_state_weight=1.0, hidden_state_layers=(pair,))
        with pytest.raises(UserError, match=rf"got {pair}\."):
            make_distillation(build("gpt"), build("gpt"), "teacher", config, text_batch())
    config = DistillationConfig(hidden_state_weight=1.0)
    with pytest.raises(UserError, match="one stack of layers for every text"):
        make_distillation(build("gpt"), build("ngram"), "teacher", config, text_batch())
    config = DistillationConfig(hidden_state_layers=("1:1",))
    with pytest.raises(UserError, match="hidden_state_layers needs a weight"):
        make_distillation(build("gpt"), build("gpt"), "teacher", config, text_batch())


def test_label_smoothing_stays_the_students_own():
    student, teacher = build("transformer", label_smoothing=0.2), build("transformer", seed=1)
    batch = text_batch(source=True)
    config = DistillationConfig(soft_target_weight=0.4)
    loss, _ = make_distillation(student, teacher, "teacher", config, batch).loss(batch)
    own, _ = student.loss(batch)
    torch.testing.assert_close(loss.parts["own"].total, own.total)
    expected = 0.6 * own.total + 0.4 * loss.parts["soft targets"].total
    torch.testing.assert_close(loss.total, expected)
