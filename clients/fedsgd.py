"""The FedSGD client: the gradient of its loss over all of its records, and nothing that knows of attacks."""

from flwr.common import NDArrays, Scalar

from clients.fedavg import FedAvgClient, load_arrays
from fedattack.learning import full_gradient, pick_device


class FedSGDClient(FedAvgClient):
    """Sends the average gradient of its loss at the received model (McMahan et al. 2017; Hu et al. 2023, Algorithm 1).

    Of the run config it uses ``weight-decay`` and ``device``; the step is the server's.
    """

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the gradient at ``parameters``, one array for each of these and in their order."""
        load_arrays(self._model, parameters)
        gradient = full_gradient(
            self._model,
            self._study.data.x_train[self._indices],
            self._study.data.y_train[self._indices],
            weight_decay=float(self._config["weight-decay"]),
            seed=self._study.client_seed(self._client, int(config["server-round"])),
            device=pick_device(str(self._config["device"])),
        )
        return list(gradient.arrays.values()), len(self._indices), {"train-loss": gradient.loss}
