"""loraexample: the server."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

from loraexample.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train in rounds."""
    torch.manual_seed(1)
    strategy = FedAvg()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_peft_model_state_dict(make_model())),
        num_rounds=context.run_config["num-server-rounds"],
    )
