"""What arrays are, told by gradients alone, is what the types of layers say."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.first_layer import find_first_layer
from fedattack.attacks.last_layer import find_known_last_layer, find_last_layer
from fedattack.attacks.roles import (
    BY_ROW,
    FIRST,
    HEAD,
    LINEAR,
    NORM,
    OTHER,
    POSITIONS,
    PROJECTION,
    TABLE,
    Probe,
    find_roles,
)
from fedattack.attacks.tables import find_tables
from fedattack.base.errors import NeedsError
from fedattack.base.structured import pack
from fedattack.learning import build_model
from fedattack.learning.models import MODELS
from tests.attacks.probing import kinds_of, probe_of, roles_of, shuffle
from tests.attacks.test_tables import Bare, Recommender
from tests.threats.tokens.world import WordModel

EXAMPLES, CLASSES = 8, 4


def labels(classes: int = CLASSES) -> torch.Tensor:
    return torch.arange(EXAMPLES) % classes


def squared(outputs, targets):
    return ((outputs.flatten(1).sum(dim=1) - targets) ** 2).sum()


@pytest.mark.parametrize("spec", sorted({*MODELS} - {"decoder"}))
def test_first_layers_and_heads_are_those_of_the_layers_types(spec):
    known = ModelKnowledge(spec, (1, 16, 16) if "mlp" not in spec and spec != "linear" else (20,), CLASSES)
    torch.manual_seed(0)
    model = known.build()
    roles = roles_of(model, torch.randn(EXAMPLES, *known.input_shape), labels())
    by_gradients = [(role.name, role.bias, role.is_relu) for role in roles if role.kind == FIRST and role.bias]
    try:
        layer = find_first_layer(known)
    except NeedsError:
        assert by_gradients == []
    else:
        weights = [(name, bias, is_relu) for name, bias, is_relu in by_gradients if name != bias]
        assert weights == [(layer.weight, layer.bias, layer.is_relu)]
    heads = [(role.name, role.bias) for role in roles if role.kind == HEAD and role.name != role.bias]
    last = find_last_layer(model)
    assert heads == [(last.weight, last.bias)]
    assert TABLE not in {role.kind for role in roles}


class Rated(nn.Module):
    """Users and items, of which an example names one each."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(12, 3, padding_idx=0), nn.Embedding(60, 3)

    def forward(self, pairs):
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(dim=1, keepdim=True)


class Items(Bare):
    """The table that is no layer, with an output."""

    def forward(self, ids):
        return self.out(self.items[ids].mean(dim=1))


def ids(high: int, count: int = 6) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(1, high, size=(EXAMPLES, count)))


MODELS_WITH_TABLES = {
    "one embedding": (nn.Embedding(60, 8), ids(60), squared),
    "one embedding, one id": (nn.Embedding(60, 8), ids(60, 1), squared),
    "users and items": (Rated(), ids(12, 2), squared),
    "words": (WordModel(), ids(1088, 20), nn.functional.cross_entropy),
    "tied words": (WordModel(tied=True), ids(1088, 20), nn.functional.cross_entropy),
    "padded words": (WordModel(padding=0), ids(1088, 20) * (torch.arange(20) < 15), nn.functional.cross_entropy),
}


@pytest.mark.parametrize("name", [*MODELS_WITH_TABLES])
def test_tables_are_those_of_the_layers_types(name):
    model, x, loss = MODELS_WITH_TABLES[name]
    roles = roles_of(model, x, labels(), loss)
    targets = Targets(pack({"0": x.numpy()}), labels().numpy())
    expected = find_tables(model, Knowledge(targets=targets))
    assert {role.name for role in roles if role.kind == TABLE} == {table.name for table in expected}
    assert {role.is_tied for role in roles if role.kind == TABLE} == {name == "tied words"}


def test_tables_that_are_no_layers_are_found_and_ids_need_no_shape():
    torch.manual_seed(0)
    model = Items()
    nn.init.normal_(model.items)
    # Ids whose rows nobody could count: shifted, and stored as numbers with a point.
    shifted = roles_of(model, ids(25), labels())
    assert kinds_of(shifted)["items"] == [TABLE]

    class Hashed(Items):
        def forward(self, numbers):
            return super().forward((numbers * 7.5).long() % 30)

    hashed = Hashed()
    nn.init.normal_(hashed.items)
    roles = roles_of(hashed, torch.rand(EXAMPLES, 4) * 9, labels())
    assert kinds_of(roles)["items"] == [TABLE]
    (table,) = (role for role in roles if role.kind == TABLE)
    assert "not on the weights" in table.evidence


