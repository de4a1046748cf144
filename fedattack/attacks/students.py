"""FedMD's local models, as far as the server can rebuild them: students of what the clients predicted.

Hu et al. 2023, Section 3.4 and Algorithm 3, lines 11 and 12: for each client and round the server trains a student on
the public records to give the client's predictions. The student's loss on an example stands for the client's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge
from fedattack.attacks.replies import replied
from fedattack.attacks.reply_kinds import are_probabilities
from fedattack.base.errors import NeedsError
from fedattack.learning import Distillation, build_model, distil_students
from fedattack.learning.importing import trust_given
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays

HOW = Distillation()
"""How students are trained. With 30 epochs, students of digits and of MNIST named as many owners as the clients' own
models; students that went on from the last round's with 10 epochs named fewer on digits (27 % against 30 %)."""

TEACHERS = 50
"""Teachers whose students are trained at a time, so that memory does not grow with the clients."""


@dataclass(frozen=True)
class Students:
    """Trains a student for each of some teachers, in whatever process.

    All students of a run start from the same parameters, drawn from ``seed``. Within a round they see the ``public``
    records in the same order. They differ in nothing but what their teachers said.
    """

    model: ModelKnowledge
    public: NDArray[np.float32]
    seed: int
    device: torch.device
    how: Distillation

    def __call__(self, seq: int, sent: Sequence[Arrays]) -> list[Arrays]:
        """Return the students, as state dicts of arrays, of teachers of the round at ``seq`` that sent predictions."""
        known = self.model
        # All students begin at the same weights, as the papers' server has one model to copy.
        student = build_model(
            trust_given(known.spec),
            input_shape=known.input_shape,
            classes=known.classes,
            hidden=known.hidden,
            seed=self.seed,
            arguments=known.arguments,
        )
        start = {name: value.numpy().copy() for name, value in student.state_dict().items()}
        # A seed of its own for each round, so that rounds can be done in any order, in any process.
        order = int(np.random.SeedSequence((self.seed, seq)).generate_state(1)[0])
        outputs = np.stack([predictions for of_teacher in sent for predictions in of_teacher.values()])
        return [*distil_students(student, start, self.public, outputs, self.how, seed=order, device=self.device)]


def students_of(
    record: Record, knowledge: Knowledge, seed: int, device: torch.device, *, how: Distillation = HOW
) -> Students:
    """Say how the students of a record of the protocol ``fedmd`` are trained; a NeedsError without public or model."""
    public, model = knowledge.public, knowledge.model
    lacking = f"{record.path} holds predictions (fedmd), and students of them need knowledge of"
    if public is None:
        raise NeedsError(
            f"{lacking} public, and there is none; give the public records, in the order of the predictions, with "
            "--public FILE.npz"
        )
    if model is None:
        raise NeedsError(f"{lacking} model, and there is none; give the architecture of the students with --model NAME")
    return Students(model, public, seed, device, how)


def usable_predictions(students: Students, notes: list[str]) -> Callable[[Round], Iterator[tuple[Observation, Arrays]]]:
    """Make a function that gives a round's replies with predictions of the shape (public records, classes), finite.

    ``notes`` gets a line for each reply that has to be left out.
    """
    return partial(_usable, shape=(len(students.public), students.model.classes), notes=notes)


def _usable(round_: Round, *, shape: tuple[int, int], notes: list[str]) -> Iterator[tuple[Observation, Arrays]]:
    for observation in filter(replied, round_.observations):
        where = f"round {round_.number}, client {observation.node} left out"
        arrays = list((observation.arrays or {}).values())
        shapes = [array.shape for array in arrays]
        # One array alone: predictions have no names that tell which of several they are.
        if shapes != [shape] or not np.issubdtype(arrays[0].dtype, np.number):
            notes.append(
                f"{where}: expected predictions of shape {shape}, one row a public record and one column a class, got "
                f"{', '.join(map(str, shapes)) or 'nothing'}"
            )
        elif not np.isfinite(arrays[0]).all():
            notes.append(f"{where}: its predictions are not finite")
        else:
            yield observation, {"predictions": _as_logits(arrays[0]).astype(np.float32)}


def _as_logits(predictions: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return logits of which the softmax is the predictions, where these are probabilities; else what they are."""
    if predictions.min() < 0 or not are_probabilities(predictions):
        return predictions
    # A client may have rounded to 0 what is above it; float32 knows no smaller number near 1 than this.
    return np.asarray(np.log(np.maximum(predictions, np.finfo(np.float32).eps)))
