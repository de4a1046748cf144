"""LFW and CelebA from small folders in the formats of the real ones."""

import io
import tarfile
import urllib.request
from pathlib import Path

import joblib
import numpy as np
import pytest
import torchvision
from PIL import Image

from fedattack.base.errors import DataError
from fedattack.data import DATASETS, download_dataset, load_dataset
from tests import refusals

SCORES = ["Male", "Asian", "White", "Black", "Baby", "Child", "Youth", "Middle Aged", "Senior", "Black Hair"]
SCORES += ["Blond Hair", "Brown Hair", "Bald", "No Eyewear", "Eyeglasses", "Sunglasses", "Mustache", "Smiling"]
PERSONS = ["Aaron Eckhart", "Abel Pacheco", "Zoran Djindjic"]


def picture(file: Path, size: tuple[int, int], colour: tuple[int, int, int], box: tuple[int, int, int, int]) -> None:
    """One colour inside of ``box``, and white around it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (255, 255, 255))
    image.paste(colour, box)
    image.save(file, quality=100)


def write_lfw(root: Path) -> np.ndarray:
    """Twelve pictures of three persons; returns their scores."""
    scores = np.random.default_rng(0).normal(size=(12, len(SCORES)))
    lines = ["#\tLFW v1.1 - lfw_attributes.txt", "#\t" + "\t".join(["person", "imagenum", *SCORES])]
    for row in range(12):
        person, number = PERSONS[row % 3], row // 3 + 1
        name = person.replace(" ", "_")
        file = root / "lfw_home" / "lfw_funneled" / name / f"{name}_{number:04d}.jpg"
        picture(file, (250, 250), (20 * row, 100, 0), (70, 60, 180, 200))
        lines.append("\t".join([person, str(number), *(f"{score!r}" for score in scores[row].tolist())]))
    (root / "lfw_home" / "lfw_attributes.txt").write_text("\n".join(lines) + "\n")
    return scores


def test_lfw_has_its_faces_cut_out_and_kumars_attributes(tmp_path):
    scores = dict(zip(SCORES, write_lfw(tmp_path).T, strict=True))
    pool = DATASETS["lfw"].read(0, tmp_path)
    assert (pool.x.shape, pool.x.dtype, pool.classes) == ((12, 3, 62, 47), np.uint8, 2)
    colours = np.stack([20 * np.arange(12), np.full(12, 100), np.zeros(12)], axis=1)[:, :, None, None]
    # the white around the face is cut away, and JPEG is near
    assert np.abs(pool.x.astype(int) - colours).max() <= 4
    np.testing.assert_array_equal(pool.y, scores["Smiling"] > 0)
    assert pool.groups["person"].tolist() == [0, 1, 2] * 4
    values, gender = pool.private["gender"]
    assert values == ("female", "male")
    np.testing.assert_array_equal(gender, scores["Male"] > 0)
    expected = {
        "race": {"asian": "Asian", "white": "White", "black": "Black"},
        "age": {"baby": "Baby", "child": "Child", "youth": "Youth", "middle-aged": "Middle Aged", "senior": "Senior"},
        "glasses": {"eyeglasses": "Eyeglasses", "sunglasses": "Sunglasses", "none": "No Eyewear"},
        "hair": {"black": "Black Hair", "blond": "Blond Hair", "brown": "Brown Hair", "bald": "Bald"},
    }
    assert set(pool.private) == {"gender", *expected}
    for name, choices in expected.items():
        values, codes = pool.private[name]
        for row, code in enumerate(codes):
            assert choices[values[code]] == max(choices.values(), key=lambda score, row=row: scores[score][row])


def test_lfw_is_a_dataset_whose_records_keep_their_attributes(tmp_path):
    scores = write_lfw(tmp_path)
    data = load_dataset("lfw", root=tmp_path, seed=1)
    assert (data.x_train.shape, data.x_test.shape) == ((9, 3, 62, 47), (3, 3, 62, 47))
    # the amount of red says which record it is
    order = np.argsort(np.concatenate([data.x_train, data.x_test])[:, 0].mean(axis=(1, 2)))
    column = data.private["gender"]
    np.testing.assert_array_equal(np.concatenate([column.train, column.test])[order], scores[:, 0] > 0)
    assert set(data.groups) == {"person", "gender", "race", "age", "glasses", "hair"}


def test_lfw_that_is_missing_or_damaged_is_refused(tmp_path):
    def refused(message: str) -> None:
        with refusals.refused(DataError, message):
            load_dataset("lfw", root=tmp_path)

    refused("expected lfw_home/lfw_funneled; run `fedattack download lfw`")
    write_lfw(tmp_path)
    file = tmp_path / "lfw_home" / "lfw_attributes.txt"
    text = file.read_text()
    for broken in ("", text.replace("\t2\t", "\ttwo\t"), text[:-60], text.replace("Pacheco\t", "Pacheco "), "\xff" * 9):
        file.write_text(broken)
        refused("lfw_attributes.txt: expected a person, a number and scores a line.*fetch it again from http")
    file.write_text(text.replace("Smiling", "Frowning"))
    refused("no scores 'Smiling'")
    lines = text.splitlines()
    lines[5] = "\t".join([*lines[5].split("\t")[:-1], "nan"])
    file.write_text("\n".join(lines))
    refused("scores that are no finite numbers")
    file.write_text(text)
    face = tmp_path / "lfw_home" / "lfw_funneled" / "Abel_Pacheco" / "Abel_Pacheco_0002.jpg"
    whole = face.read_bytes()
    for content in (b"", b"no picture", whole[: len(whole) // 2]):
        face.write_bytes(content)
        refused("Abel_Pacheco_0002.jpg: no picture that can be read")
    picture(face, (200, 250), (0, 0, 0), (0, 0, 9, 9))
    refused(r"expected a picture of \(250, 250\) pixels, got \(200, 250\)")
    face.unlink()
    refused("Abel_Pacheco_0002.jpg: no picture that can be read")
    file.unlink()
    refused("lacks lfw_home/lfw_attributes.txt.*fetch http://www.cs.columbia.edu.*lfw_attributes.txt and put it there")


def test_lfw_is_downloaded_by_scikit_learn_without_its_pickles(tmp_path, monkeypatch):
    from sklearn.datasets import _lfw

    buffer = io.BytesIO()
    picture(tmp_path / "there" / "lfw_funneled" / "A_B" / "A_B_0001.jpg", (250, 250), (1, 2, 3), (0, 0, 250, 250))
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(tmp_path / "there" / "lfw_funneled", "lfw_funneled")

    def fetch(remote, dirname, **_):
        (Path(dirname) / remote.filename).write_bytes(buffer.getvalue())

    def cached(*_):
        raise AssertionError("pickled")

    monkeypatch.setattr(_lfw, "_fetch_remote", fetch)
    monkeypatch.setattr(joblib.Memory, "cache", cached)
    for _ in range(2):
        assert download_dataset("lfw", root=tmp_path / "here") == tmp_path / "here"
        monkeypatch.setattr(urllib.request, "urlopen", cached)
    assert (tmp_path / "here" / "lfw_home" / "lfw_funneled" / "A_B" / "A_B_0001.jpg").is_file()


CELEBA = ["5_o_Clock_Shadow", "Eyeglasses", "Male", "Smiling", "Young"]


def write_celeba(root: Path, monkeypatch: pytest.MonkeyPatch, attributes: list[str] = CELEBA) -> np.ndarray:
    """Fifteen pictures with torchvision's files, whose checksums are let be; returns the attributes as 0 and 1."""
    folder = root / "celeba"
    rng = np.random.default_rng(1)
    table = rng.integers(2, size=(15, len(attributes)))
    names = [f"{row + 1:06d}.jpg" for row in range(15)]
    for row, name in enumerate(names):
        picture(folder / "img_align_celeba" / name, (178, 218), (0, 15 * row, 50), (0, 20, 178, 198))
    signed = "".join(
        f"{name} {' '.join(f'{2 * v - 1:2d}' for v in row)}\n" for name, row in zip(names, table, strict=True)
    )
    (folder / "list_attr_celeba.txt").write_text(f"15\n{' '.join(attributes)} \n{signed}")
    (folder / "identity_CelebA.txt").write_text("".join(f"{name} {7 + row % 4}\n" for row, name in enumerate(names)))
    (folder / "list_eval_partition.txt").write_text("".join(f"{name} {row // 10}\n" for row, name in enumerate(names)))
    for file, columns in (("list_bbox_celeba", 4), ("list_landmarks_align_celeba", 10)):
        rows = "".join(f"{name} {' '.join(['9'] * columns)}\n" for name in names)
        (folder / f"{file}.txt").write_text(f"15\n{' '.join(f'c{i}' for i in range(columns))}\n{rows}")
    unchecked = [(item, None, file) for item, _, file in torchvision.datasets.CelebA.file_list]
    monkeypatch.setattr(torchvision.datasets.CelebA, "file_list", unchecked)
    return table


