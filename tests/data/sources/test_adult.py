import numpy as np
import pytest

from fedattack.base.errors import DataError
from fedattack.data import load_dataset
from tests.refusals import refused

# The first lines of UCI's files, and one of a person whose work is not known.
UCI_DATA = """39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, Black, Male, 0, 0, 13, United-States, >50K
28, ?, 338409, Bachelors, 13, Married-civ-spouse, ?, Wife, Other, Female, 0, 0, 40, Cuba, <=50K
"""  # noqa: E501
UCI_TEST = """|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
44, Private, 160323, Some-college, 10, Married-civ-spouse, Machine-op-inspct, Husband, White, Male, 7688, 0, 40, United-States, >50K.

"""  # noqa: E501


def write_uci(root, data=UCI_DATA * 4 + "\n", test=UCI_TEST):
    (root / "adult").mkdir()
    (root / "adult" / "adult.data").write_text(data)
    (root / "adult" / "adult.test").write_text(test)


def test_adult_of_uci_keeps_its_test_set_and_has_race_and_sex_as_inputs_and_private(tmp_path):
    write_uci(tmp_path)
    data = load_dataset("adult", root=tmp_path)
    assert (data.y_train.tolist(), data.y_test.tolist(), data.sensitive) == ([0, 1, 0] * 4, [0, 1], "sex")
    race, sex = data.private["race"], data.private["sex"]
    assert (race.values, sex.values) == (("Black", "Other", "White"), ("Female", "Male"))
    assert (race.train.tolist(), race.test.tolist()) == ([2, 0, 1] * 4, [0, 2])
    assert (sex.train.tolist(), sex.test.tolist()) == ([1, 1, 0] * 4, [1, 1])
    for name, column in data.private.items():
        np.testing.assert_array_equal(data.column(name).codes(data.x_train), column.train)
    assert data.column_names[:2] == ["age", "workclass"]
    assert "?" not in data.column("workclass").values


def test_adult_of_openml_has_the_same_attributes(tmp_path):
    lines = [line.rstrip(".") for line in (UCI_DATA * 4).splitlines()]
    names = "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    names += "capital-loss,hours-per-week,native-country,class"
    (tmp_path / "openml").mkdir()
    (tmp_path / "openml" / "adult-v2.csv").write_text("\n".join([names, *lines]))
    data = load_dataset("adult", root=tmp_path)
    whole = {tuple(row) for row in np.c_[data.private["race"].train, data.private["sex"].train, data.y_train].tolist()}
    assert whole == {(2, 1, 0), (0, 1, 1), (1, 0, 0)}


@pytest.mark.parametrize(
    ("data", "test", "message"),
    [
        (
            UCI_DATA.replace(", <=50K", "").replace(", >50K", ""),
            UCI_TEST,
            "adult.data: expected 15 columns in each line",
        ),
        (UCI_DATA * 4, "", "adult.test: cannot be read as CSV"),
        (UCI_DATA * 4, UCI_TEST.replace(", White", ""), "adult.test: expected 15 columns"),
    ],
)
def test_adult_of_uci_that_is_damaged_is_refused(tmp_path, data, test, message):
    write_uci(tmp_path, data, test)
    with refused(DataError, message):
        load_dataset("adult", root=tmp_path)
    (tmp_path / "adult" / "adult.test").unlink()
    with pytest.raises(DataError, match="adult"):
        load_dataset("adult", root=tmp_path)
