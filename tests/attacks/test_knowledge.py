from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import (
    AuxiliaryAttribute,
    Knowledge,
    KnownDefence,
    ModelKnowledge,
    PartialRecords,
    Targets,
    read_knowledge,
    read_partial,
    read_targets,
    write_knowledge,
)
from fedattack.attacks.answers import Answers, ShadowLosses, read_answers, read_shadow_losses
from fedattack.attacks.knowledge import Sends
from fedattack.base.errors import DataError, ModelError
from fedattack.learning import LocalSGD
from tests.worlds.federation import CLASSES, FEATURES, MODEL
from tests.worlds.sealed import edit

X = np.zeros((4, FEATURES), dtype=np.float32)
Y = np.array([0, 1, 2, 1])

ENTRY = {name: value for name, value in vars(MODEL).items() if name != "arguments"}
TRAINING = {"epochs": 1, "batch_size": 1, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}


def test_a_model_is_built_with_the_arguments_of_its_own(tmp_path):
    arguments = {"in_features": 3, "out_features": 2, "bias": False, "device": None}
    model = ModelKnowledge("torch.nn:Linear", (3,), 2, arguments=arguments)
    write_knowledge(tmp_path, Knowledge(model=model))
    again = read_knowledge(tmp_path, trusted={"torch.nn:Linear"}).model
    assert again == model
    assert {name: tuple(value.shape) for name, value in again.build().state_dict().items()} == {"weight": (2, 3)}
    with pytest.raises(ModelError, match="no other arguments than nope"):
        replace(model, arguments={"nope": 1}).build()
    edit(tmp_path / "knowledge.json", lambda value: value["model"].update(arguments={"a": {"b": 1}}))
    with pytest.raises(DataError, match="arguments"):
        read_knowledge(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "expected the arrays x and y"),
        ({"x": X[:3], "y": Y}, "as many labels as examples"),
        ({"x": X[:0], "y": Y[:0]}, "at least one"),
        ({"x": X, "y": np.zeros((4, 0), dtype=np.int64)}, "at least one"),
        ({"x": X, "y": Y.astype("m8[s]")}, "not finite numbers"),
        ({"x": np.full_like(X, np.nan), "y": Y}, "not finite"),
        ({"x": X[:, :3], "y": Y}, r"records have shape \(3,\), but the model takes"),
        ({"x": X, "y": Y + CLASSES}, f"integer labels in 0 … {CLASSES - 1}"),
        ({"x": X, "y": Y - 1}, "integer labels"),
        ({"x": X, "y": Y + 0.5}, "integer labels"),
        ({"x": X, "y": np.float64(1)}, "as many labels as examples"),
        ({"x": X, "y": np.array(["a"] * 4)}, "not finite numbers"),
        ({"x": X, "y": np.full(4, np.nan)}, "not finite numbers"),
    ],
)
def test_targets_that_do_not_fit_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "targets.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_targets(tmp_path / "targets.npz", MODEL)


def test_pickled_targets_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "targets.npz", x=np.array([{"a": 1}, None], dtype=object), y=np.array([0, 1]))
    with pytest.raises(DataError, match="plain arrays"):
        read_targets(tmp_path / "targets.npz", MODEL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior": "wishful"}, "prior: input should be 'uniform' or 'examples', got 'wishful'"),
        ({"model": {"spec": "mlp"}}, r"model\.input_shape is missing"),
        ({"model": {**ENTRY, "loss": "hinge"}}, "loss is 'hinge'"),
        ({"model": {**ENTRY, "spec": "mpl"}}, "model is 'mpl'; expected one of"),
        ({"model": {**ENTRY, "hidden": 10**9}}, r"model\.hidden: .* less than or equal to 1000000"),
        ({"training": {"epochs": 1}}, r"training\.batch_size is missing"),
        ({"training": {**TRAINING, "optimizer": "Rprop"}}, r"training\.optimizer"),
        ({"property": "ascent", "positive_share": 1.5}, "positive_share: .* less than 1, got 1.5"),
        ({"whatever": 1}, "whatever: extra inputs are not permitted"),
    ],
)
def test_knowledge_that_is_misstated_is_refused(tmp_path, change, message):
    write_knowledge(tmp_path, Knowledge(model=MODEL, targets=Targets(X, Y)))
    edit(tmp_path / "knowledge.json", change)
    with pytest.raises(DataError, match=message):
        read_knowledge(tmp_path)


def test_broken_json_is_one_line(tmp_path):
    (tmp_path / "knowledge.json").write_text("{")
    with pytest.raises(DataError) as problem:
        read_knowledge(tmp_path)
    assert "\n" not in str(problem.value)


def assert_same(one, other):
    for name, value in vars(one).items():
        np.testing.assert_array_equal(getattr(other, name), value)


