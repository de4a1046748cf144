"""hospitals: the coordinating server."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from hospitals.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    settings = ConfigRecord({"lr": context.run_config["lr"], "epochs": context.run_config["local-epochs"]})
    strategy = FedAvg(
        fraction_evaluate=0.0,
        weighted_by_key="patients",
        arrayrecord_key="model",
        configrecord_key="settings",
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        train_config=settings,
        num_rounds=context.run_config["num-server-rounds"],
    )
