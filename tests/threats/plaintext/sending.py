"""What clients hold and send, made up, without a run; it imports nothing that trains."""

import numpy as np

from fedattack.threats.plaintext.arrays import make_sent
from fedattack.threats.plaintext.contents import KnownExamples, find_contents

COLUMNS, ROWS = 5, 24


def known_of(parts):
    owners = np.repeat([str(client) for client in range(len(parts))], [len(x) for x, _ in parts])
    x, y = (np.concatenate(of) for of in zip(*parts, strict=True))
    return KnownExamples(x.astype(np.float32), owners, y.astype(float), frozenset(owners.tolist()))


def find(parts, says):
    """Find what stands in the arrays ``says(client, x, y)`` of each client."""
    sent = []
    for client, (x, y) in enumerate(parts):
        for name, array in says(client, x, y).items():
            sent.append((str(client), make_sent(str(client), "train", name, np.asarray(array))))
    return find_contents(sent, known_of(parts), parts[0][0].shape[1:])


def draw_nothing(draw, kind):
    """Draw clients, and what they send that was made of nobody's examples."""
    if kind == "numbers":
        every = draw.normal(size=(400, COLUMNS))
    elif kind == "few values":
        every = draw.integers(3, size=(400, COLUMNS)).astype(float)
    else:
        # Columns that depend on each other, so that rows are alike by accident.
        every = ((draw.integers(4, size=(400, 1)) + draw.choice([0, 0, 0, 1], (400, COLUMNS))) % 4).astype(float)
    labels = draw.integers(3, size=400)
    parts = [(every[20 * client : 20 * client + 20], labels[20 * client : 20 * client + 20]) for client in range(6)]
    fresh = every[120:]

    def says(client, x, y):
        shuffled = np.column_stack([draw.permutation(column)[:8] for column in every.T])
        other, others = parts[(client + 1) % 6][0], draw.permutation(fresh)[:20]
        statistics = np.stack([others.mean(0), others.var(0), others.max(0), others.min(0)])
        counts = np.bincount(draw.permutation(labels[120:])[:20], minlength=3)
        return {"shuffled": shuffled, "other": other[:6], "fresh": others, "statistics": statistics, "counts": counts}

    return parts, says
