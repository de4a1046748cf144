"""What a defence costs a client: time and memory of applying it to one update (Cui et al. 2023, Table 1)."""

import ctypes
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.base.settings import Value
from fedattack.runs.app import run_module

REFERENCE = "sparsify"
"""The defence to which the others' times are held."""

_MODULE = "simulations.cost"
# What is measured is repeated side by side until there are so many, or the time is up and there are a few.
_MOST, _FEWEST, _SECONDS = 21, 3, 60.0
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """Cost of an action.

    Attributes
    ----------
    seconds
        Of each repetition, in the order of time.
    memory
        Bytes that the process needs at most beyond what it had before, to a page; None where the system does not tell.
    """

    seconds: Sequence[float]
    memory: int | None


def time_side_by_side(actions: Mapping[str, Callable[[], object]], *, seconds: float = _SECONDS) -> dict[str, Cost]:
    """Time actions in turn, so that what else the machine does meets all of them alike.

    After so many seconds no further turn begins, but there are three in any case.
    """
    for action in actions.values():
        action()  # what is done once, such as imports, is no cost of an update
    taken: dict[str, list[float]] = {name: [] for name in actions}
    began = time.perf_counter()
    for turn in range(_MOST):
        if turn >= _FEWEST and time.perf_counter() - began > seconds:
            break
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            taken[name].append(time.perf_counter() - start)
    return {name: Cost(taken[name], measure_peak_memory(action)) for name, action in actions.items()}


def measure_peak_memory(action: Callable[[], object]) -> int | None:
    """Measure how many bytes this process needs at most for an action beyond what it had before.

    Linux alone tells, by the high-water mark of resident memory, which it resets on demand.
    """
    gc.collect()
    # Memory that the allocator keeps for later would be used again, and not show.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        # "5" resets the peak of resident memory of this process (Linux, proc(5)).
        _CLEAR.write_text("5")
        before = _read_resident("VmRSS")
        action()
        return max(_read_resident("VmHWM") - before, 0)
    except OSError:
        return None


_Number = Annotated[float, Field(allow_inf_nan=False)]


class _TrainingCost(TypedDict):
    seconds: _Number


class _DefenceCost(_TrainingCost):
    fastest: _Number
    slowest: _Number
    turns: int
    memory: int | None
    strength: _Number
    ratio: NotRequired[_Number]
    client_ratio: NotRequired[_Number]


class _Refused(TypedDict):
    reason: str


class _Costs(TypedDict):
    entries: int
    records: int
    training: _TrainingCost
    defences: dict[str, _Refused | _DefenceCost]


class _CostEntry(TypedDict):
    job: dict[str, Any]
    cost: _Costs


KEPT_COST: TypeAdapter[_CostEntry] = TypeAdapter(_CostEntry)
"""The form of the file in which a study keeps what :func:`measure_cost` gave."""


def measure_cost(settings: Mapping[str, Value], strengths: Mapping[str, float]) -> dict[str, Any]:
    """Measure what each defence costs on an update that a preset's first client really computes, on the CPU.

    Parameters
    ----------
    settings
        Of a run without a defence.
    strengths
        Of each defence.

    Returns
    -------
    dict
        ``entries`` and ``records``: how large the update is and how many examples it is of. ``training``: what the
        client's training takes. ``defences``: by name ``strength``, ``seconds`` (median), ``fastest``, ``slowest``,
        ``memory`` in bytes, ``turns``, ``ratio`` to sparsification, and ``client_ratio``, the same of training and
        defence together, as in the paper's Table 1; or ``reason`` in place of these where it cannot
        be applied. DP-SGD's time and memory are those of a training with it beyond one without.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data.
    RunError
        If the measuring process crashed.
    """
    at = {REFERENCE: 0.9} | dict(strengths)
    # In a process of its own: the app's modules are imported there.
    measured: dict[str, Any] = json.loads(run_module(_MODULE, {"settings": dict(settings), "strengths": at}))
    reference = measured["defences"][REFERENCE].get("seconds")
    training = measured["training"]["seconds"]
    for name, entry in measured["defences"].items():
        entry["strength"] = at[name]
        if reference and "seconds" in entry:
            entry["ratio"] = entry["seconds"] / reference
            # What a client's round takes with each defence, training included.
            entry["client_ratio"] = (training + entry["seconds"]) / (training + reference)
    return measured


def summarise_cost(cost: Cost, less: Cost | None = None) -> dict[str, Any]:
    """Sum a cost up, or what it is beyond another one."""
    seconds, memory = list(cost.seconds), cost.memory
    if less is not None:
        seconds = list(map(sub, seconds, less.seconds))
        memory = None if memory is None or less.memory is None else max(memory - less.memory, 0)
    return {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "turns": len(seconds),
        "memory": memory,
    }


def _read_resident(key: str) -> int:
    """Return an entry of this process's status in bytes; the file states it in KiB."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024