def test_a_table_whose_users_are_a_bag_is_one():
    class Bags(Recommender):
        def forward(self, ids):
            return self.items(ids) * self.users(ids[:, 0] % 12)

    roles = roles_of(Bags(), ids(20, 3), labels(2))
    assert {name for name, kinds in kinds_of(roles).items() if kinds == [TABLE]} == {"items.weight", "users.weight"}


def test_rows_that_a_relu_leaves_alone_are_no_table():
    torch.manual_seed(3)
    # About a third of 60 rows move, and others for each example; without a bias nothing else tells of a layer.
    model = nn.Sequential(nn.Linear(9, 60, bias=False), nn.ReLU(), nn.Linear(60, CLASSES))
    roles = roles_of(model, torch.randn(EXAMPLES, 9) - 0.5, labels())
    assert TABLE not in {role.kind for role in roles}
    numbers = torch.randint(0, 5, (EXAMPLES, 9)).float()
    assert TABLE not in {role.kind for role in roles_of(model, numbers, labels())}


@pytest.mark.parametrize("classes", [2, 4])
def test_a_head_needs_no_bias_and_no_other_layer_is_one(classes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, classes, bias=False))
    kinds = kinds_of(roles_of(model, torch.randn(EXAMPLES, 9), labels(classes)))
    assert (kinds["2.weight"], kinds["0.weight"]) == ([HEAD], [FIRST])


def test_one_logit_tells_a_label_by_its_sign_and_labels_that_mean_nothing_are_not_told():
    torch.manual_seed(0)
    x, y = torch.randn(EXAMPLES, 5), labels(2)

    def loss(outputs, labels):
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())

    roles = roles_of(nn.Linear(5, 1), x, y, loss)
    assert kinds_of(roles)["weight"] == [FIRST, HEAD]
    assert "sign" in next(role.evidence for role in roles if role.kind == HEAD)
    # The labels of others: the gradients do not tell these.
    model = nn.Linear(5, 1)
    found = [probe_of(model, x, y, loss)]
    assert HEAD not in {role.kind for role in find_roles(found, x.numpy(), np.roll(y.numpy(), 1))}


@pytest.mark.parametrize(
    "last", [nn.Conv1d(12, 12, 2), nn.Conv1d(12, 12, 4), nn.Sequential(nn.Flatten(), nn.Linear(48, 12))]
)
def test_a_loss_of_the_labels_output_alone_moves_the_row_of_the_label(last):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 12, 3), nn.ReLU(), last)

    def loss(outputs, labels):
        return outputs.flatten(2 if outputs.ndim > 2 else 1)[torch.arange(len(labels)), labels].square().mean()

    roles = roles_of(model, torch.randn(EXAMPLES, 1, 6), labels(), loss)
    heads = [role for role in roles if role.kind == HEAD]
    assert {role.evidence for role in heads if role.name.endswith("weight")} == {BY_ROW}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda x: x, {}),
        (lambda x: 2 * x - 1, {"scale": 2.0, "shift": -1.0}),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0, 0.5, 1.0]) + 1, {"scale": (1, 2, 3, 0.5, 1), "shift": 1.0}),
        (lambda x: x[:, [3, 1]], {"columns": (3, 1)}),
        (lambda x: torch.tanh(x), None),
    ],
)
def test_a_first_layer_takes_the_example_or_a_known_function_of_it(change, facts):
    class Changed(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(width, 16)), nn.Parameter(torch.randn(16))
            self.out = nn.Linear(16, CLASSES)

        def forward(self, x):
            # Neurons are columns, as in code that is written by hand.
            return self.out(torch.relu(change(x) @ self.w + self.b))

    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 5)
    first = [role for role in roles_of(Changed(change(x).shape[1]), x, labels()) if role.name == "w"]
    if facts is None:
        assert [role.kind for role in first] == [LINEAR]
        return
    (role,) = first
    assert (role.kind, role.bias, role.is_transposed, role.is_relu) == (FIRST, "b", True, True)
    assert role.is_unchanged == (facts == {})
    np.testing.assert_allclose(role.scale, np.broadcast_to(facts.get("scale", 1.0), len(role.scale)), atol=1e-3)
    np.testing.assert_allclose(role.shift, np.broadcast_to(facts.get("shift", 0.0), len(role.shift)), atol=1e-3)
    assert role.columns == facts.get("columns", ())


