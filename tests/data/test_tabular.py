import io
import tarfile
import urllib.request

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split

from fedattack.data import download_dataset, load_dataset
from fedattack.data.columns import MAX_VALUES, sensitive_column
from fedattack.data.datasets import TARGET_BINS
from fedattack.errors import DataError

CSV = """age,sex,work,income
30,F,army,low
40,M,bank,high
50,M,shop,low
20,F,bank,high
60,M,army,low
25,F,shop,high
35,M,bank,low
45,F,army,high
55,M,shop,low
65,F,bank,high
"""
TOML = "file = 'people.csv'\ntarget = 'income'\n"


def table(folder, csv=CSV, toml=TOML):
    (folder / "people.csv").write_text(csv)
    (folder / "people.toml").write_text(toml)
    return str(folder / "people.toml")


def rows(data):
    return np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])


def test_diabetes_is_scikit_learns_standardised_by_the_training_split_with_sex_as_0_and_1():
    data = load_dataset("diabetes", seed=3)
    raw = load_diabetes(scaled=False)
    train, test = train_test_split(np.arange(442), test_size=0.2, random_state=3)
    expected = (raw.data - raw.data[train].mean(axis=0)) / raw.data[train].std(axis=0)
    expected[:, 1] = raw.data[:, 1] - 1
    np.testing.assert_allclose(data.x_train, expected[train], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.x_test, expected[test], rtol=1e-5, atol=1e-5)
    target = (raw.target - raw.target[train].mean()) / raw.target[train].std()
    np.testing.assert_allclose(data.y_test, target[test], rtol=1e-5, atol=1e-5)
    assert (data.task, data.classes, data.sensitive) == ("regression", 1, "sex")
    assert (data.x_train.dtype, data.y_train.dtype, data.y_test.dtype) == (np.float32,) * 3
    assert data.column_names == raw.feature_names
    column = sensitive_column(data, "sex")
    assert (column.inputs, column.values, column.domain.tolist()) == ((1,), ("1", "2"), [[0.0], [1.0]])
    np.testing.assert_array_equal(column.codes(data.x_train), raw.data[train, 1] - 1)
    assert data.column("2") is data.column("sex")


def test_a_column_of_some_numbers_keeps_its_domain_in_the_inputs_own_scale():
    data = load_dataset("diabetes", seed=0)
    column = data.column("age")
    raw = load_diabetes(scaled=False).data[:, 0]
    train, _ = train_test_split(np.arange(442), test_size=0.2, random_state=0)
    assert column.values == tuple(f"{age:g}" for age in np.unique(raw))
    named = np.array(column.values, dtype=float)[column.codes(data.x_train)]
    np.testing.assert_array_equal(named, raw[train])


def test_breast_cancer_has_a_binary_column():
    data = load_dataset("breast-cancer", seed=0)
    x, y = rows(data)
    assert (x.shape, np.bincount(y).tolist(), data.task) == ((569, 30), [212, 357], "classification")
    numbers = load_breast_cancer(as_frame=True).frame["symmetry error"]
    codes = sensitive_column(data, data.sensitive).codes(x)
    assert codes.sum() == (numbers > numbers.median()).sum()


def test_synthetic_regression_is_linear_for_each_user_and_only_there():
    data = load_dataset("synthetic-regression", seed=4)
    user, x, y = data.groups["user"], data.x_train.astype(np.float64), data.y_train.astype(np.float64)
    assert len(np.unique(user)) == 10

    def unexplained(chosen):
        design = np.c_[x[chosen], np.ones(chosen.sum())]
        fit = np.linalg.lstsq(design, y[chosen], rcond=None)[0]
        return ((y[chosen] - design @ fit) ** 2).sum() / (len(design) - design.shape[1])

    noise = [unexplained(user == one) for one in range(10)]
    assert max(noise) < 2.5 * min(noise)
    assert max(noise) < 0.01 * unexplained(user >= 0)
    assert set(np.unique(data.x_train[:, 0])) == {0.0, 1.0}
    assert load_dataset("synthetic-regression", seed=4).fingerprint == data.fingerprint


def test_classes_of_a_regression_are_fifths_of_its_targets():
    data = load_dataset("diabetes")
    labels, names = data.labels
    assert len(names) == TARGET_BINS
    assert np.ptp(np.bincount(labels)) <= 5
    order = np.argsort(data.y_train, kind="stable")
    assert (np.diff(labels[order]) >= 0).all()


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


def test_columns_of_a_plain_npz_have_numbers_from_1(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, size=(40, 5))
    np.savez(tmp_path / "plain.npz", x=x, y=np.arange(40) % 2)
    data = load_dataset(str(tmp_path / "plain.npz"))
    column = data.column("3")
    assert (column.inputs, column.values) == ((2,), ("0", "1"))
    np.testing.assert_array_equal(column.codes(data.x_train), data.x_train[:, 2])


@pytest.mark.parametrize("quote", ['"', ""])
def test_shokris_files_are_read_as_they_are_distributed(tmp_path, quote):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 2, size=(60, 446)), np.arange(60) % 30
    lines = [f"{quote}{label + 1}{quote},{','.join(map(str, record))}" for label, record in zip(y, x, strict=True)]
    (tmp_path / "location30").mkdir()
    (tmp_path / "location30" / "bangkok").write_text("\n".join(lines) + "\n")
    data = load_dataset("location30", root=tmp_path, test_fraction=0.5)
    assert (data.input_shape, data.classes) == ((446,), 30)
    got = {(record.tobytes(), int(label)) for record, label in zip(*rows(data), strict=True)}
    assert got == {(record.astype(np.float32).tobytes(), int(label)) for record, label in zip(x, y, strict=True)}
    # and the same file, declared
    toml = f"file = '{tmp_path}/location30/bangkok'\nheader = false\ntarget = 1\n"
    declared = load_dataset(table(tmp_path, toml=toml), test_fraction=0.5)
    assert declared.column_names[:2] == ["1", "2"]
    np.testing.assert_array_equal(declared.y_train, data.y_train)
    np.testing.assert_array_equal(declared.column("7").codes(declared.x_train), data.column("7").codes(data.x_train))


