"""The FedXgb server: it joins the trees that clients send, and every client sees each of them."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging

from strategies.honest_but_curious import SeededFedAvg

TREES = "0"
"""Flower's name of the one array that goes to and fro."""


class SeededFedXgbBagging(SeededFedAvg, FedXgbBagging):
    """Flower's FedXgbBagging, which samples by a seed."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the common trees to this round's sample."""
        self.current_bst = arrays[TREES].numpy().tobytes()
        return super().configure_train(server_round, arrays, config, grid)