EVERYTHING = {
    "prior": {"prior": "examples"},
    "targets": {"targets": Targets(X, Y)},
    "auxiliary": {"auxiliary": Targets(X, Y)},
    "training": {"training": LocalSGD(epochs=2, batch_size=5, lr=0.1, momentum=0.9)},
    "AdamW": {"training": LocalSGD(epochs=2, batch_size=5, lr=0.1, optimizer="AdamW")},
    "property": {"property": "membership", "positive_share": 0.2},
    "nodes": {"nodes": {"17": "a", "4": "b"}},
    "dropout": {"model": replace(MODEL, dropout=0.4)},
    "canaries": {"canaries": ("c",)},
    "sends": {"sends": Sends(("w",), {"17": -1.0})},
    "shadow losses": {
        "targets": Targets(X, Y),
        "shadow_losses": ShadowLosses(np.array([0, 2]), np.arange(24.0).reshape(2, 3, 4)),
    },
}


@pytest.mark.parametrize("given", EVERYTHING.values(), ids=EVERYTHING)
def test_knowledge_survives_the_disk(tmp_path, given):
    known = Knowledge(**{"model": MODEL} | given)
    write_knowledge(tmp_path, known)
    again = read_knowledge(tmp_path)
    for name, value in vars(known).items():
        if isinstance(value, Targets | ShadowLosses):
            assert_same(value, getattr(again, name))
        else:
            assert getattr(again, name) == value
    assert ("optimizer" in (tmp_path / "knowledge.json").read_text()) == (
        known.training is not None and known.training.optimizer != "SGD"
    )


def test_the_range_of_pixels_survives_the_disk_and_has_to_fit_the_channels(tmp_path):
    coloured = ModelKnowledge(spec="mlp", input_shape=(2, 4, 4), classes=3)
    write_knowledge(tmp_path, Knowledge(model=coloured, limits=((-1.0, 2.5), (0.0, 1.0))))
    assert read_knowledge(tmp_path).limits == ((-1.0, 2.5), (0.0, 1.0))
    for wrong in ([[0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]):
        edit(tmp_path / "knowledge.json", {"limits": wrong})
        with pytest.raises(DataError, match="expected the least and the largest input of each of 2 channels"):
            read_knowledge(tmp_path)
    for wrong in ([[0.0]], [["black", "white"]]):
        edit(tmp_path / "knowledge.json", {"limits": wrong})
        with pytest.raises(DataError, match="limits"):
            read_knowledge(tmp_path)


def test_public_records_survive_the_disk(tmp_path):
    write_knowledge(tmp_path, Knowledge(model=MODEL, public=X))
    again = read_knowledge(tmp_path)
    assert again.targets is None
    np.testing.assert_array_equal(again.public, X)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "expected the arrays x"),
        ({"x": X[:0]}, "at least one public record"),
        ({"x": Y}, "at least one public record"),
        ({"x": X * np.nan}, "not finite"),
        ({"x": X[:, :5]}, r"public records have shape \(5,\), but the model takes"),
    ],
)
def test_public_records_that_do_not_fit_are_refused(tmp_path, arrays, message):
    write_knowledge(tmp_path, Knowledge(model=MODEL))
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_knowledge(tmp_path)


REGRESSION = ModelKnowledge(spec="linear", input_shape=(5,), classes=1, loss="mse")


def partial(**changes) -> PartialRecords:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    x[:, [1, 3]] = 0
    given = {
        "x": x,
        "y": np.array([0.5, 1.5, -1, 2], dtype=np.float32),
        "clients": np.array(["a", "b", "b", "a"]),
        "columns": (1, 3),
        "domain": np.float32([[1, 0], [0, 1]]),
        "names": ("yes", "no"),
        "prior": np.array([0.25, 0.75]),
    }
    return PartialRecords(**(given | changes))


@pytest.mark.parametrize("prior", [np.array([0.25, 0.75]), None])
def test_partial_records_and_nodes_survive_the_disk(tmp_path, prior):
    known = Knowledge(model=REGRESSION, partial=partial(prior=prior), nodes={"17": "a", "4": "b"})
    write_knowledge(tmp_path, known)
    again = read_knowledge(tmp_path)
    for name, value in vars(known.partial).items():
        np.testing.assert_array_equal(getattr(again.partial, name), value)
    assert again.partial.names == ("yes", "no")
    assert again.partial.columns == (1, 3)
    assert again.nodes == known.nodes
    assert again.asked() == known.partial.fingerprint != ""
    assert Knowledge().asked() == ""


