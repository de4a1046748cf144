"""What a record promises to a reader who does not trust the folder, and to a server that does not trust its clients."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.base.errors import ConfigError, RecordError
from fedattack.base.files import seal
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from fedattack.record.arrays import TensorFile
from fedattack.record.format import FINAL, INDEX, MANIFEST, SIGNATURE, decode_metric, encode_metric
from fedattack.record.project import copy_record
from fedattack.record.schema import MAX_VALUE
from fedattack.record.signature import make_key, public_file, read_signer
from tests.fuzz import mutate
from tests.record.conftest import exchange, model
from tests.worlds.federation import write_run


def lines_of(record):
    return (record / INDEX).read_bytes().splitlines(keepends=True)


def read_all(record):
    return [dict(seen.arrays or {}) for item in Record(record) for seen in item.observations]


def parsed(record):
    """The manifest and the lines, without their seals."""
    manifest, *lines = [
        json.loads(text) for text in ((record / MANIFEST).read_text(), *(line.decode() for line in lines_of(record)))
    ]
    for value in (manifest, *lines):
        del value["check"]
    return manifest, lines


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (0, 0, 1, 2), (0, 1, 2, 2), (0, 2), (1, 2), (0, 1)])
def test_lines_are_chained(folder, order):
    lines = lines_of(folder)
    (folder / INDEX).write_bytes(b"".join(lines[place] for place in order))
    with pytest.raises(RecordError, match=r"repeated or put in another order|are gone|where the manifest counts 3"):
        Record(folder)
    assert check_record(folder).problems


def test_lines_of_another_record_do_not_fit(folder, tmp_path):
    """The same rounds, written a second time: each file is whole by itself."""
    writer = RecordWriter(tmp_path / "other", seed=7)
    for number in (1, 2, 3):
        writer.write(exchange(number))
    writer.close(final=model(4))
    lines, others = lines_of(folder), lines_of(tmp_path / "other")
    for mixed in ([others[0], *lines[1:]], [*lines[:2], others[2]], others):
        (folder / INDEX).write_bytes(b"".join(mixed))
        with pytest.raises(RecordError, match=r"does not carry the seal of the line before|does not end with the line"):
            Record(folder)


def test_a_chain_of_lines_that_were_changed_and_sealed_again_is_refused_unless_all_is(folder):
    manifest, lines = parsed(folder)
    lines[1]["replies"][0]["num_examples"] = 1_000_000
    whole = lines_of(folder)
    changed = mutate.sealed(lines[1]) + b"\n"
    (folder / INDEX).write_bytes(b"".join([whole[0], changed, whole[2]]))
    with pytest.raises(RecordError, match="does not carry the seal of the line before"):
        Record(folder)
    mutate.seal_record(folder, manifest, lines)
    report = check_record(folder)
    assert report.whole
    assert report.remarks == [
        "the record is not signed: whoever can write to the folder may have changed it and sealed it again"
    ]


FORMS = {
    "a number for a text": lambda manifest, lines: lines[0]["replies"][0].update(node=7),
    "a text for a number": lambda manifest, lines: lines[0].update(seq="0"),
    "yes for a number": lambda manifest, lines: lines[0].update(seq=False),
    "NaN": lambda manifest, lines: lines[0]["config"].update(lr=math.nan),
    "no finite number": lambda manifest, lines: lines[0]["replies"][0].update(num_examples={"float": "7"}),
    "no base64": lambda manifest, lines: lines[0]["replies"][0].update(num_examples={"base64": "abc"}),
    "a number beyond 64 bits": lambda manifest, lines: lines[0].update(round=2**70),
    "a negative size": lambda manifest, lines: lines[0].update(bytes=-1),
    "a file elsewhere": lambda manifest, lines: lines[0].update(file="../../victim"),
    "another round's file": lambda manifest, lines: lines[0].update(file="rounds/000001.safetensors"),
    "an unknown key": lambda manifest, lines: lines[0].update(more=1),
    "a name twice": lambda manifest, lines: lines[0]["replies"][0]["arrays"].append("fc.bias"),
    "a long name": lambda manifest, lines: lines[0]["replies"][0].update(node="n" * 2000),
    "an unknown status": lambda manifest, lines: lines[0]["replies"][0].update(status="fine"),
    "a model of a later round": lambda manifest, lines: lines[0].update(common={"source": "same", "as": 2}),
    "a model of itself": lambda manifest, lines: lines[1].update(common={"source": "same", "as": 1}),
    "arrays that are not there": lambda manifest, lines: lines[0]["replies"][0]["arrays"].append("other"),
    "an unknown view": lambda manifest, lines: manifest.update(view="everything"),
    "a shape of text": lambda manifest, lines: manifest["parameters"][0].update(shape=["x"]),
    "a shape below zero": lambda manifest, lines: manifest["parameters"][0].update(shape=[-1]),
    "no number of rounds": lambda manifest, lines: manifest.update(rounds=None),
    "a final model of no round": lambda manifest, lines: manifest.update(final={"source": "same", "as": 9}),
    "version 0": lambda manifest, lines: manifest.update(version=0),
    "version yes": lambda manifest, lines: manifest.update(version=True),
    "depth": lambda manifest, lines: lines[0]["config"].update(lr=mutate.DEEP),
    "depth in the manifest": lambda manifest, lines: manifest["facts"].update(site=mutate.DEEP),
}


@pytest.mark.parametrize("change", FORMS.values(), ids=FORMS)
def test_what_is_sealed_and_has_another_form_is_refused_in_one_line(folder, change):
    manifest, lines = parsed(folder)
    change(manifest, lines)
    mutate.seal_record(folder, manifest, lines)
    with pytest.raises(RecordError) as problem:
        read_all(folder)
    assert "\n" not in str(problem.value)


@pytest.mark.slow
def test_a_record_of_thousands_of_rounds_in_which_nobody_answered_is_read(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    for number in range(1, 1_001):
        writer.write(Exchange(number, model(0), [Reply("a", "missing", reason="gone")]))
    writer.close(final=model(0))
    record = Record(tmp_path / "record")
    last = record.rounds[-1]
    np.testing.assert_array_equal(last.common["fc.weight"], model(0)["fc.weight"])
    np.testing.assert_array_equal(record.final["fc.weight"], model(0)["fc.weight"])
    report = check_record(tmp_path / "record")
    assert (report.problems, report.rounds) == ([], 1_000)
    assert report.notes == ["no client answered a training message in any of 1000 rounds: gone"]


def test_a_file_is_opened_once_however_many_arrays_are_read(tmp_path, monkeypatch):
    import fedattack.record.arrays as arrays

    opened = []

    def counted(path, framework):
        opened.append(path)
        return real(path, framework)

    real = arrays.safe_open
    monkeypatch.setattr(arrays, "safe_open", counted)
    writer = RecordWriter(tmp_path / "record")
    for number in (1, 2, 3):
        writer.write(Exchange(number, model(0), [Reply(str(c), "ok", model(c), 5) for c in range(30)], mean="message"))
    writer.close()
    for item in Record(tmp_path / "record"):
        for seen in item.observations:
            seen.update()
    assert len(opened) == 3


def test_a_record_lets_go_of_its_files_with_itself(folder):
    record = Record(folder)
    dict(record.rounds[0].observations[0].arrays)
    mapped = Path("/proc/self/maps")
    assert str(folder) in mapped.read_text()
    del record
    assert str(folder) not in mapped.read_text()


def test_callers_may_change_what_they_are_given(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    replies = [Reply(str(client), "ok", model(client), 5) for client in range(2)]
    writer.write(Exchange(1, model(9), replies, mean="message"))
    mean = {name: (array + model(1)[name]) / 2 for name, array in model(0).items()}
    writer.write(Exchange(2, {name: array.astype(np.float32) for name, array in mean.items()}, replies))
    writer.close()
    item = Record(tmp_path / "record").rounds[1]
    first = item.common["fc.bias"].copy()
    item.common["fc.bias"][:] = 0
    np.testing.assert_array_equal(item.common["fc.bias"], first)


# --- what clients send ---------------------------------------------------------------------------------------------


def test_names_and_metrics_of_megabytes_cost_their_client_alone(tmp_path):
    """Of the review: a client that sends such a name made the server's next round unreadable."""
    huge = "n" * 30_000_000
    good = Reply("good", "ok", model(1), 5, {"loss": 0.5})
    many = {f"m{place}": "x" * (MAX_VALUE // 2) for place in range(20)}
    replies = [
        good,
        Reply("array", "ok", {huge: np.zeros(2, dtype=np.float32)}, 5),
        Reply("metric", "ok", model(2), 5, {huge: 1.0}),
        Reply("text", "ok", model(3), 5, {"note": huge}),
        Reply("bytes", "ok", model(4), 5, {"blob": huge.encode()}),
        Reply("list", "ok", model(5), 5, {"list": [0.123456789] * 1_000_000}),
        Reply("many", "ok", model(6), 5, many),
        Reply("reason", "failed", reason=huge),
    ]
    writer = RecordWriter(tmp_path / "record")
    for number in (1, 2):
        writer.write(Exchange(number, model(0), replies))
    writer.close()
    record = Record(tmp_path / "record")
    assert (tmp_path / "record" / INDEX).stat().st_size < 1_000_000
    for item in record:
        seen = {observation.node: observation for observation in item.observations}
        assert seen["good"].metrics == {"loss": 0.5}
        assert [node for node, observation in seen.items() if observation.status != "ok"] == ["array", "many", "reason"]
        assert "a name of 30000000 characters" in seen["array"].reason
        assert "too many to keep" in seen["many"].reason
        assert seen["many"].arrays is None
        assert "too many to keep, with the SHA-256" in seen["text"].metrics["note"]
        assert "30000000 bytes" in seen["bytes"].metrics["blob"]
        assert "a list of 1000000 entries" in seen["list"].metrics["list"]
        assert all(len(observation.reason) <= 300 for observation in seen.values())
        np.testing.assert_array_equal(seen["metric"].arrays["fc.bias"], model(2)["fc.bias"])
    assert check_record(tmp_path / "record").whole


def test_many_large_replies_fail_from_the_largest_on(tmp_path, monkeypatch):
    import fedattack.record.writer as writing

    monkeypatch.setattr(writing, "MAX_REPLIES", 3_000)
    replies = [Reply(f"n{size}", "ok", model(1), 5, {"text": "x" * size}) for size in (10, 1_000, 2_000, 100)]
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, model(0), replies))
    writer.close()
    seen = Record(tmp_path / "record").rounds[0].observations
    assert [observation.status for observation in seen] == ["ok", "ok", "failed", "ok"]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -1, 2**63, 0.5, -0.0, "text", "", b"\x00\xff", [1, 2.5, "x", None], [[1], [b"x"]]),
        *(float("nan"), float("inf"), float("-inf"), "\x1b[31m", "é", 2**64 - 1, -(2**63)),
    ],
)
def test_metrics_survive(value, tmp_path):
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, model(0), [Reply("a", "ok", model(1), 5, {"m": value})], config={"m": value}))
    writer.close()
    (item,) = Record(tmp_path / "record")
    for found in (item.observations[0].metrics["m"], item.config["m"], decode_metric(encode_metric(value))):
        assert type(found) is type(value)
        assert found == value or (isinstance(value, float) and math.isnan(value))