class Attending(nn.Module):
    """A layer of a transformer on words, and what tells a label of the first one."""

    def __init__(self, fused: bool):
        super().__init__()
        self.words, self.fused = nn.Embedding(50, 12), fused
        self.qkv = nn.Linear(12, 36) if fused else nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.between, self.norm, self.out = nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, CLASSES)

    def forward(self, ids):
        h = self.words(ids)
        q, k, v = self.qkv(h).chunk(3, dim=-1) if self.fused else (one(h) for one in self.qkv)
        h = h + self.between(torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v)
        return self.out(self.norm(torch.tanh(h).square().sum(dim=1)))


@pytest.mark.parametrize("fused", [True, False])
def test_projections_lie_in_one_span_and_normalisations_are_pairs(fused):
    torch.manual_seed(0)
    kinds = kinds_of(roles_of(Attending(fused), ids(50, 5), labels()))
    projections = {name for name, of_array in kinds.items() if of_array == [PROJECTION]}
    assert projections == ({"qkv.weight"} if fused else {f"qkv.{index}.weight" for index in range(3)})
    assert {name for name, of_array in kinds.items() if of_array == [NORM]} == {"norm.weight", "norm.bias"}
    assert kinds["words.weight"] == [TABLE]


def test_one_example_shows_nothing():
    x, y = torch.randn(1, 9), labels()[:1]
    roles = roles_of(nn.Linear(9, 3), x, y)
    assert {role.kind for role in roles} == {OTHER}
    assert "1 examples are too few" in roles[0].evidence


def test_roles_that_change_and_arrays_without_gradients_are_said_and_not_guessed():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, CLASSES)), torch.randn(EXAMPLES, 9)
    first = probe_of(model, x, labels())
    # Under the other model another layer takes the example.
    swapped = {**first.gradients, "0.weight": first.gradients["0.weight"][::-1]}
    role = find_roles([first, Probe(swapped, first.touched)], x.numpy(), labels().numpy())[0]
    assert role.kind == OTHER
    assert role.evidence.startswith("its role changes with the weights: first layer; ")
    left = {name: gradient for name, gradient in first.gradients.items() if not name.startswith("0")}
    probe = Probe(left, missing={"0.weight": "the step gives none", "0.bias": "the step gives none"})
    roles = find_roles([probe], x.numpy(), labels().numpy())
    assert kinds_of(roles) == {"2.weight": [HEAD], "2.bias": [HEAD], "0.weight": [OTHER], "0.bias": [OTHER]}
    assert roles[-1].evidence == "the step gives none"


def test_too_few_rows_labels_alike_and_models_that_do_not_move_tell_nothing():
    torch.manual_seed(0)
    # Nine rows are no table.
    assert kinds_of(roles_of(nn.Embedding(9, 3), ids(9, 1), labels(), squared))["weight"] != [TABLE]
    model, x = nn.Linear(5, CLASSES), torch.randn(EXAMPLES, 5)
    assert HEAD not in {role.kind for role in roles_of(model, x, torch.zeros(EXAMPLES, dtype=torch.int64))}
    still = roles_of(model, x, labels(), lambda outputs, labels: 0 * outputs.sum())
    assert {role.evidence for role in still} == {"no example moves it"}


def test_weights_may_be_of_any_models_numbers():
    """Roles do not depend on the seed of the weights: nulls and wholes, over some of them."""
    for seed in range(10):
        torch.manual_seed(seed)
        model = build_model("mlp", input_shape=(12,), classes=CLASSES)
        x = torch.randn(EXAMPLES, 12)
        kinds = kinds_of(roles_of(model, x, labels()))
        assert [*kinds.values()] == [[FIRST], [FIRST], [HEAD], [HEAD]]
        shuffle(model)
        # Labels that have nothing to do with the examples' gradients.
        random = np.random.default_rng(seed).permutation(labels().numpy())
        found = find_roles([probe_of(model, x, labels())], x.numpy(), random)
        assert (random == labels().numpy()).all() or HEAD not in {role.kind for role in found}


