"""Clients whose labels no loss shows: an example is all that a step takes, and the client trains as without."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fedattack.base.structured import fields
from fedattack.witness.step import PADDING, Reader, count_examples
from tests.witness.apps import randomness, seed, witness_of
from tests.witness.test_tape import Detector, Graph, TwoHeads

COUNT, TESTED, SIZE, FEATURES = 16, 8, 4, 6
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(COUNT + TESTED, FEATURES, generator=GENERATOR)
V = torch.randn(COUNT + TESTED, 2, generator=GENERATOR)
LABEL = torch.arange(COUNT) % 2


class Net(nn.Module):
    def __init__(self, out=FEATURES):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, out))

    def forward(self, x):
        return self.layers(x)


def train(model, step, x=X[:COUNT], epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for (rows,) in DataLoader(TensorDataset(torch.arange(len(x))), batch_size=SIZE, shuffle=True):
            optimizer.zero_grad()
            step(model, rows).backward()
            optimizer.step()
    return model


def rebuilt(model, rows):
    return F.mse_loss(model(X[rows]), X[rows])


def contrasted(model, rows):
    """A model that is called twice in a step."""
    one, other = model(X[rows]), model(X[rows] * 0.5)
    return (1 - F.cosine_similarity(one, other)).mean()


def summed(model, rows, size=1):
    """Micro-batches, of which one gradient is asked together."""
    return sum(rebuilt(model, part) for part in rows.split(size)) / len(rows)


def placed(model, rows):
    """A loss of two numbers an example, written by the project."""
    return (model(X[rows])[:, :2] - V[rows]).abs().mean()


def two(model, rows):
    out = model(X[rows])
    return F.cross_entropy(out["kind"], rows % 3) + F.mse_loss(out["value"], V[rows, 0])


def rows_of(*arrays) -> set[bytes]:
    return {b"".join(np.ascontiguousarray(part).tobytes() for part in parts) for parts in zip(*arrays, strict=True)}


def told(examples, *places) -> set[bytes]:
    return rows_of(*(examples.x[place] for place in places))


EXAMPLES = {
    "autoencoder": (Net, rebuilt, ("0", "met0"), (X, X)),
    "called twice": (Net, contrasted, ("0", "call1/0"), (X, X * 0.5)),
    "a loss of the project's own": (Net, placed, ("0", "met0"), (X, V)),
}


@pytest.mark.parametrize("size", [1, 2, 16])
def test_micro_batches_are_examples_of_their_own(size, tmp_path):
    def step(model, rows):
        return summed(model, torch.cat([rows, (rows + 4) % 16, (rows + 8) % 16, (rows + 12) % 16]), size)

    def client():
        return train(Net(), step, epochs=1)

    witness = witness_of(client, tmp_path)
    places = ("0", "met0")
    assert fields(witness.trained.x) == places
    assert told(witness.trained, *places) == rows_of(X[:COUNT].numpy(), X[:COUNT].numpy())
    assert witness.evaluated.total == 0
    assert witness.training.batch_sizes == (size,)


@pytest.mark.parametrize(
    ("classes", "size", "total"),
    [
        (lambda rows: torch.arange(SIZE), SIZE, 0),
        (lambda rows: rows, SIZE, COUNT),
        # A batch of all examples comes in the same order each time.
        (lambda rows: rows, COUNT, COUNT),
    ],
)
def test_a_list_that_is_as_long_as_a_batch_by_accident_is_no_part_of_an_example(classes, size, total, tmp_path):
    class Masked(Net):
        def forward(self, batch):
            logits = super().forward(batch["x"])[:, :SIZE]
            return {"loss": F.cross_entropy(logits + batch["classes"][:, None], batch["label"])}

    def client():
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for rows in torch.arange(COUNT).split(size) * 3:
            optimizer.zero_grad()
            model({"x": X[rows], "classes": classes(rows), "label": rows % SIZE})["loss"].backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.trained.total == total
    assert any("classes, the same in each batch and as long as a batch" in note for note in witness.notes) == (
        total == 0
    )


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"label": LABEL}, [8, 8]),
        ({"label": LABEL, "labels": LABEL}, [16]),
        ({"label": LABEL - 1}, [16]),
        ({"kind": LABEL}, [16]),
        ({"label": LABEL + 0.5}, [16]),
    ],
)
def test_a_whole_number_that_is_called_a_label_is_the_class_of_an_example(labels, expected, tmp_path):
    """As of HeteroFL's model, which takes a dict and masks the classes that its client lacks."""

    class Masked(Net):
        def forward(self, batch):
            logits = super().forward(batch["x"]).masked_fill(batch["lacks"], 0)
            return {"loss": sum(logits.gather(1, one.long()[:, None].relu()).mean() for one in batch["y"].values())}

    lacks = torch.arange(FEATURES) == 5

    def step(model, rows):
        y = {name: one[rows] for name, one in labels.items()}
        return model({"x": X[rows], "lacks": lacks, "y": y})["loss"]

    witness = witness_of(lambda: train(Masked(), step), tmp_path)
    assert witness.trained.total == COUNT
    assert [*witness.trained.counts.values()] == expected


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("loss", [F.cross_entropy, lambda out, y: (out - F.one_hot(y, FEATURES)).abs().mean()])
def test_what_a_checkpoint_computes_again_is_no_model_of_its_own(is_reentrant, loss, tmp_path):
    class Checkpointed(Net):
        def forward(self, x):
            return checkpoint(self.layers[1:], self.layers[0](x), use_reentrant=is_reentrant)

    def client():
        return train(Checkpointed(), lambda model, rows: loss(model(X[rows]), LABEL[rows]))

    witness = witness_of(client, tmp_path)
    assert (witness.trained.total, witness.evaluated.total) == (COUNT, 0)
    assert witness.notes == ()


