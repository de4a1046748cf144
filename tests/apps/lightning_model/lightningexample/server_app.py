"""lightningexample: the server."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from lightningexample.task import LitDigits

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=1.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(LitDigits(hidden=24).state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
