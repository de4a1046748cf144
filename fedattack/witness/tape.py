"""Play a step of somebody's training again: their own code says which loss other examples have, under other weights."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn
from torch._decomp import decompositions
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map

from fedattack.base.errors import DataError, short
from fedattack.base.structured import fields, leaves_of
from fedattack.learning.importing import one_line
from fedattack.witness.step import Leaf, Reader, Slot, Step, TapeLine, fill_leaves, is_going_back, tensors_of
from fedattack.witness.torch_wrappers import unwrap

_TRIED = 3
_CHUNK = 64
_CLOSE = 1e-4
_SEED = 0

# How far gradients that are computed together may be apart from those that are computed one by one, as a share of their
# lengths; of a length that is less than the second share of the longest one, no more digits are known than of that.
_SAME, _SHORT = 1e-5, 0.1

# Bytes that gradients which are computed together may take, with what PyTorch keeps on the way to them.
_TOGETHER = 2**29

# With fewer examples at once the gradients take as long as one by one: what counts is then to write so many numbers.
_FEWEST = 16

# Examples that make one batch, where it is looked whether they have losses of their own, and numbers of a gradient that
# are compared.
_COMPARED, _NUMBERS = 4, 2**22

# Cosines between the gradient of a batch and the nearest sum of gradients of single examples: below the first an
# example has no loss of its own, and below the second not quite.
_OWN, _QUITE_OWN = 0.9, 0.98

# PyTorch's own ways to compute recurrent layers from operations that can be vectorised, by the names of their kernels.
_RECURRENT = {
    "lstm": decompositions.lstm_impl,
    "gru": decompositions.gru_impl,
    "rnn_tanh": decompositions.rnn_tanh_input,
    "rnn_relu": decompositions.rnn_relu_input,
}

BATCH_NORM = nn.modules.batchnorm._NormBase
_DROPOUT = nn.modules.dropout._DropoutNd


class _StepRead(BaseException):
    """Ends a handler as soon as it has shown one step; nothing that an app catches."""


class Tape:
    """What a step computes, from the call of its models to the loss.

    Attributes
    ----------
    step
        The step that was read.
    models
        The models that it calls, in the order of their calls.
    copies
        In how many copies an example is played, which together are one batch.
    copies_learned
        The same where a gradient is taken.
    together
        Whether many examples can be played at once, each for itself, by :func:`torch.vmap`.
    why_alone
        Why gradients were computed one by one; empty where they were computed together.
    is_whole
        Whether the loss is all that the step asks for gradients of; else it is what it asks first.
    adds_up
        Whether the loss of a batch moves the models as losses of its examples do; else an example's loss is that of a
        batch of its copies, which is near to what it adds to a batch.
    """

    def __init__(self, step: Step, lines: Sequence[TapeLine], losses: Sequence[int], *, is_whole: bool = True) -> None:
        self.step = step
        self.is_whole = is_whole
        self._lines = [replace(line, function=_plain(line.function)) for line in lines]
        self._losses = losses
        modules = [line.function for line in self._lines if isinstance(line.function, nn.Module)]
        # Each once: a model may be called several times in a step.
        self.models: list[nn.Module] = list(dict.fromkeys(modules))
        self.rows = step.rows()
        self.copies = self.copies_learned = step.count
        self.together = False
        self.why_alone = ""
        self.adds_up = True

    def play(
        self,
        leaves: Mapping[str, NDArray[Any] | Tensor],
        seed: int = _SEED,
        replaced: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """Compute the loss of a batch, (m, …) by place, in the place of the step's own.

        ``replaced`` has what stands in the place of parameters, by their ids.
        """
        made = self._compute(self._lines, leaves, seed, replaced)
        return torch.stack([made[number].sum() for number in self._losses]).sum()

    def _compute(
        self,
        lines: Sequence[TapeLine],
        leaves: Mapping[str, NDArray[Any] | Tensor],
        seed: int = _SEED,
        replaced: Mapping[int, Tensor] | None = None,
    ) -> dict[int, Tensor]:
        """Compute lines from the first on, and return what they make by its number."""
        others = replaced or {}
        # Each play draws the same noise: a loss is asked for twice, and must be the same.
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:
            # The same; torch.manual_seed asks for accelerators of each kind, which takes as long as a small model.
            torch.default_generator.manual_seed(seed)
        made: dict[int, Tensor] = {}

        def resolve(value: Any) -> Any:
            if isinstance(value, Slot):
                return made[value.number]
            if isinstance(value, Leaf):
                tree = tree_map(resolve, value.tree, is_leaf=lambda node: isinstance(node, Slot))
                return fill_leaves(value.place, tree, self.step.count, leaves)
            # A step may take parameters outside of models, too.
            return others.get(id(value), value)

        def is_leaf(value: Any) -> bool:
            return isinstance(value, Slot | Leaf)

        for line in lines:
            args = tree_map(resolve, line.args, is_leaf=is_leaf)
            kwargs = tree_map(resolve, line.kwargs, is_leaf=is_leaf)
            output = _call(line.function, args, kwargs, others)
            made.update(zip(line.makes, tensors_of(output), strict=True))
        return made

    def loss_of(self, leaves: Mapping[str, NDArray[Any]], row: int) -> float:
        """Compute the loss of one example, in :attr:`copies` copies."""
        return self._loss_in_copies(leaves, row, self.copies)

    def _loss_in_copies(self, leaves: Mapping[str, NDArray[Any]], row: int, copies: int) -> float:
        with torch.no_grad():
            return float(self.play(_copy_row(leaves, row, copies)))

    def losses_of(self, leaves: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Compute the loss of each example, (n,)."""
        count = len(next(iter(leaves.values())))
        if not self.together:
            return np.array([self.loss_of(leaves, row) for row in range(count)])
        losses = [self._losses_together(leaves, slice(start, start + _CHUNK)) for start in range(0, count, _CHUNK)]
        return np.concatenate(losses)

    def _losses_together(self, leaves: Mapping[str, NDArray[Any]], rows: slice) -> NDArray[np.float64]:
        def loss(row: Mapping[str, Tensor]) -> Tensor:
            return self.play(_expand(row, self.copies))

        with torch.no_grad(), _recurrence_by_steps():
            # ``same``: each example meets the noise that it would meet alone.
            played = torch.vmap(loss, randomness="same")(_take_rows(leaves, rows))
        losses: NDArray[np.float64] = played.double().numpy(force=True)
        return losses

    def gradient_of(self, leaves: Mapping[str, NDArray[Any]], row: int, parameters: Sequence[Tensor]) -> Tensor:
        """Compute the gradient of one example's loss by these parameters, in a row; 0 where one does not matter."""
        with torch.enable_grad():
            loss = self.play(_copy_row(leaves, row, self.copies_learned))
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = []
        for gradient, parameter in zip(gradients, parameters, strict=True):
            flat.append(torch.zeros(parameter.numel()) if gradient is None else gradient.reshape(-1).float())
        return torch.cat(flat).cpu()

    def gradients_of(
        self, leaves: Mapping[str, NDArray[Any]], parameters: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the gradients of the examples' losses, some examples at a time, in their order.

        They are computed together where a few of them are then as they are one by one, unless so few of them fit into
        memory that this is no faster.

        Yields
        ------
        tuple of Tensor
            For each parameter (m, numbers), of the next m examples.
        """
        count = len(next(iter(leaves.values())))
        sizes = [parameter.numel() for parameter in parameters]
        self.why_alone = ""
        block = self._count_together(leaves, parameters)
        is_together = block >= _FEWEST and self._is_same_together(leaves, parameters)
        for start in range(0, count, block):
            rows = np.arange(start, min(start + block, count))
            if is_together:
                try:
                    yield self._gradients_together(leaves, rows, parameters)
                    continue
                except Exception as cause:  # the app's own code may take another path with other examples
                    is_together, self.why_alone = False, one_line(cause)
            for row in rows:
                yield self.gradient_of(leaves, int(row), parameters)[None].split(sizes, dim=1)

    def _is_same_together(self, leaves: Mapping[str, NDArray[Any]], parameters: Sequence[Tensor]) -> bool:
        """Compute a few gradients in both ways, and say whether they are the same; :attr:`why_alone` says why not."""
        count = len(next(iter(leaves.values())))
        # Spread over all examples: those of one class or client may take one path through the app's code.
        tried = np.unique(np.linspace(0, count - 1, _TRIED).astype(np.int64))
        try:
            together = torch.cat(self._gradients_together(leaves, tried, parameters), dim=1)
        except Exception as cause:  # PyTorch cannot vectorise all that an app may do
            self.why_alone = one_line(cause)
            return False
        alone = torch.stack([self.gradient_of(leaves, int(row), parameters) for row in tried])
        lengths, apart = alone.norm(dim=1), (together - alone).norm(dim=1)
        if bool((apart <= _SAME * lengths.clamp(min=_SHORT * lengths.max())).all()):
            return True
        self.why_alone = "computed together, they differ"
        return False

    def _count_together(self, leaves: Mapping[str, NDArray[Any]], parameters: Sequence[Tensor]) -> int:
        """Return of how many examples the gradients fit into memory together, at least 1."""
        known = {parameter.data_ptr() for model in self.models for parameter in model.parameters()}
        taken = 0

        def note(kept: Tensor) -> Tensor:
            nonlocal taken
            if kept.data_ptr() not in known:
                taken += kept.nbytes
            return kept

        # Autograd shows here what it keeps for the way back.
        try:
            with torch.enable_grad(), saved_tensors_hooks(note, _as_it_is):
                self.play(_copy_row(leaves, 0, self.copies_learned))
        except Exception as cause:  # the app's own code may forbid this, or raise anything
            self.why_alone = one_line(cause)
            return 1
        # Some of PyTorch's functions lay out a gradient a second time.
        taken += 2 * sum(parameter.nbytes for parameter in parameters)
        return max(1, min(_CHUNK, _TOGETHER // taken))

    def _gradients_together(
        self, leaves: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], parameters: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Compute the gradients of some examples' losses at once, (rows, numbers) for each parameter."""

        def loss(values: Sequence[Tensor], row: Mapping[str, Tensor]) -> Tensor:
            replaced = {id(parameter): value for parameter, value in zip(parameters, values, strict=True)}
            return self.play(_expand(row, self.copies_learned), replaced=replaced)

        values = [parameter.detach() for parameter in parameters]
        # ``grad`` follows what it is given; the parameters that it is not given need no gradients.
        with torch.no_grad(), _recurrence_by_steps():
            of_rows = torch.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="same")
            gradients = of_rows(values, _take_rows(leaves, rows))
        return tuple(gradient.reshape(len(rows), -1).float().cpu() for gradient in gradients)

    def prepare(self, leaves: Mapping[str, NDArray[Any]], adds_up: bool | None = None) -> None:
        """Switch off what is random, and find in how few copies an example can be played.

        Parameters
        ----------
        leaves
            Examples, (n, …) by place.
        adds_up
            What :attr:`adds_up` is known to be; ``None`` to find out.

        Raises
        ------
        DataError
            If an example has no loss of its own: its rows are no examples, its loss depends on the others of its
            batch, or the loss is random.
        """
        self._calm(leaves)
        self._check_rows(leaves)
        tried = range(min(_TRIED, len(next(iter(leaves.values())))))
        try:
            whole = [self.loss_of(leaves, row) for row in tried]
        except Exception as cause:  # the app's own code may raise anything
            raise DataError(f"the app's step cannot take copies of one example ({one_line(cause)})") from None
        again = [self.loss_of(leaves, row) for row in tried]
        if not np.allclose(whole, again, rtol=_CLOSE, atol=1e-7, equal_nan=True):
            raise DataError(
                "the loss of one example differs from time to time under one seed, so the app cannot be asked for it"
            )
        # It takes several passes back; another process of the audit has found it out already.
        if adds_up is None:
            self._check_company(leaves)
        else:
            self.adds_up = adds_up
        # Most losses are means over the batch: of one example they are what they are of its copies, and much faster.
        single = [self._try(leaves, row, 1) for row in tried]
        if np.allclose(whole, single, rtol=_CLOSE, atol=1e-7):
            self.copies = 1
            if self._learns_from_one(leaves):
                self.copies_learned = 1
        try:
            together = self._losses_together(leaves, slice(0, len(whole)))
        except Exception:  # what PyTorch cannot vectorise is played one by one
            return
        self.together = np.allclose(whole, together, rtol=_CLOSE, atol=1e-7)

    def _try(self, leaves: Mapping[str, NDArray[Any]], row: int, copies: int) -> float:
        """Compute a loss; NaN where the app's own code raises, whatever it is."""
        try:
            return self._loss_in_copies(leaves, row, copies)
        except Exception:
            return math.nan

    def _learns_from_one(self, leaves: Mapping[str, NDArray[Any]]) -> bool:
        """Say whether one row has a gradient: of what a model squeezes a loss may be computed that has none."""
        parameters: list[Tensor] = []
        for model in self.models:
            parameters += [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            with torch.enable_grad():
                torch.autograd.grad(self.play(_copy_row(leaves, 0, 1)), parameters, allow_unused=True)
        except Exception:  # the app's own code may raise anything
            return False
        return True

    def _calm(self, leaves: Mapping[str, NDArray[Any]]) -> None:
        """Put the models into evaluation where the step also works so; else their dropout and batch norm alone."""
        modes = [(layer, layer.training) for model in self.models for layer in model.modules()]
        for model in self.models:
            model.eval()
        # A model may return losses in training alone.
        # Torchvision's detectors do.
        if math.isnan(self._try(leaves, 0, self.copies)):
            for layer, mode in modes:
                layer.training = mode and not isinstance(layer, BATCH_NORM | _DROPOUT)

    def _check_rows(self, leaves: Mapping[str, NDArray[Any]]) -> None:
        """Refuse rows whose outputs depend on one another, such as the nodes of a graph.

        Raises
        ------
        DataError
            If they do.
        """
        count = min(self.step.count, len(next(iter(leaves.values()))))
        if count < 2:
            return
        first = next(at for at, line in enumerate(self._lines) if line.function is self.models[0])
        batch = {place: array[:count] for place, array in leaves.items()}
        # A row of time depends on those before it alone, so that the last is looked at, too.
        order = np.r_[0, count - 2 : 0 : -1, count - 1]
        # First and last row stay where they are, and what lies between is reversed: if their outputs change, they see
        # it.
        others = {place: array[order] for place, array in batch.items()}
        outputs = []
        with torch.no_grad():
            for each in (batch, others):
                made = self._compute(self._lines[: first + 1], each)
                returned = [made[number] for number in self._lines[first].makes]
                outputs.append([_ends(value, count) for value in returned if value.ndim and not len(value) % count])
        for before, after in zip(*outputs, strict=True):
            if not torch.allclose(before, after, rtol=_CLOSE, atol=1e-6, equal_nan=True):
                raise DataError(
                    "the model's output for one row depends on the other rows, as for the nodes of a graph: rows "
                    "are not examples, and no example has a loss of its own"
                )

    def _check_company(self, leaves: Mapping[str, NDArray[Any]]) -> None:
        """Refuse a loss in which the examples of a batch are compared with each other, such as a contrastive one.

        A few examples make a batch. Where each has a loss of its own, the gradient of the batch is a sum of gradients
        of single examples, with weights of 0 or more. What the loss divides by changes these weights alone. Each
        example takes each place of the batch once, since noise is drawn for each place: the gradients of all these
        batches are added. What else is drawn, such as boxes of detectors, may turn gradients by itself, and as much is
        allowed for.

        Raises
        ------
        DataError
            If they are compared.
        """
        size, total = self.step.count, len(next(iter(leaves.values())))
        kinds = min(_COMPARED, size, total)
        if kinds < 2:
            return
        rows = np.linspace(0, total - 1, kinds).astype(np.int64)
        places = np.arange(size)
        try:
            alone = [self._gradient_of_batch(leaves, np.full(size, row)) for row in rows]
            mixed = [self._gradient_of_batch(leaves, rows[(places + shift) % kinds]) for shift in range(kinds)]
            shaken = self._gradient_of_batch(leaves, rows[places % kinds], _SEED + 1)
        except Exception:  # where the app's own code raises, there are losses alone
            return
        together = np.sum(mixed, axis=0)
        if not np.isfinite([*mixed, shaken]).all() or not together.any():
            return
        cosine = 0.0
        if np.isfinite(alone).all():
            cosine = _cosine_to_sums(np.stack(alone, axis=1), together)
        if cosine < _OWN * _cosine_to_sums(shaken[:, None], mixed[0]):
            raise DataError(
                "the loss of an example depends on the other examples of its batch, as in contrastive and ranking "
                "losses: no example has a loss of its own"
            )
        self.adds_up = cosine >= _QUITE_OWN

    def _gradient_of_batch(
        self, leaves: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], seed: int = _SEED
    ) -> NDArray[np.float64]:
        """Return a part of the gradient of the loss of these rows: of the parameters that come last."""
        chosen: list[Tensor] = []
        for model in self.models:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.is_floating_point():
                    chosen.append(parameter)
        # Gradients of the last layers need no pass back through all of a model.
        chosen.reverse()
        sizes = np.cumsum([parameter.numel() for parameter in chosen])
        chosen = chosen[: int(np.searchsorted(sizes, _NUMBERS)) + 1]
        with torch.enable_grad():
            loss = self.play({place: array[rows] for place, array in leaves.items()}, seed)
            gradients = torch.autograd.grad(loss, chosen, allow_unused=True)
        pieces = []
        for gradient, value in zip(gradients, chosen, strict=True):
            known = torch.zeros_like(value) if gradient is None else gradient
            pieces.append(known.reshape(-1)[:_NUMBERS].float())
        flat: NDArray[np.float64] = torch.cat(pieces).double().numpy(force=True)
        return flat

    def state(self) -> list[tuple[str, Tensor]]:
        """Return names and tensors of all models' states, each once."""
        by_memory: dict[int, tuple[str, Tensor]] = {}
        for model in self.models:
            for name, value in model.state_dict().items():
                if isinstance(value, Tensor):
                    by_memory.setdefault(value.data_ptr() if value.numel() else id(value), (name, value))
        return [*by_memory.values()]

    def estimate_statistics(self, leaves: Mapping[str, NDArray[Any]], norms: Sequence[nn.Module]) -> None:
        """Take the statistics of batch norms from these examples, where nobody sends them."""
        size = self.step.count
        total = len(next(iter(leaves.values())))
        kept = []
        for norm in norms:
            kept.append((norm, norm.momentum))
            norm.reset_running_stats()  # type: ignore[operator]
            # ``momentum=None`` is PyTorch's cumulative mean: all batches count alike.
            norm.momentum, norm.training = None, True  # type: ignore[assignment]
        with torch.no_grad():
            for start in range(0, total - size + 1 or 1, size):
                rows = np.arange(start, start + size) % total
                self.play({place: array[rows] for place, array in leaves.items()})
        for norm, momentum in kept:
            norm.momentum, norm.training = momentum, False


