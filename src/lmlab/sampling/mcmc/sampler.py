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
    """MCMC sampler: runs parallel chains of one system, with its tokeniser and layout."""

    def __init__(
        self,
        system: Any,
        tokenizer: Any,
        layout: Any,
        settings: McmcConfig,
        *,
        corpus_texts: Callable[[], Iterable[str]] = tuple,
        lm: tuple[Any, Any] | None = None,
    ) -> None:
        """`corpus_texts` are counted for the unigram proposal; `lm` is a system and a tokeniser."""
        if settings.method == "gibbs":
            require(system, Fill, "the method gibbs")
        else:
            _require_either(system, settings.method)
        self.system, self.tokenizer, self.layout = system, tokenizer, layout
        self.settings, self.lm = settings, lm
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.target: EnergyFunction = make_energy(system, settings.energy)
        if settings.lengths is not None:
            around = special_tokens_in_row(layout, system.vocabulary)
            self.target = LengthPenalisedEnergy(
                target=self.target, cost=settings.token_cost, special_token_count=around
            )
        self.proposal: ProposalDistribution = make_proposal(
            system, settings.proposal, corpus_texts, tokenizer
        )
        self.order = SCAN_ORDERS[settings.order](settings.masks)

    def run(self, progress: Callable[[int, int], None] = lambda done, of: None) -> McmcResult:
        """Run all chains; Ctrl-C returns the samples so far."""
        began = time.perf_counter()
        with evaluation_mode(self.system):
            forms, start = self._forms(), self._start()
            state = initial_state(forms, start, self.layout, self.system, self.generator)
            self._check_state(state)
            schedule = self._schedule(state)
            kernel, resize = self._kernel()
            watch = ChainMonitor(self._reading_interval(schedule, state))
            found, done = self._steps(state, schedule, kernel, resize, watch, progress)
        return self._record(forms, start, schedule, watch, found, done, time.perf_counter() - began)

    # Setup -------------------------------------------------------------------------------------

    def _forms(self) -> list[ChainTemplate]:
        """The template of each chain."""
        settings, count = self.settings, self.settings.chain_count
        if settings.start == "lm":
            return self._sampled_forms()
        if settings.template is not None:
            form = masked_template(settings.template, self.tokenizer)
        elif settings.text is not None:
            form = text_template(settings.text, settings.positions, self.tokenizer)
        else:
            form = blank_template(self._length(), settings.prefix, self.tokenizer)
        return [form] * count

    def _length(self) -> int:
        """Tokens of a new text: the setting, or 10 clipped to `lengths`."""
        if self.settings.length is not None:
            return self.settings.length
        least, most = self.settings.lengths or (DEFAULT_LENGTH, DEFAULT_LENGTH)
        return min(max(DEFAULT_LENGTH, least), most)

    def _sampled_forms(self) -> list[ChainTemplate]:
        """Samples of a language model, one per chain; empty ones are resampled."""
        system, tokenizer = self.lm or (self.system, self.tokenizer)
        if not isinstance(system, (Step, Sample)):
            require(system, Step, "a start from samples (say by --lm of which run)")
        most = self.settings.length or 2 * DEFAULT_LENGTH
        forms: list[ChainTemplate] = []
        for _ in range(20):
            drawn = decoding.sample_sequences(
                system,
                self.settings.chain_count - len(forms),
                max_length=most,
                generator=self.generator,
            )
            texts = [tokenizer.decode(each.tokens) for each in drawn]
            forms += [text_template(text, (), self.tokenizer) for text in texts if text.strip()]
            if len(forms) == self.settings.chain_count:
                return forms
        raise UserError("the language model generates only empty texts; choose another start.")

    def _start(self) -> Initialisation:
        named = self.settings.start
        if named == "masked" or (named is None and isinstance(self.system, Fill)):
            return MaskedInitialisation(self.system)
        return RandomInitialisation(self.system.vocabulary)

    def _kernel(self) -> tuple[AcceptanceRule, InsertDeleteMove | None]:
        if self.settings.method == "gibbs":
            return GibbsAcceptance(), None
        if self.settings.lengths is None:
            return MetropolisHastings(self.target), None
        least, most = self.settings.lengths
        return MetropolisHastings(self.target), InsertDeleteMove(
            proposal=self.proposal, min_length=least, max_length=most
        )

    def _check_state(self, state: ChainState) -> None:
        fewest = int(state.free.sum(1).min())
        if self.settings.masks > fewest:
            raise UserError(
                f"--masks must be at most {fewest}, the free positions of a text, got "
                f"{self.settings.masks}; give fewer."
            )
        if self.settings.lengths is not None:
            least, most = self.settings.lengths
            self.system.check_length(most + state.special_token_count)
            lengths = (state.batch.lengths - state.special_token_count).tolist()
            if not all(least <= length <= most for length in lengths):
                raise UserError(
                    f"lengths go from {least} to {most} tokens, and a chain starts from "
                    f"{min(lengths)} to {max(lengths)}; start from one of them."
                )

    def _sweep(self, state: ChainState) -> int:
        """Steps per sweep: each free position is resampled once."""
        return -(-int(state.free.sum(1).max()) // self.settings.masks)

    def _schedule(self, state: ChainState) -> ChainSchedule:
        settings = self.settings
        keep = -(-settings.n // settings.chain_count)
        sweep = self._sweep(state)
        steps = DEFAULT_SWEEPS * sweep if settings.steps is None else settings.steps
        if settings.steps is None:
            steps = max(steps, 2 * keep * (settings.thin or 1), 2 * (settings.burn_in or 0))
        burn_in = steps // 2 if settings.burn_in is None else settings.burn_in
        thin = settings.thin
        if thin is None:
            thin = max(1, (steps - burn_in) // keep)
        return ChainSchedule(
            steps=steps,
            burn_in=burn_in,
            thin=thin,
            samples_per_chain=keep,
            temperature=settings.temperature,
            initial_temperature=settings.anneal,
        )

    def _reading_interval(self, schedule: ChainSchedule, state: ChainState) -> int:
        """Steps between recorded energies: free for Metropolis, many passes for Gibbs."""
        least = 1 if self.settings.method == "metropolis" else self._sweep(state)
        return max(least, -(-schedule.steps // MAX_RECORDED))

    # Run ---------------------------------------------------------------------------------------

    def _steps(
        self,
        state: ChainState,
        schedule: ChainSchedule,
        kernel: AcceptanceRule,
        resize: InsertDeleteMove | None,
        watch: ChainMonitor,
        progress: Callable[[int, int], None],
    ) -> tuple[list[tuple[int, ChainState, Tensor]], int]:
        """The retained samples with their step and energies, and the number of steps made."""
        refill, kept, made = ResampleMove(proposal=self.proposal, order=self.order), [], 0
        state = kernel.initialise(state)
        watch.read(self._energies(state))
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
                stepped = kernel.accept(
                    state, proposed, temperature=temperature, generator=self.generator
                )
                state, made = stepped.state, step + 1
                watch.count(stepped, burning=step < schedule.burn_in, resizing=resizing)
                if made % watch.every == 0:
                    watch.read(self._energies(state))
                if schedule.is_sample(made):
                    kept.append((made, state, self._energies(state)))
                progress(made, schedule.steps)
        except KeyboardInterrupt:
            # No sample at this step yet: retain the current texts.
            if not kept or kept[-1][0] < made:
                kept.append((made, state, self._energies(state)))
        return kept, made

    def _coin(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def _energies(self, state: ChainState) -> Tensor:
        if state.energies is not None:
            return state.energies
        return self.target.energies(state.batch, state.blanks)

    # Result ------------------------------------------------------------------------------------

    def _record(
        self,
        forms: Sequence[ChainTemplate],
        start: Initialisation,
        schedule: ChainSchedule,
        watch: ChainMonitor,
        found: Sequence[tuple[int, ChainState, Tensor]],
        done: int,
        seconds: float,
    ) -> McmcResult:
        settings = self.settings
        mixing = watch.mixing(found[-1][1], schedule.burn_in)
        notes = [form.note for form in forms if form.note]
        named = "text" if settings.text is not None else settings.start
        return McmcResult(
            texts=tuple(self._texts(found)[-settings.n :]),
            method=settings.method,
            target_distribution=self._law(),
            energy=self.target.name,
            proposal=self.proposal.name,
            start=named or start.name,
            order=self.order.name,
            masks=settings.masks,
            chains=settings.chain_count,
            steps=done,
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
            diagnostics=mixing,
            trace=watch.trace(),
            seconds=seconds,
            interrupted=done < schedule.steps,
            warnings=(*dict.fromkeys(notes), *mixing_warnings(mixing)),
        )

    def _texts(self, found: Sequence[tuple[int, ChainState, Tensor]]) -> list[ChainSample]:
        """Samples ordered by step, then by chain."""
        texts = []
        for step, state, energies in found:
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

    def _law(self) -> str:
        """Describe the stationary distribution."""
        settings = self.settings
        tempered = "" if settings.temperature == 1 else f" / {settings.temperature:g}"
        if settings.method == "gibbs":
            return (
                "the stationary distribution of the conditionals sampled in turn, which is a "
                "joint distribution only if they are consistent; E of the record does not "
                "define it"
            )
        over = "texts of the given length"
        if settings.lengths is not None:
            least, most = settings.lengths
            over = f"texts of {least} to {most} tokens, a length L in proportion to Z_L"
        if settings.template is not None or settings.prefix or settings.positions:
            over = "texts that agree with what is fixed"
        return f"p(x) ∝ exp(-E(x){tempered}) over {over}, E(x) = {self.target.formula}"


def _require_either(system: object, method: str) -> None:
    """A UserError that names suitable systems if this one has neither Fill nor Energy."""
    if isinstance(system, (Fill, Energy)):
        return
    both = {"Fill", "Energy"}
    able = [card.name for card in catalogue().values() if both & set(card.protocols)]
    raise UserError(
        f"the method {method} needs a system with Fill or Energy, and this one has neither; those "
        f"that have one: {', '.join(able)}."
    )
