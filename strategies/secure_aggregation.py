"""The secure-aggregation server: FedAvg over Flower's SecAgg+, with an observer that sees only sums."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.common import (
    FitIns,
    FitRes,
    NDArrays,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import LegacyContext, ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.observe import ObservedLegacyStrategy
from strategies.checkpoint import Checkpoint
from strategies.honest_but_curious import Sampling, nodes_at

# Flower computes in integers below 2³², and a sum of that many clients must stay below it. Finer steps than 2²² would
# gain little: the clients quantise in single precision, whose mantissa has 24 bits.
STEPS = 2**22
MODULUS = 2**32

# A weight beyond the clipping range is cut, which spoils the sum; the error grows with the range only in proportion.
# Weights of the reference models were at most 1.6, and that after poisoners had driven the model off at a high rate.
CLIPPING = 8.0

# Shares of each client's secrets, one for each neighbour, with which it also has a mask in common. Each share makes a
# round dearer; a neighbourhood survives as many dropouts as shares exceed the threshold.
_SHARES = 5


@dataclass(frozen=True)
class SecAggPlan:
    """Parameters of SecAgg+ for one federation.

    Each client sends 2²² · (clip(w · n / max_weight) + clipping) / (2 · clipping), under masks that cancel in the sum.
    The number is rounded up or down at random, without bias. Clipping applies to the weighted model, so that
    ``max_weight`` is the largest example count that a client can have: a larger one would waste steps, a smaller one
    clip. The mean of K clients with n̄ examples on average is therefore off by

        rmse = (2 · clipping / 2²²) · (max_weight / n̄) / √(6 K),

    because a fraction f that is rounded at random has variance f (1 − f), which is 1/6 on average. With equal counts
    and K = 10 that is 4.9e-7 an entry. A client's share of the mean is about 1e-4 in the digits presets, and 2e-5 and
    more for LeNet on MNIST at learning rate 0.01.

    Attributes
    ----------
    clients
        Clients that are sampled in a round.
    max_weight
        Largest example count that a client can have.
    shares, threshold
        Number of shares into which each client's secrets are divided among its neighbours, and number of shares that
        restore them.

    Raises
    ------
    ConfigError
        If SecAgg+ cannot sum that many clients.
    """

    clients: int
    max_weight: float

    def __post_init__(self) -> None:
        most = MODULUS // STEPS - 1
        if not 3 <= self.clients <= most:
            raise ConfigError(
                f"secagg = true samples {self.clients} clients a round; SecAgg+ needs 3 to {most}: fewer cannot "
                "share secrets, more overflow the sum; change fraction or clients"
            )

    @property
    def shares(self) -> int:
        """All clients if there are few; if these are not all, SecAgg+ needs an odd number."""
        return min(self.clients, _SHARES)

    @property
    def threshold(self) -> int:
        """A majority of the shares, so that no two disjoint groups can each restore a secret."""
        return self.shares // 2 + 1

    def check_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Refuse a model that SecAgg+ cannot sum.

        Raises
        ------
        ConfigError
            If an array holds no floats (a counter would be clipped), or starts beyond half the clipping range.
        """
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                raise ConfigError(
                    f"secagg = true cannot sum {name}, which holds {array.dtype}: SecAgg+ clips to ±{CLIPPING:g}; "
                    "choose a model without counters, such as one without batch normalisation"
                )
            if not np.abs(array).max(initial=0.0) <= CLIPPING / 2:
                raise ConfigError(
                    f"secagg = true would clip {name}: it starts with values up to {np.abs(array).max():g}, SecAgg+ "
                    f"clips to ±{CLIPPING:g}; start the model from smaller weights"
                )

    def workflow(self, timeout: float | None = None) -> SecAggPlusWorkflow:
        """Build Flower's workflow of one round; each of its stages waits ``timeout`` seconds."""
        return SecAggPlusWorkflow(
            self.shares,
            self.threshold,
            max_weight=self.max_weight,
            clipping_range=CLIPPING,
            quantization_range=STEPS,
            modulus_range=MODULUS,
            timeout=timeout,
        )

    def describe(self) -> dict[str, Any]:
        """Describe for the record's manifest how an aggregate is made."""
        return {
            "kind": "mean",
            "weight": "num-examples",
            "by": "secagg+",
            "max_weight": self.max_weight,
            "clipping": CLIPPING,
            "steps": STEPS,
            "modulus": MODULUS,
            "shares": self.shares,
            "threshold": self.threshold,
        }