def _cosine_to_sums(alone: NDArray[np.float64], together: NDArray[np.float64]) -> float:
    """Return the largest cosine between a vector (n,) and a sum of the columns (n, k) with weights of 0 or more."""
    # All angles are those between the columns of a triangle of k + 1 rows.
    triangle: NDArray[np.float64] = np.asarray(np.linalg.qr(np.column_stack([alone, together]), mode="r"))
    columns, wanted = triangle[:, :-1], triangle[:, -1]
    # What is nothing beside the whole is rounding.
    columns = columns * (np.linalg.norm(columns, axis=0) > _CLOSE * np.linalg.norm(wanted))
    # Non-negative least squares (Lawson & Hanson): examples add to a batch's gradient, and none takes away.
    nearest = columns @ nnls(columns, wanted)[0]
    return float(nearest @ wanted / max(np.linalg.norm(nearest) * np.linalg.norm(wanted), np.finfo(np.float64).tiny))


def _call(function: Callable[..., Any], args: Any, kwargs: Any, replaced: Mapping[int, Tensor]) -> Any:
    """Call a line's function, a model with other tensors in the place of its parameters."""
    if not replaced or not isinstance(function, nn.Module):
        return function(*args, **kwargs)
    own = {name: replaced[id(value)] for name, value in function.named_parameters() if id(value) in replaced}
    return torch.func.functional_call(function, own, tuple(args), kwargs)