def test_a_model_that_is_sure_of_most_examples_says_nothing_and_contradicts_nothing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, CLASSES)), torch.randn(EXAMPLES, 9)
    first = probe_of(model, x, labels())
    left = np.arange(EXAMPLES) < 2
    sure = {name: gradient * left.reshape(-1, *[1] * (gradient.ndim - 1)) for name, gradient in first.gradients.items()}
    roles = find_roles([first, Probe(sure)], x.numpy(), labels().numpy())
    assert [*kinds_of(roles).values()] == [[FIRST], [FIRST], [HEAD], [HEAD]]
    table = probe_of(nn.Embedding(60, 3), ids(60, 2), labels(), squared)
    few = {"weight": table.touched["weight"] & left[:, None]}
    (role,) = find_roles([table, Probe({}, few)], np.zeros((EXAMPLES, 2)) + 0.5, labels().numpy())
    assert role.kind != TABLE


class Tied(WordModel):
    """The next word of a text, by a layer that shares the table; it may have a bias."""

    def __init__(self, bias: bool):
        super().__init__(tied=True)
        self.shift = nn.Parameter(torch.zeros(self.embed.num_embeddings)) if bias else None

    def forward(self, ids):
        logits = super().forward(ids)
        return logits if self.shift is None else logits + self.shift


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_that_shares_a_table_is_both(bias):
    torch.manual_seed(0)
    words = torch.arange(900, 900 + EXAMPLES)
    roles = roles_of(Tied(bias), ids(800, 20), words)
    kinds = kinds_of(roles)
    assert kinds["embed.weight"] == [TABLE, HEAD]
    assert {role.is_tied for role in roles if role.name == "embed.weight"} == {True}
    assert {role.ids for role in roles if role.kind == TABLE} == {"0"}
    assert kinds.get("shift") == ([HEAD] if bias else None)
    # The bias alone tells how many examples have a label; from the table's rows nobody reads that off.
    if bias:
        last = find_known_last_layer(Knowledge(roles=roles))
        assert (last.weight, last.bias, last.classes, last.inputs) == ("shift", None, 1088, 1)
    else:
        with pytest.raises(NeedsError, match="a table shares its weights"):
            find_known_last_layer(Knowledge(roles=roles))
    # The null: labels that have nothing to do with the gradients.
    others = roles_of(Tied(bias), ids(800, 20), words)
    found = find_roles([probe_of(Tied(bias), ids(800, 20), words)], ids(800, 20).numpy(), np.roll(words.numpy(), 1))
    assert HEAD in {role.kind for role in others}
    assert HEAD not in {role.kind for role in found}


def test_a_bias_tells_labels_where_its_weights_are_no_outer_products():
    class Pooled(nn.Module):
        """Labels by the largest of three layers' outputs, each with the same bias."""

        def __init__(self):
            super().__init__()
            self.many, self.shift = nn.Parameter(torch.randn(3, 9, CLASSES)), nn.Parameter(torch.zeros(CLASSES))

        def forward(self, x):
            return (x @ self.many).logsumexp(dim=0) + self.shift

    torch.manual_seed(0)
    roles = roles_of(Pooled(), torch.randn(EXAMPLES, 9), labels())
    assert kinds_of(roles) == {"many": [OTHER], "shift": [HEAD]}


def test_positions_are_those_that_move_one_after_the_other():
    class Placed(WordModel):
        """Words in their places, of which a text ends at the first 0."""

        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(40, 8)

        def forward(self, ids):
            there = (ids > 0).float()[:, :, None]
            placed = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
            return self.out(torch.tanh(placed * there).sum(dim=1))

    torch.manual_seed(0)
    for shortest in (20, 12):
        lengths = torch.linspace(shortest, 20, EXAMPLES).long()
        x = ids(1088, 20) * (torch.arange(20) < lengths[:, None])
        kinds = kinds_of(roles_of(Placed(), x, labels()))
        assert (kinds["places.weight"], kinds["embed.weight"]) == ([POSITIONS], [TABLE])