def plan_secure_aggregation(
    initial: Mapping[str, NDArray[Any]], *, sampling: Sampling, max_examples: int
) -> SecAggPlan:
    """Choose the parameters of SecAgg+ for a run; see :func:`run_secure_aggregation`.

    Raises
    ------
    ConfigError
        If SecAgg+ cannot sum that many clients, or this model.
    """
    plan = SecAggPlan(sampling.size, float(max_examples))
    plan.check_model(initial)
    return plan


class SecureFedAvg(FedAvg):
    """A legacy FedAvg that samples as :class:`strategies.honest_but_curious.SeededFedAvg` does.

    Parameters
    ----------
    initial
        The first model, by name.
    grid
        Lists the nodes in the same order in every run of a seed.
    sampling
        Which clients take part in a round.
    config
        Sent with the model.
    rounds
        Of training.
    done
        Those of a stopped run, before the first of this one, which Flower counts as round 1.
    """

    def __init__(
        self,
        initial: Mapping[str, NDArray[Any]],
        *,
        grid: Grid,
        sampling: Sampling,
        config: Mapping[str, Scalar],
        rounds: int,
        done: int = 0,
    ) -> None:
        arrays = list(initial.values())
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=1,
            min_available_clients=sampling.clients,
            initial_parameters=ndarrays_to_parameters(arrays),
        )
        self._dtypes = [array.dtype for array in arrays]
        self._grid = grid
        self._sampling = sampling
        self._config = dict(config)
        self._rounds, self._done = rounds, done

    @property
    def exchanges(self) -> int:
        """Number of exchanges: times that a model is sent and a sum comes back."""
        return self._rounds - self._done

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Send the model to this round's sample."""
        server_round += self._done
        nodes = nodes_at(self._grid, self._sampling.draw(range(self._sampling.clients), server_round))
        proxies = client_manager.all()
        instructions = FitIns(parameters, self._config | {"server-round": server_round})
        return [(proxies[str(node)], instructions) for node in nodes]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Take the aggregate, which SecAgg+ hands over in double precision, as the next model, in the model's."""
        if not results:
            return None, {}
        aggregate: NDArrays = parameters_to_ndarrays(results[0][1].parameters)
        arrays = [array.astype(dtype) for array, dtype in zip(aggregate, self._dtypes, strict=True)]
        return ndarrays_to_parameters(arrays), {}


def run_secure_aggregation(
    grid: Grid,
    context: Context,
    out: str,
    *,
    initial: Mapping[str, NDArray[Any]],
    rounds: int,
    sampling: Sampling,
    max_examples: int,
    config: Mapping[str, Scalar],
    facts: Mapping[str, Any],
    timeout: float | None = None,
    checkpoint: Checkpoint | None = None,
    make: Callable[..., SecureFedAvg] = SecureFedAvg,
    server: str = "passive",
    record_id: str = "",
) -> None:
    """Run FedAvg over SecAgg+ and record what its server may see: sums, who took part, and what is in plaintext.

    Parameters
    ----------
    grid
        Lists the nodes in the same order in every run of a seed.
    context
        The ServerApp's.
    out
        Folder of the record.
    initial
        The first model, by name.
    rounds, sampling, config
        See :class:`SecureFedAvg`; the seed is kept in the record's manifest.
    max_examples
        The largest example count that a client can have.
    facts
        Kept in the record's manifest.
    timeout
        Seconds that each of the protocol's stages waits for the clients; None waits for all.
    checkpoint
        Of a run that this one continues.
    make, server
        Makes the strategy, and what the record says of its server.
    record_id
        The record's id, which knowledge and truth name; drawn at random if empty.

    Raises
    ------
    ConfigError
        If SecAgg+ cannot do that.
    """
    plan = plan_secure_aggregation(initial, sampling=sampling, max_examples=max_examples)
    done = 0 if checkpoint is None else checkpoint.done
    first = initial if checkpoint is None else checkpoint.model_of_sum()
    inner = make(first, grid=grid, sampling=sampling, config=config, rounds=rounds, done=done)
    strategy = ObservedLegacyStrategy(
        inner,
        # The observer fills in strftime directives; this path is meant as it stands.
        out.replace("%", "%%"),
        names=list(initial),
        view="aggregate",
        server=server,
        seed=sampling.seed,
        facts=facts,
        aggregation=plan.describe(),
        resumed=checkpoint and checkpoint.names,
        record_id=record_id,
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=inner.exchanges), strategy=strategy)
    try:
        DefaultWorkflow(fit_workflow=plan.workflow(timeout))(grid, legacy)
    except BaseException as cause:
        strategy.close(f"the run ended with {type(cause).__name__}: {cause}")
        raise
    strategy.close()
