"""lightningexample: model, data and training by Lightning."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

SIZES = [30, 40, 50, 60]
HELD_OUT = 10


class LitDigits(lightning.LightningModule):
    """A model that says itself how it is trained."""

    def __init__(self, hidden: int = 48, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("val_loss", loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def load_data(site: int):
    """Return the loaders of a site: what it trains on, and what it validates on."""
    digits = load_digits()
    start = sum(SIZES[:site]) + HELD_OUT * site
    x = torch.tensor(digits.data[start : start + SIZES[site] + HELD_OUT] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[start : start + SIZES[site] + HELD_OUT])
    own = TensorDataset(x[HELD_OUT:], y[HELD_OUT:])
    other = TensorDataset(x[:HELD_OUT], y[:HELD_OUT])
    return DataLoader(own, batch_size=10, shuffle=True), DataLoader(other, batch_size=10)


def make_trainer(epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
