import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch import nn

from fedattack.base.errors import DataError, ModelError
from fedattack.learning import accuracy_of_models, build_model, losses_of_models, per_record_loss, r2_of_models
from fedattack.learning.batched import outputs_of
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import ShadowModel

CROSS_ENTROPY = per_record_loss("cross-entropy")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5))


def architecture(name: str, seed: int) -> nn.Module:
    if name == "batch-norm":
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = with_batch_norm()
            model(torch.randn(9, 256))  # moves the running statistics and num_batches_tracked
        return model
    return build_model(name, input_shape=(1, 16, 16), classes=5, seed=seed)


def setting(name: str, clients: int = 3, n: int = 23) -> tuple[nn.Module, list[dict], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    states = [architecture(name, seed).state_dict() for seed in range(1, clients + 1)]
    return architecture(name, 0), states, rng.normal(size=(n, 1, 16, 16)).astype(np.float32), rng.integers(0, 5, n)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "sia-cnn", "lenet-mnist", "batch-norm"])
def test_losses_and_accuracy_are_those_of_one_model_and_one_record_at_a_time(name, device):
    model, states, x, y = setting(name)
    oracle = copy.deepcopy(model).eval()
    expected, hits = np.empty((3, 23)), np.empty((3, 23))
    for client, state in enumerate(states):
        oracle.load_state_dict(state)
        for i in range(23):
            with torch.no_grad():
                logits = oracle(torch.from_numpy(x[i : i + 1]))[0].double().numpy()
            expected[client, i] = np.log(np.exp(logits - logits[y[i]]).sum())
            hits[client, i] = logits.argmax() == y[i]

    losses = losses_of_models(model, states, x, y, CROSS_ENTROPY, device=device, chunk=10)
    assert losses.dtype == torch.float64
    assert losses.shape == (3, 23)
    assert losses.device.type == "cpu"
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    accuracy = accuracy_of_models(model, states, x, y, device=device, chunk=10)
    np.testing.assert_allclose(accuracy, hits.mean(axis=1), rtol=1e-12)


class Viewing(nn.Module):
    """Takes a view of what its convolution gives, which only PyTorch's own memory layout allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 5)
        self.fc = nn.Linear(4 * 12 * 12, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).view(len(x), -1))


class Reshaping(Viewing):
    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


@pytest.mark.parametrize("kind", [Viewing, Reshaping])
def test_any_model_of_images_gives_what_it_gives_in_pytorch_s_layout(kind):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = kind()
    x = np.random.default_rng(0).normal(size=(9, 3, 16, 16)).astype(np.float32)
    y = np.arange(9) % 5
    with torch.inference_mode():
        expected = CROSS_ENTROPY(model(torch.from_numpy(x)), torch.from_numpy(y))
    got = losses_of_models(model, [model.state_dict()], x, y, CROSS_ENTROPY)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_the_model_with_their_channels_last(channels):
    strides = []

    class Watching(Reshaping):
        def forward(self, x):
            strides.append((x.stride(), tuple(x.shape[1:])))
            return x.flatten(1)

    model = Watching()
    x = np.random.default_rng(0).normal(size=(5, channels, 16, 16)).astype(np.float32)
    outputs = []
    losses_of_models(
        model, [model.state_dict()], x, np.zeros(5), lambda out, y: outputs.append(out) or out.double().sum(1)
    )
    assert set(strides) == {((256 * channels, 1, 16 * channels, channels), (channels, 16, 16))}
    np.testing.assert_array_equal(outputs[0], x.reshape(5, -1))


def test_numpy_states_as_a_memory_mapped_record_gives_them_are_taken_without_a_warning(recwarn):
    model, states, x, y = setting("batch-norm")
    arrays = [{name: value.numpy().copy() for name, value in state.items()} for state in states]
    for array in (x, y, *(array for state in arrays for array in state.values())):
        array.flags.writeable = False
    losses = losses_of_models(model, arrays, x, y.astype(np.uint8), CROSS_ENTROPY)
    assert torch.equal(losses, losses_of_models(model, states, x, y, CROSS_ENTROPY))
    assert not recwarn.list


def test_the_callers_model_and_states_are_left_as_they_were():
    model, states, x, y = setting("batch-norm")
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy((model.state_dict(), states))
    losses_of_models(model, states, x, y, CROSS_ENTROPY)
    with pytest.raises(ModelError):
        losses_of_models(model, states, x, y + 5, CROSS_ENTROPY)
    assert [module.training for module in model.modules()] == modes
    for was, now in zip([before[0], *before[1]], [model.state_dict(), *states], strict=True):
        assert all(torch.equal(was[name], now[name]) for name in was)


class Shifting(nn.Module):
    """Writes into its input, as models do whose first layer is an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        x -= 1
        return self.last(x)


