import json

import numpy as np
import pytest

from fedattack.audit.truth import NOBODY, SEVERAL, Attributes, HeldRecords, Truth, note_node, read_truth, write_truth
from fedattack.base.errors import DataError
from tests.worlds.sealed import edit

CLIENTS = ["a", "b", "c"]


def write(folder, owners, clients=CLIENTS, origins=None):
    write_truth(
        folder,
        clients=clients,
        classes=["0", "1"],
        counts=np.ones((len(clients), 2), dtype=np.int64),
        evaluation=(np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        targets="print",
        owners=owners,
        origins=origins,
    )
    return folder


def test_a_target_has_one_owner_or_none_or_several(tmp_path):
    owners = ["b", NOBODY, ["c", "a"], ["b"], [], ("a", "a"), {"a", "b", "c"}]
    truth = read_truth(write(tmp_path, owners))
    assert truth.owners.tolist() == ["b", NOBODY, SEVERAL, "b", NOBODY, "a", SEVERAL]
    assert {row: set(names) for row, names in truth.shared.items()} == {2: {"a", "c"}, 6: {"a", "b", "c"}}


def test_targets_of_nobody_may_come_from_a_client_s_data(tmp_path):
    owners, origins = ["a", NOBODY, NOBODY, ["a", "b"], NOBODY], ["", "c", "", "", "a"]
    truth = read_truth(write(tmp_path / "some", owners, origins=origins))
    assert truth.origins.tolist() == origins
    assert truth.owners.tolist() == ["a", NOBODY, NOBODY, SEVERAL, NOBODY]
    unknown = read_truth(write(tmp_path / "none", owners))
    assert unknown.origins.tolist() == [""] * 5
    made = {name: value for name, value in vars(unknown).items() if name != "origins"}
    assert Truth(**made).origins.tolist() == [""] * 5, "it need not be said that nothing is known"


@pytest.mark.parametrize(
    ("origins", "message"),
    [
        (["", "b"], r"expected a client's name or nothing for each of 3 targets; got <U1 \(2,\)"),
        ([["", "b", "c"]], r"for each of 3 targets; got <U1 \(1, 3\)"),
        (["", "b", "z"], "'z' is not a client"),
        (["", SEVERAL, ""], r"'\*' is not a client"),
        (["a", "b", ""], "target 0 has an origin, but somebody holds it"),
        (["", "b", "a"], "target 2 has an origin, but somebody holds it"),
    ],
)
def test_origins_that_cannot_be_are_refused_when_written_and_when_read(tmp_path, origins, message):
    owners = ["a", NOBODY, ["b", "c"]]
    with pytest.raises(DataError, match=f"the truth's origins: .*{message}"):
        write(tmp_path / "new", owners, origins=origins)
    assert not (tmp_path / "new").exists()
    write(tmp_path, owners)
    with np.load(tmp_path / "owners.npz") as file:
        np.savez(tmp_path / "owners.npz", **{**file, "origins": np.array(origins)})
    edit(tmp_path / "holdings.json", {})
    with pytest.raises(DataError, match=message) as problem:
        read_truth(tmp_path)
    assert "\n" not in str(problem.value)


def test_origins_are_names(tmp_path):
    write(tmp_path, [NOBODY, "b"])
    np.savez(tmp_path / "owners.npz", owners=np.array([NOBODY, "b"]), shared=np.zeros((0, 2), int), origins=np.zeros(2))
    edit(tmp_path / "holdings.json", {})
    with pytest.raises(DataError, match=r"owners\.npz: origins: expected a client's name.* got float64 \(2,\)"):
        read_truth(tmp_path)


@pytest.mark.parametrize("owners", [["a", "z"], [["a", "z"]]])
def test_an_owner_that_is_no_client_is_refused_when_it_is_written(tmp_path, owners):
    with pytest.raises(DataError, match="held by 'z', which is none of the clients"):
        write(tmp_path, owners)


@pytest.mark.parametrize("name", [NOBODY, SEVERAL])
def test_a_client_cannot_have_a_name_that_means_something_else(tmp_path, name):
    with pytest.raises(DataError, match="cannot be a client's name"):
        write(tmp_path, [], clients=["a", name])


@pytest.mark.parametrize(
    ("owners", "shared", "message"),
    [
        (["a", SEVERAL], [[1, 0], [1, 3]], "one of 3 clients"),
        (["a", SEVERAL], [[1, 0], [1, -1]], "one of 3 clients"),
        (["a", SEVERAL], np.zeros((0, 2), dtype=np.int64), "not those of `shared`"),
        (["a", "b"], [[1, 0], [1, 2]], "not those of `shared`"),
        (["a", SEVERAL], [[1, 0], [1, 2], [1, 0]], "expected each pair once of 2 targets"),
        (["a", SEVERAL], np.zeros((10**6, 2), dtype=np.int64), "got 1,000,000"),
        (["a", SEVERAL], [1, 0, 2], "expected pairs"),
    ],
)
def test_a_truth_that_contradicts_itself_is_refused_in_one_line(tmp_path, owners, shared, message):
    write(tmp_path, ["a", "b"])
    np.savez(tmp_path / "owners.npz", owners=np.array(owners), shared=np.array(shared), origins=np.array(["", ""]))
    edit(tmp_path / "holdings.json", {})
    with pytest.raises(DataError, match=message) as problem:
        read_truth(tmp_path)
    assert "\n" not in str(problem.value)


def test_a_note_of_a_node_can_be_put_right(tmp_path):
    write(tmp_path, ["a"])
    note_node(tmp_path, node="7", client="a")
    note_node(tmp_path, node="7", client="b")
    assert json.loads((tmp_path / "nodes" / "7.json").read_text())["client"] == "b"
    assert read_truth(tmp_path).nodes == {"7": "b"}


TOLD = Attributes(np.array([0, 1, 1]), ("no", "yes"), ("a", "b", "a"), "sex")


def write_attributes(folder, attributes=TOLD):
    write_truth(
        folder,
        clients=["a", "b"],
        classes=["0"],
        counts=np.ones((2, 1), dtype=int),
        evaluation=(np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.float32)),
        targets="f",
        attributes=attributes,
    )


