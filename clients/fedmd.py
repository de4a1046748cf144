"""The FedMD client: a model of its own that never leaves it, and predictions on public records that do."""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common import NDArrays, Scalar

from clients.fedavg import FedAvgClient
from fedattack.audit.truth import note_accuracy
from fedattack.learning import Distillation, accuracy_of_models, distil, outputs_of, pick_device
from simulations.study import Study

MODEL = "fedmd-model"
"""Key of the client's model in its state, which Flower keeps from round to round."""

# Enough to know the mean accuracy of ten clients to within a point or two, and quick for every client and round.
_TEST_RECORDS = 500

_DIGEST_BATCH = 256


class FedMDClient(FedAvgClient):
    """Digests the consensus, revisits its own records, and sends its predictions (Hu et al. 2023, Algorithm 3).

    Digesting is ``digest-epochs`` of distillation from the consensus on the public records, revisiting ``local-epochs``
    of training on its own. In its first round, in which there is no consensus, a client revisits alone, which is the
    initialisation phase of Algorithm 3. The first training on labels of the public records of Li & Wang 2019 is left
    out, as in Algorithm 3, whose public records are unlabelled.

    It sends logits, as the authors' code does: they tell the consensus how sure each client is.
    """

    def __init__(self, study: Study, client: int, config: Mapping[str, Any], state: RecordDict | None = None) -> None:
        super().__init__(study, client, config, state)
        self._model = study.build_client_model(client)

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train with the consensus (public records, classes), if there is one, and return predictions of its shape."""
        server_round = int(config["server-round"])
        device = pick_device(str(self._config["device"]))
        if MODEL in self._state:
            kept = self._state.array_records[MODEL]
            self._model.load_state_dict({name: torch.from_numpy(kept[name].numpy().copy()) for name in kept})
        if parameters and (epochs := int(self._config["digest-epochs"])):
            seed = self._study.client_seed(self._client, server_round)
            how = Distillation(epochs=epochs, batch_size=_DIGEST_BATCH)
            distil(self._model, self._study.public_x, parameters[0], how, seed=seed, device=device)
        training = self._train(server_round)
        self._state[MODEL] = ArrayRecord(
            {name: Array(value.detach().cpu().numpy()) for name, value in self._model.state_dict().items()}
        )
        if truth := str(self._config["truth"]):
            self._note_accuracy(truth, server_round, device)
        predictions = outputs_of(self._model, self._study.public_x, device=device)
        return [predictions], len(self._y), self._told(training.loss)

    def _note_accuracy(self, truth: str, server_round: int, device: torch.device) -> None:
        data, models = self._study.data, [self._model.state_dict()]
        some = slice(None, None, max(len(data.y_test) // _TEST_RECORDS, 1))
        own, unheld = (
            float(accuracy_of_models(self._model, models, x, y, device=device)[0])
            for x, y in (
                (self._x, self._y),
                (data.x_test[some], data.y_test[some]),
            )
        )
        note_accuracy(truth, client=str(self._client), server_round=server_round, own=own, unheld=unheld)
