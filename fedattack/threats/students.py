"""FedMD's local models, as far as the server can rebuild them: students of what the clients predicted.

Hu et al. 2023, Section 3.4 and Algorithm 3, lines 11 and 12: for each client and round the server trains a student on
the public records to give the client's predictions. The student's loss on an example stands for the client's.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedattack.errors import NeedsError
from fedattack.learning import Distillation, build_model, distil_students
from fedattack.learning.importing import given
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays
from fedattack.threats.knowledge import Knowledge
from fedattack.threats.replies import replied

HOW = Distillation()
"""How students are trained. With 30 epochs, students of digits and of MNIST named as many owners as the clients' own
models; students that went on from the last round's with 10 epochs named fewer on digits (27 % against 30 %)."""

TEACHERS = 50
"""Teachers whose students are trained at a time, so that memory does not grow with the clients."""


def student_models(
    record: Record,
    knowledge: Knowledge,
    seed: int,
    device: torch.device,
    notes: list[str],
    *,
    how: Distillation = HOW,
    teachers: int = TEACHERS,
) -> Callable[[Round], Iterator[tuple[Observation, Arrays]]]:
    """Make a function that gives a round's usable replies, each with its client's student as a state dict of arrays.

    All students of a run start from the same parameters, drawn from ``seed``. Within a round they see the public
    records in the same order. They differ in nothing but what their teachers said.

    Parameters
    ----------
    record
        Of the protocol ``fedmd`` in the individual view.
    knowledge
        With the public records and, as the model, the architecture of the students.
    seed
        Seed of the students' first parameters and of the order of the examples.
    device
        Where to compute.
    notes
        Gets a line for each reply that has to be left out: predictions of another shape than (public records, classes),
        or not finite.
    how, teachers
        How students are trained, and how many at a time.

    Raises
    ------
    NeedsError
        If the public records or the architecture are not known.
    """
    public, model = knowledge.public, knowledge.model
    lacking = f"{record.path} holds predictions (fedmd), and students of them need knowledge of"
    if public is None:
        raise NeedsError(
            f"{lacking} public, and there is none; give the public records, in the order of the predictions, with "
            "--public FILE.npz"
        )
    if model is None:
        raise NeedsError(f"{lacking} model, and there is none; give the architecture of the students with --model NAME")
    student = build_model(
        given(model.spec), input_shape=model.input_shape, classes=model.classes, hidden=model.hidden, seed=seed
    )
    start = {name: value.numpy().copy() for name, value in student.state_dict().items()}
    shape = (len(public), model.classes)

    def of_round(round_: Round) -> Iterator[tuple[Observation, Arrays]]:
        usable = list(_usable(round_, shape, notes))
        order = int(np.random.SeedSequence((seed, round_.seq)).generate_state(1)[0])
        for first in range(0, len(usable), teachers):
            group = usable[first : first + teachers]
            outputs = np.stack([predictions for _, predictions in group])
            states = distil_students(student, start, public, outputs, how, seed=order, device=device)
            for (observation, _), state in zip(group, states, strict=True):
                yield observation, state

    return of_round


def _usable(
    round_: Round, shape: tuple[int, int], notes: list[str]
) -> Iterator[tuple[Observation, NDArray[np.float32]]]:
    for observation in filter(replied, round_.observations):
        where = f"round {round_.number}, client {observation.node} left out"
        arrays = list((observation.arrays or {}).values())
        shapes = [array.shape for array in arrays]
        if shapes != [shape] or not np.issubdtype(arrays[0].dtype, np.number):
            notes.append(
                f"{where}: expected predictions of shape {shape}, one row a public record and one column a class, got "
                f"{', '.join(map(str, shapes)) or 'nothing'}"
            )
        elif not np.isfinite(arrays[0]).all():
            notes.append(f"{where}: its predictions are not finite")
        else:
            yield observation, arrays[0].astype(np.float32)
