"""What is written is read again, and nothing else is."""

import json
import stat

import numpy as np
import pytest

from fedattack.base.errors import ConfigError
from fedattack.witness import (
    SeenExamples,
    Witness,
    WitnessedModel,
    WitnessedTraining,
    read_witnesses,
    write_witness,
)
from fedattack.witness.sent import SentArray
from fedattack.witness.store import witness_file


def examples(count: int, *, total: int | None = None) -> SeenExamples:
    rng = np.random.default_rng(count)
    return SeenExamples(
        rng.normal(size=(count, 2, 3)).astype(np.float32),
        rng.integers(4, size=count),
        rng.integers(256, size=(count, 16), dtype=np.uint8),
        total=count if total is None else total,
        counts={0: 3, 2: count},
    )


FULL = Witness(
    node="17",
    client="3",
    trained=examples(5, total=90),
    evaluated=examples(2),
    model=WitnessedModel(
        "pkg.task:Net", {"hidden": 8, "bias": True}, (2, 3), 4, None, "the loss is huber_loss", ("a",)
    ),
    training=WitnessedTraining("SGD", 0.1, 0.9, 0.0, (16, 4), 30, 3.0, None),
    mods=("LocalDpMod(epsilon=1.0)",),
    notes=("something was not covered",),
    sends=(
        SentArray("0", (2, 3), "float32", "weights", "a.weight"),
        SentArray("1", (), "float32", "difference times a factor", "a.bias", -2.0, 0.5),
    ),
)


def assert_same(one: Witness, other: Witness) -> None:
    for role in ("trained", "evaluated"):
        a, b = getattr(one, role), getattr(other, role)
        for name in ("x", "y", "hashes"):
            assert getattr(a, name).dtype == getattr(b, name).dtype
            assert np.array_equal(getattr(a, name), getattr(b, name))
        assert (a.total, a.counts) == (b.total, b.counts)
    for name in ("node", "client", "model", "training", "mods", "notes", "sends"):
        assert getattr(one, name) == getattr(other, name)


def test_what_is_written_is_read(tmp_path):
    folder = tmp_path / "witness"
    write_witness(folder, Witness("server"))
    write_witness(folder, FULL)
    write_witness(folder, Witness("../odd name"))
    odd, full, server = read_witnesses(folder)
    assert_same(full, FULL)
    assert_same(server, Witness("server"))
    assert odd.node == "../odd name"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.parent for path in tmp_path.rglob("*.npz")} == {folder}


def change(path, **changes):
    """Rewrite some arrays of a witness; ``about`` is a function that changes the JSON."""
    with np.load(path) as archive:
        arrays = dict(archive)
    about = changes.pop("about", None)
    if about is not None:
        value = json.loads(arrays["about"].tobytes())
        about(value)
        arrays["about"] = np.frombuffer(json.dumps(value).encode(), np.uint8)
    np.savez(path, **(arrays | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trained_y": np.zeros(4, np.int64)}, "trained_y: expected 5 labels"),
        ({"trained_x": np.zeros(5, "U3")}, "trained_x: expected 5 examples of numbers"),
        ({"evaluated_hashes": np.zeros((2, 8), np.uint8)}, "evaluated_hashes: expected uint8"),
        ({"about": lambda value: value.pop("client")}, "client is missing"),
        ({"about": lambda value: value["trained"].update(total=1)}, "5 examples, of a total of 1"),
        ({"about": lambda value: value["trained"].update(counts={"a": 1})}, "expected classes as numbers"),
        ({"about": lambda value: value.update(node="a\x1b[2J")}, "node"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_witness_is_refused_in_a_line(tmp_path, changes, says):
    path = write_witness(tmp_path, FULL)
    change(path, **changes)
    with pytest.raises(ConfigError, match=says) as raised:
        read_witnesses(tmp_path)
    assert len(str(raised.value).splitlines()) == 1


def test_other_files_and_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        read_witnesses(tmp_path / "nowhere")
    path = write_witness(tmp_path, FULL)
    path.rename(witness_file(tmp_path, "18"))
    write_witness(tmp_path, FULL)
    with pytest.raises(ConfigError, match="two witnesses of the node 17"):
        read_witnesses(tmp_path)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ConfigError, match=r"cannot be read as an \.npz"):
        read_witnesses(tmp_path)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="a link that leaves"):
        read_witnesses(tmp_path)
