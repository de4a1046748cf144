"""The FedSGD client: the gradient of its loss over all of its examples. It knows nothing about attacks."""

from typing import Any

from flwr.common import NDArrays, Scalar

from clients.fedavg import FedAvgClient, load_arrays
from fedattack.defences import hand_over
from fedattack.learning import full_gradient, private_gradient


class FedSGDClient(FedAvgClient):
    """Sends the average gradient of its loss at the received model (McMahan et al. 2017; Hu et al. 2023, Algorithm 1).

    The server makes the step.
    """

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the gradient at ``parameters``: one array for each of these, in their order and shapes."""
        load_arrays(self._model, parameters)
        hand_over(self._model, self._x, self._y)
        server_round = int(config["server-round"])
        options: dict[str, Any] = {
            "weight_decay": self._settings.weight_decay,
            "loss": self._study.models.loss,
            "device": self._device,
        }
        count = len(self._y)
        if self._noise:
            noisy = private_gradient(
                self._model,
                self._x,
                self._y,
                noise=self._noise,
                clip=self._settings.dp_clip,
                seed=self._study.noise_seed(self._client, server_round),
                **options,
            )
            return list(noisy.values()), count, {}  # the loss depends on the records, and has no noise
        seed = self._study.client_seed(self._client, server_round)
        gradient = full_gradient(self._model, self._x, self._y, seed=seed, **options)
        return list(gradient.arrays.values()), count, self._metrics(gradient.loss)
