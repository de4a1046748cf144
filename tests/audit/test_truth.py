import numpy as np
import pytest

from fedattack.audit.truth import Attributes, read_truth, write_truth
from fedattack.errors import DataError

TOLD = Attributes(np.array([0, 1, 1]), ("no", "yes"), ("a", "b", "a"), "sex")


def write(folder, attributes=TOLD):
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
    write(tmp_path)
    again = read_truth(tmp_path).attributes
    np.testing.assert_array_equal(again.values, TOLD.values)
    assert (again.names, again.owners, again.column) == (TOLD.names, TOLD.owners, TOLD.column)
    write(tmp_path / "other", None)
    assert read_truth(tmp_path / "other").attributes is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": ("a", "b")}, "an index and an owner for every record"),
        ({"values": np.array([0.0, 1.0, 1.0])}, "got float64"),
        ({"values": np.array([0, 1, 2])}, "expected indices 0 … 1"),
        ({"values": np.array([], dtype=int), "owners": ()}, "at least one record"),
        ({"owners": ("a", "b", "stranger")}, "stranger is no client"),
    ],
)
def test_attributes_that_contradict_themselves_are_refused(tmp_path, changes, message):
    write(tmp_path, Attributes(**(vars(TOLD) | changes)))
    with pytest.raises(DataError, match=message) as caught:
        read_truth(tmp_path)
    assert "\n" not in str(caught.value)