def test_attributes_survive_the_disk(tmp_path):
    write_attributes(tmp_path)
    again = read_truth(tmp_path).attributes
    np.testing.assert_array_equal(again.values, TOLD.values)
    assert (again.names, again.owners, again.column) == (TOLD.names, TOLD.owners, TOLD.column)
    write_attributes(tmp_path / "other", None)
    assert read_truth(tmp_path / "other").attributes is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": ("a", "b")}, r"owners: expected texts \(3,\), got <U1 \(2,\)"),
        ({"values": np.array([0.0, 1.0, 1.0])}, "got float64"),
        ({"values": np.array([0, 1, 2])}, "expected indices 0 … 1"),
        ({"values": np.array([], dtype=int), "owners": ()}, "at least one example"),
        ({"owners": ("a", "b", "stranger")}, "stranger is not a client"),
    ],
)
def test_attributes_that_contradict_themselves_are_refused(tmp_path, changes, message):
    write_attributes(tmp_path, Attributes(**(vars(TOLD) | changes)))
    with pytest.raises(DataError, match=message) as caught:
        read_truth(tmp_path)
    assert "\n" not in str(caught.value)


HELD = HeldRecords(np.ones((3, 1, 2, 2), dtype=np.float32), np.array([1, 0, 1]), ("a", "b", "b"))


def write_records(folder, records):
    write_attributes(folder, None)
    np.savez(folder / "records.npz", **{**vars(records), "owners": np.array(records.owners)})


def test_records_survive_the_disk(tmp_path):
    write_truth(
        tmp_path,
        clients=["a", "b"],
        classes=["0"],
        counts=np.ones((2, 1), dtype=int),
        evaluation=(np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.float32)),
        targets="",
        records=HELD,
    )
    again = read_truth(tmp_path).records
    np.testing.assert_array_equal(again.x, HELD.x)
    np.testing.assert_array_equal(again.y, HELD.y)
    assert again.owners == HELD.owners
    write_attributes(tmp_path / "other", None)
    assert read_truth(tmp_path / "other").records is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": ("a",)}, r"owners: expected texts \(3,\), got <U1 \(1,\)"),
        ({"x": np.full((3, 2), np.nan)}, "expected finite numbers"),
        ({"x": np.ones(3)}, "each with a label"),
        ({"x": np.ones(3, [("ids", int)])}, "that are one array each"),
        ({"owners": ("a", "b", "stranger")}, "stranger is not a client"),
    ],
)
def test_records_that_contradict_themselves_are_refused(tmp_path, changes, message):
    write_records(tmp_path, HeldRecords(**(vars(HELD) | changes)))
    with pytest.raises(DataError, match=message) as caught:
        read_truth(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", [-1, 10**12])
def test_labels_that_are_no_classes_are_refused(tmp_path, label):
    write(tmp_path, ["b"])
    np.savez(tmp_path / "evaluation.npz", x=np.zeros((1, 2), dtype=np.float32), y=np.array([label]))
    edit(tmp_path / "holdings.json", {})
    with pytest.raises(DataError, match=r"expected labels 0 … 1000000"):
        read_truth(tmp_path)


def test_a_truth_may_know_no_example_that_nobody_holds(tmp_path):
    given = {"clients": CLIENTS, "classes": ["0"], "counts": np.ones((3, 1), int), "evaluation": None, "targets": ""}
    write_truth(tmp_path, **given, owners=["b"])
    assert not len(read_truth(tmp_path).evaluation[1])
    held = HeldRecords(np.zeros((1, 2), np.float32), np.zeros(1, np.int64), ("b",))
    with pytest.raises(DataError, match="give evaluation, too"):
        write_truth(tmp_path / "other", **given, records=held)
    # A file that is gone is not the same as one that was never there.
    write(tmp_path, ["b"])
    (tmp_path / "evaluation.npz").unlink()
    with pytest.raises(DataError, match=r"evaluation\.npz"):
        read_truth(tmp_path)


def test_another_threat_s_answer_is_kept_and_checked(tmp_path):
    nothing = np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.int64)
    given = {"clients": CLIENTS, "classes": ["0"], "counts": np.ones((3, 1), int), "evaluation": nothing, "targets": ""}
    write_truth(tmp_path, **given, answers={"my-threat": {"levels": np.arange(3)}})
    np.savez(tmp_path / "answer.other.npz", levels=np.arange(9))
    answers = read_truth(tmp_path).answers
    assert list(answers) == ["my-threat"], "a file that the holdings do not list is no answer"
    np.testing.assert_array_equal(answers["my-threat"]["levels"], np.arange(3))
    np.savez(tmp_path / "answer.my-threat.npz", levels=np.arange(4))
    with pytest.raises(DataError, match=r"answer\.my-threat\.npz is not the file that was written"):
        read_truth(tmp_path)
    with pytest.raises(DataError, match="expected a name of letters"):
        write_truth(tmp_path, **given, answers={"../elsewhere": {}})
