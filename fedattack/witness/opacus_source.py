"""What Opacus really did: noise, clipping and sampling step by step, by which a privacy claim is checked.

Its accountant counts Poisson batches, whatever its engine was told to draw, and whatever loader the client takes. So
what counts is the optimizer at each of its steps, and the loader from which the batch before it came.
"""

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from fedattack.base.errors import ConfigError
from fedattack.claims.reading import configuration_of
from fedattack.witness.current import current
from fedattack.witness.drawn import DrawnBatch
from fedattack.witness.hooks import Hooks
from fedattack.witness.private import add_remark
from fedattack.witness.torch_optimizers import MADE_PRIVATE
from fedattack.witness.watch import CallWatch

_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
# Seeds below are those of people: whoever tries them all has the noise.
_SMALL_SEED = 2**32

_hooks = Hooks()
_engines: "weakref.WeakKeyDictionary[DPOptimizer, tuple[PrivacyEngine, object]]" = weakref.WeakKeyDictionary()
"""By optimizer the engine that made it, and the dataset whose examples it protects."""


def install() -> None:
    """Put the hooks in, unless they are in."""
    if not _hooks.are_in:
        _hooks.replace(PrivacyEngine, "make_private", _watch_engine(PrivacyEngine.make_private))
        _hooks.replace(DPOptimizer, "__init__", _watch_optimizer(DPOptimizer.__init__))


def remove() -> None:
    """Take the hooks out again."""
    _hooks.remove()