def test_celeba_is_torchvisions_with_the_face_at_32_by_32(tmp_path, monkeypatch):
    table = dict(zip(CELEBA, write_celeba(tmp_path, monkeypatch).T, strict=True))
    pool = DATASETS["celeba"].read(0, tmp_path)
    assert (pool.x.shape, pool.x.dtype, pool.classes) == ((15, 3, 32, 32), np.uint8, 2)
    colours = np.stack([np.zeros(15), 15 * np.arange(15), np.full(15, 50)], axis=1)[:, :, None, None]
    assert np.abs(pool.x.astype(int) - colours)[:, :, 2:-2].max() <= 4
    np.testing.assert_array_equal(pool.y, table["Male"])
    assert {name: values for name, (values, _) in pool.private.items()} == {
        "age": ("old", "young"),
        "glasses": ("none", "eyeglasses"),
        "smile": ("none", "smiling"),
    }
    for name, column in (("age", "Young"), ("glasses", "Eyeglasses"), ("smile", "Smiling")):
        np.testing.assert_array_equal(pool.private[name][1], table[column])
    assert pool.groups["person"].tolist() == [row % 4 for row in range(15)]
    assert load_dataset("celeba", root=tmp_path).input_shape == (3, 32, 32)


def test_celeba_is_read_up_to_a_number_of_pictures(tmp_path, monkeypatch):
    table = write_celeba(tmp_path, monkeypatch)
    monkeypatch.setattr("fedattack.data.sources.faces.CELEBA_RECORDS", 12)
    (tmp_path / "celeba" / "img_align_celeba" / "000013.jpg").unlink()
    pool = DATASETS["celeba"].read(0, tmp_path)
    np.testing.assert_array_equal(pool.y, table[:12, 2])
    assert len(pool.x) == len(pool.groups["person"]) == len(pool.private["age"][1]) == 12


def test_celeba_that_is_missing_or_damaged_is_refused(tmp_path, monkeypatch):
    def refused(message: str) -> None:
        with refusals.refused(DataError, message):
            load_dataset("celeba", root=tmp_path)

    with monkeypatch.context() as patched:
        write_celeba(tmp_path, patched)
    refused(
        "'celeba' in .* lacks annotations, or they are damaged .*not found or corrupted"
    )  # by torchvision's checksums
    write_celeba(tmp_path, monkeypatch, ["Eyeglasses", "Smiling", "Young"])
    refused("they are damaged .*'Male'")
    write_celeba(tmp_path, monkeypatch)
    file = tmp_path / "celeba" / "list_attr_celeba.txt"
    text = file.read_text()
    for broken in ("", text.replace("-1", "no")):
        file.write_text(broken)
        refused("they are damaged")
    file.write_text(text)
    (tmp_path / "celeba" / "img_align_celeba" / "000003.jpg").write_bytes(b"\xff\xd8")
    refused("000003.jpg: no picture that can be read")
