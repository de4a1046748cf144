"""Model-based attribute inference: the attribute that fits a client's own local optimum best.

Driouich et al. 2022, "A novel model-based attribute inference attack in federated learning". The attacker has a
client's examples without one attribute. It decodes the model that the client would have trained alone, and fills in the
value with the smallest loss under that model. There are two ways, with one shape
(:class:`fedattack.threats.attribute.optimum.FillIn`):

- :mod:`fedattack.threats.attribute.by_estimates`, Algorithm 3, for least squares and a binary attribute;
- :mod:`fedattack.threats.attribute.by_loss`, Algorithm 4, for all else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.matching import check_model
from fedattack.attacks.replies import why_left_out
from fedattack.base.errors import DataError, NeedsError
from fedattack.base.stored import Axes, Name
from fedattack.learning import LocalSGD, pick_device
from fedattack.record import Record
from fedattack.threats.attribute.attribute_model import AttributeModel, State
from fedattack.threats.attribute.by_estimates import ByEstimates, LinearAttribute
from fedattack.threats.attribute.by_loss import ByLoss, beliefs_of
from fedattack.threats.attribute.client_messages import ClientMessages, collect_messages, fit_maps
from fedattack.threats.attribute.filled_in import FilledIn, refuse_numbers
from fedattack.threats.attribute.optimum import DecodedClient, FillIn, Optimum, describe_how
from fedattack.threats.attribute.options import ModelBasedOptions

METHODS = ("global", "last-returned", "reconstructed", "moments")
"""What fills in the attribute.

The last common model, the client's last reply, or its local optimum; and, for least squares and a binary attribute, all
that the decoded problem holds of the attribute
(:meth:`fedattack.threats.attribute.local_optimum.BinaryAttribute.estimates`).
"""

DOMAIN_LIMIT = 1_000
"""Most values of the attribute that are tried one after another."""


@dataclass(frozen=True, eq=False)
class FilledInByModels(FilledIn):
    """The attribute, filled in under the models of clients.

    A client that was never seen has no answer of the methods that need its models.

    Attributes
    ----------
    server
        What the record says of its server.
    clients
        What was decoded of each client.
    losses
        (methods, n, v): of each example with each value, NaN where there is no model.
    """

    server: Name
    clients: tuple[DecodedClient, ...]
    losses: Annotated[NDArray[np.float64], Axes("methods", "records", "values", nan=True)]


class ModelBased(Attack):
    """Algorithms 3 and 4 under three models, global, last returned and reconstructed, and what else messages hold.

    For least squares and a binary attribute the client's problem is decoded, and its ⌈ρm⌉ examples with the largest
    estimates are marked (Algorithm 3). Elsewhere, and while ρ is unknown, the value with the smallest loss is taken
    (Algorithm 4). See :mod:`fedattack.threats.attribute.local_optimum` for how a client's optimum is reconstructed.
    """

    options = ModelBasedOptions()
    found = FilledInByModels
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "for least squares, how clients train: learning rate, epochs, batch size",
        "clients' examples and labels except one attribute, its possible values, and whose they are",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where the column is a number."""
        return refuse_numbers(knowledge)

    def attack(self, seen: Seen) -> FilledInByModels:
        """Reconstruct the local optimum of each client, and fill in the attribute of its examples."""
        record, partial = seen.record, seen.partial
        if len(partial.domain) > DOMAIN_LIMIT:
            raise DataError(
                f"attack {self.name}: the attribute {partial.names[0]!r} … has {len(partial.domain)} values, and at "
                f"most {DOMAIN_LIMIT} can be tried one after another; put values together"
            )
        model = AttributeModel(seen.model, partial, pick_device(seen.device))
        check_model(model.module, record)
        # Before a record of any size is read: a model that does not take the examples is refused here.
        linear = LinearAttribute.of(model)
        clients = {str(name): np.flatnonzero(partial.clients == name) for name in np.unique(partial.clients)}
        messages = collect_messages(seen, clients, model, self.options.memory)
        if not messages:
            raise NeedsError(
                f"attack {self.name} needs a usable reply of a client that has partial records, and {record.path} "
                f"holds none{why_left_out(seen.notes)}; check that knowledge/nodes names the clients as partial.npz "
                "does"
            )
        final = _last_state(record)
        fill_in = _choose_way(model, linear, messages, seen.knowledge.training)
        if linear is not None and not isinstance(fill_in, ByEstimates):
            seen.notes.append("it is not known that clients train by SGD, so no least-squares problem is decoded")
        answers = _Decisions(model, fill_in, np.random.default_rng(seen.seed))
        if final is not None:
            answers.losses[0] = model.losses([final], np.arange(len(partial)))[0]
        decoded: list[DecodedClient] = []
        for name, rows in clients.items():
            of_client, optimum = messages.get(name, ClientMessages(name)), Optimum()
            if of_client.rounds:
                optimum = fill_in.reconstruct(of_client, rows)
            weights = answers.fill_in_client(rows, final, of_client, optimum)
            decoded.append(
                DecodedClient(
                    client=name,
                    records=len(rows),
                    messages=len(of_client.rounds),
                    how=optimum.how,
                    rank=optimum.rank,
                    unknowns=model.size,
                    share=optimum.share,
                    weight=weights if fill_in.weighs else None,
                )
            )
        seen.notes.extend(describe_how(decoded))
        return FilledInByModels(
            methods=METHODS,
            values=tuple(partial.names),
            targets=partial.fingerprint,
            decisions=answers.decisions,
            beliefs=answers.beliefs,
            server=record.server,
            clients=tuple(decoded),
            losses=answers.losses,
        )


