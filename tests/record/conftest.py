import numpy as np
import pytest

from fedattack.record import Exchange, RecordWriter, Reply


def model(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "fc.weight": draw.normal(size=(4, 3)).astype(np.float32),
        "fc.bias": draw.normal(size=4).astype(np.float32),
        "bn.running_mean": draw.normal(size=4).astype(np.float32),
    }


def exchange(number: int, clients: int = 3) -> Exchange:
    replies = [
        Reply(f"node-{index}", "ok", model(100 * number + index), 10 + index, {"loss": 0.5 * index})
        for index in range(clients)
    ]
    replies.append(Reply("node-gone", "failed", reason="the client raised"))
    return Exchange(number, model(number), replies, config={"lr": 0.1})


@pytest.fixture
def folder(tmp_path):
    """A complete record of three rounds."""
    path = tmp_path / "record"
    writer = RecordWriter(path, seed=7, facts={"site": "A", "noise": float("nan"), "key": b"\x00"})
    for number in (1, 2, 3):
        writer.write(exchange(number))
    writer.close(final=model(4))
    return path
