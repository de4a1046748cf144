import json
import os
import shutil
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import MESSAGE, DataError, short
from fedattack.base.files import seal, write_npz, write_sealed
from fedattack.base.untrusted import (
    MAX_INFLATED,
    check_folder,
    copy_files,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_npz,
    read_sealed,
    read_text,
    read_toml,
    remove_inside,
    validate_value,
    verify_files,
)
from fedattack.record.schema import LINE_FORM

HINT = "do something"
NUMBERS = TypeAdapter(dict[str, int])


@with_config(ConfigDict(extra="forbid", strict=True))
class Known(TypedDict):
    a: int


FEW = TypeAdapter(Known)


def refused(message, action, *words):
    with pytest.raises(DataError, match=message) as problem:
        action(*words)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("reader", [read_bytes, read_text, read_json])
def test_only_regular_files_are_read_and_nothing_hangs(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    refused("it is a pipe", reader, tmp_path / "pipe", DataError, HINT)
    refused("it is a folder", reader, tmp_path, DataError, HINT)
    (tmp_path / "endless").symlink_to("/dev/zero")
    refused("it is a device", reader, tmp_path / "endless", DataError, HINT)
    refused("is not there; do something", reader, tmp_path / "nothing", DataError, HINT)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "large").write_bytes(b"12345")
    assert read_bytes(tmp_path / "large", DataError, HINT, limit=5) == b"12345"
    with pytest.raises(DataError, match="has 5 bytes; expected at most 4"):
        read_bytes(tmp_path / "large", DataError, HINT, limit=4)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "[" * 100_000, '{"a":' * 100_000, '"\\ud800"', "{", "", "1 1", "\xff"]
)
def test_json_is_strict_and_of_bounded_depth(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    refused("cannot be read as JSON", read_json, tmp_path / "x.json", DataError, HINT)


def test_json_of_150_levels_is_read():
    assert parse_json("[" * 150 + "]" * 150)


def test_what_was_sealed_is_held_to_its_checksum_and_what_was_not_is_taken(tmp_path):
    path = tmp_path / "x.json"
    write_sealed(path, {"a": 1, "b": 2})
    assert read_sealed(path, NUMBERS, DataError, HINT) == {"a": 1, "b": 2}
    path.write_text(path.read_text().replace('"b": 2', '"b": 3'))
    refused("does not match its checksum", read_sealed, path, NUMBERS, DataError, HINT)
    path.write_text('{"a": 1, "b": 3}')
    assert read_sealed(path, NUMBERS, DataError, HINT) == {"a": 1, "b": 3}
    path.write_text('{"a": 1, "b": "x"}')
    refused("b: input should be a valid integer.*got 'x'; do something", read_sealed, path, NUMBERS, DataError, HINT)


MANY = 10_000
DEEP = [{}] * MANY
for _ in range(150):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("replies", [{}] * MANY, id="list"),
        pytest.param("replies", [{"node": "1", "status": "ok", "metrics": {"a": [{}] * MANY}}], id="metrics"),
        pytest.param("config", {str(number): {} for number in range(MANY)}, id="object"),
        pytest.param("config", {str(number) * 400: 0 for number in range(MANY)}, id="keys"),
        pytest.param("config", {"a": DEEP}, id="depth"),
        pytest.param("common", {"source": "stored", "names": [1] * MANY}, id="names"),
        pytest.param("common", {"source": "same", "as": 1} | dict.fromkeys(map(str, range(MANY))), id="unknown keys"),
    ],
)
def test_of_thousands_of_faults_the_first_alone_is_described(key, value):
    line = {"seq": 0, "round": 1, "file": "rounds/000000.safetensors", "bytes": 0, "xxh3": "0" * 32, "config": {}}
    line |= {"common": None, "replies": [], "aggregate": None, "started": "", "ended": "", "previous": "", "check": ""}
    assert validate_value(LINE_FORM, line) == line
    with pytest.raises(ValidationError) as problem:
        validate_value(LINE_FORM, {**line, key: value})
    # The kinds that a metric may have, one by one, and each as often as it lies in another.
    assert problem.value.error_count() < 10 * 200


def test_an_unknown_key_is_named_and_of_thousands_only_how_many_may_be_there():
    with pytest.raises(ValidationError, match=r"1 validation error.*\nunknown"):
        validate_value(FEW, {"a": 1, "unknown": 1})
    with pytest.raises(ValidationError, match=r"1 validation error.*\n.*at most 17 items"):
        validate_value(FEW, dict.fromkeys(map(str, range(MANY))))


def test_a_seal_does_not_depend_on_white_space(tmp_path):
    value = {"z": [1.5, -0.0, 1e-300, 2**60], "a": {"ü": None, "\x07": True}}
    (tmp_path / "x.json").write_text(json.dumps(seal(value)))
    assert read_sealed(tmp_path / "x.json", TypeAdapter(dict), DataError, HINT) == value


