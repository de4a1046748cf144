import io

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from sklearn.model_selection import train_test_split

from fedattack.base.errors import DataError
from fedattack.data import download_dataset, load_dataset
from fedattack.data.columns import MAX_VALUES
from tests.data.files import CSV, TOML, rows, table
from tests.refusals import refused


def test_a_declared_csv_is_one_hot_binary_and_standardised(tmp_path):
    data = load_dataset(table(tmp_path))
    x, y = rows(data)
    assert data.name == "people"
    assert [column.inputs for column in data.columns] == [(0,), (1,), (2, 3, 4)]
    assert [column.values for column in data.columns[1:]] == [("F", "M"), ("army", "bank", "shop")]
    np.testing.assert_allclose([data.x_train[:, 0].mean(), data.x_train[:, 0].std()], [0, 1], atol=1e-6)
    frame = pd.read_csv(io.StringIO(CSV))
    expected = set(zip(frame.sex == "M", frame.work, frame.income == "low", strict=True))
    works = np.array(["army", "bank", "shop"])[x[:, 2:].argmax(axis=1)]
    assert (x[:, 2:].sum(axis=1) == 1).all()
    assert set(zip(x[:, 1] == 1, works, y == 1, strict=True)) == expected
    assert data.column("work").codes(x).tolist() == x[:, 2:].argmax(axis=1).tolist()


def test_columns_categories_groups_and_domains_are_as_declared(tmp_path):
    toml = TOML + (
        "columns = ['sex', 'age']\ncategorical = ['age']\ngroups = ['work']\nsensitive = 'sex'\n"
        "[domain]\nsex = ['M', 'F', 'X']\n"
    )
    data = load_dataset(table(tmp_path, toml=toml))
    assert data.column_names == ["sex", "age"]
    assert data.input_shape == (3 + 10,)
    assert data.column("sex").values == ("M", "F", "X")
    assert set(data.groups["work"].tolist()) <= {0, 1, 2}
    assert len(data.groups["work"]) == len(data.y_train)
    assert len(data.test_groups["work"]) == len(data.y_test)
    frame = pd.read_csv(io.StringIO(CSV))
    both = [*data.groups["work"].tolist(), *data.test_groups["work"].tolist()]
    assert sorted(np.array(["army", "bank", "shop"])[both]) == sorted(frame.work)
    assert data.sensitive == "sex"


def test_an_npz_can_be_declared_a_regression_with_named_columns(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 2, size=(40, 3)), draw.normal(size=40)
    np.savez(tmp_path / "n.npz", x=x, y=y)
    toml = "file = 'n.npz'\ntarget = 'y'\ntask = 'regression'\ncolumns = ['a', 'b', 'c']\n"
    data = load_dataset(table(tmp_path, toml=toml))
    assert (data.task, data.column_names) == ("regression", ["a", "b", "c"])
    got = {
        (*record, round(float(target), 3)) for record, target in zip(*map(np.ndarray.tolist, rows(data)), strict=True)
    }
    scaled = (y - y[train_test_split(np.arange(40), test_size=0.2, random_state=0)[0]].mean()) / y[
        train_test_split(np.arange(40), test_size=0.2, random_state=0)[0]
    ].std()
    assert got == {(*map(float, record), round(float(np.float32(t)), 3)) for record, t in zip(x, scaled, strict=True)}


def test_openml_is_fetched_by_download_alone(tmp_path, monkeypatch):
    calls = []

    def fetch(name, **options):
        calls.append((name, options["version"]))
        frame = pd.read_csv(io.StringIO(CSV))
        frame.loc[3, "age"] = np.nan
        return sklearn.utils.Bunch(data=frame)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    toml = "openml = 'people'\nversion = 3\ntarget = 'income'\nmissing = 'impute'\n"
    path = table(tmp_path, toml=toml)
    with pytest.raises(DataError, match=r"is not in .*expected people-v3.csv; run `fedattack download .*people.toml`"):
        load_dataset(path, root=tmp_path / "data")
    download_dataset(path, root=tmp_path / "data")
    download_dataset(path, root=tmp_path / "data")
    assert calls == [("people", 3)]
    x, _ = rows(load_dataset(path, root=tmp_path / "data"))
    assert len(x) == 10
    with pytest.raises(DataError, match="needs no download"):
        download_dataset(table(tmp_path), root=tmp_path)
    with pytest.raises(DataError, match=r"expected adult-v2.csv; run `fedattack download adult`"):
        load_dataset("adult", root=tmp_path / "data")


