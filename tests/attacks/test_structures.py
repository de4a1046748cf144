"""Examples of any structure and frozen weights, where attacks meet them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets, read_knowledge, read_targets, write_knowledge
from fedattack.attacks.knowledge_files import read_public
from fedattack.attacks.matching import SHORTENED, complete_models, how_named, named_for
from fedattack.base.errors import DataError
from fedattack.base.structured import fields, pack
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.membership.measures import ExampleGradients

HERE = "tests.attacks.test_structures"
IDS = np.random.default_rng(0).integers(0, 9, size=(5, 4))
LABELS = np.random.default_rng(1).integers(0, 3, size=5)


class Words(nn.Module):
    """Returns its own loss; its names are longer than those that clients send."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.looks = looks
        self.base = nn.Embedding(9, 6)
        self.part = nn.ModuleDict({"default": nn.Linear(6, 3)})

    def forward(self, ids, labels):
        if self.looks and bool((ids >= 0).all()):
            ids = ids + 0
        logits = self.part["default"](self.base(ids).mean(1))
        return nn.functional.cross_entropy(logits, labels), logits


def words() -> nn.Module:
    return Words()


def examples() -> Targets:
    return Targets(pack({"ids": IDS, "labels": LABELS}), LABELS)


def test_knowledge_keeps_structure_and_types(tmp_path):
    known = Knowledge(ModelKnowledge(f"{HERE}:words", (), 1, loss="own"), examples())
    write_knowledge(tmp_path, known)
    back = read_knowledge(tmp_path, trusted={f"{HERE}:words"})
    assert back.targets.x.dtype == known.targets.x.dtype
    assert back.targets.fingerprint == known.targets.fingerprint
    assert back.structure() == "ids, labels"
    assert not back.model.predicts
    assert isinstance(back.model.build(), Words)


def test_targets_are_read_by_name(tmp_path):
    np.savez(tmp_path / "t.npz", **{"x.ids": IDS, "x.labels": LABELS, "y": LABELS})
    targets = read_targets(tmp_path / "t.npz")
    assert fields(targets.x) == ("ids", "labels")
    assert np.array_equal(targets.x["ids"], IDS)
    np.savez(tmp_path / "u.npz", **{"x.ids": IDS, "x.labels": LABELS[:2], "y": LABELS})
    with pytest.raises(DataError, match="arrays of one length"):
        read_targets(tmp_path / "u.npz")
    np.savez(tmp_path / "v.npz", **{"x.ids": IDS.astype(str), "y": LABELS})
    with pytest.raises(DataError, match="expected numbers by name"):
        read_targets(tmp_path / "v.npz")


def test_what_somebody_else_wrote_ends_in_one_line(tmp_path):
    np.savez(tmp_path / "public.npz", x=np.zeros((2**40, 0), np.float32))
    with pytest.raises(DataError, match="x holds examples without any number"):
        read_public(tmp_path / "public.npz")
    known = Knowledge(ModelKnowledge("mlp", (), 2), Targets(np.ones(5, np.float32), LABELS), auxiliary=examples())
    assert known.structure() == "ids, labels"
    write_knowledge(tmp_path / "knowledge", replace(known, targets=None, auxiliary=None, limits=((0.0, 1.0),)))
    with pytest.raises(DataError, match="the least and the largest input of each of 0 channels"):
        read_knowledge(tmp_path / "knowledge")


@pytest.mark.parametrize("looks", [False, True], ids=["traced together", "one by one"])
def test_gradients_of_a_models_own_loss_leave_frozen_weights_out(looks):
    torch.manual_seed(3)
    model, targets = Words(looks), examples()
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    gradients = ExampleGradients(model, "own", targets.x, targets.y, frozen=["base.weight"])
    assert gradients.names == ["part.default.weight", "part.default.bias"]
    norms = gradients.norms(state)
    for row in range(len(targets)):
        loss, _ = model(torch.from_numpy(IDS[[row]]), torch.from_numpy(LABELS[[row]]))
        parts = torch.autograd.grad(loss, [model.part["default"].weight, model.part["default"].bias])
        assert norms[row] == pytest.approx(float(torch.cat([part.flatten() for part in parts]).norm()), rel=1e-5)


def test_arrays_of_shorter_names_are_those_that_are_not_frozen(tmp_path):
    model = Words()
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    sent = {name.replace(".default", ""): array for name, array in state.items() if name.startswith("part")}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, sent, [Reply("1", "ok", sent, 5)]))
    writer.close()
    known = Knowledge(ModelKnowledge(f"{HERE}:words", (), 1, loss="own"), frozen={"base.weight": state["base.weight"]})
    named = named_for(Record(tmp_path / "record"), known.model, known.frozen)
    assert [parameter.name for parameter in named.parameters] == ["part.default.weight", "part.default.bias"]
    assert how_named(Record(tmp_path / "record"), named) == [SHORTENED]
    whole = complete_models(named, known)
    assert [parameter.name for parameter in whole.parameters] == [*state]
    # Without knowing what is frozen nothing is guessed.
    assert [parameter.name for parameter in named_for(Record(tmp_path / "record"), known.model).parameters] == [*sent]
