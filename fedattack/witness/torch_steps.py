"""Examples of steps whose labels no loss of PyTorch shows: an example is one row of all that the step takes.

This is the way of losses that only the app knows: of detectors, of contrastive training, of losses by hand. It is the
only one that can put other examples into the place of those that are held out, too, since it sees all that a step
takes. What a step is stands in :mod:`fedattack.witness.step`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.base.structured import LABELS, SEPARATOR, fields, pack
from fedattack.witness.sample import hash_rows
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.step import MET, Reader, Step, is_made, place_of, tensors_of
from fedattack.witness.torch_loaders import find_places
from fedattack.witness.torch_open_call import OpenCall
from fedattack.witness.torch_wrappers import is_private, unwrap
from fedattack.witness.watch import CallWatch

_MOST_CALLS = 8
"""Calls of models up to which one step is taken to go on; what evaluates without end makes no step."""

_MOST_CLASSES = 10_000
"""Whole numbers below this may be classes."""

_ModelCall = tuple[SeenModel, OpenCall | None]
"""The call of a model, and what another way noted of it."""


class StepReader(Reader):
    """Reads the steps of one thread whose models have labels that no loss shows, and notes their examples.

    It lies beneath all modes that the app itself has switched on, which come and go in their own order.
    """

    def __init__(self, watch: CallWatch) -> None:
        super().__init__()
        self._watch = watch
        # The calls of each micro-batch of the step that is under way.
        self._open: dict[Step, list[_ModelCall]] = {}
        self._is_needed = True
        self._is_private = False
        self.put_beneath()

    @classmethod
    def start(cls, watch: CallWatch) -> None:
        """Read steps where that is needed; of the first step it is not known yet whether its labels will be seen."""
        local = watch.local
        if local.reader is None and (watch.by_steps or watch.hold_out is not None or not local.has_read):
            local.reader, local.has_read = cls(watch), True

    def begin_call(self, watch: CallWatch, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a model is called with."""
        # It sees each function that is called on a tensor, which takes time: who does not need it goes.
        if not self._is_needed and not watch.by_steps and watch.hold_out is None:
            self.remove()
            watch.local.reader = None
            return
        before = self.step
        if before is not None and (not self.goes_on(module) or sum(map(len, self._open.values())) >= _MOST_CALLS):
            self._take_evaluated()
        self.inside = True
        # Its optimizer may be of an earlier call, and be seen with its first step alone.
        self._is_private = is_private(module)
        step = self.begin(module, args, kwargs)
        if step is not None and len(step.calls) == 1:
            step.places = find_places(watch, args, kwargs)

    def hold_out(
        self, watch: CallWatch, args: tuple[Any, ...], kwargs: dict[str, Any], call: OpenCall | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Put others into the place of the examples that are held out; ``None`` where all stay."""
        step = self.step
        # What a model in evaluation takes is not trained on, whether gradients are on or not.
        if step is None or watch.hold_out is None or not step.trains or not all(step.modes.values()):
            return None
        if watch.private_by or self._is_private:
            watch.note("nothing is held out of DP-SGD: an example that replaces another would count twice")
            return None
        # The same rows go for further calls in a step, such as one on another view of the examples.
        if len(step.calls) == 1:
            chosen = watch.hold_out.choose(hash_rows(step.rows(), watch.seed))
            step.take_out(chosen)
            if step.count == 1 and chosen.all():
                watch.note("nothing is held out of batches of one example")
        if step.held_out is None:
            return None
        watch.note_held_out()
        if call is not None:
            call.hold_out(step.held_out)
        return step.replace_leaves(args, kwargs)

    def end_call(self, watch: CallWatch, module: nn.Module, output: Any, call: OpenCall | None) -> None:
        """Note what it returned, and wait for a gradient."""
        model = watch.models.get(id(unwrap(module)))
        if self.step is None or model is None:
            return
        step = self.step
        calls = self._open.setdefault(step, [])
        calls.append((model, call))
        self.note_returned(module, output)
        if step.trains:
            for tensor in tensors_of(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda gradient: watch.guard("a step", self._take_trained, step, calls))

    def _take_trained(self, watch: CallWatch, step: Step, open_calls: list[_ModelCall]) -> None:
        """Note the examples of a step, once a gradient has come back, unless their labels are known."""
        calls = [*open_calls]
        open_calls.clear()
        # Each output of the step has a hook: the first that is called takes all.
        if not calls:
            if step.come_back is not None:
                step.come_back()
            return
        self._open.pop(step, None)
        if step is self.step:
            self.end()
        if any(call is not None and call.has_labels for _, call in calls):
            self._is_needed = False
            return
        model, _ = calls[0]
        # Its labels were seen in other batches: one without them, such as of public examples, is left to the others.
        if model.kind in watch.labelled and model.kind not in watch.by_steps and all(call for _, call in calls):
            return
        rows = step.rows()
        adversaries = _find_adversaries(step, [each for each, _ in calls])
        if adversaries is not None:
            maker, model, place = adversaries
            maker.note_made_for(model)
            if place not in fields(rows):
                # A step of the maker takes noise alone.
                return
            rows = rows[place]
        if not model.stepwise:
            model.take_steps()
        # What is only evaluated is taken for examples as far as it has the same parts.
        watch.by_steps[model.kind] = fields(rows)
        batch = model.start(rows, trains=True)
        batch.labels, batch.differentiated, batch.held_out = _labels_in(rows, model), True, step.held_out
        batch.places = step.places
        step.come_back = functools.partial(model.note_gradient, batch)

    def _take_evaluated(self) -> None:
        """Note what was only evaluated, as far as it is like what is trained."""
        self.end()
        opened, self._open = self._open, {}
        for step, calls in opened.items():
            self._take_evaluated_step(step, calls)

    def _take_evaluated_step(self, step: Step, calls: Sequence[_ModelCall]) -> None:
        model = next((model for model, _ in calls if model.kind in self._watch.by_steps), None)
        if model is None:
            return
        rows, wanted = step.rows(), self._watch.by_steps[model.kind]
        if not wanted:
            self._watch.note(f"{model.name} was called, and none of its training steps was read: not covered")
            return
        if {*wanted} <= {*fields(rows)}:
            if not model.stepwise:
                model.take_steps()
            batch = model.start(pack({place: rows[place] for place in wanted}), trains=False)
            batch.labels = _labels_in(rows, model)

    def end_reading(self) -> None:
        """Stop, and note what is under way."""
        self.remove()
        self._take_evaluated()


def _find_adversaries(step: Step, models: Sequence[SeenModel]) -> tuple[SeenModel, SeenModel, str] | None:
    """Find a model that makes what another one takes, which also takes examples: these two, and the examples' place.

    So a critic is trained against a generator. The place is empty in a step that takes no examples, of two models that
    were found before. ``None`` for models that do something else.
    """
    if len({*models}) != 2 or len(models) != len(step.calls):
        return None
    calls = [*zip(models, step.calls, strict=True)]
    judges = {model for model, call in calls if is_made(call)}
    if len(judges) != 1:
        return None
    (judge,), (maker,) = judges, {*models} - judges
    taken = [index for index, (model, call) in enumerate(calls) if model is judge and not is_made(call)]
    if not taken and judge in maker.makes_for:
        return maker, judge, ""
    if len(taken) != 1:
        return None
    args, kwargs = step.calls[taken[0]]
    if len(args) != 1 or kwargs:
        return None
    return maker, judge, place_of(taken[0], 0)


def _labels_in(rows: NDArray[Any], model: SeenModel) -> list[int]:
    """Return which class each example of a step is of, if one part of it alone can say so; else all are of class 0."""
    if model.are_compared:
        return [0] * len(rows)
    candidates = []
    for name in fields(rows):
        # Whole numbers that outputs met, or that the model was called with by such a name.
        is_label = name.split(SEPARATOR)[-1] in LABELS or name.startswith(MET)
        if rows[name].ndim == 1 and rows[name].dtype.kind in "iu" and is_label:
            candidates.append(rows[name].astype(np.int64))
    if len(candidates) != 1 or candidates[0].min() < 0 or candidates[0].max() >= _MOST_CLASSES:
        return [0] * len(rows)
    labels: list[int] = candidates[0].tolist()
    return labels
