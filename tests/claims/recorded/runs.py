"""Records of runs whose noise is known, written without Flower."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.check import ClaimAnswer
from fedattack.claims.finding import ClaimFinding
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.means import mean_of

SMALL = {"conv.weight": (16, 3, 5, 5), "conv.bias": (16,), "hidden.weight": (64, 128), "out.weight": (10, 64)}
LAYERS = {"first.weight": (64, 100), "first.bias": (64,), "second.weight": (100, 64), "second.bias": (100,)}

Arrays = dict[str, NDArray[np.float32]]
Noise = Callable[[np.random.Generator, float, tuple[int, ...]], NDArray[np.float64]]


def gaussian(rng: np.random.Generator, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return rng.normal(0, scale, shape)


def laplace(rng: np.random.Generator, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return rng.laplace(0, scale, shape)


@dataclass(frozen=True)
class Run:
    """What clients and server of a run do.

    Attributes
    ----------
    norm
        Of updates before they are clipped to ``clip``.
    sigma
        Of each client's noise; those in ``others`` have their own, array by array (a pattern that names begin with).
    central
        Noise that the server adds to the mean.
    """

    shapes: Mapping[str, tuple[int, ...]]
    clients: int = 10
    rounds: int = 3
    clip: float = 1.0
    norm: float = 3.0
    sigma: float = 0.1
    draw: Noise = gaussian
    others: Mapping[int, Mapping[str, float]] | None = None
    unclipped: Sequence[int] = ()
    central: float = 0.0
    aggregate: bool = False
    protocol: str = "fedavg"
    counts: Sequence[int] | None = None

    def with_other(self, **values: object) -> "Run":
        return replace(self, **values)


def write_run(folder: Path, run: Run, seed: int = 0) -> Record:
    """Write the record of a run."""
    rng = np.random.default_rng(seed)
    model = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in run.shapes.items()}
    drift = {name: rng.standard_t(3, shape) for name, shape in run.shapes.items()}
    counts = list(run.counts or rng.integers(50, 150, run.clients))
    writer = RecordWriter(
        folder,
        view="aggregate" if run.aggregate else "individual",
        protocol=run.protocol,
        aggregation={"kind": "mean", "weight": "num-examples"} if run.aggregate else None,
    )
    for number in range(1, run.rounds + 1):
        sent = [_sent(run, rng, model, drift, client) for client in range(run.clients)]
        replies = [Reply(str(100 + c), "ok", sent[c], int(counts[c])) for c in range(run.clients)]
        after, mean = _after(run, rng, model, sent, counts)
        if run.aggregate:
            replies = [replace(reply, arrays=None) for reply in replies]
        writer.write(Exchange(number, model, replies, aggregate=mean if run.aggregate else None, mean="message"))
        model = after
    writer.close(final=model)
    return Record(folder)


def _sent(run: Run, rng: np.random.Generator, model: Arrays, drift: Mapping[str, NDArray], client: int) -> Arrays:
    update = {name: drift[name] + rng.standard_t(3, shape) for name, shape in run.shapes.items()}
    length = np.sqrt(sum(float((array**2).sum()) for array in update.values()))
    norm = run.norm if client in run.unclipped else min(run.norm, run.clip)
    sent = {}
    for name, array in update.items():
        sigma = run.sigma
        for start, other in (run.others or {}).get(client, {}).items():
            if name.startswith(start):
                sigma = other
        noisy = array * (norm / length)
        noisy = noisy + run.draw(rng, sigma, array.shape) if sigma else noisy
        start = 0.0 if run.protocol == "fedsgd" else model[name]
        sent[name] = (start + noisy).astype(np.float32)
    return sent


def _after(
    run: Run, rng: np.random.Generator, model: Arrays, sent: Sequence[Arrays], counts: Sequence[int]
) -> tuple[Arrays, Arrays]:
    """Return the model of the next round, and the mean of the replies."""
    mean = mean_of(sent, [float(count) for count in counts], "message")
    if run.protocol == "fedsgd":
        return {name: (model[name] - 0.1 * mean[name]).astype(np.float32) for name in mean}, mean
    after = {}
    for name, value in mean.items():
        noise = rng.normal(0, run.central, value.shape) if run.central else 0.0
        after[name] = (value + noise).astype(np.float32)
    return after, mean


def seen(answer: ClaimAnswer) -> tuple[ClaimFinding, ClaimFinding]:
    """Return the two findings of a record; the whole answer can be written as JSON."""
    json.dumps(answer.to_dict(), allow_nan=False)
    by_name = {finding.name: finding for finding in answer.findings}
    return by_name["claim.epsilon-recorded"], by_name["claim.noise-missing"]