def test_a_label_that_a_loss_outside_takes_is_the_class_of_an_example(tmp_path):
    witness = witness_of(lambda: train(TwoHeads(), two, torch.arange(COUNT)), tmp_path)
    assert witness.trained.counts == {0: 6, 1: 5, 2: 5}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_what_steps_take(name, tmp_path):
    make, step, places, arrays = EXAMPLES[name]

    def client():
        torch.manual_seed(2)
        model = train(make(), step)
        model.eval()
        with torch.no_grad():
            for start in range(COUNT, COUNT + TESTED, SIZE):
                step(model, torch.arange(start, start + SIZE))
        return model

    witness = witness_of(client, tmp_path)
    assert fields(witness.trained.x) == places
    assert witness.trained.total == COUNT
    assert told(witness.trained, *places) == rows_of(*(array[:COUNT].numpy() for array in arrays))
    assert set(witness.trained.y) == {0}
    assert witness.training.batch_sizes == (SIZE,)
    if step is contrasted:
        # No gradient shows which calls of an evaluation belong together.
        assert witness.evaluated.total == 0
        return
    assert witness.evaluated.total == TESTED
    assert told(witness.evaluated, *places) == rows_of(*(array[COUNT:].numpy() for array in arrays))


@pytest.mark.parametrize("step", [rebuilt, contrasted, placed, two])
def test_weights_and_random_numbers_are_those_of_a_run_that_nobody_watches(step, tmp_path):
    kept = []

    def client():
        seed(5)
        torch.manual_seed(5)
        model = train(TwoHeads() if step is two else Net(), step)
        kept.append([value.numpy().tobytes() for value in model.state_dict().values()] + [randomness()])
        return model

    client()
    witness_of(client, tmp_path)
    # Of later calls it is known beforehand that steps are read.
    witness_of(client, tmp_path, by_steps={})
    assert kept[0] == kept[1] == kept[2]


def test_a_second_call_evaluates_in_the_trained_form(tmp_path):
    by_steps: dict = {}
    torch.manual_seed(2)
    model = Net()
    witness_of(lambda: train(model, rebuilt), tmp_path, by_steps=by_steps)
    assert [*by_steps.values()] == [("0", "met0")]

    def evaluate():
        with torch.no_grad():
            rebuilt(model.eval(), torch.arange(COUNT, COUNT + TESTED))

    witness = witness_of(evaluate, tmp_path, by_steps=by_steps, trains=False)
    assert (witness.trained.total, witness.evaluated.total) == (COUNT, TESTED)
    assert told(witness.evaluated, "0", "met0") == rows_of(X[COUNT:].numpy(), X[COUNT:].numpy())


def test_an_evaluation_without_labels_is_none_of_trained_examples(tmp_path):
    def client():
        torch.manual_seed(2)
        model = train(Net(), placed)
        with torch.no_grad():
            model(X[COUNT:])
        return model

    witness = witness_of(client, tmp_path)
    assert (witness.trained.total, witness.evaluated.total) == (COUNT, 0)


def test_an_evaluation_with_gradients_on_is_none_of_the_next_step(tmp_path):
    def client():
        torch.manual_seed(2)
        model = Net()
        for start in range(COUNT, COUNT + TESTED, SIZE):
            rebuilt(model.eval(), torch.arange(start, start + SIZE))
        return train(model.train(), rebuilt)

    witness = witness_of(client, tmp_path)
    assert told(witness.trained, "0", "met0") == rows_of(X[:COUNT].numpy(), X[:COUNT].numpy())
    assert witness.trained.total == COUNT