def test_missing_values_are_refused_by_column_and_record_or_imputed(tmp_path):
    holes = CSV.replace("50,M,shop,low", "?,M,shop,low").replace("25,F,shop,high", "25,F, ,high")
    with pytest.raises(DataError, match="column 'age' has 1 missing values, the first in example 3"):
        load_dataset(table(tmp_path, holes))
    data = load_dataset(table(tmp_path, holes, TOML + "missing = 'impute'\n"))
    x, _ = rows(data)
    named = np.array(data.column("age").values, dtype=float)[data.column("age").codes(x)]
    # the median of the nine that are there, and the commonest of the works, bank
    assert sorted(named) == sorted([30, 40, 40, 20, 60, 25, 35, 45, 55, 65])
    assert x[:, 2:].sum(axis=0).tolist() == [3, 5, 2]
    with pytest.raises(DataError, match="column 'income' has 1 missing"):
        load_dataset(table(tmp_path, CSV.replace("65,F,bank,high", "65,F,bank,"), TOML + "missing = 'impute'\n"))


@pytest.mark.parametrize(
    ("csv", "toml", "message"),
    [
        (CSV, "target = 'income'\n", "either a file or an openml name"),
        (CSV, TOML + "speed = 3\n", "unknown key 'speed'; expected one of target, task"),
        (CSV, TOML + "header = 'yes'\n", "header = 'yes': expected a true or false"),
        (CSV, TOML + "missing = 3\n", "missing = 3: expected a text"),
        (CSV, TOML + "task = 'ranking'\n", "task = 'ranking': expected classification or regression"),
        (CSV, TOML + "task = 'regression'\n", "target 'income': example 1 has 'low'; expected a finite number"),
        (CSV, TOML + "sensitive = 'income'\n", "the sensitive column is the target"),
        (CSV, TOML + "sensitive = 'size'\n", "no column 'size'; expected it among age, sex, work, income"),
        (CSV, TOML + "columns = ['sex', 'income']\n", "the target 'income' is among the columns"),
        (
            CSV,
            TOML + "[domain]\nsex = ['F']\n",
            "people.csv: column 'sex': example 2 has the value M, outside the domain F",
        ),
        (
            CSV,
            TOML + "[domain]\nage = [20, 30]\n",
            "column 'age': example 2 has the value 40.0, outside the domain 20, 30",
        ),
        (CSV, TOML + "[domain]\nage = ['old']\n", "column 'age' holds numbers, but its domain is old"),
        (CSV, TOML + "[domain]\nsex = 'F'\n", "expected a list of values for each column"),
        (CSV.replace("age,", "sex,"), TOML, "column 'sex' is there more than once"),
        (CSV, TOML + "header = false\n", "without a header expected its number, 1 to 4"),
        (CSV.split("\n")[0], TOML, "expected examples with at least one column"),
        ("a,b\n1\n2,3,4\n", "file = 'people.csv'\ntarget = 'a'\n", "cannot be read as CSV"),
        (CSV, "file = 'none.csv'\ntarget = 'a'\n", "none.csv: no such file"),
        (CSV, "file = ", "cannot be read as TOML"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_line(tmp_path, csv, toml, message):
    with refused(DataError, message):
        load_dataset(table(tmp_path, csv, toml))


def test_too_many_categories_are_refused(tmp_path):
    many = "name,y\n" + "".join(f"n{index},{index % 2}\n" for index in range(MAX_VALUES + 1))
    with pytest.raises(DataError, match=f"'name' has {MAX_VALUES + 1} different values that are no numbers"):
        load_dataset(table(tmp_path, many, "file = 'people.csv'\ntarget = 'y'\n"))
