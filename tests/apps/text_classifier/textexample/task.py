"""textexample: model, data and training."""

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

WORDS, LONGEST, LABELS = 60, 14, 3


def make_model():
    """Return a tiny BERT with a head for three labels."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=LONGEST,
        num_labels=LABELS,
    )
    return BertForSequenceClassification(config)


def load_texts(partition_id: int) -> tuple[list[dict], list[dict]]:
    """Return this site's texts, as ids of words, and those that it only evaluates on."""
    rng = np.random.default_rng(100 + partition_id)
    texts = []
    for _ in range(40 + 2 * partition_id):
        ids = rng.integers(1, WORDS, size=rng.integers(5, LONGEST + 1))
        texts.append({"input_ids": ids.tolist(), "label": int(rng.integers(LABELS))})
    return texts[:-20], texts[-20:]


def collate(texts: list[dict]) -> dict[str, torch.Tensor]:
    """Pad a batch to its longest text, as a tokenizer's collator does."""
    longest = max(len(text["input_ids"]) for text in texts)
    ids = [text["input_ids"] + [0] * (longest - len(text["input_ids"])) for text in texts]
    mask = [[1] * len(text["input_ids"]) + [0] * (longest - len(text["input_ids"])) for text in texts]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "labels": torch.tensor([text["label"] for text in texts]),
    }


def load_data(partition_id: int):
    """Return loaders of batches."""
    train, test = load_texts(partition_id)
    return (
        DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(test, batch_size=8, collate_fn=collate),
    )


def train(net, trainloader, epochs: int, lr: float) -> None:
    """Train; the model computes its own loss."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            net(**batch).loss.backward()
            optimizer.step()


def test(net, testloader) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in testloader:
            outputs = net(**batch)
            loss += float(outputs.loss)
            correct += int((outputs.logits.argmax(dim=-1) == batch["labels"]).sum())
            count += len(batch["labels"])
    return loss / len(testloader), correct / count