def _watch_optimizer(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: DPOptimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # It may be made in another call of the client than the one in which it makes steps.
        vars(self.original_optimizer)[MADE_PRIVATE] = functools.partial(_make_training, weakref.ref(self))
        watch = current()
        if watch is not None:
            watch.guard("what Opacus was told", _note_optimizer, self)

    return init


def _note_optimizer(watch: CallWatch, optimizer: DPOptimizer) -> None:
    drawn = watch.local.drawn
    # What was drawn before is another optimizer's.
    since = drawn[-1].number if drawn else -1
    watch.private_by[id(optimizer.original_optimizer)] = OpacusTraining(optimizer, since)


def _make_training(known: "weakref.ref[DPOptimizer]") -> "OpacusTraining | None":
    optimizer = known()
    return None if optimizer is None else OpacusTraining(optimizer)


def _watch_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_private(self: PrivacyEngine, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        # With ghost clipping there is a criterion before the loader.
        with suppress(Exception):
            # ``make_private`` returns the model, the optimizer and the loader.
            _engines[made[1]] = self, made[-1].dataset
        return made

    return make_private


class OpacusTraining:
    """The steps that one optimizer of Opacus made in one call of a client, on batches after the one of a number."""

    def __init__(self, optimizer: DPOptimizer, since: int = -1) -> None:
        self._optimizer = optimizer
        self._since = since
        self._steps = 0
        self._noise: Counter[float] = Counter()
        self._drawn: Sequence[DrawnBatch] = ()
        self._latest: DrawnBatch | None = None
        # Ways of drawing, with the share of examples in a batch; None for one that is not known.
        self._ways: set[tuple[str, float] | None] = set()
        self._batches = self._empty = self._epochs = 0
        # Batches that made no step; most batches of which a step adds up gradients; steps before which no batch came.
        self._skipped, self._together, self._without = 0, 1, 0

    def note_step(self, drawn: Sequence[DrawnBatch]) -> None:
        """Note a step; ``drawn`` are the batches that came last."""
        self._steps += 1
        self._noise[float(self._optimizer.noise_multiplier)] += 1
        self._drawn = drawn
        self._together = max(self._together, int(self._optimizer.accumulated_iterations))
        fresh = self._list_fresh()
        if not fresh:
            self._without += 1
            return
        # Others may be looked at between the steps, of the same examples.
        of_step = [batch for batch in fresh if batch.sampler is fresh[-1].sampler]
        self._ways.add(_describe_sampler(fresh[-1].sampler))
        self._batches += len(of_step)
        for batch, following in zip(of_step, [*of_step[1:], None], strict=True):
            self._take(batch, following)

    def keeps_gradients(self) -> bool:
        """Whether gradients stay where the client throws them away, as those of a part of a batch do."""
        return bool(self._optimizer._is_last_step_skipped)

    def _list_fresh(self) -> list[DrawnBatch]:
        """List the batches of the protected dataset that came since the last step."""
        _, dataset = _engines.get(self._optimizer, (None, None))
        before = self._since if self._latest is None else self._latest.number
        fresh: list[DrawnBatch] = []
        for batch in reversed(self._drawn):
            if batch.number <= before:
                break
            if dataset is None or batch.dataset is dataset:
                fresh.append(batch)
        return fresh[::-1]

    def _take(self, batch: DrawnBatch, following: DrawnBatch | None) -> None:
        """Count the pass that a batch belongs to, and whether it made no step, where another one followed."""
        if self._latest is None or batch.turn is not self._latest.turn:
            self._epochs += 1
        self._latest = batch
        self._empty += not batch.count
        # A batch may be made of parts, and a pass may be left early: neither leaves out a step.
        if following is not None and (not batch.count or (_is_whole(batch) and following.turn is batch.turn)):
            self._skipped += 1

    def _count_skipped(self) -> int:
        """Count the batches that made no step, although the mechanism makes one of each."""
        if {way and way[0] for way in self._ways} != {"poisson"}:
            return 0
        if not self._without:
            # After the last step, a batch that is not empty may be where the client stopped.
            return self._skipped + sum(not batch.count for batch in self._list_fresh())
        # The client took batches in advance: it may have left the last one of each pass.
        left = self._batches - self._steps
        return max(0, min(self._empty, left), left - self._epochs)

    def read_claim(self) -> dict[str, Any]:
        """Return the keys of a privacy claim about one round; none where no step was made."""
        if not self._steps:
            return {}
        keys: dict[str, Any] = {"mechanism": "dp-sgd", "unit": "example", "steps": self._steps}
        skipped = self._count_skipped()
        if skipped:
            keys["skipped"] = skipped
            add_remark(
                keys,
                "some batches that were drawn, such as empty ones, made no step: an accountant that only counts "
                "the steps that were made does not describe the mechanism",
            )
        self._add_noise(keys)
        self._add_sampling(keys)
        self._add_scale(keys)
        self._add_remarks(keys)
        return keys

    def _add_noise(self, keys: dict[str, Any]) -> None:
        try:
            read = configuration_of(self._optimizer)
        except ConfigError as cause:
            add_remark(keys, str(cause))
            return
        keys["clip"] = read["clip"]
        if len(self._noise) == 1:
            keys["noise_multiplier"] = next(iter(self._noise))
            return
        said = ", ".join(f"{noise:g} in {count}" for noise, count in list(self._noise.items())[:4])
        add_remark(
            keys,
            f"the noise multiplier changes from step to step ({said}): write down the smallest, for which ε is an "
            "upper bound",
        )

    def _add_sampling(self, keys: dict[str, Any]) -> None:
        """Say how batches are drawn, if all were drawn alike."""
        ways = [way for way in self._ways if way is not None]
        methods = {None if way is None else way[0] for way in self._ways}
        # A batch that makes several steps is not drawn anew for each.
        if len(methods) != 1 or not ways or (self._without and self._batches < self._steps):
            add_remark(
                keys,
                "how examples are drawn for a step is not known: a batch comes from no loader, its sampler is "
                "unknown, or it makes several steps",
            )
            keys["sampling_method"] = "unknown"
            return
        keys["sampling_method"], _ = ways[0]
        keys["sampling"] = max(share for _, share in ways)
        if keys["sampling_method"] == "poisson":
            return
        keys["epochs"] = self._epochs
        keys["sampling"] = min(1.0, keys["sampling"] * self._together)

    def _add_scale(self, keys: dict[str, Any]) -> None:
        """Say by what the sum of gradients is multiplied."""
        optimizer = self._optimizer
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        if len(rates) != 1:
            return
        divisor = 1
        if optimizer.loss_reduction == "mean":
            divisor = int(optimizer.expected_batch_size or 0) * self._together
        if min(rates) > 0 and divisor:
            keys |= {"learning_rate": min(rates), "batch_size": divisor}

    def _add_remarks(self, keys: dict[str, Any]) -> None:
        generator = self._optimizer.generator
        seed = torch.initial_seed() if generator is None else generator.initial_seed()
        if not self._optimizer.secure_mode and 0 <= seed < _SMALL_SEED:
            add_remark(
                keys,
                "the client seeds its noise with a number below 2^32: whoever tries them all finds the noise",
            )
        engine, _ = _engines.get(self._optimizer, (None, None))
        if engine is not None and engine.accountant.mechanism() == "gdp":
            add_remark(keys, "its accountant, gdp, is an approximation, and may report less than the true ε")


def _is_whole(batch: DrawnBatch) -> bool:
    """Whether a batch is to make a step of its own."""
    return isinstance(batch.sampler, _POISSON)


def _describe_sampler(sampler: Any) -> tuple[str, float] | None:
    """Return how a sampler of batches draws, and the share of examples in a batch; ``None`` if that is not known."""
    if isinstance(sampler, BatchSplittingSampler):
        # Parts of a batch make one step together.
        sampler = sampler.sampler
    # A subclass may draw in another way.
    if type(sampler) in _POISSON:
        return "poisson", float(sampler.sample_rate)
    if type(sampler) is not BatchSampler or not len(sampler):
        return None
    inner = sampler.sampler
    method = "shuffled"
    if type(inner) is SequentialSampler:
        method = "in-order"
    elif type(inner) is not RandomSampler or inner.replacement or inner.num_samples > len(inner.data_source):
        return None
    if sampler.drop_last:
        return method, sampler.batch_size / len(inner)
    return method, 1 / len(sampler)
