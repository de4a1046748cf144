"""A model that no import path makes is described beside what is witnessed, and the run is as without."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.learning.programs import read_program
from fedattack.witness import read_witnesses, torch_models
from tests.witness.apps import randomness, seed, witness_of
from tests.witness.test_torch import Active, Net, X, Y, fit, state


def outputs(model, *, training=False):
    model.train(training)
    torch.manual_seed(4)
    with torch.no_grad():
        return model(X)


def check_described(witness, model):
    assert (witness.model.spec, witness.model.why) == (None, "")
    built = read_program(witness.model.program).build()
    built.load_state_dict(model.state_dict())
    for training in (False, True):
        torch.testing.assert_close(outputs(built, training=training), outputs(model, training=training))


def closure(activation):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
            self.last = nn.Linear(8, 4)

        def forward(self, x):
            return self.last(activation(self.body(x)))

    return Inner()


class Around(nn.Module):
    """Takes a module, which no file can hold."""

    def __init__(self, inner, activation=F.relu) -> None:
        super().__init__()
        self.inner, self.activation, self.last = inner, activation, nn.Linear(7, 4)

    def forward(self, x):
        return self.last(self.activation(self.inner(x)))


class Main(Net):
    """As if it stood in the script that is run."""


MAKERS = {
    "closure": lambda: closure(torch.tanh),
    "lambda": lambda: closure(lambda x: x * torch.sigmoid(x)),
    "module as an argument": lambda: Around(nn.Linear(6, 7), torch.sin),
    "ambiguous": lambda: (Net(13), Net(13, act="tanh"))[1],
    "main": lambda: Main(5),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_that_no_import_path_makes_is_described(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Main, "__module__", "__main__")

    def client():
        seed(9)
        return fit(MAKERS[name](), epochs=2, momentum=0.9)

    plain, after = state(client()), randomness()
    kept = []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path)
    # Neither weights, nor random states, nor the mode are touched.
    assert (state(kept[0]), randomness()) == (plain, after)
    assert all(part.training for part in kept[0].modules())
    check_described(witness, kept[0])
    assert (witness.model.program.stat().st_mode & 0o777) == 0o600


def test_one_file_serves_all_clients_of_a_model_and_another_model_has_another(tmp_path):
    torch_models._described_by.clear()
    models = [closure(torch.tanh), closure(torch.tanh), closure(torch.sin)]
    witnesses = []
    for node, model in enumerate(models):
        witnesses.append(witness_of(lambda model=model: fit(model), tmp_path, node=str(node)))
        check_described(witnesses[-1], model)
    first, second, third = (witness.model.program for witness in witnesses)
    assert first == second != third
    assert sorted(first.parent.iterdir()) == sorted({first, third})
    assert [witness.model for witness in read_witnesses(tmp_path)] == [witness.model for witness in witnesses]


def test_two_of_one_class_with_other_arguments_are_told_apart(tmp_path):
    torch_models._made.clear()
    for node, activation in enumerate((torch.tanh, torch.sin, torch.tanh)):
        kept: list[nn.Module] = []
        witness = witness_of(
            lambda act=activation, kept=kept: kept.append(fit(Active(act))) or kept[0], tmp_path, node=str(node)
        )
        check_described(witness, kept[0])


class Deciding(Net):
    """What it computes depends on its data."""

    tries = 0

    def forward(self, x):
        return super().forward(x if x.mean() > 0.1 else -x)


def test_a_model_that_looks_at_its_data_keeps_the_note_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(Deciding, "__module__", "__main__")
    monkeypatch.setattr(torch_models, "_refused", {})
    witness = witness_of(lambda: fit(Deciding(7)), tmp_path)
    assert (witness.model.spec, witness.model.program) == (None, None)
    assert "is known by which Deciding is made" in witness.model.why
    assert "cannot be described" in witness.model.why
    assert "give a function without arguments that makes it" in witness.model.why
    # It is not tried for ever.
    for node in range(5):
        witness_of(lambda: fit(Deciding(7)), tmp_path, node=str(node))
    assert [len(reasons) for reasons in torch_models._refused.values()] == [2]


def test_a_model_that_breaks_what_traces_it_does_not_disturb_the_run(tmp_path, monkeypatch):
    class Copied(Net):
        def __deepcopy__(self, memo):
            raise SystemExit("there is one of me")

    witness = witness_of(lambda: fit(Copied(6)), tmp_path)
    assert witness.trained.total == len(Y)
    assert "there is one of me" in witness.model.why


def test_what_a_model_takes_by_name_is_taken_by_name(tmp_path):
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(9, 6), nn.Linear(6, 4)

        def forward(self, ids, mask):
            return {"logits": self.last((self.words(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))}

    ids = torch.arange(40 * 5).reshape(40, 5) % 9
    mask = torch.ones(40, 5)
    model = Words()

    def client():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(ids=ids, mask=mask)["logits"], Y).backward()
        optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.model.program is not None, witness.model.why
    built = read_program(witness.model.program).build()
    built.load_state_dict(model.state_dict())
    wanted = model(ids=ids[:7], mask=mask[:7])["logits"].detach().numpy()
    got = built(ids=ids[:7], mask=mask[:7])["logits"].detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
