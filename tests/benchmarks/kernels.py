"""How much of an attack's time lies within PyTorch's operators, and how far it is from the physical cost.

``python -m tests.benchmarks.kernels`` prints a row for one round's detector of PROLIN (LeNet, 6,000 auxiliary records,
10 records a client), and one for an evaluation of inversion's objective (ResNet-18, 8 images of 32 x 32 pixels):

- *ours* is the median processor time of one thread;
- *ours / operators* is it over the time within PyTorch's operators, which is counted in runs of their own. What is
  above 1 is Python and autograd. It can lie below 1, because counting takes time as well;
- *ours / physical* is it over the time that the floating-point operations would take at the speed of one large matrix
  product. They are those that ours makes, for inversion those of a search that leaves no weights out.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedattack.base.machine import MEMORY
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT, ClientModel, ReplyBatch, Search, invert_group
from fedattack.threats.property.detectors import fit_detectors
from fedattack.threats.property.properties import membership
from fedattack.threats.property.setting import DetectorSetting
from tests.benchmarks import prolin
from tests.benchmarks.scale import BATCH, CLASSES, COLOUR, resnet18
from tests.benchmarks.table import count_operations, measure_speed

EVALUATIONS = 10

Work = Callable[[], Any]


class OperatorTime(TorchDispatchMode):
    """Counts the processor time within PyTorch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.process_time()
        out = func(*args, **(kwargs or {}))
        self.seconds += time.process_time() - began
        return out


def fit_detector() -> Work:
    """Return what fits the detector of a round of PROLIN."""
    parts = prolin.load(1, prolin.EACH)
    ((_, start),) = prolin.global_models(parts.clients, [1])
    asked = [membership(parts.auxiliary, parts.targets)]
    sizes = (prolin.EACH,)
    setting = DetectorSetting(prolin.LENET, prolin.TRAINING, parts.auxiliary, asked, "linear", sizes, 1, "cpu", MEMORY)
    return lambda: fit_detectors(setting, start, np.ones(1), 1, check=False)


def search_images(*, shape: tuple[int, ...] | None) -> Work:
    """Return what searches for a batch of images; a client that knows their shape leaves weights out."""
    torch.manual_seed(0)
    model = resnet18(COLOUR)
    client = ClientModel(model, "cross-entropy", ONE_GRADIENT, shape=shape)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    # A movement that nobody's examples make costs as much to search behind.
    movement = {name: torch.randn_like(value).numpy() for name, value in model.named_parameters()}
    batch = ReplyBatch(state, movement, BATCH, np.arange(BATCH) % CLASSES)
    box = np.zeros((1, 1, 1), dtype=np.float32), np.ones((1, 1, 1), dtype=np.float32)
    how = Search("cos", EVALUATIONS, variation=1e-3, box=box)
    return lambda: invert_group(client, {0: batch}, COLOUR, how)


def rows() -> Iterator[tuple[str, Work, Work, int]]:
    """Yield what is timed, how, what the operations are counted of, and how often it is done in one go."""
    search = search_images(shape=COLOUR), search_images(shape=None)
    yield "inversion, an evaluation, ResNet-18", *search, EVALUATIONS
    fit = fit_detector()
    yield "PROLIN, a round's detector, LeNet", fit, fit, 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time within PyTorch's operators; see the module's docstring.")
    parser.add_argument("--turns", type=int, default=5, help="of which the median counts (5)")
    turns = parser.parse_args().turns
    # Before anything else computes: time on one thread alone can be compared.
    torch.set_num_threads(1)
    print("| what | ours | ours / operators | ours / physical |\n|---|---:|---:|---:|")
    for what, work, counted, often in rows():
        speed = measure_speed()
        operations = count_operations(counted)
        seconds, within = [], []
        for _ in range(turns):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
            with OperatorTime() as operators:
                work()
            within.append(operators.seconds)
        ours = statistics.median(seconds)
        shares = ours / statistics.median(within), ours * speed / operations
        print(f"| {what} | {ours / often:.3f} s | {shares[0]:.2f} | {shares[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
