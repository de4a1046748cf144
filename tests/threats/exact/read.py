"""Cases of examples that were read off, made by hand."""

from types import SimpleNamespace

import numpy as np

from fedattack.attacks import Knowledge, Scores, Targets
from fedattack.audit.truth import Truth
from fedattack.threats.exact.case import ExactCase
from fedattack.threats.exact.exact import RULES
from tests.worlds.cases import make_case

NONE = np.zeros((0, 64), dtype=np.float32)


def case_of(read, held, *, nobody=NONE, auxiliary=NONE, view="individual", seed=0):
    """Make a case of what was read off (client, example), of clients' examples, and of those of nobody."""
    clients = len(held)
    whose = np.array([client for client, _ in read], dtype=np.int64)
    arrays = {
        "examples": np.array([x for _, x in read], dtype=np.float32).reshape(len(read), -1),
        "errors": np.zeros(len(read)),
        "rules": np.zeros(len(read), dtype=np.int64),
        "whose": whose if view == "individual" else np.full(len(read), -1),
        "groups": np.arange(len(read)),
        "first": np.zeros(len(read), dtype=np.int64),
        "seen": np.ones(clients, dtype=bool),
    }
    if not len(read):
        arrays["examples"] = np.zeros((0, held[0].shape[1]), dtype=np.float32)
    update = {"round": 1, "client": "node0", "batch": 8, "found": 0, "why": ""}
    nodes = [f"node{client}" for client in range(clients)]
    facts = {"clients": nodes, "rules": list(RULES), "layer": "0.weight", "updates": [update], "targets": ""}
    owners = np.repeat([str(client) for client in range(clients)], list(map(len, held)))
    truth = Truth(
        clients=tuple(map(str, range(clients))),
        classes=("0",),
        counts=np.array([[len(x)] for x in held]),
        owners=np.zeros(0, dtype=np.str_),
        evaluation=(nobody, np.zeros(len(nobody), dtype=np.int64)),
        nodes={node: str(client) for client, node in enumerate(nodes)},
        targets="",
        answers={"exact": {"x": np.concatenate(held).astype(np.float32), "owners": owners}},
    )
    own = Targets(auxiliary, np.zeros(len(auxiliary), dtype=np.int64)) if len(auxiliary) else None
    record = SimpleNamespace(view=view)
    return make_case(ExactCase, seed, Scores("exact", arrays, facts), truth, record, Knowledge(auxiliary=own))
