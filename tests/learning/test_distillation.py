import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning import Distillation, build_model, distil, distil_students, outputs_of

DRAW = np.random.default_rng(0)
SHAPES = {"student-mlp": (1, 18, 18), "sia-mlp": (6,), "fedmd-mlp-3": (6,), "fedmd-cnn-3": (1, 8, 8)}


def made(spec, teachers=3, records=50, classes=4):
    model = build_model(spec, input_shape=SHAPES[spec], classes=classes, seed=5)
    x = DRAW.normal(size=(records, *SHAPES[spec])).astype(np.float32)
    outputs = DRAW.normal(0, 3, size=(teachers, records, classes)).astype(np.float32)
    return model, {name: value.numpy().copy() for name, value in model.state_dict().items()}, x, outputs


def by_hand(model, x, wanted, epochs, batch, lr, seed):
    """Torch's own Adam and loss on one student, with the order of the records drawn as documented."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(batch):
            optimizer.zero_grad()
            (model(torch.from_numpy(x)[rows]) - torch.from_numpy(wanted)[rows]).abs().mean().backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("spec", SHAPES)
def test_students_trained_together_are_those_trained_one_after_the_other(spec):
    model, start, x, outputs = made(spec)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    how = Distillation(epochs=3, batch_size=16, lr=1e-3)
    states = distil_students(model, start, x, outputs, how, seed=2)
    for state, wanted in zip(states, outputs, strict=True):
        expected = by_hand(model, x, wanted, 3, 16, 1e-3, 2)
        for name, value in expected.items():
            np.testing.assert_allclose(state[name], value.numpy(), atol=2e-6)
            assert np.abs(state[name] - start[name]).max() > 1e-3
    assert not np.allclose(states[0]["fc1.weight" if "fc1.weight" in start else "fc.weight"], 0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), "the architecture's own parameters are left alone"


def test_what_is_no_chain_of_linear_layers_is_trained_all_the_same():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 4, bias=False)

        def forward(self, x):
            return self.inner(x) * 2

    torch.manual_seed(0)
    x, outputs = made("sia-mlp")[2:]
    for model in (Odd(), nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False)), nn.Sequential(nn.Linear(6, 4))):
        start = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        states = distil_students(model, start, x, outputs, Distillation(epochs=2, batch_size=16), seed=1)
        for state, wanted in zip(states, outputs, strict=True):
            for name, value in by_hand(model, x, wanted, 2, 16, 1e-3, 1).items():
                np.testing.assert_allclose(state[name], value.numpy(), atol=2e-6)


def test_a_student_learns_its_teacher_on_records_that_it_was_not_taught_with():
    teacher = build_model("mlp", input_shape=(6,), classes=4, hidden=16, seed=1)
    x, fresh = (DRAW.normal(size=(count, 6)).astype(np.float32) for count in (600, 200))
    student = build_model("sia-mlp", input_shape=(6,), classes=4, seed=2)
    start = {name: value.numpy().copy() for name, value in student.state_dict().items()}
    wrong = -outputs_of(teacher, x)
    right, other = distil_students(
        student, start, x, np.stack([outputs_of(teacher, x), wrong]), Distillation(epochs=30, batch_size=32), seed=0
    )
    wanted = outputs_of(teacher, fresh)
    for state, sign in ((right, 1), (other, -1)):
        student.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        assert np.abs(outputs_of(student, fresh) - sign * wanted).mean() < 0.2 * np.abs(wanted).mean()


def test_dropout_is_on_in_training_and_off_in_predictions_and_the_random_state_stays():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)).eval()
    x, outputs = made("sia-mlp")[2:]
    before = torch.get_rng_state()
    first, again = copy.deepcopy(model), copy.deepcopy(model)
    distil(first, x, outputs[0], Distillation(epochs=1), seed=3)
    distil(again, x, outputs[0], Distillation(epochs=1), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert not first.training
    for left, right in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(first[1].weight, by_hand(model, x, outputs[0], 1, 64, 1e-3, 3)["1.weight"])
    first.train()
    np.testing.assert_array_equal(outputs_of(first, x), outputs_of(first, x))
    assert first.training


def test_bad_input_is_refused_in_one_line():
    model, start, x, outputs = made("sia-mlp")
    how = Distillation(epochs=1)
    cnn, cnn_start, images, cnn_outputs = made("fedmd-cnn-3")
    for refused, message in (
        (lambda: distil_students(model, start, x, outputs[:, :, :3], how, seed=0), "expected outputs of shape"),
        (
            lambda: distil_students(cnn, cnn_start, images, cnn_outputs[:, :, :3], how, seed=0),
            "expected outputs of shape",
        ),
        (lambda: distil_students(model, {"fc1.weight": start["fc1.weight"]}, x, outputs, how, seed=0), "missing"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            refused()
        assert "\n" not in str(caught.value)
    for count in (0, 49):
        with pytest.raises(DataError, match=f"a row of outputs for each; got {count} and 50"):
            distil_students(model, start, x[:count], outputs, how, seed=0)
    for change in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            Distillation(**change)
