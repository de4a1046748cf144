"""A model of Lightning, which says itself how it is trained."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset
from toyapp.digits import digits_of
from toyapp.states import arrays_of, put  # noqa: F401


class LitDigits(lightning.LightningModule):
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
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def make_model():
    return LitDigits(hidden=24)


def initial_arrays():
    torch.manual_seed(0)
    return arrays_of(make_model())


def load_data(site: int, sites: int):
    return digits_of(site)


def make_trainer(epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(model, data, config):
    trainer = make_trainer(config["local-epochs"])
    trainer.fit(model, DataLoader(TensorDataset(*data), batch_size=10, shuffle=True))
    return {"train_loss": float(trainer.callback_metrics["train_loss"]), "num-examples": len(data[1])}


def test(model, data):
    loader = DataLoader(TensorDataset(*data), batch_size=10)
    (found,) = make_trainer(1).validate(model, loader, verbose=False)
    return {"eval_loss": found["val_loss"], "num-examples": len(data[1])}