def _as_it_is(value: Tensor) -> Tensor:
    return value


@contextmanager
def _recurrence_by_steps() -> Iterator[None]:
    """Let recurrent layers compute one step after another: :func:`torch.vmap` cannot vectorise their own kernels."""
    kept = {name: getattr(torch._VF, name) for name in _RECURRENT}
    select_layer = decompositions.select_one_layer_lstm_function
    for name, by_steps in _RECURRENT.items():
        setattr(torch._VF, name, partial(_recur, kept[name], by_steps))
    # It would choose a kernel of oneDNN, which is as hard to vectorise.
    decompositions.select_one_layer_lstm_function = lambda *_: decompositions.one_layer_lstm
    try:
        yield
    finally:
        decompositions.select_one_layer_lstm_function = select_layer
        for name, kernel in kept.items():
            setattr(torch._VF, name, kernel)


def _recur(kernel: Callable[..., Any], by_steps: Callable[..., Any], *args: Any) -> Any:
    # Packed sequences, which it takes in another order, are not vectorised.
    is_packed = not isinstance(args[2], list)
    return kernel(*args) if is_packed else by_steps(*args)


def _take_rows(leaves: Mapping[str, NDArray[Any]], rows: slice | NDArray[np.int64]) -> dict[str, Tensor]:
    """Return some examples as tensors."""
    return {place: torch.from_numpy(np.ascontiguousarray(array[rows])) for place, array in leaves.items()}


