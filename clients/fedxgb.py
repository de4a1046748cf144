"""The FedXgb client: it adds trees of XGBoost to the common model. It knows nothing about attacks."""

import numpy as np
import xgboost
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from simulations.study import Study

OBJECTIVES = {"regression": "reg:squarederror", "classification": "binary:logistic"}
"""What clients minimise, by the task of the data."""


class FedXgbClient(NumPyClient):
    """Boosts the received model on its own examples, and sends only the new tree, as JSON in one array of bytes.

    That is what clients of Flower's ``FedXgbBagging`` do.

    Parameters
    ----------
    study, client, state
        As for :class:`clients.fedavg.FedAvgClient`.
    """

    def __init__(self, study: Study, client: int, state: RecordDict | None = None) -> None:
        self._study = study
        self._client = client

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return one tree; the received array (bytes,) is empty in the first round."""
        study, settings = self._study, self._study.settings
        x, y = study.records_of(self._client)
        own = xgboost.DMatrix(x.reshape(len(x), -1), label=y)
        options = {
            "objective": OBJECTIVES[study.models.task.task],
            "eta": settings.lr,
            "max_depth": settings.tree_depth,
            "tree_method": "hist",
            "nthread": 1,
            "seed": study.client_seed(self._client, int(config["server-round"])),
        }
        if not parameters[0].size:
            tree = xgboost.train(options, own, num_boost_round=1)
        else:
            tree = xgboost.Booster(options, model_file=bytearray(parameters[0].tobytes()))
            before = tree.num_boosted_rounds()
            tree.update(own, before)
            tree = tree[before:]
        return [np.frombuffer(tree.save_raw("json"), dtype=np.uint8)], len(y), {}
