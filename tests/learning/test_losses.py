import math

import pytest
import torch

from fedattack.base.errors import ModelError
from fedattack.learning import per_record_loss

cross_entropy = per_record_loss("cross-entropy")


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [
        ([0.0, 100.0], 1, math.exp(-100)),
        ([1000.0, -1000.0], 1, 2000.0),
        ([1000.0, -1000.0], 0, 0.0),  # exp(-2000) is below the smallest float64
        ([0.0, 700.0], 1, math.exp(-700)),
        ([0.0, 0.0, 0.0, 0.0], 2, math.log(4)),
        ([3.0, 3.0, -60.0], 1, math.log(2) + math.exp(-63) / 2),
        ([3e38, 3e38], 0, math.log(2)),
    ],
)
def test_cross_entropy_of_known_logits(logits, label, expected):
    loss = cross_entropy(torch.tensor([logits]), torch.tensor([label]))
    assert loss.dtype == torch.float64
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=0)


def test_cross_entropy_is_that_of_torch_in_float64():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(200, 7, generator=generator)
    labels = torch.randint(7, (200,), generator=generator)
    expected = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    torch.testing.assert_close(cross_entropy(logits, labels), expected, rtol=1e-9, atol=1e-12)


def test_confident_models_do_not_tie():
    margins = torch.arange(20.0, 700.0, 5.0)
    losses = cross_entropy(
        torch.stack([margins, torch.zeros_like(margins)], dim=1), torch.zeros(len(margins), dtype=int)
    )
    assert (losses.diff() < 0).all()
    assert (losses > 0).all()


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [
        ((2, 3), [0, 3], "labels in 0 … 2, as the model has 3 outputs; got 0 to 3"),
        ((2, 3), [-1, 0], "got -1 to 0"),
        ((2, 3), [0], r"got \(2, 3\) and \(1,\)"),
        ((2,), [0, 1], r"got \(2,\) and \(2,\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(shape, labels, message):
    with pytest.raises(ModelError, match=message):
        cross_entropy(torch.zeros(shape), torch.tensor(labels))


def test_mse_of_known_values():
    loss = per_record_loss("mse")
    losses = loss(torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    assert losses.dtype == torch.float64
    assert losses.tolist() == [0.5, 12.5]
    assert loss(torch.tensor([[2.0], [5.0]]), torch.tensor([1, 3])).tolist() == [1.0, 4.0]
    with pytest.raises(ModelError, match=r"got \(2, 2\) and \(2,\)"):
        loss(torch.zeros(2, 2), torch.zeros(2))


def test_a_loss_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "their_losses.py").write_text(
        "def l1(outputs, targets):\n    return (outputs - targets).abs().sum(1)\n"
        "def mean(outputs, targets):\n    return (outputs - targets).abs().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    losses = per_record_loss("their_losses:l1")(torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.zeros(2, 2))
    assert losses.dtype == torch.float64
    assert losses.tolist() == [3.0, 4.0]
    with pytest.raises(
        ModelError, match=r"'their_losses:mean': expected one loss for each example, shape \(2,\); got \(\)"
    ):
        per_record_loss("their_losses:mean")(torch.zeros(2, 2), torch.zeros(2, 2))


def test_unknown_loss_lists_the_known_ones():
    with pytest.raises(ModelError, match="unknown loss 'hinge'; expected one of cross-entropy, mse, own, or"):
        per_record_loss("hinge")
