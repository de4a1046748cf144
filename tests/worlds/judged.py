"""What tests compare of two audited run folders: the nodes' order is another in each, the clients' is not."""

import json
from pathlib import Path

import numpy as np

from fedattack.attacks import Scores
from fedattack.audit.truth import read_truth


def findings_of(folder: Path) -> dict[str, float | None]:
    """The findings' values by ``attack.metric``."""
    found = json.loads((folder / "findings.json").read_text())
    return {f"{item['attack']}.{item['metric']}": item["value"] for item in found}


def sources_of(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Scores of source inference, a column for each client in their order, and the clients decided for."""
    truth, scores = read_truth(folder / "truth"), Scores.load(folder / "scores" / "sia.npz")
    clients = [truth.nodes[node] for node in scores.facts["clients"]]
    decided = [clients[index] for index in scores.arrays["decisions"]]
    return scores.arrays["combined"][:, np.argsort(clients)], decided
