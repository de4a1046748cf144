"""What each process of an attack takes, where all replies together are more than its bound."""

from pathlib import Path

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets
from fedattack.attacks._fan_out import fan_out
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.membership import membership
from fedattack.threats.source import sia

MODEL = ModelKnowledge(spec="mlp", input_shape=(784,), classes=10, hidden=5000)
CLIENTS, MEMORY = 36, 400_000_000


class Watched:
    """Does a piece, and says how many bytes more than before this process took at most."""

    def __init__(self, work):
        self.work = work

    def __call__(self, item):
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is what it takes now
        before = taken("VmRSS")
        found = self.work(item)
        return found, taken("VmHWM") - before


def taken(what):
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{what}:")[2].split()[0])


@pytest.mark.long
@pytest.mark.parametrize(("name", "module", "most"), [("membership", membership, MEMORY), ("sia", sia, 2**29)])
def test_each_process_stays_within_its_bound(tmp_path, monkeypatch, name, module, most):
    draw = np.random.default_rng(0)
    state = {key: value.numpy().copy() for key, value in MODEL.build().state_dict().items()}
    size = sum(array.nbytes for array in state.values())
    assert CLIENTS * size > MEMORY
    writer = RecordWriter(tmp_path / "record")
    replies = []
    for client in range(CLIENTS):
        sent = {key: array + np.float32(1e-3) * draw.random(array.shape, np.float32) for key, array in state.items()}
        replies.append(Reply(f"node{client}", "ok", sent, 20))
    writer.write(Exchange(1, state, replies))
    writer.close()
    del replies

    peaks = []

    def watched(work, items, **words):
        assert words["memory"] <= most
        for found, peak in fan_out(Watched(work), items, **words):
            peaks.append(peak)
            yield found

    monkeypatch.setattr(module, "fan_out", watched)
    targets = Targets(draw.normal(size=(4, 784)).astype(np.float32), draw.integers(0, 10, 4))
    choices = {"workers": "2"} | ({"memory": str(MEMORY)} if name == "membership" else {})
    attack = ATTACKS[name].with_options(choices)
    scores = attack.run(Record(tmp_path / "record"), Knowledge(model=MODEL, targets=targets), device="cpu")
    assert len(scores.facts["clients"]) == CLIENTS
    assert len(peaks) > 2
    assert max(peaks) < most