def test_records_are_completed_without_being_changed():
    known = partial()
    before = known.x.copy()
    np.testing.assert_array_equal(known.complete(1)[:, [1, 3]], [[0, 1]] * 4)
    np.testing.assert_array_equal(known.complete(1)[:, [0, 2, 4]], before[:, [0, 2, 4]])
    np.testing.assert_array_equal(known.x, before)


def arrays_of(records: PartialRecords, **changes):
    given = vars(records) | {"columns": np.array(records.columns), "names": np.array(records.names)} | changes
    return {name: array for name, array in given.items() if array is not None}


def test_names_and_prior_may_be_left_out_of_a_file_from_elsewhere(tmp_path):
    np.savez(tmp_path / "p.npz", **arrays_of(partial(), names=None, prior=None, y=np.array([0.5, 1, 2, 3])))
    read = read_partial(tmp_path / "p.npz", REGRESSION)
    assert (read.names, read.prior, read.y.dtype) == (("1, 0", "0, 1"), None, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": None}, "lacks the array domain"),
        ({"clients": np.array(["a"])}, r"a client for each; got \(4, 5\) and \(1,\)"),
        ({"columns": np.array([1, 9])}, r"columns are \[1, 9\]; expected inputs among 0 … 4"),
        ({"columns": np.array([1])}, r"domain has shape \(2, 2\); expected different values of 1 inputs"),
        ({"domain": np.ones((2, 2))}, "expected different values"),
        ({"domain": np.ones((1, 2))}, "at least two values"),
        ({"x": np.ones((4, 5))}, r"x is not zero in the columns \[1, 3\]"),
        ({"names": np.array(["one"])}, "one name and one share for each of 2"),
        ({"prior": np.array([0.5, 0.6])}, "expected shares that sum to one"),
        ({"y": np.full(4, np.nan)}, "not finite"),
        ({"x": np.zeros((4, 6))}, r"records have shape \(6,\), but the model takes \(5,\)"),
    ],
)
def test_partial_records_that_do_not_fit_are_refused_in_one_line(tmp_path, changes, message):
    np.savez(tmp_path / "p.npz", **arrays_of(partial(), **changes))
    with pytest.raises(DataError, match=message) as caught:
        read_partial(tmp_path / "p.npz", REGRESSION)
    assert "\n" not in str(caught.value)


def test_beliefs_that_would_fill_the_memory_are_refused(tmp_path):
    many = {"x": np.zeros((100_000, 5)), "y": np.zeros(100_000), "clients": np.full(100_000, "a")}
    values = {"domain": np.arange(100).reshape(50, 2), "names": np.arange(50).astype(str), "prior": None}
    np.savez_compressed(tmp_path / "p.npz", **arrays_of(partial(), **many, **values))
    with pytest.raises(DataError, match=r"50 values for 100,000 examples or inputs are 5,000,000 numbers"):
        read_partial(tmp_path / "p.npz", REGRESSION)
    np.savez(tmp_path / "p.npz", **arrays_of(partial(), **many, **values))
    assert len(read_partial(tmp_path / "p.npz", REGRESSION)) == 100_000


