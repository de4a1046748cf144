"""The attack: the client whose updates are the largest."""

from typing import ClassVar

import numpy as np
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from fedattack.attacks import Attack, Knowledge, Scores
from fedattack.attacks.base import Progress
from fedattack.attacks.form import ArrayForm, Form, Name
from fedattack.record import Record
from toy_threat.options import ToyOptions


class Facts(TypedDict):
    clients: list[Name]
    targets: str


class LargestUpdate(Attack):
    """Scores hold ``norms`` (clients,), the mean of a power of the norm of each client's updates."""

    options = ToyOptions()
    form: ClassVar[Form] = Form(
        TypeAdapter(Facts), {"norms": ArrayForm("f", ("clients",), low=0)}, {"clients": "clients"}
    )
    knows: ClassVar[tuple[str, ...]] = ("nothing but the record",)

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        norms: dict[str, list[float]] = {}
        for round_ in record:
            for reply in round_.observations:
                if reply.status == "ok":
                    squares = [float(np.square(part).sum()) for part in reply.update().values()]
                    norms.setdefault(reply.node, []).append(sum(squares) ** (self.options.power / 2))
        means = np.array([np.mean(values) for values in norms.values()])
        return Scores("toy", {"norms": means}, {"clients": list(norms), "targets": knowledge.asked()})
