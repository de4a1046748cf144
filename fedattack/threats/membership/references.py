"""Models that the attacker trains itself, on examples of its own: how a target looks to who did not train on it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, Targets
from fedattack.learning import LocalSGD, train_local
from fedattack.learning.importing import trust_given
from fedattack.record.format import Arrays
from fedattack.threats.membership.measures import difference

State = dict[str, NDArray[Any]]


class Trainer:
    """Trains as a client does, on some of the attacker's examples.

    Parameters
    ----------
    model
        The clients' architecture and loss.
    training
        How clients train.
    device
        Where to compute.
    frozen
        Names of parameters that no client trains.
    """

    def __init__(
        self, model: ModelKnowledge, training: LocalSGD, device: torch.device, *, frozen: Collection[str] = ()
    ) -> None:
        self.model = model.build().to(device)
        for name, value in self.model.named_parameters():
            value.requires_grad_(value.requires_grad and name not in frozen)
        self.loss = trust_given(model.loss)
        self.training = training
        self.device = device
        self.names = [name for name, _ in self.model.named_parameters()]

    def train_reference(self, start: Mapping[str, Any], examples: Targets, *, seed: int) -> State:
        """Return the model that a client of these examples would send, trained from ``start``."""
        self.load(start)
        train_local(
            self.model,
            examples.x,
            examples.y,
            **self.training.keywords(),
            loss=self.loss,
            seed=seed,
            device=self.device,
        )
        return {name: value.detach().cpu().numpy().copy() for name, value in self.model.state_dict().items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Put the model at some parameters and buffers."""
        self.model.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state.items()})


class Shadows:
    """Shadow models of each round: clients that the attacker plays, none of which trained on a target.

    The auxiliary examples are halved: shadows train on one half, and the other, :attr:`population`, says how examples
    look on which neither shadows nor clients trained.

    Parameters
    ----------
    knowledge
        With a model, auxiliary examples, and how clients train.
    count
        Shadows in each round.
    seed
        Decides everything random.
    device
        Where to compute.
    """

    def __init__(self, knowledge: Knowledge, count: int, *, seed: int, device: torch.device) -> None:
        if knowledge.model is None or knowledge.training is None or knowledge.auxiliary is None:
            raise AssertionError("checked by possible")
        self.count = count
        self._trainer = Trainer(knowledge.model, knowledge.training, device, frozen=knowledge.frozen or ())
        self._seed = seed
        examples = knowledge.auxiliary
        order = np.random.default_rng((seed, 0)).permutation(len(examples))
        self._own, rest = np.array_split(order, 2)
        self._examples = examples
        self.population = examples.take(rest)
        self.defend = knowledge.defence.build() if knowledge.defence is not None else None

    @staticmethod
    def possible(knowledge: Knowledge) -> bool:
        """Whether the attacker has what it needs: auxiliary examples, and knowledge of how clients train."""
        return knowledge.training is not None and knowledge.auxiliary is not None and len(knowledge.auxiliary) > 1

    def of_round(self, number: int, received: Arrays, size: int) -> Iterator[tuple[State, State | None]]:
        """Yield each shadow of a round, whatever the other rounds are.

        Parameters
        ----------
        number
            The round, which draws from (seed, 0, number).
        received
            The model that clients were sent.
        size
            How many examples a client holds.

        Yields
        ------
        tuple
            Its model, and the model that the server would get of it through the clients' defence; ``None`` where the
            attacker knows of no defence.
        """
        rng = np.random.default_rng((self._seed, 0, number))
        for _ in range(self.count):
            rows = rng.choice(self._own, size=min(size, len(self._own)), replace=False)
            examples = self._examples.take(rows)
            state = self._trainer.train_reference(received, examples, seed=int(rng.integers(2**31)))
            yield state, self._defend(state, received, examples, rng)

    def _defend(self, state: State, received: Arrays, examples: Targets, rng: np.random.Generator) -> State | None:
        if self.defend is None:
            return None
        trainer = self._trainer
        trainer.load(received)
        update = difference(state, received, trainer.names)
        sent = self.defend(update, rng=rng, model=trainer.model, x=examples.x, y=examples.y)
        arrived = dict(state)
        for name, change in sent.items():
            arrived[name] = (received[name] + change).astype(state[name].dtype)
        return arrived
