"""The FedMD client: it keeps its own model, and sends predictions on public records."""

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common import NDArrays, Scalar
from numpy.typing import NDArray
from torch import nn

from clients.fedavg import FedAvgClient
from fedattack.learning import Distillation, accuracy_of_models, distil, outputs_of

MODEL = "fedmd-model"
"""Key of the client's model in its state, which Flower keeps from round to round."""

# Enough to know the mean accuracy of ten clients to within a point or two, and quick for every client and round.
_TEST_RECORDS = 500

_DIGEST_BATCH = 256


class FedMDClient(FedAvgClient):
    """Digests the consensus, revisits its own examples, and sends its predictions (Hu et al. 2023, Algorithm 3).

    Digesting is ``digest-epochs`` of distillation from the consensus on the public records, revisiting ``local-epochs``
    of training on its own. In its first round, without a consensus, a client only revisits, which is the initialisation
    phase of Algorithm 3. Li & Wang 2019 first train on labels of the public records; this is left out, because those of
    Algorithm 3 have none.

    It sends logits, as the authors' code does: they tell the consensus how sure each client is.
    """

    def _build_model(self) -> nn.Module:
        return self._study.models.build_for(self._client)

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train with the consensus (public records, classes), if there is one, and return predictions of its shape."""
        server_round = int(config["server-round"])
        self._restore()
        if parameters and self._settings.digest_epochs:
            self._digest(parameters[0], server_round)
        training = self._train(server_round)
        self._keep()
        if self._settings.truth:
            # It takes a pass over data, which nobody else asks for.
            self._note_accuracy(server_round)
        predictions = outputs_of(self._model, self._study.public_x, device=self._device)
        return [predictions], len(self._y), self._metrics(training.loss)

    def _digest(self, consensus: NDArray[Any], server_round: int) -> None:
        distillation = Distillation(epochs=self._settings.digest_epochs, batch_size=_DIGEST_BATCH)
        seed = self._study.client_seed(self._client, server_round)
        distil(self._model, self._study.public_x, consensus, distillation, seed=seed, device=self._device)

    def _restore(self) -> None:
        if MODEL in self._state:
            kept = self._state.array_records[MODEL]
            self._model.load_state_dict({name: torch.from_numpy(kept[name].numpy().copy()) for name in kept})

    def _keep(self) -> None:
        state = self._model.state_dict()
        self._state[MODEL] = ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in state.items()})

    def _note_accuracy(self, server_round: int) -> None:
        data = self._study.data
        some = slice(None, None, max(len(data.y_test) // _TEST_RECORDS, 1))
        own, unheld = self._accuracy(self._x, self._y), self._accuracy(data.x_test[some], data.y_test[some])
        self._study.note_accuracy(self._client, server_round, own, unheld)

    def _accuracy(self, x: NDArray[np.float32], y: NDArray[Any]) -> float:
        return float(accuracy_of_models(self._model, [self._model.state_dict()], x, y, device=self._device)[0])