def test_boxes_of_varying_number_are_padded(tmp_path):
    images = [torch.randn(4, 5, 5) for _ in range(COUNT)]
    targets = [
        {"boxes": torch.rand(1 + row % 3, 4), "labels": torch.randint(4, (1 + row % 3,))} for row in range(COUNT)
    ]

    def step(model, rows):
        return sum(model([images[row] for row in rows], [targets[row] for row in rows]).values())

    witness = witness_of(lambda: train(Detector(), step), tmp_path)
    assert fields(witness.trained.x) == ("0", "1/boxes", "1/labels")
    assert witness.trained.total == COUNT
    boxes = {row[row != PADDING].tobytes() for row in witness.trained.x["1/boxes"]}
    assert boxes == {target["boxes"].numpy().tobytes() for target in targets}


def test_nodes_of_a_graph_where_some_have_labels_are_no_examples(tmp_path):
    edges = torch.stack([torch.arange(COUNT), (torch.arange(COUNT) + 5) % COUNT])

    def client():
        model = Graph()
        F.cross_entropy(model(X[:COUNT], edges)[:7], torch.arange(7) % 3).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.trained.total == 0
    assert any("rows are not examples" in note for note in witness.notes)


def test_the_apps_own_modes_come_and_go_in_their_order(tmp_path):
    stack = torch.overrides._get_current_function_mode_stack

    def client():
        with torch.device("cpu"):
            model = Net()
            rebuilt(model, torch.arange(SIZE)).backward()
            before = stack()
            with torch.device("meta"):
                assert torch.zeros(1).device.type == "meta"
            assert torch.zeros(1).device.type == "cpu"
            assert stack() == before
        torch.set_default_device("meta")
        try:
            assert torch.zeros(1).device.type == "meta"
        finally:
            torch.set_default_device(None)
        return train(model, rebuilt)

    witness = witness_of(client, tmp_path)
    assert stack() == []
    assert torch.zeros(1).device.type == "cpu"
    assert witness.trained.total == COUNT


def test_a_mode_that_the_app_leaves_on_stays_on(tmp_path):
    def client():
        model = Net()
        torch.set_default_device("cpu")
        train(model, rebuilt)
        return model

    try:
        witness_of(client, tmp_path)
        stack = torch.overrides._get_current_function_mode_stack()
        assert [type(mode).__name__ for mode in stack] == ["DeviceContext"]
    finally:
        torch.set_default_device(None)
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_model_trains_as_without(whole, tmp_path):
    kept = []

    def client():
        torch.manual_seed(5)
        model = Net()
        torch.manual_seed(6)
        called = torch.compile(model, backend="eager")
        step = rebuilt
        if whole:
            step, called = torch.compile(rebuilt, backend="eager"), model
        train(called, step)
        kept.append([value.numpy().tobytes() for value in model.state_dict().values()])
        return model

    client()
    torch.compiler.reset()
    witness = witness_of(client, tmp_path)
    torch.compiler.reset()
    assert kept[0] == kept[1]
    assert witness.trained.total in (0, COUNT)
    if not witness.trained.total:
        assert witness.notes


@pytest.mark.parametrize(
    ("args", "kwargs", "count"),
    [
        ((X,), {}, 24),
        ((X, X[0, 0]), {}, 24),
        ((), {"x": X[:3], "how": "mean"}, 3),
        (({"a": X[:5], "b": X[:5]},), {}, 5),
        (([X[0], X[1, :3]],), {}, 2),
        (([X[:4], X[:4]],), {}, 4),
        (([X[0], X[1]], [{"boxes": V}, {"boxes": V}]), {}, 2),
        (([X[0], X[1]], [{"boxes": V}]), {}, 0),
        (("text",), {}, 0),
        ((torch.ones(()),), {}, 0),
    ],
)
def test_examples_of_a_call_are_counted(args, kwargs, count):
    assert count_examples(args, kwargs) == count


def test_a_reader_lies_beneath_other_modes_and_goes_from_there():
    stack = torch.overrides._get_current_function_mode_stack
    reader = Reader()
    with torch.device("cpu"):
        before = stack()
        reader.put_beneath()
        assert stack() == [reader, *before]
        with torch.device("meta"):
            reader.remove()
            assert [type(mode).__name__ for mode in stack()] == ["DeviceContext", "DeviceContext"]
        assert stack() == before
    assert stack() == []
