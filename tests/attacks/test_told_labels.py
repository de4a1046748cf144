"""Gradients of known models tell the labels that these were given; what is no gradient tells none."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.attacks.told_labels import list_told_labels, read_labels
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.others import Others

CLASSES = 5


def embeddings(seed=0, rows=20):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator, requires_grad=True)


def gradient_of_two(labels, seed=0):
    torch.manual_seed(seed)
    x, head = embeddings(seed, len(labels)), nn.Linear(6, 1)
    F.binary_cross_entropy_with_logits(head(x)[:, 0], labels.float()).backward()
    return x.grad.numpy()


def gradient_of_logits(labels):
    logits = torch.randn(len(labels), CLASSES, generator=torch.Generator().manual_seed(1), requires_grad=True)
    F.cross_entropy(logits, labels).backward()
    return logits.grad.numpy()


def test_the_sign_of_a_gradient_tells_two_classes_up_to_their_names():
    labels = torch.arange(20) % 3 % 2
    gradient = gradient_of_two(labels)
    told = read_labels(gradient)
    assert told.is_sign
    assert np.array_equal(told.labels, labels) or np.array_equal(told.labels, 1 - labels)
    # Rounded by another step each, rows are multiples of one direction no more.
    assert read_labels(gradient.astype(np.float16)) is None


def test_a_gradient_of_logits_is_negative_at_the_label_alone():
    labels = torch.arange(20) % CLASSES
    gradient = gradient_of_logits(labels)
    told = read_labels(gradient)
    assert not told.is_sign
    np.testing.assert_array_equal(told.labels, labels)
    gradient[3] = 0
    assert read_labels(gradient).labels[3] == -1


def test_what_is_no_such_gradient_tells_nothing():
    draw = np.random.default_rng(0)
    features = draw.normal(size=(20, 6)).astype(np.float32)
    torch.manual_seed(0)
    # Of several classes the gradient of an embedding has as many directions.
    x, head = embeddings(), nn.Linear(6, CLASSES)
    F.cross_entropy(head(x), torch.arange(20) % CLASSES).backward()
    nothing = [
        features,
        np.abs(features),
        features - features.mean(axis=1, keepdims=True),
        np.outer(draw.exponential(size=20), features[0]),
        gradient_of_two(torch.zeros(20)),
        x.grad.numpy(),
        features[:, :1],
        features[:4],
        np.full((20, 6), np.nan),
        np.zeros((20, 6)),
        np.arange(120).reshape(20, 6),
    ]
    assert [read_labels(array) for array in nothing] == [None] * len(nothing)


def test_random_rows_tell_labels_in_none_of_a_thousand_arrays():
    draw = np.random.default_rng(1)
    assert not any(read_labels(draw.normal(size=(8, 3))) for _ in range(1000))


def test_the_page_names_the_array_and_the_way(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    labels = torch.arange(20) % 2
    others = [Others("query.back", "sent", ("a",), arrays={"g.x": gradient_of_two(labels, seed)}) for seed in range(3)]
    # A batch of one class tells nothing, and takes nothing from the others.
    others.append(Others("query.back", "sent", ("b",), arrays={"g.x": gradient_of_two(torch.zeros(20))}))
    others += [
        Others("query.forward", "reply", ("a",), arrays={"e.x": embeddings(seed).detach().numpy()}) for seed in (1, 2)
    ]
    writer.write(Exchange(1, {"w": np.zeros(2)}, [], others=others))
    writer.close()
    (line,) = list_told_labels(Record(tmp_path / "record"))
    assert line.startswith("g.x in messages query.back that the server sends to clients reveals labels: each of 60 r")


@pytest.mark.parametrize("back", [{}, {"g.x": 0}])
def test_gradients_in_training_messages_tell_labels_unless_clients_send_such_an_array_back(tmp_path, back):
    """What comes back is a model, whatever its rows are."""
    labels = torch.arange(20) % 2
    replies = []
    for seed, node in enumerate("ab"):
        gradient = {"g.x": gradient_of_two(labels, seed)}
        answer = {name: gradient[name] + 1 for name in back}
        replies.append(Reply(node, "ok", answer, 4, received=gradient))
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, {"w": np.zeros(2)}, replies))
    writer.close()
    told = [*list_told_labels(Record(tmp_path / "record"))]
    if back:
        assert told == []
        return
    (line,) = told
    assert line.startswith("g.x in messages train that the server sends to clients reveals labels: each of 40 rows")