def _expand(row: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
    """Return copies of one example, which has no axis of examples."""
    return {place: leaf.expand(copies, *leaf.shape) for place, leaf in row.items()}


def _copy_row(leaves: Mapping[str, NDArray[Any]], row: int, copies: int) -> dict[str, NDArray[Any]]:
    """Return copies of one example."""
    return {place: np.repeat(array[row : row + 1], copies, 0) for place, array in leaves.items()}


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model as it is in what wraps it; Opacus's wrapper would take each gradient for one of a batch."""
    # A loss or another function of PyTorch.
    if not isinstance(function, nn.Module):
        return function
    getattr(function, "disable_hooks", _nothing)()
    return unwrap(function)


def _nothing() -> None:
    """Stand for what other wrappers have not."""


def _ends(output: Tensor, count: int) -> Tensor:
    """Return what a model says of the first and of the last row."""
    each = len(output) // count
    return output.reshape(count, each, *output.shape[1:])[[0, -1]].double()


def read_tape(handler: Callable[[], object]) -> Tape:
    """Call what trains, up to its first step, and return the tape of it.

    A step may ask for gradients several times before an optimizer moves the models, or another step begins: all of it
    is its loss.

    Raises
    ------
    DataError
        If it makes no step of PyTorch that can be read.
    """
    first = _FirstStep()
    try:
        with reading(first.reader, first.note_losses), _steps_ended(first.note_step):
            handler()
    # It ends the handler from within, in the middle of its loop.
    except _StepRead:
        pass
    except Exception:
        if not first.is_over:
            raise
    finally:
        first.put_back()
    return first.tape()


class _FirstStep:
    """The first step of a handler, with all losses that it asks for gradients of."""

    def __init__(self) -> None:
        self.reader = _FirstReader(self)
        self._step: Step | None = None
        self._micro_batches: list[Step] = []
        self._losses: list[int] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        # How many lines and leaves there are up to the last loss.
        self._lines, self._met = 0, 0
        self._is_whole = True

    @property
    def is_over(self) -> bool:
        """Whether gradients were asked for."""
        return bool(self._losses)

    def note_losses(self, losses: Sequence[Tensor]) -> None:
        """Note what gradients are asked of."""
        slots = [self.reader.slot_of(loss) for loss in losses]
        known = [slot for slot in slots if slot is not None]
        if self.reader.step is None or len(known) < len(slots):
            return
        if self._step is None:
            self._step, self._micro_batches = self.reader.step, [*self.reader.micro_batches]
            self._keep_parameters()
        elif len(self._step.met) > self._met:
            # A witness sees an example up to the first gradient, without the labels of further losses.
            self._is_whole = False
            return
        self._losses += [slot for slot in known if slot not in self._losses]
        self._lines, self._met = len(self.reader.lines), len(self._step.met)

    def note_step(self) -> None:
        """End the handler where an optimizer is about to move the models."""
        # Gradients that were asked for before any optimizer's step may be of several losses.
        if self.is_over:
            raise _StepRead

    def keep_buffers(self, module: nn.Module, *, anew: bool) -> None:
        """Keep a model's buffers as they are before a step, which moves the statistics of batch normalisation."""
        if self.is_over:
            return
        if anew:
            self._buffers = {}
        for buffer in module.buffers():
            self._buffers.setdefault(id(buffer), (buffer, buffer.detach().clone()))

    def _keep_parameters(self) -> None:
        """Keep the models' parameters: a loop without an optimizer moves them before the step is known to be over."""
        for line in self.reader.lines:
            if isinstance(line.function, nn.Module):
                self._before += [(parameter, parameter.detach().clone()) for parameter in line.function.parameters()]

    def put_back(self) -> None:
        """Put the parameters and buffers back to what they were."""
        with torch.no_grad():
            for buffer, before in self._buffers.values():
                buffer.copy_(before)
            for parameter, before in self._before:
                parameter.copy_(before)
                parameter.grad = None

    def tape(self) -> Tape:
        """Return the tape of the step."""
        if self._step is None:
            raise DataError(
                "the app's handler ended without a step of PyTorch: no call of backward() came from a model"
            )
        self._step.met = self._step.met[: self._met]
        # An example is played in the place of each micro-batch.
        if len({fields(batch.rows()) for batch in self._micro_batches}) > 1:
            raise DataError("a step takes batches of several forms: no example has a loss of its own")
        return Tape(self._micro_batches[0], self.reader.lines[: self._lines], self._losses, is_whole=self._is_whole)


class _FirstReader(Reader):
    """Reads until the step after the first one begins."""

    def __init__(self, first: _FirstStep) -> None:
        super().__init__(keeps_tape=True)
        self._first = first

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Note the call of a model."""
        self._first.note_step()
        self._first.keep_buffers(module, anew=not self.goes_on(module))
        return super().begin(module, args, kwargs)


@contextmanager
def _steps_ended(end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` before any optimizer makes a step."""
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: end())
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def reading(reader: Reader, end: Callable[[Sequence[Tensor]], None]) -> Iterator[None]:
    """Show a reader what is computed meanwhile, and call ``end`` with what is differentiated."""
    with _calls_read(reader), _ends_read(end):
        reader.put_beneath()
        try:
            yield
        finally:
            reader.remove()