def test_what_no_reader_takes_is_refused_when_it_is_written(tmp_path):
    with pytest.raises(RecordError, match=r"aggregation\.clipping"):
        RecordWriter(tmp_path / "record", aggregation={"clipping": -1.0})
    with pytest.raises(RecordError, match="seed"):
        RecordWriter(tmp_path / "record", seed=2**80)
    assert not (tmp_path / "record").exists()


# --- signatures ----------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(tmp_path):
    """A signed record of three rounds, and the fingerprint of its key."""
    name = make_key(tmp_path / "key.pem")
    writer = RecordWriter(tmp_path / "signed", seed=7, key=tmp_path / "key.pem")
    for number in (1, 2, 3):
        writer.write(exchange(number))
    assert check_record(tmp_path / "signed").remarks[0].startswith("the record is not signed yet")
    writer.close(final=model(4))
    return tmp_path / "signed", name


def test_a_signed_record_names_its_signer(signed, tmp_path):
    record, name = signed
    assert Record(record).signer == name
    assert check_record(record).whole
    assert read_signer(str(public_file(tmp_path / "key.pem"))) == name
    assert (tmp_path / "key.pem").stat().st_mode & 0o077 == 0


def test_openssl_verifies_the_signature_too(signed, tmp_path):
    record, _ = signed
    done = subprocess.run(
        [
            *("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(tmp_path / "key.pem.pub"), "-rawin"),
            *("-in", str(record / MANIFEST), "-sigfile", str(record / SIGNATURE)),
        ],
        capture_output=True,
        text=True,
    )
    assert "Verified Successfully" in done.stdout, done.stderr


def test_whatever_is_changed_of_a_signed_record_is_refused_however_it_is_sealed(signed, tmp_path):
    record, _ = signed
    other = make_key(tmp_path / "other.pem")
    manifest, lines = parsed(record)

    def count(manifest, lines):
        lines[0]["replies"][0]["num_examples"] = 99

    def fact(manifest, lines):
        manifest["facts"]["site"] = "B"

    def shorter(manifest, lines):
        del lines[-1]
        manifest["rounds"] = 2

    def without_digest(manifest, lines):
        for line in lines:
            del line["sha256"]

    def arrays(manifest, lines):
        path = record / lines[0]["file"]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        # as if the fast checksum had been made to collide
        import xxhash

        lines[0]["xxh3"] = xxhash.xxh3_128(bytes(data)).hexdigest()

    def signer(manifest, lines):
        import base64

        manifest["signer"] = base64.b64encode(b"\x01" * 32).decode()

    for change in (count, fact, shorter, without_digest, arrays, signer):
        copy = json.loads(json.dumps([manifest, lines]))
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(record, tmp_path / "copy")
        change(*copy)
        mutate.seal_record(tmp_path / "copy", *copy)
        with pytest.raises(RecordError, match=r"is not what its recorder signed|does not match its checksum"):
            read_all(tmp_path / "copy")
    (record / SIGNATURE).unlink()
    with pytest.raises(RecordError, match="a signed record has its signature next to the manifest"):
        Record(record)
    assert other != signed[1]


def test_an_array_is_held_to_what_was_signed(signed):
    """The signature is of SHA-256: XXH3, which tells damage, can be made to collide."""
    record, _ = signed
    path = record / "rounds" / "000000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match="does not match its checksum"):
        dict(Record(record).rounds[0].observations[0].arrays)


def test_a_record_goes_on_as_it_was_begun(tmp_path):
    make_key(tmp_path / "key.pem")
    for begun, then in ((tmp_path / "key.pem", None), (None, tmp_path / "key.pem")):
        path = tmp_path / f"record-{begun is None}"
        writer = RecordWriter(path, key=begun)
        writer.write(exchange(1))
        writer.close(error="stopped")
        with pytest.raises(RecordError, match="continue it in the same way"):
            RecordWriter(path, resume=True, key=then)
        writer = RecordWriter(path, resume=True, key=begun)
        writer.write(exchange(2))
        writer.close()
        assert (Record(path).signer is None) == (begun is None)


def test_a_key_is_private_never_overwritten_and_refused_if_it_is_none(tmp_path):
    make_key(tmp_path / "key.pem")
    with pytest.raises(ConfigError, match="a key is never overwritten"):
        make_key(tmp_path / "key.pem")
    (tmp_path / "no.pem").write_text("no key")
    for bad in ("no.pem", "key.pem.pub", "nothing.pem"):
        with pytest.raises(ConfigError, match="expected an Ed25519 key in PEM"):
            RecordWriter(tmp_path / "record", key=tmp_path / bad)
    with pytest.raises(ConfigError, match="holds no public key"):
        read_signer(str(tmp_path / "key.pem"))
    assert read_signer("SHA256:abc") == "SHA256:abc"


def test_an_attack_on_a_signed_record_finds_what_it_finds_on_an_unsigned_one(tmp_path):
    make_key(tmp_path / "key.pem")
    plain = write_run(tmp_path / "plain")
    with_key = write_run(tmp_path / "signed", key=tmp_path / "key.pem")
    scores = [
        ATTACKS["sia"].run(Record(run / "record"), read_knowledge(run / "knowledge"), device="cpu")
        for run in (plain, with_key)
    ]
    np.testing.assert_array_equal(scores[0].arrays["losses"], scores[1].arrays["losses"])


def test_a_seal_tells_damage_alone(folder):
    manifest, _ = parsed(folder)
    (folder / MANIFEST).write_text(json.dumps(seal(manifest | {"seed": 8})))
    assert Record(folder).seed == 8


def test_lines_after_a_gap_are_nobodys(signed, tmp_path):
    """What was signed is the last line's seal; what does not lead to it is not vouched for, also if it is read."""
    record, _ = signed
    manifest, lines = parsed(record)
    signature = (record / SIGNATURE).read_bytes()
    original = (record / MANIFEST).read_bytes()
    lines[1]["replies"][0]["num_examples"] = 666
    mutate.seal_record(record, manifest, lines)
    (record / MANIFEST).write_bytes(original)
    (record / SIGNATURE).write_bytes(signature)
    rows = (record / INDEX).read_bytes().splitlines(keepends=True)
    (record / INDEX).write_bytes(b"".join(rows[1:]))
    with pytest.raises(RecordError, match="lines before it are gone"):
        Record(record)
    left = Record(record, skip_damaged=True)
    assert left.signer is None
    assert left.remarks == [
        "the record was signed, but its index is damaged: the signature does not cover what is left"
    ]
    found = check_record(record)
    assert (found.whole, found.signer) == (False, None)


def test_a_signed_record_that_is_open_again_says_so(signed):
    record, _ = signed
    manifest, _ = parsed(record)
    manifest |= {"status": "open", "rounds": None, "head": None, "final": None, "ended": None}
    (record / MANIFEST).write_bytes(mutate.sealed(manifest))
    assert Record(record).signer is None
    assert Record(record).remarks == [
        "the record was signed, but is open again: a stopped run continues, or somebody changed it"
    ]


def test_a_seal_that_was_shortened_is_refused(signed):
    record, _ = signed
    text = (record / MANIFEST).read_text()
    check = json.loads(text)["check"]
    (record / MANIFEST).write_text(text.replace(check, check[:16]))
    with pytest.raises(RecordError, match="does not match its checksum"):
        Record(record)


def test_a_record_is_not_written_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "rounds").symlink_to(tmp_path / "outside")
    with pytest.raises(RecordError, match="is a link that leaves"):
        RecordWriter(tmp_path / "record")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest, lines: manifest.update(seed=-1),
        lambda manifest, lines: lines[0]["replies"][0].update(num_examples=[1, 2]),
        lambda manifest, lines: lines[0]["replies"][0].update(num_examples="5"),
        lambda manifest, lines: lines[0]["replies"][0].update(num_examples={"base64": "AA=="}),
    ],
)
def test_what_attacks_compute_with_is_a_number(tmp_path, change):
    writer = RecordWriter(tmp_path / "record", seed=7)
    writer.write(exchange(1))
    writer.close()
    copy = parsed(tmp_path / "record")
    change(*copy)
    mutate.seal_record(tmp_path / "record", *copy)
    with pytest.raises(RecordError, match=r"seed|num_examples"):
        Record(tmp_path / "record")


