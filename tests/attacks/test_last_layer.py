"""What enters and leaves a last layer is read off gradients as it is computed by the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import Knowledge, Targets, write_knowledge
from fedattack.attacks.answers import AskedOutputs
from fedattack.attacks.first_layer import FirstLayer
from fedattack.attacks.knowledge_files import OUTPUTS, read_knowledge
from fedattack.attacks.last_layer import (
    compute_outputs,
    find_known_last_layer,
    find_last_layer,
    find_outputs,
    list_shares,
)
from fedattack.attacks.roles import HEAD, ArrayRole
from fedattack.base.errors import DataError, NeedsError
from fedattack.base.files import write_npz
from fedattack.learning import LocalSGD
from tests.attacks.probing import cross_entropy, probe_of

EXAMPLES, CLASSES = 9, 3


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("sure", [1.0, 30.0])
def test_outputs_are_those_that_the_model_computes(has_bias, sure):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, CLASSES, bias=has_bias))
    with torch.no_grad():
        # A model that is nearly sure of some examples has gradients that are nearly 0.
        model[2].weight.mul_(sure)
    x, y = torch.randn(EXAMPLES, 5), torch.arange(EXAMPLES) % CLASSES
    last = find_last_layer(model)
    probe = probe_of(model, x, y)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model(x), y, reduction="none").double().numpy()
    found = find_outputs(last, probe.gradients, y.numpy(), losses)
    expected = compute_outputs(
        model, last, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy()
    )
    np.testing.assert_allclose(found.softmax, expected.softmax, atol=2e-5)
    tells = losses > 1e-3
    np.testing.assert_allclose(found.inputs[tells], expected.inputs[tells], rtol=1e-3, atol=1e-3)
    turned = replace(last, is_transposed=True)
    gradients = {**probe.gradients, last.weight: probe.gradients[last.weight].transpose(0, 2, 1)}
    np.testing.assert_array_equal(find_outputs(turned, gradients, y.numpy(), losses).inputs, found.inputs)


def test_the_last_layer_is_the_last_head_of_a_softmax():
    def head(name, **facts):
        return ArrayRole(name, (4, 8), HEAD, "it tells", is_softmax=True, **facts)

    roles = (head("a"), head("b", bias="c"), replace(head("c", bias="c"), shape=(4,)))
    last = find_known_last_layer(Knowledge(roles=roles))
    assert (last.weight, last.bias, last.classes, last.inputs) == ("b", "c", 4, 8)
    last = find_known_last_layer(Knowledge(roles=(head("a", is_transposed=True),)))
    assert (last.bias, last.classes, last.inputs) == (None, 8, 4)
    with pytest.raises(NeedsError, match="no array is one"):
        find_known_last_layer(Knowledge(roles=(replace(head("a"), is_softmax=False),)))
    assert not last.fits({"a": np.zeros((8, 4))})


def test_models_between_start_and_end_are_as_many_as_steps_at_most():
    assert list_shares(None, 40) == [0]
    assert list_shares(LocalSGD(1, 8, 0.1), 16) == [0, 0.5]
    assert len(list_shares(LocalSGD(9, 8, 0.1), 16)) == 5


def shown(**others) -> dict[str, np.ndarray]:
    arrays = {
        "seqs": np.array([0, 0, 1]),
        "nodes": np.array(["", "7", ""]),
        "shares": np.array([0.0, 0.5, 0.0]),
        "rows": np.array([0, 2]),
        "softmax": np.arange(18, dtype=np.float32).reshape(3, 2, 3),
        "inputs": np.zeros((3, 2, 4), np.float32),
    }
    return arrays | others


def test_what_all_were_sent_is_every_clients_and_what_lies_between_is_its_own():
    found = AskedOutputs(**shown())
    assert found.find(0, "9", 0.0, is_common=True)[0].flat[0] == 0
    assert found.find(0, "7", 0.5, is_common=True)[0].flat[0] == 6
    assert found.find(0, "9", 0.5, is_common=True) is None
    assert found.find(2, "7", 0.0, is_common=True) is None
    # What was sent to this client alone is not what the others were sent.
    assert found.find(0, "9", 0.0, is_common=False) is None


def test_outputs_and_roles_survive_the_disk(tmp_path):
    own = Targets(np.zeros((3, 5), np.float32), np.zeros(3, np.int64))
    role = ArrayRole("w", (5, 8), HEAD, "it tells", bias="b", scale=(1.0, 2.0), columns=(1, 4))
    write_knowledge(tmp_path, Knowledge(auxiliary=own, outputs=AskedOutputs(**shown()), roles=(role,)))
    again = read_knowledge(tmp_path)
    assert again.roles == (role,)
    np.testing.assert_array_equal(again.outputs.softmax, shown()["softmax"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": np.array([0, 3])}, "rows go beyond the 3 auxiliary examples"),
        ({"shares": np.array([0.0, 2.0, 0.0])}, "shares"),
        ({"softmax": np.zeros((2, 2, 3), np.float32)}, "softmax"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_in_one_line(wrong, said, tmp_path):
    own = Targets(np.zeros((3, 5), np.float32), np.zeros(3, np.int64))
    write_knowledge(tmp_path, Knowledge(auxiliary=own))
    write_npz(tmp_path / OUTPUTS, shown(**wrong))
    with pytest.raises(DataError, match=said):
        read_knowledge(tmp_path)


def test_gradients_are_of_the_loss_that_is_differentiated():
    """The closed form (p − onehot) ⊗ h, by which everything here is."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, CLASSES), torch.randn(EXAMPLES, 4), torch.arange(EXAMPLES) % CLASSES
    probe = probe_of(model, x, y, cross_entropy)
    error = torch.softmax(model(x), dim=1).detach().numpy() - np.eye(CLASSES)[y.numpy()]
    np.testing.assert_allclose(probe.gradients["weight"], error[:, :, None] * x.numpy()[:, None], atol=1e-6)


def test_a_first_layer_whose_input_is_scaled_moves_as_one_of_the_input_would():
    rng = np.random.default_rng(0)
    scale, shift = (2.0, -0.5, 3.0), (1.0, 0.0, -2.0)
    layer = FirstLayer("w", "b", 3, 4, is_relu=True, scale=scale, shift=shift)
    joined, x, error = rng.normal(size=(4, 4)), rng.normal(size=3), rng.normal(size=4)
    entering = x * scale + np.array(shift)
    own = layer.unscale_weights(joined)
    np.testing.assert_allclose(own @ np.append(x, 1), joined @ np.append(entering, 1))
    moved = layer.unscale_movement(np.outer(error, np.append(entering, 1)))
    np.testing.assert_allclose(moved, np.outer(error, np.append(x, 1)))
    assert layer.coarsening == (1 + 2) / 0.5