def test_attributes_of_auxiliary_records_survive_the_disk(tmp_path):
    attribute = AuxiliaryAttribute(("red", "blue"), np.array([0, 1, 1, 0]))
    write_knowledge(tmp_path, Knowledge(model=MODEL, auxiliary=Targets(X, Y), attributes={"the colour": attribute}))
    again = read_knowledge(tmp_path).attributes
    assert [*again] == ["the colour"]
    assert again["the colour"].values == ("red", "blue")
    np.testing.assert_array_equal(again["the colour"].codes, attribute.codes)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "has no attribute"),
        ({"codes.a": np.array([0, 1, 1])}, r"a: codes: expected whole numbers \(4,\), got int64 \(3,\)"),
        ({"codes.a": np.array([0, 1, 1, 0])}, "a: expected at least two values, got 0"),
        ({"codes.a": np.array([0, 1, 2, 0]), "values.a": np.array(["x", "y"])}, "a: expected indices 0 … 1"),
        ({"codes.a": np.zeros(4), "values.a": np.array(["x", "y"])}, "got float64"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(tmp_path, arrays, message):
    write_knowledge(tmp_path, Knowledge(model=MODEL, auxiliary=Targets(X, Y)))
    np.savez(tmp_path / "attributes.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_knowledge(tmp_path)


def made(settings):
    return settings


def test_a_known_defence_is_made_from_its_settings_and_files_beside_the_knowledge(tmp_path):
    defence = KnownDefence(f"{__name__}:made", {"strength": 0.5}, {"zoo": "../zoo"})
    write_knowledge(tmp_path / "run" / "knowledge", Knowledge(model=MODEL, defence=defence))
    (tmp_path / "run").rename(tmp_path / "moved")
    again = read_knowledge(tmp_path / "moved" / "knowledge", trusted={f"{__name__}:made"}).defence
    assert again.build() == {"strength": 0.5, "zoo": str(tmp_path / "moved" / "zoo")}
    with pytest.raises(ModelError, match="defence 'nowhere:made': cannot import 'nowhere'"):
        KnownDefence("nowhere:made", {}).build()
    file = tmp_path / "moved" / "knowledge" / "knowledge.json"
    edit(file, {"defence": {"spec": "a:b"}})
    with pytest.raises(DataError, match=r"defence\.settings is missing"):
        read_knowledge(tmp_path / "moved" / "knowledge")


def answers(**changes):
    arrays = {
        "seqs": np.array([0, 0, 1]),
        "nodes": np.array(["11", "12", "11"]),
        "losses": np.arange(12.0).reshape(3, 4),
        "products": np.full((3, 4), np.nan),
        "norms": np.ones((3, 4)),
        "lengths": np.ones(3),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_answers_of_the_app_survive_the_disk_and_stand_in_the_place_of_a_model(tmp_path):
    told = Knowledge(targets=Targets(X, Y), answers=Answers(**answers()))
    write_knowledge(tmp_path, told)
    again = read_knowledge(tmp_path)
    assert again.model is None
    assert (told.has("losses"), again.has("losses"), Knowledge(targets=told.targets).has("losses")) == (
        True,
        True,
        False,
    )
    for name, array in vars(told.answers).items():
        np.testing.assert_array_equal(getattr(again.answers, name), array)
    assert again.answers.rows() == {(0, "11"): 0, (0, "12"): 1, (1, "11"): 2}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (answers(losses=None), "losses"),
        (answers(losses=np.zeros((3, 5))), r"losses: expected numbers \(3, 4\), got float64 \(3, 5\)"),
        (answers(losses=np.zeros((3, 4), dtype=np.int64)), r"losses: expected numbers \(3, 4\)"),
        (answers(lengths=np.zeros(2)), r"lengths: expected numbers \(3,\), got float64 \(2,\)"),
        (answers(nodes=np.array(["11", "12"])), r"nodes: expected texts \(3,\), got <U2 \(2,\)"),
        (answers(nodes=np.array([11, 12, 13])), r"nodes: expected texts \(3,\), got int64"),
        (
            answers(seqs=np.zeros((3, 1), dtype=np.int64)),
            r"seqs: expected whole numbers \(replies,\), got int64 \(3, 1\)",
        ),
        (answers(seqs=np.zeros(3)), r"seqs: expected whole numbers \(replies,\), got float64"),
    ],
)
def test_answers_that_do_not_fit_are_refused_in_one_line(arrays, message, tmp_path):
    np.savez(tmp_path / "answers.npz", **arrays)
    with pytest.raises(DataError, match=message) as refused:
        read_answers(tmp_path / "answers.npz", Targets(X, Y))
    assert "answers.npz" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("seqs", "losses", "message"),
    [
        (np.array([0]), np.zeros((2, 3, 4)), r"losses: expected numbers \(1, shadows, 4\), got float64 \(2, 3, 4\)"),
        (np.array([0, 1]), np.zeros((2, 3, 5)), r"losses: expected numbers \(2, shadows, 4\), got float64 \(2, 3, 5\)"),
        (np.array([0, 1]), np.zeros((2, 4)), r"losses: expected numbers \(2, shadows, 4\), got float64 \(2, 4\)"),
        (np.array([0.0, 1.0]), np.zeros((2, 3, 4)), r"seqs: expected whole numbers \(rounds,\), got float64"),
        (np.array([0, 1]), np.zeros((2, 3, 4), dtype=np.int64), r"losses: expected numbers .*, got int64"),
    ],
)
def test_shadow_losses_that_do_not_fit_are_refused_in_one_line(seqs, losses, message, tmp_path):
    np.savez(tmp_path / "shadows.npz", seqs=seqs, losses=losses)
    with pytest.raises(DataError, match=message) as refused:
        read_shadow_losses(tmp_path / "shadows.npz", Targets(X, Y))
    assert "\n" not in str(refused.value)


def test_answers_that_are_no_archive_or_hold_objects_are_refused(tmp_path):
    write_knowledge(tmp_path, Knowledge(targets=Targets(X, Y), answers=Answers(**answers())))
    (tmp_path / "answers.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(DataError, match=r"answers\.npz"):
        read_knowledge(tmp_path)
    np.savez(tmp_path / "answers.npz", **answers(losses=np.array([[None] * 4] * 3)))
    with pytest.raises(DataError, match=r"answers\.npz.*plain arrays"):
        read_answers(tmp_path / "answers.npz", Targets(X, Y))