def test_a_model_that_writes_into_its_input_is_asked_about_the_same_examples_each_time():
    model, loss = Shifting(), per_record_loss("cross-entropy")
    x, y = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32), np.arange(5) % 3
    expected = loss(model.last(torch.from_numpy(x) - 1).detach(), torch.from_numpy(y))
    before = x.copy()
    losses = losses_of_models(model, [model.state_dict()] * 3, x, y, loss)
    np.testing.assert_allclose(losses, expected.expand(3, -1), rtol=1e-5)
    for _ in range(2):
        np.testing.assert_allclose(outputs_of(model, x), model.last(torch.from_numpy(before) - 1).detach(), rtol=1e-5)
    shadow = ShadowModel(model, x[0], mean_loss("cross-entropy"))
    start = shadow.flatten(model.state_dict())
    once, again = (
        shadow.record_gradients(start, torch.from_numpy(x), torch.from_numpy(y), generator=torch.Generator())
        for _ in range(2)
    )
    assert torch.equal(once, again)
    np.testing.assert_array_equal(x, before)


def test_no_clients_and_no_records_give_empty_tables():
    model, states, x, y = setting("mlp")
    assert losses_of_models(model, [], x, y, CROSS_ENTROPY).shape == (0, 23)
    assert losses_of_models(model, states, x[:0], y[:0], CROSS_ENTROPY).shape == (3, 0)
    with pytest.raises(DataError, match="at least one example"):
        accuracy_of_models(model, states, x[:0], y[:0])


def test_a_state_that_lacks_a_parameter_is_refused_rather_than_filled_in():
    model, states, x, y = setting("mlp")
    partial = [{name: value for name, value in states[0].items() if name != "fc2.bias"}]
    with pytest.raises(ModelError, match=r"missing: fc2.bias \(5,\)"):
        losses_of_models(model, partial, x, y, CROSS_ENTROPY)


def test_records_and_targets_that_do_not_fit_are_refused():
    model, states, x, y = setting("sia-cnn")
    with pytest.raises(DataError, match="got 23 examples and 22 targets"):
        losses_of_models(model, states, x, y[:22], CROSS_ENTROPY)
    with pytest.raises(ModelError, match=r"the model failed on examples of shape \(16, 16\)") as caught:
        losses_of_models(model, states, x[:, 0], y, CROSS_ENTROPY)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="labels in 0 … 4"):
        losses_of_models(model, states, x, y + 1, CROSS_ENTROPY)
    with pytest.raises(ModelError, match=r"accuracy: expected .*\(23, 5\) and \(23, 1\)"):
        accuracy_of_models(model, states, x, y[:, None])


def test_r2_is_scikit_learns():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(300, 4)).astype(np.float32), draw.normal(size=300).astype(np.float32)
    model = build_model("linear", input_shape=(4,), classes=1, seed=0)
    states = [build_model("linear", input_shape=(4,), classes=1, seed=seed).state_dict() for seed in (1, 2)]
    predicted = [x @ state["fc1.weight"].numpy().T + state["fc1.bias"].numpy() for state in states]
    expected = [r2_score(y, values[:, 0]) for values in predicted]
    np.testing.assert_allclose(r2_of_models(model, states, x, y), expected, rtol=1e-5)
    for constant in (y[:0], np.ones(300, dtype=np.float32)):
        with pytest.raises(DataError, match="at least two different targets"):
            r2_of_models(model, states, x[: len(constant)], constant)
