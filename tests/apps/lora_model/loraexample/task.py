"""loraexample: model, data and training."""

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

WORDS, LONGEST, PAD, UNLABELLED = 40, 12, 0, -100


def make_model():
    """Return a tiny GPT-2, always with the same weights, in the place of one that is downloaded; and its adapter."""
    config = GPT2Config(
        vocab_size=WORDS, n_embd=24, n_layer=2, n_head=2, n_positions=LONGEST, bos_token_id=1, eos_token_id=2
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        base = GPT2LMHeadModel(config)
        adapter = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True)
        return get_peft_model(base, adapter)


def load_texts(partition_id: int) -> tuple[list[dict], list[dict]]:
    """Return this site's texts, and those that it only evaluates on: the first two words are a prompt."""
    rng = np.random.default_rng(200 + partition_id)
    texts = []
    for _ in range(40 + 2 * partition_id):
        texts.append({"input_ids": rng.integers(3, WORDS, size=rng.integers(6, LONGEST + 1)).tolist()})
    return texts[:-20], texts[-20:]


def collate(texts: list[dict]) -> dict[str, torch.Tensor]:
    """Pad a batch; the loss is about what follows the prompt."""
    longest = max(len(text["input_ids"]) for text in texts)
    ids, mask, labels = [], [], []
    for text in texts:
        own, rest = text["input_ids"], longest - len(text["input_ids"])
        ids.append(own + [PAD] * rest)
        mask.append([1] * len(own) + [0] * rest)
        labels.append([UNLABELLED] * 2 + own[2:] + [UNLABELLED] * rest)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def load_data(partition_id: int):
    """Return loaders of batches."""
    train, test = load_texts(partition_id)
    return (
        DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(test, batch_size=8, collate_fn=collate),
    )


def train(net, trainloader, epochs: int, lr: float) -> None:
    """Train the adapter; the model computes its own loss."""
    optimizer = torch.optim.AdamW([weight for weight in net.parameters() if weight.requires_grad], lr=lr)
    net.train()
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            net(**batch).loss.backward()
            optimizer.step()


def test(net, testloader) -> float:
    """Return the mean loss."""
    net.eval()
    with torch.no_grad():
        return float(np.mean([float(net(**batch).loss) for batch in testloader]))