def test_shokris_archive_is_unpacked_by_its_one_file(tmp_path, monkeypatch):
    def fetch(url, file):
        assert url.endswith("/dataset_location.tgz")
        with tarfile.open(file, "w:gz") as tar:
            for name in ("../escaped", "bangkok"):
                item = tarfile.TarInfo(name)
                item.size = 3
                tar.addfile(item, io.BytesIO(b"1,0"))

    monkeypatch.setattr(urllib.request, "urlretrieve", fetch)
    download_dataset("location30", root=tmp_path)
    assert [path.name for path in (tmp_path / "location30").iterdir()] == ["bangkok"]
    assert not (tmp_path / "escaped").exists()
    with pytest.raises(DataError, match="446 zeros and ones a line; got 1 columns"):
        load_dataset("location30", root=tmp_path)


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
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("adult", root=tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "adult" / "adult.test").unlink()
    with pytest.raises(DataError, match="adult"):
        load_dataset("adult", root=tmp_path)


def test_missing_values_are_refused_by_column_and_record_or_imputed(tmp_path):
    holes = CSV.replace("50,M,shop,low", "?,M,shop,low").replace("25,F,shop,high", "25,F, ,high")
    with pytest.raises(DataError, match="column 'age' has 1 missing values, the first in record 3"):
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
        (CSV, TOML + "task = 'regression'\n", "target 'income': record 1 has 'low'; expected a finite number"),
        (CSV, TOML + "sensitive = 'income'\n", "the sensitive column is the target"),
        (CSV, TOML + "sensitive = 'size'\n", "no column 'size'; expected it among age, sex, work, income"),
        (CSV, TOML + "columns = ['sex', 'income']\n", "the target 'income' is among the columns"),
        (
            CSV,
            TOML + "[domain]\nsex = ['F']\n",
            "people.csv: column 'sex': record 2 has the value M, outside the domain F",
        ),
        (
            CSV,
            TOML + "[domain]\nage = [20, 30]\n",
            "column 'age': record 2 has the value 40.0, outside the domain 20, 30",
        ),
        (CSV, TOML + "[domain]\nage = ['old']\n", "column 'age' holds numbers, but its domain is old"),
        (CSV, TOML + "[domain]\nsex = 'F'\n", "expected a list of values for each column"),
        (CSV.replace("age,", "sex,"), TOML, "column 'sex' is there more than once"),
        (CSV, TOML + "header = false\n", "without a header expected its number, 1 to 4"),
        (CSV.split("\n")[0], TOML, "expected records with at least one column"),
        ("a,b\n1\n2,3,4\n", "file = 'people.csv'\ntarget = 'a'\n", "cannot be read as CSV"),
        (CSV, "file = 'none.csv'\ntarget = 'a'\n", "none.csv: no such file"),
        (CSV, "file = ", "cannot be read as TOML"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_line(tmp_path, csv, toml, message):
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(table(tmp_path, csv, toml))
    assert "\n" not in str(caught.value)


def test_too_many_categories_are_refused(tmp_path):
    many = "name,y\n" + "".join(f"n{index},{index % 2}\n" for index in range(MAX_VALUES + 1))
    with pytest.raises(DataError, match=f"'name' has {MAX_VALUES + 1} different values that are no numbers"):
        load_dataset(table(tmp_path, many, "file = 'people.csv'\ntarget = 'y'\n"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1", "more than 100 values, too many to enumerate"),
        ("2", "is 1 in all training records, so there is nothing to infer"),
        ("3", "is the target itself under another name"),
        ("6", "no column '6'; expected a number from 1 to 5"),
        ("x", "no column 'x'"),
    ],
)
def test_a_column_that_cannot_be_sensitive_is_refused(tmp_path, name, message):
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = np.c_[draw.normal(size=300), np.ones(300), 5 - 2 * y, y ^ (draw.random(300) < 0.1), draw.normal(size=300)]
    np.savez(tmp_path / "n.npz", x=x, y=y)
    data = load_dataset(str(tmp_path / "n.npz"))
    assert sensitive_column(data, "4").name == "4"
    with pytest.raises(DataError, match=message) as caught:
        sensitive_column(data, name)
    assert "\n" not in str(caught.value)


def test_images_have_no_columns():
    with pytest.raises(DataError, match=r"digits: its records have shape \(1, 8, 8\) and so no columns"):
        load_dataset("digits").column("1")


def test_a_regressions_target_is_no_sensitive_column(tmp_path):
    y = np.arange(60) % 4 * 1.5
    np.savez(tmp_path / "n.npz", x=np.c_[y * 2, np.arange(60) % 3], y=y)
    toml = "file = 'n.npz'\ntarget = 'y'\ntask = 'regression'\n"
    data = load_dataset(table(tmp_path, toml=toml))
    with pytest.raises(DataError, match="is the target itself"):
        sensitive_column(data, "1")
    assert sensitive_column(data, "2").values == ("0", "1", "2")
