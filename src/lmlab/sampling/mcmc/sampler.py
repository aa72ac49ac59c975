"""MCMC over texts: Gibbs and Metropolis-Hastings chains from masked-LM conditionals or an energy.

Gibbs samples a masked model's conditionals and accepts every sample; Metropolis-Hastings has the
stationary distribution ∝ exp(-E / τ) (Goyal et al. 2022, Exposing the Implicit Energy Networks
behind Masked Language Models via Metropolis-Hastings). The parts are objects: energy, proposal,
scan order, acceptance rule, schedule and initialisation; `McmcConfig` names them for the command
line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Energy, Fill, Sample, Step, require
from lmlab.core.registry import catalogue
from lmlab.core.system import System
from lmlab.core.system_protocols import FillSystem
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.corpus import Layout
from lmlab.sampling import decoding
from lmlab.sampling.mcmc.acceptance import AcceptanceRule, GibbsAcceptance, MetropolisHastings
from lmlab.sampling.mcmc.diagnostics import ChainMonitor, ChainSample, McmcResult, mixing_warnings
from lmlab.sampling.mcmc.energy import EnergyFunction, LengthPenalisedEnergy, make_energy
from lmlab.sampling.mcmc.initialisation import (
    ChainTemplate,
    Initialisation,
    MaskedInitialisation,
    RandomInitialisation,
    blank_template,
    initial_state,
    masked_template,
    special_tokens_in_row,
    text_template,
)
from lmlab.sampling.mcmc.mcmc_config import McmcConfig
from lmlab.sampling.mcmc.moves import ChainState, InsertDeleteMove, ProposalMove, ResampleMove
from lmlab.sampling.mcmc.proposals import ProposalDistribution, make_proposal
from lmlab.sampling.mcmc.schedule import SCAN_ORDERS, ChainSchedule

DEFAULT_SWEEPS = 50
"""Default number of sweeps: how often a chain resamples each position."""
DEFAULT_LENGTH = 10
MAX_RECORDED = 2000
"""Maximum recorded energies per chain; longer chains are recorded less often."""
RESIZE_SHARE = 0.2
"""Share of steps that insert or delete a token, if the length may change."""


class McmcSampler:
    """MCMC sampler: runs parallel chains of one system, with its tokenizer and layout."""

    def __init__(
        self,
        system: System,
        tokenizer: TokenizerProtocol,
        layout: Layout,
        settings: McmcConfig,
        *,
        corpus_texts: Callable[[], Iterable[str]] = tuple,
        lm: tuple[System, Any] | None = None,
    ) -> None:
        """`corpus_texts` are counted for the unigram proposal; `lm` is a system and a tokenizer."""
        if settings.method == "gibbs":
            require(system, Fill, "the method gibbs")
        else:
            _require_either(system, settings.method)
        self.system, self.tokenizer, self.layout = system, tokenizer, layout
        self.settings, self.lm = settings, lm
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.target: EnergyFunction = make_energy(system, settings.energy)
        if settings.lengths is not None:
            special_token_count = special_tokens_in_row(layout, system.vocabulary)
            self.target = LengthPenalisedEnergy(
                target=self.target,
                cost=settings.token_cost,
                special_token_count=special_token_count,
            )
        self.proposal: ProposalDistribution = make_proposal(
            system, settings.proposal, corpus_texts, tokenizer
        )
        self.order = SCAN_ORDERS[settings.order](settings.masks)

    def run(self, progress: Callable[[int, int], None] = lambda steps_made, of: None) -> McmcResult:
        """Run all chains; Ctrl-C returns the samples so far."""
        started = time.perf_counter()
        with evaluation_mode(self.system):
            templates, start = self._templates(), self._start()
            state = initial_state(templates, start, self.layout, self.system, self.generator)
            self._check_state(state)
            schedule = self._schedule(state)
            kernel, resize = self._kernel()
            monitor = ChainMonitor(self._recording_interval(schedule, state))
            samples, steps_made = self._steps(state, schedule, kernel, resize, monitor, progress)
        return self._record(
            templates, start, schedule, monitor, samples, steps_made, time.perf_counter() - started
        )

    # Setup -------------------------------------------------------------------------------------

    def _templates(self) -> list[ChainTemplate]:
        """The template of each chain."""
        settings, count = self.settings, self.settings.chain_count
        if settings.start == "lm":
            return self._sampled_templates()
        if settings.template is not None:
            template = masked_template(settings.template, self.tokenizer)
        elif settings.text is not None:
            template = text_template(settings.text, settings.positions, self.tokenizer)
        else:
            template = blank_template(self._length(), settings.prefix, self.tokenizer)
        return [template] * count

    def _length(self) -> int:
        """Tokens of a new text: the setting, or 10 clipped to `lengths`."""
        if self.settings.length is not None:
            return self.settings.length
        min_length, max_length = self.settings.lengths or (DEFAULT_LENGTH, DEFAULT_LENGTH)
        return min(max(DEFAULT_LENGTH, min_length), max_length)

    def _sampled_templates(self) -> list[ChainTemplate]:
        """Samples of a language model, one per chain; empty ones are resampled."""
        system, tokenizer = self.lm or (self.system, self.tokenizer)
        if not isinstance(system, (Step, Sample)):
            require(system, Step, "a start from samples (say by --lm of which run)")
        max_length = self.settings.length or 2 * DEFAULT_LENGTH
        templates: list[ChainTemplate] = []
        for _ in range(20):
            sequences = decoding.sample_sequences(
                system,
                self.settings.chain_count - len(templates),
                max_length=max_length,
                generator=self.generator,
            )
            texts = [tokenizer.decode(sequence.tokens) for sequence in sequences]
            templates += [text_template(text, (), self.tokenizer) for text in texts if text.strip()]
            if len(templates) == self.settings.chain_count:
                return templates
        raise UserError("the language model generates only empty texts; choose another start.")

    def _start(self) -> Initialisation:
        start = self.settings.start
        if start in ("masked", None) and isinstance(self.system, FillSystem):
            return MaskedInitialisation(self.system)
        if start == "masked":
            raise UserError(
                "a masked start needs a system with Fill, which this one does not have; "
                "start from random tokens or a text."
            )
        return RandomInitialisation(self.system.vocabulary)

    def _kernel(self) -> tuple[AcceptanceRule, InsertDeleteMove | None]:
        if self.settings.method == "gibbs":
            return GibbsAcceptance(), None
        if self.settings.lengths is None:
            return MetropolisHastings(self.target), None
        min_length, max_length = self.settings.lengths
        return MetropolisHastings(self.target), InsertDeleteMove(
            proposal=self.proposal, min_length=min_length, max_length=max_length
        )

    def _check_state(self, state: ChainState) -> None:
        min_free = int(state.free.sum(1).min())
        if self.settings.masks > min_free:
            raise UserError(
                f"--masks must be at most {min_free}, the free positions of a text, got "
                f"{self.settings.masks}; give fewer."
            )
        if self.settings.lengths is not None:
            min_length, max_length = self.settings.lengths
            self.system.check_length(max_length + state.special_token_count)
            lengths = (state.batch.lengths - state.special_token_count).tolist()
            if not all(min_length <= length <= max_length for length in lengths):
                raise UserError(
                    f"lengths go from {min_length} to {max_length} tokens, and a chain starts from "
                    f"{min(lengths)} to {max(lengths)}; start from one of them."
                )

    def _sweep(self, state: ChainState) -> int:
        """Steps per sweep: each free position is resampled once."""
        return -(-int(state.free.sum(1).max()) // self.settings.masks)

    def _schedule(self, state: ChainState) -> ChainSchedule:
        settings = self.settings
        samples = -(-settings.n // settings.chain_count)
        sweep = self._sweep(state)
        steps = DEFAULT_SWEEPS * sweep if settings.steps is None else settings.steps
        if settings.steps is None:
            steps = max(steps, 2 * samples * (settings.thin or 1), 2 * (settings.burn_in or 0))
        burn_in = steps // 2 if settings.burn_in is None else settings.burn_in
        thin = settings.thin
        if thin is None:
            thin = max(1, (steps - burn_in) // samples)
        return ChainSchedule(
            steps=steps,
            burn_in=burn_in,
            thin=thin,
            samples_per_chain=samples,
            temperature=settings.temperature,
            initial_temperature=settings.anneal,
        )

    def _recording_interval(self, schedule: ChainSchedule, state: ChainState) -> int:
        """Steps between recorded energies: free for Metropolis, many passes for Gibbs."""
        min_interval = 1 if self.settings.method == "metropolis" else self._sweep(state)
        return max(min_interval, -(-schedule.steps // MAX_RECORDED))

    # Run ---------------------------------------------------------------------------------------

    def _steps(
        self,
        state: ChainState,
        schedule: ChainSchedule,
        kernel: AcceptanceRule,
        resize: InsertDeleteMove | None,
        monitor: ChainMonitor,
        progress: Callable[[int, int], None],
    ) -> tuple[list[tuple[int, ChainState, Tensor]], int]:
        """The retained samples with their step and energies, and the number of steps made."""
        refill, samples, steps_made = ResampleMove(proposal=self.proposal, order=self.order), [], 0
        state = kernel.initialise(state)
        monitor.read(self._energies(state))
        try:
            for step in range(schedule.steps):
                resizing = resize is not None and self._coin() < RESIZE_SHARE
                move: ProposalMove = resize if resizing and resize is not None else refill
                temperature = schedule.temperature_at(step)
                proposed = move.propose(
                    state,
                    step=step,
                    temperature=temperature * self.settings.proposal_temperature,
                    generator=self.generator,
                )
                transition = kernel.accept(
                    state, proposed, temperature=temperature, generator=self.generator
                )
                state, steps_made = transition.state, step + 1
                monitor.count(transition, burning=step < schedule.burn_in, resizing=resizing)
                if steps_made % monitor.every == 0:
                    monitor.read(self._energies(state))
                if schedule.is_sample(steps_made):
                    samples.append((steps_made, state, self._energies(state)))
                progress(steps_made, schedule.steps)
        except KeyboardInterrupt:
            # No sample at this step yet: retain the current texts.
            if not samples or samples[-1][0] < steps_made:
                samples.append((steps_made, state, self._energies(state)))
        return samples, steps_made

    def _coin(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def _energies(self, state: ChainState) -> Tensor:
        if state.energies is not None:
            return state.energies
        return self.target.energies(state.batch, state.blanks)

    # Result ------------------------------------------------------------------------------------

    def _record(
        self,
        templates: Sequence[ChainTemplate],
        start: Initialisation,
        schedule: ChainSchedule,
        monitor: ChainMonitor,
        samples: Sequence[tuple[int, ChainState, Tensor]],
        steps_made: int,
        seconds: float,
    ) -> McmcResult:
        settings = self.settings
        diagnostics = monitor.mixing(samples[-1][1], schedule.burn_in)
        notes = [template.note for template in templates if template.note]
        start_name = "text" if settings.text is not None else settings.start
        return McmcResult(
            texts=tuple(self._texts(samples)[-settings.n :]),
            method=settings.method,
            target_distribution=self._describe_target(),
            energy=self.target.name,
            proposal=self.proposal.name,
            start=start_name or start.name,
            order=self.order.name,
            masks=settings.masks,
            chains=settings.chain_count,
            steps=steps_made,
            burn_in=schedule.burn_in,
            thin=schedule.thin,
            temperature=settings.temperature,
            anneal=settings.anneal,
            proposal_temperature=settings.proposal_temperature,
            text=settings.text,
            positions=tuple(settings.positions),
            template=settings.template,
            prefix=settings.prefix,
            lengths=settings.lengths,
            token_cost=settings.token_cost,
            seed=settings.seed,
            diagnostics=diagnostics,
            trace=monitor.trace(),
            seconds=seconds,
            interrupted=steps_made < schedule.steps,
            warnings=(*dict.fromkeys(notes), *mixing_warnings(diagnostics)),
        )

    def _texts(self, samples: Sequence[tuple[int, ChainState, Tensor]]) -> list[ChainSample]:
        """Samples ordered by step, then by chain."""
        texts = []
        for step, state, energies in samples:
            rows = zip(
                state.batch.tokens.tolist(),
                (state.batch.lengths - state.special_token_count).tolist(),
                energies.tolist(),
                strict=True,
            )
            texts += [
                ChainSample(
                    text=self.tokenizer.decode(tokens[1 : 1 + length]),
                    energy=energy,
                    tokens=length,
                    chain=chain,
                    step=step,
                )
                for chain, (tokens, length, energy) in enumerate(rows)
            ]
        return texts

    def _describe_target(self) -> str:
        """Describe the stationary distribution."""
        settings = self.settings
        tempered = "" if settings.temperature == 1 else f" / {settings.temperature:g}"
        if settings.method == "gibbs":
            return (
                "the stationary distribution of the conditionals sampled in turn, which is a "
                "joint distribution only if they are consistent; E of the record does not "
                "define it"
            )
        support = "texts of the given length"
        if settings.lengths is not None:
            min_length, max_length = settings.lengths
            support = (
                f"texts of {min_length} to {max_length} tokens, a length L in proportion to Z_L"
            )
        if settings.template is not None or settings.prefix or settings.positions:
            support = "texts that agree with what is fixed"
        return f"p(x) ∝ exp(-E(x){tempered}) over {support}, E(x) = {self.target.formula}"


def _require_either(system: object, method: str) -> None:
    """A UserError that names suitable systems if this one has neither Fill nor Energy."""
    if isinstance(system, (Fill, Energy)):
        return
    both = {"Fill", "Energy"}
    names = [card.name for card in catalogue().values() if both & set(card.protocols)]
    raise UserError(
        f"the method {method} needs a system with Fill or Energy, and this one has neither; those "
        f"that have one: {', '.join(names)}."
    )
