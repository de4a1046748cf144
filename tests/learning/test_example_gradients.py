"""Each example's gradient is what torch gives for it alone."""

import numpy as np
import pytest
import torch

from fedattack.base.errors import ModelError
from fedattack.learning import build_model
from fedattack.learning.example_gradients import example_gradients


def test_gradients_are_those_of_single_examples():
    model = build_model("mlp", input_shape=(1, 8, 8), classes=3, hidden=5, seed=0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 1, 8, 8)).astype(np.float32), np.array([0, 1, 2, 1])
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    names, found = example_gradients(model, arrays, x, y)
    assert names == tuple(name for name, _ in model.named_parameters())
    for row in range(4):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(torch.from_numpy(x[row : row + 1])), torch.tensor(y[row : row + 1])
        )
        loss.backward()
        alone = np.concatenate([parameter.grad.numpy().reshape(-1) for parameter in model.parameters()])
        assert found[row] == pytest.approx(alone, abs=1e-6)
    some = example_gradients(model, arrays, x, y, entries=slice(300, 340))[1]
    assert np.array_equal(some, found[:, 300:340])
    assert found.shape[1] > 340


def test_a_model_of_other_arrays_is_refused():
    model = build_model("mlp", input_shape=(1, 8, 8), classes=3, seed=0)
    with pytest.raises(ModelError, match="not those of this model"):
        example_gradients(model, {"w": np.zeros(3)}, np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))