def test_arrays_survive_the_disk(tmp_path):
    arrays = {
        "numbers": np.arange(6.0).reshape(2, 3),
        "text": np.array(["a", "bc"]),
        "scalar": np.array(7),
        "empty": np.zeros((0, 3), dtype=np.int64),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "flags": np.array([True, False]),
    }
    write_npz(tmp_path / "x.npz", arrays, compress=True)
    again = read_npz(tmp_path / "x.npz", DataError, HINT)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)
    assert [*read_npz(tmp_path / "x.npz", DataError, HINT, "text")] == ["text"]
    assert again["numbers"].flags.writeable


def lying(shape: str, data: bytes = bytes(64)) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize("shape", ["(10**12,)", "(1000000000000,)", "(-8,)", "(3,)", "(99999999999999999999,)", "8"])
def test_a_header_that_announces_other_arrays_than_there_are_takes_no_memory(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", lying(shape))
    refused("cannot be read as an .npz", read_npz, tmp_path / "x.npz", DataError, HINT)


def test_an_archive_that_inflates_is_not_inflated(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", lying("(40000000,)", bytes(320_000_000)))
    assert (tmp_path / "x.npz").stat().st_size < 1_000_000
    refused("its arrays would take 320,000,128 bytes", read_npz, tmp_path / "x.npz", DataError, HINT)


def test_examples_may_inflate_to_less_than_scores(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(10_000_000))
    refused("its arrays would take 80,000,128 bytes", read_npz, tmp_path / "x.npz", DataError, HINT)
    assert read_npz(tmp_path / "x.npz", DataError, HINT, inflated=MAX_INFLATED)["x"].size == 10_000_000


def test_two_arrays_of_one_name_and_python_objects_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        archive.writestr("x.npy", lying("(8,)"))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", lying("(8,)"))
    refused("two arrays have one name", read_npz, tmp_path / "twice.npz", DataError, HINT)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    refused("Python objects", read_npz, tmp_path / "objects.npz", DataError, HINT)


def test_an_array_that_numpy_would_not_have_written_so_is_not_inflated(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", lying("(8,)", bytes(64)))
    refused("not compressed as", read_npz, tmp_path / "x.npz", DataError, HINT)


@pytest.mark.parametrize("damage", range(0, 200, 7))
def test_a_damaged_archive_is_refused_whatever_is_raised_of_it(tmp_path, damage):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(20))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[damage % len(content)] ^= 0xFF
    (tmp_path / "x.npz").write_bytes(content)
    # Its dates and rights may be anything.
    with suppress(DataError):
        (array,) = read_npz(tmp_path / "x.npz", DataError, HINT).values()
        assert array.tolist() == [*range(20)]


def sparse(path, size, begin=b""):
    """Make a file of which only the beginning lies on the disk; a file system without holes has none to be tested."""
    path.write_bytes(begin)
    os.truncate(path, size)
    if path.stat().st_blocks * 512 > size // 2:
        pytest.skip("this file system has no holes")
    return path


def test_a_file_that_is_nearly_all_holes_is_refused(tmp_path):
    path = sparse(tmp_path / "x", MAX_INFLATED + 2**24, bytes(5000))
    with pytest.raises(OSError, match="holes") as problem:
        open_regular(path)
    assert f"{MAX_INFLATED + 2**24:,} bytes" in problem.value.strerror
    refused("the rest is holes", verify_files, tmp_path, {"x": "0" * 64}, DataError, tmp_path / "y")


def test_holes_do_not_let_an_archive_inflate_further(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", lying("(40000000,)", bytes(320_000_000)))
    content = (tmp_path / "x.npz").read_bytes()
    sparse(tmp_path / "padded.npz", 200_000_000)
    with (tmp_path / "padded.npz").open("ab") as file:
        file.write(content)
    refused("its arrays would take 320,000,128 bytes", read_npz, tmp_path / "padded.npz", DataError, HINT)


def test_honest_files_are_read_whatever_their_holes_or_blocks(tmp_path, monkeypatch):
    """Small ones, ones of which a twentieth is there, and those of a file system that counts few blocks."""
    with open_regular(sparse(tmp_path / "small", MAX_INFLATED)) as file:
        assert file.read(3) == bytes(3)
    size = MAX_INFLATED + 2**25
    with open_regular(sparse(tmp_path / "zeros", size, b"x" * (size // 20))) as file:
        assert file.read(3) == b"xxx"
    # Compressed on the disk, or behind a network: hardly a block, and no hole.
    monkeypatch.setattr("fedattack.base.untrusted.MAX_INFLATED", 0)
    (tmp_path / "packed").write_bytes(b"x" * 10_000)
    status = os.fstat

    class Few:
        def __init__(self, found):
            self.st_mode, self.st_size, self.st_blocks = found.st_mode, found.st_size, 0

    monkeypatch.setattr("os.fstat", lambda descriptor: Few(status(descriptor)))
    with open_regular(tmp_path / "packed") as file:
        assert file.read(3) == b"xxx"


def test_files_are_copied_by_name_once_it_is_known_that_they_fit(tmp_path, monkeypatch):
    (tmp_path / "from" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b", "junk"):
        (tmp_path / "from" / name).write_text(name)
    copy_files(["a", "sub/b"], tmp_path / "from", tmp_path / "to", DataError)
    assert (tmp_path / "to" / "sub" / "b").read_text() == "sub/b"
    assert not (tmp_path / "to" / "junk").exists()
    refused("cannot be copied", copy_files, ["none"], tmp_path / "from", tmp_path / "to", DataError)
    sparse(tmp_path / "from" / "holes", MAX_INFLATED + 2**24)
    refused("holes", copy_files, ["a", "holes"], tmp_path / "from", tmp_path / "other", DataError)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5))
    refused(
        "have 6 bytes, and 5 are free", copy_files, ["a", "sub/b"], tmp_path / "from", tmp_path / "other", DataError
    )
    assert not [*(tmp_path / "other").iterdir()]


@pytest.mark.parametrize("text", ["a = [", f"a = {'[' * 5000}", f"a = {'9' * 5000}", f"a = [0x{'9' * 5000}]"])
def test_a_file_that_is_no_toml_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    refused("cannot be read as TOML.*; do something", read_toml, tmp_path / "x.toml", DataError, HINT)


def test_links_inside_are_followed_and_links_out_are_refused(tmp_path):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "file").write_text("x")
    (tmp_path / "run" / "sub" / "inside").symlink_to("../file")
    check_folder(tmp_path / "run", DataError)
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    check_folder(tmp_path / "alias", DataError)
    (tmp_path / "outside").write_text("x")
    (tmp_path / "run" / "sub" / "out").symlink_to(tmp_path / "outside")
    refused("out is a link that leaves", check_folder, tmp_path / "run", DataError)
    (tmp_path / "run" / "sub" / "out").unlink()
    (tmp_path / "run" / "sub" / "chain").symlink_to("dangling")
    (tmp_path / "run" / "sub" / "dangling").symlink_to("../../nothing")
    refused("is a link that leaves", check_folder, tmp_path / "run", DataError)


def test_what_is_no_file_and_what_has_a_second_name_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "file").write_text("x")
    os.link(tmp_path / "file", tmp_path / "run" / "file")
    check_folder(tmp_path / "run", DataError)
    with pytest.raises(DataError, match="has a second name"):
        check_folder(tmp_path / "run", DataError, to_write=True)
    os.mkfifo(tmp_path / "run" / "pipe")
    refused("pipe is a pipe", check_folder, tmp_path / "run", DataError)
    check_folder(tmp_path / "nothing", DataError)


def test_only_what_lies_inside_is_removed(tmp_path):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("keep me")
    run = tmp_path / "run"
    for path in (run, run / "..", run / ".." / "victim", run / "sub" / ".." / ".." / "victim", tmp_path / "victim"):
        refused("is not inside", remove_inside, run, path, DataError)
    (run / "link").symlink_to(tmp_path / "victim")
    refused("is a link", remove_inside, run, run / "link", DataError)
    refused("is a link", remove_inside, run, run / "link" / "file", DataError)
    assert (tmp_path / "victim" / "file").read_text() == "keep me"
    remove_inside(run, run / "sub", DataError)
    remove_inside(run, run / "nothing", DataError)
    assert [path.name for path in run.iterdir()] == ["link"]


def test_files_are_held_to_the_checksums_that_stand_beside_them(tmp_path):
    told = {"x.npz": write_npz(tmp_path / "x.npz", {"x": np.arange(3)})}
    verify_files(tmp_path, told, DataError, tmp_path / "told.json")
    write_npz(tmp_path / "x.npz", {"x": np.arange(4)})
    refused("is not the file that was written", verify_files, tmp_path, told, DataError, tmp_path / "told.json")
    (tmp_path / "x.npz").unlink()
    refused("cannot be read", verify_files, tmp_path, told, DataError, tmp_path / "told.json")
    for name in ("../x.npz", "/etc/passwd", "a/b", "..", ""):
        refused("is not the name of a file", verify_files, tmp_path, {name: ""}, DataError, tmp_path / "told.json")


def test_a_message_has_one_line_a_limit_and_no_control_characters():
    assert short("a\n b\tc") == "a b c"
    assert short("\x1b[31mred\x07") == "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"
    text = short("begin " + "x" * 5000 + " end")
    assert len(text) == MESSAGE
    assert text.startswith("begin")
    assert text.endswith("end")
    assert short("\ud800") == "\N{REPLACEMENT CHARACTER}"
