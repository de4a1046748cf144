"""The FedSGD server: it steps the model along the clients' average gradient, under an observer."""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedattack.learning import gradient_step
from fedattack.observe import ObservedStrategy
from strategies.honest_but_curious import SeededFedAvg
from strategies.past import Past


class FedSGD(SeededFedAvg):
    """Steps θ ← θ − η · Σ n_k g_k / Σ n_k over the gradients that came in (McMahan et al. 2017; Hu et al. 2023).

    A reply has an array for each of the model's, of its name and shape. Without replies the model stays.

    Parameters
    ----------
    fraction, clients, seed
        As for :class:`strategies.honest_but_curious.SeededFedAvg`: with the same ones both sample the same clients.
    lr
        Learning rate η.
    """

    def __init__(self, *, fraction: float, clients: int, seed: int, lr: float) -> None:
        super().__init__(fraction=fraction, clients=clients, seed=seed)
        self._lr = lr
        self._model = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample, and keep it for the step."""
        self._model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients, weighted by examples, and step the model."""
        gradient, metrics = super().aggregate_train(server_round, replies)
        if gradient is None:
            return None, metrics
        model = {name: array.numpy() for name, array in self._model.items()}
        stepped = gradient_step(model, {name: array.numpy() for name, array in gradient.items()}, self._lr)
        return ArrayRecord({name: Array(array) for name, array in stepped.items()}), metrics


def observed_fedsgd(
    out: str,
    *,
    fraction: float,
    clients: int,
    seed: int,
    lr: float,
    facts: Mapping[str, Any],
    past: Past | None = None,
) -> ObservedStrategy:
    """Build a FedSGD server that records what it sees.

    Parameters
    ----------
    out
        Folder of the record.
    fraction, clients, seed, lr
        See :class:`FedSGD`; the seed is kept in the record's manifest, the learning rate among its facts.
    facts
        Kept in the record's manifest.
    past
        Of a run that this one goes on with.
    """
    inner = FedSGD(fraction=fraction, clients=clients, seed=seed, lr=lr)
    # The observer fills in strftime directives; this path is meant as it stands.
    return ObservedStrategy(
        inner,
        out.replace("%", "%%"),
        protocol="fedsgd",
        seed=seed,
        facts={**facts, "lr": lr},
        resumed=past and past.names,
    )