def test_an_array_for_which_there_is_no_memory_ends_in_no_panic(tmp_path):
    """The library that reads it would end the process's thread in a panic of its own."""
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, {"w": np.zeros(100_000_000, np.int8)}, []))
    writer.close()
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import resource, sys, mmap\n"
            "from fedattack.record import Record\n"
            "common = Record(sys.argv[1]).rounds[0].common\n"
            "taken = int(open('/proc/self/statm').read().split()[0]) * mmap.PAGESIZE + 150_000_000\n"
            "resource.setrlimit(resource.RLIMIT_AS, (taken, taken))\n"
            "try:\n    common['w']\nexcept MemoryError:\n    print('no memory')\n",
            str(tmp_path / "record"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "no memory\n", done.stderr


def test_a_record_of_holes_is_refused_by_name(tmp_path):
    (tmp_path / "record" / "rounds").mkdir(parents=True)
    size = 300 * 2**20
    table = json.dumps({"common/w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file = tmp_path / "record" / "rounds" / "000000.safetensors"
    file.write_bytes(len(table).to_bytes(8, "little") + table)
    os.truncate(file, 8 + len(table) + size)
    if file.stat().st_blocks * 512 > size // 2:
        pytest.skip("this file system has no holes")
    with pytest.raises(RecordError, match="the rest is holes"):
        TensorFile(file, {"xxh3": "0" * 32, "bytes": file.stat().st_size}).verify()


def test_the_copy_of_a_record_is_its_own_files_alone(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    writer.write(exchange(1))
    writer.close()
    expected = {path: path.read_bytes() for path in (tmp_path / "record").rglob("*") if path.is_file()}
    for name in (FINAL, SIGNATURE, "junk"):
        (tmp_path / "record" / name).write_bytes(b"x" * 1000)
    copy_record(Record(tmp_path / "record"), tmp_path / "copy")
    copied = {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path / "copy"): content for path, content in copied.items()} == {
        path.relative_to(tmp_path / "record"): content for path, content in expected.items()
    }
    assert check_record(tmp_path / "copy").whole


def test_a_signed_record_is_copied_with_its_signature_and_its_last_model(signed, tmp_path):
    record, name = signed
    copy_record(Record(record), tmp_path / "copy")
    assert check_record(tmp_path / "copy").signer == name
    assert (tmp_path / "copy" / FINAL).read_bytes() == (record / FINAL).read_bytes()