@contextmanager
def _calls_read(reader: Reader) -> Iterator[None]:
    """Show a reader each call of a model that no other model makes."""
    original = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if reader.inside or is_going_back() or next(self.parameters(), None) is None:
            return original(self, *args, **kwargs)
        step = reader.begin(self, args, kwargs)
        if step is not None:
            args, kwargs = step.replace_leaves(args, kwargs)
        reader.inside = True
        try:
            output = original(self, *args, **kwargs)
        finally:
            reader.inside = False
        reader.note_returned(self, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def _ends_read(end: Callable[[Sequence[Tensor]], None]) -> Iterator[None]:
    """Call ``end`` with what is differentiated, wherever that is asked for."""
    of_tensor, of_all, grad = Tensor.backward, torch.autograd.backward, torch.autograd.grad

    def listed(tensors: Any) -> list[Tensor]:
        return [tensors] if isinstance(tensors, Tensor) else list(tensors)

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        end([self])
        of_tensor(self, *args, **kwargs)

    def backward_all(tensors: Any, *args: Any, **kwargs: Any) -> None:
        end(listed(tensors))
        of_all(tensors, *args, **kwargs)

    def grad_of(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        # What is differentiated again, such as a penalty on gradients, is not what a step follows.
        # Gradient penalties (WGAN-GP) differentiate what is a part of the loss.
        if not kwargs.get("create_graph"):
            end(listed(outputs))
        return grad(outputs, *args, **kwargs)

    Tensor.backward, torch.autograd.backward, torch.autograd.grad = backward, backward_all, grad_of  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.backward, torch.autograd.backward, torch.autograd.grad = of_tensor, of_all, grad  # type: ignore[method-assign]


def leaves_for(tape: Tape, x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return examples as the leaves of a tape's step, as :func:`leaves_like` does, which raises the same."""
    return leaves_like(tape.rows, x, y)


def leaves_like(rows: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return examples as the leaves of a step: what they hold by place, and the labels where one number is missing.

    ``rows`` (m,) are the step's own examples, of structured type.

    Raises
    ------
    DataError
        If the step takes other things than the examples hold.
    """
    wanted, have = fields(rows), leaves_of(x)
    missing = [place for place in wanted if place not in have]
    shape = rows.dtype[missing[0]].shape if len(missing) == 1 else (0,)
    # The app has the labels as (n,) or (n, 1).
    if math.prod(shape) == 1:
        have[missing.pop()] = y.reshape(-1, *shape)
    if missing:
        raise DataError(
            f"a step of the app takes {short(', '.join(missing), 80)}, but the examples only hold "
            f"{short(', '.join(leaves_of(x)), 80)}"
        )
    return {place: have[place] for place in wanted}
