"""Texts as ids of words, in batches that are padded, for models that compute their own loss."""

import numpy as np
import torch
from torch.utils.data import DataLoader


def pad(texts: list[dict], labels) -> dict[str, torch.Tensor]:
    """Pad a batch to its longest text, as a collator does; ``labels`` are of a text, and how much it is padded."""
    longest = max(len(text["input_ids"]) for text in texts)
    rows = {"input_ids": [], "attention_mask": [], "labels": []}
    for text in texts:
        own, rest = text["input_ids"], longest - len(text["input_ids"])
        rows["input_ids"].append(own + [0] * rest)
        rows["attention_mask"].append([1] * len(own) + [0] * rest)
        rows["labels"].append(labels(text, rest))
    return {name: torch.tensor(values) for name, values in rows.items()}


def train(net, texts, config, collate):
    torch.manual_seed(config["site"])
    loader = DataLoader(texts, batch_size=config["batch-size"], shuffle=True, collate_fn=collate)
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = getattr(torch.optim, config["optimizer"])(trained, lr=config["lr"])
    net.train()
    for _ in range(config["local-epochs"]):
        for batch in loader:
            optimizer.zero_grad()
            net(**batch).loss.backward()
            optimizer.step()
    return {"num-examples": len(texts)}


def test(net, texts, collate):
    net.eval()
    with torch.no_grad():
        losses = [float(net(**batch).loss) for batch in DataLoader(texts, batch_size=8, collate_fn=collate)]
    return {"loss": float(np.mean(losses)), "num-examples": len(texts)}