def _choose_way(
    model: AttributeModel,
    linear: LinearAttribute | None,
    messages: Mapping[str, ClientMessages],
    training: LocalSGD | None,
) -> FillIn:
    """Return Algorithm 3 where the model, the attribute and training are as it needs them, else Algorithm 4."""
    if linear is None or training is None or training.optimizer != "SGD":
        return ByLoss(model)
    return ByEstimates(model, linear, dict(fit_maps(messages.values())), training)


class _Decisions:
    """Decisions (methods, n), beliefs (methods, n, v) and losses (methods, n, v), filled in client by client."""

    def __init__(self, model: AttributeModel, fill_in: FillIn, generator: np.random.Generator) -> None:
        shape = (len(METHODS), len(model.partial.y))
        self.decisions = np.full(shape, -1, dtype=np.int64)
        self.beliefs = np.tile(model.prior, (*shape, 1))
        self.losses = np.full((*shape, len(model.prior)), np.nan)
        self._model = model
        self._fill_in = fill_in
        self._generator = generator

    def fill_in_client(
        self, rows: NDArray[np.int64], final: State | None, messages: ClientMessages, optimum: Optimum
    ) -> dict[str, float | None]:
        """Decide for a client's examples by every method, and return the attribute's weight in each one's model."""
        states: list[State | None] = [final]
        if messages.rounds:
            client_states = [messages.last, self._model.state(optimum.parameters, messages.last)]
            # Losses of "last-returned" and "reconstructed".
            self.losses[1:3, rows] = self._model.losses(client_states, rows)
            states += client_states
        weights = {}
        # One after the other, since each draws among equals from the one generator.
        for method, state in enumerate(states):
            weights[METHODS[method]] = self._decide(method, rows, state, optimum)
        by_moments = self._fill_in.decide_by_moments(rows, optimum, self._generator)
        if by_moments is not None:
            moments = METHODS.index("moments")
            self.decisions[moments, rows], self.beliefs[moments, rows] = by_moments
        return weights

    def _decide(self, method: int, rows: NDArray[np.int64], state: State | None, optimum: Optimum) -> float | None:
        """Decide for a client's examples under a state, and return the attribute's weight in it."""
        losses, prior = self.losses[method, rows], self._model.prior
        self.decisions[method, rows], weight = self._fill_in.decide(state, rows, losses, optimum, self._generator)
        if optimum.share is not None:
            prior = np.array([1 - optimum.share, optimum.share])
        self.beliefs[method, rows] = beliefs_of(losses, prior, gaussian=self._model.gaussian)[0]
        return weight


def _last_state(record: Record) -> State | None:
    """Return the common model after the last round, or else the last one that was sent; ``None`` without any."""
    after = record.final
    if after is None:
        after = record.rounds[-1].common
    if after is None:
        return None
    return dict(after)
