import json
import math
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from fedattack.base.errors import RecordError
from fedattack.base.files import seal
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record, project_record
from fedattack.record.format import UNFINISHED
from tests.record.conftest import exchange, model


def equal(left, right) -> bool:
    return list(left) == list(right) and all(
        left[name].tobytes() == right[name].tobytes() and left[name].shape == right[name].shape for name in left
    )


def test_what_was_written_is_read_back_bit_for_bit(folder):
    record = Record(folder)
    assert (record.view, record.protocol, record.server, record.status) == (
        "individual",
        "fedavg",
        "passive",
        "complete",
    )
    assert record.seed == 7
    assert record.facts["site"] == "A"
    assert math.isnan(record.facts["noise"])
    assert record.facts["key"] == b"\x00"
    assert [parameter.name for parameter in record.parameters] == list(model(0))
    assert [parameter.role for parameter in record.parameters] == ["parameter", "parameter", "buffer"]
    assert record.nodes == ("node-0", "node-1", "node-2", "node-gone")
    for item, number in zip(record, (1, 2, 3), strict=True):
        written = exchange(number)
        assert item.number == number
        assert item.config == {"lr": 0.1}
        assert equal(item.common, model(number))
        assert equal(item.after, model(number + 1))
        assert item.participants == ("node-0", "node-1", "node-2")
        for seen, reply in zip(item.observations, written.replies, strict=True):
            assert (seen.node, seen.status, seen.reason) == (reply.node, reply.status, reply.reason)
            assert (seen.num_examples, seen.metrics) == (reply.num_examples, dict(reply.metrics))
            assert (seen.arrays is None) == (reply.arrays is None)
            assert reply.arrays is None or equal(seen.arrays, reply.arrays)


def test_an_update_is_sent_minus_received_without_buffers(folder):
    item = Record(folder).rounds[1]
    update = item.observations[2].update()
    assert set(update) == {"fc.weight", "fc.bias"}
    for name, delta in update.items():
        assert delta.dtype == np.float32
        np.testing.assert_allclose(delta, model(202)[name] - model(2)[name], rtol=1e-6, atol=1e-7)
    with pytest.raises(RecordError, match="no update, because the client raised"):
        item.observations[3].update()


def test_files_are_plain_safetensors_and_private(folder):
    with safe_open(folder / "rounds" / "000000.safetensors", framework="numpy") as file:
        assert "reply/0/fc.weight" in set(file.keys())
        np.testing.assert_array_equal(file.get_tensor("reply/0/fc.weight"), model(100)["fc.weight"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_odd_metrics_and_a_client_of_another_shape_are_kept_as_they_came(tmp_path):
    odd = {"w": np.full((2, 2), np.nan, dtype=np.float32)}
    metrics = {"nan": float("nan"), "blob": b"\xff\x00", "text": "<script>", "list": [1.5, float("inf")]}
    writer = RecordWriter(tmp_path / "record")
    common = {"w": np.zeros(3, dtype=np.float32)}
    writer.write(Exchange(1, common, [Reply("n", "ok", odd, 3, metrics)]))
    writer.close()
    seen = Record(tmp_path / "record").rounds[0].observations[0]
    assert math.isnan(seen.metrics["nan"])
    assert seen.metrics["blob"] == b"\xff\x00"
    assert seen.metrics["list"] == [1.5, math.inf]
    assert np.isnan(seen.arrays["w"]).all()
    with pytest.raises(RecordError, match=r"w: expected shape \(3,\), got shape \(2, 2\)"):
        seen.update()


def test_the_name_of_an_example_count_is_kept_where_it_is_no_usual_one(tmp_path):
    """Also in a copy; a record of an earlier writer, which names none, has the usual one."""
    arrays = {"w": np.zeros(2, np.float32)}
    replies = [Reply("a", "ok", arrays, 7, {"loss": 0.5}, count_key="patients"), Reply("b", "ok", arrays, 8)]
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, {"w": np.zeros(2, np.float32)}, replies))
    writer.close()
    project_record(Record(tmp_path / "record"), tmp_path / "sums")
    for folder in ("record", "sums"):
        (only,) = Record(tmp_path / folder)
        assert [seen.plaintext for seen in only.observations] == [{"patients": 7, "loss": 0.5}, {"num-examples": 8}]
    assert (tmp_path / "record" / "rounds.jsonl").read_text().count("count_key") == 1


def test_one_odd_reply_costs_itself_alone(tmp_path):
    """Scalars keep their shape; text is failed with a reason; a count that is no number does not weigh."""
    scalar = {"w": np.zeros(2, dtype=np.float32), "bn.num_batches_tracked": np.array(3)}
    replies = [
        Reply("good", "ok", scalar, 5),
        Reply("text", "ok", {"w": np.array(["a", "b"])}, 5),
        Reply("strange", "ok", scalar, [5, 5]),
    ]
    writer = RecordWriter(tmp_path / "record")
    for number in (1, 2, 3):
        writer.write(Exchange(number, scalar, replies, mean="message"))
    writer.close(final=scalar)
    record = Record(tmp_path / "record")
    assert len(record) == 3
    good, text, strange = record.rounds[1].observations
    assert good.arrays["bn.num_batches_tracked"].shape == ()
    assert (text.status, text.arrays) == ("failed", None)
    assert "w is <U1" in text.reason
    assert strange.num_examples is None
    assert equal(record.final, scalar)
    assert check_record(tmp_path / "record").whole


def test_projection_keeps_sums_and_participants_and_nothing_of_single_clients(folder, tmp_path):
    projected = project_record(Record(folder), tmp_path / "projected")
    assert projected.view == "aggregate"
    assert projected.manifest["aggregation"] == {"kind": "mean", "weight": "num-examples", "by": "projection"}
    for item, original in zip(projected, Record(folder), strict=True):
        weights = [10, 11, 12]
        for name, array in item.aggregate.items():
            sent = [original.observations[index].arrays[name].astype(np.float64) for index in range(3)]
            expected = sum(w * a for w, a in zip(weights, sent, strict=True)) / sum(weights)
            np.testing.assert_allclose(array, expected, rtol=1e-12)
        assert all(seen.arrays is None for seen in item.observations)
        assert [seen.num_examples for seen in item.observations] == [10, 11, 12, None]
        assert equal(item.common, original.common)
    stored = {name for file in (tmp_path / "projected" / "rounds").iterdir() for name in _names(file)}
    assert not any(name.startswith("reply/") for name in stored)
    with pytest.raises(RecordError, match="only an individual record"):
        project_record(projected, tmp_path / "again")


def test_projection_copes_with_rounds_of_which_nothing_came(tmp_path):
    """No reply, replies that are late, one that failed: no aggregate, and who was sampled stays."""
    writer = RecordWriter(tmp_path / "record")
    gone = [Reply("a", "missing", reason="gone"), Reply("b", "failed", model(1), 3, reason="broken")]
    writer.write(Exchange(1, model(0), gone))
    writer.write(Exchange(2, model(0), [Reply("a", "ok", model(2), 5), Reply("b", "late", model(3), 9, of_round=1)]))
    writer.close(final=model(4))
    projected = project_record(Record(tmp_path / "record"), tmp_path / "projected")
    first, second = projected.rounds
    assert first.aggregate is None
    assert (first.sampled, first.participants) == (("a", "b"), ())
    assert equal(first.common, model(0))
    assert second.participants == ("a",)
    for name, array in second.aggregate.items():
        np.testing.assert_array_equal(array, model(2)[name].astype(np.float64))
    assert check_record(tmp_path / "projected").whole


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Reply("bad", "ok", model(2), None), "no example count"),
        (Reply("bad", "ok", None, 5), "no arrays"),
        (Reply("bad", "ok", model(2), [5]), "no example count"),
        (Reply("bad", "ok", {"fc.bias": np.zeros(9, dtype=np.float32)}, 5), r"fc\.bias: expected shape \(4,\)"),
    ],
)
def test_replies_without_a_weighted_mean_are_refused_in_one_line(tmp_path, bad, message):
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(7, model(0), [Reply("good", "ok", model(1), 5), bad]))
    writer.close()
    with pytest.raises(RecordError, match=message) as caught:
        project_record(Record(tmp_path / "record"), tmp_path / "projected")
    assert "round 7, node bad" in str(caught.value)
    assert "\n" not in str(caught.value)


def _names(file):
    with safe_open(file, framework="numpy") as tensors:
        return list(tensors.keys())


def test_a_missing_record_says_what_to_do(tmp_path):
    with pytest.raises(RecordError, match=r"holds no record: expected manifest\.json"):
        Record(tmp_path)


def test_a_newer_format_is_refused(folder):
    manifest = folder / "manifest.json"
    value = json.loads(manifest.read_text())
    del value["check"]
    manifest.write_text(json.dumps(seal({**value, "version": 99})))
    with pytest.raises(RecordError, match="version 99 is newer"):
        Record(folder)


def test_a_flipped_byte_anywhere_is_found(folder):
    """Every file, a byte at the start, in the middle and at the end."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        original = file.read_bytes()
        for position in {0, len(original) // 2, len(original) - 2}:
            damaged = bytearray(original)
            damaged[position] ^= 0x01
            file.write_bytes(damaged)
            try:
                report = check_record(folder)
            except RecordError:
                pass
            else:
                assert report.problems, f"{file.name}, byte {position}"
        file.write_bytes(original)
    assert check_record(folder).whole


def test_damage_costs_its_own_round_alone(folder):
    file = folder / "rounds" / "000001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    record = Record(folder)
    assert equal(record.rounds[0].observations[0].arrays, model(100))
    with pytest.raises(RecordError, match="does not match its checksum"):
        record.rounds[1].observations[0].arrays["fc.bias"]
    assert [item.number for item in Record(folder, skip_damaged=True)] == [1, 3]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_truncated_index_is_found_and_its_whole_lines_can_be_used(folder, keep):
    index = folder / "rounds.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:keep]))
    with pytest.raises(RecordError, match=f"lists {keep} whole rounds where the manifest counts 3"):
        Record(folder)
    assert len(Record(folder, skip_damaged=True)) == keep
    assert not check_record(folder).whole


def test_a_half_written_last_line_is_what_a_kill_leaves(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    for number in (1, 2):
        writer.write(exchange(number))
    index = tmp_path / "record" / "rounds.jsonl"
    index.write_bytes(index.read_bytes()[:-20])
    assert [item.number for item in Record(tmp_path / "record")] == [1]
    report = check_record(tmp_path / "record")
    assert not report.problems
    assert "has not ended" in report.notes[0]


KILLED = """
import sys
from pathlib import Path
from fedattack.record import RecordWriter
from tests.record.conftest import exchange
writer = RecordWriter(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    writer.write(exchange(number, clients=20))
    print(number, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.02, 0.05])
def test_kill_9_at_any_moment_loses_no_complete_round(tmp_path, delay):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "record")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    complete = 1 + len(process.stdout.read().split())
    process.wait()
    record = Record(tmp_path / "record")
    assert record.status == "open"
    assert len(record) in (complete, complete + 1)
    for item in record:
        assert equal(item.observations[19].arrays, model(100 * item.number + 19))
    assert not check_record(tmp_path / "record").problems


@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_a_record_goes_on_after_a_kill(tmp_path, delay):
    path = tmp_path / "record"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    process.stdout.readline()
    with pytest.raises(RecordError, match="is being written to by another run"):
        RecordWriter(path, resume=True)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (path / "rounds" / ".000009.safetensors.half").write_bytes(b"torn")
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"seq": 9, "rou')
    before = len(Record(path))
    for number in (before, before + 1):
        writer = RecordWriter(path, resume=True)
        assert Record(path).status == "open"
        writer.write(exchange(number + 1))
        writer.close(final=model(number + 2))
    record = Record(path)
    assert check_record(path).whole
    assert [item.number for item in record] == [*range(1, before + 3)]
    for item in record:
        assert equal(item.observations[1].arrays, model(100 * item.number + 1))
    assert equal(record.final, model(before + 3))
    assert [item["after"] for item in record.manifest["resumed"]] == [before, before + 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "aggregate"}, "has the view individual, and what is to continue it aggregate"),
        ({"protocol": "fedsgd"}, "has the protocol fedavg"),
        ({"seed": 8}, "has the seed 7, and what is to continue it 8"),
    ],
)
def test_another_kind_of_run_does_not_go_on_with_a_record(folder, options, message):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RecordError, match=message):
        RecordWriter(folder, **{"seed": 7, "resume": True, **options})
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    # The refusal holds nobody up.
    RecordWriter(folder, seed=7, resume=True).close()


def test_a_record_survives_a_kill_while_it_is_being_gone_on_with(tmp_path, monkeypatch):
    """Between any two of the writer's steps: what is readable stays so, and the next one goes on."""
    path = tmp_path / "record"
    writer = RecordWriter(path)
    for number in (1, 2):
        writer.write(exchange(number))
    writer.write(Exchange(3, model(3), [Reply("node-0", "missing", reason=UNFINISHED)]))
    writer.close(error="the run ended with Stopped")
    shutil.copytree(path, tmp_path / "before")
    replace = Path.replace
    for step in range(3):
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "before", path)
        done = []

        def fail(*words, step=step, done=done):
            done.append(words)
            if len(done) > step:
                raise OSError("killed")
            return replace(*words)

        monkeypatch.setattr(Path, "replace", fail)
        if step < 2:
            with pytest.raises(RecordError, match="killed"):
                RecordWriter(path, resume=True)
        monkeypatch.setattr(Path, "replace", replace)
        assert not check_record(path).problems
        writer = RecordWriter(path, resume=True)
        writer.write(exchange(3))
        writer.close()
        assert check_record(path).whole
        assert [item.number for item in Record(path)] == [1, 2, 3]


def test_a_record_that_is_damaged_or_not_there_is_not_gone_on_with(folder, tmp_path):
    with pytest.raises(RecordError, match="holds no record"):
        RecordWriter(tmp_path, resume=True)
    with pytest.raises(RecordError, match="cannot be made into a record"):
        RecordWriter(tmp_path / "nowhere", resume=True)
    index = folder / "rounds.jsonl"
    index.write_bytes(index.read_bytes().replace(b'"round":2', b'"round":3'))
    with pytest.raises(RecordError, match=r"does not match its checksum.*; a damaged record cannot be continued"):
        RecordWriter(folder, seed=7, resume=True)


FULL = """
import resource, signal, sys
import logging
from pathlib import Path
from fedattack.observe._recorder import Recorder
from tests.record.conftest import exchange
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(Path(sys.argv[1]))
trained = 0
for number in range(1, 9):
    recorder.put(exchange(number, clients=3 if number < 4 else 400))
    trained += 1
recorder.close()
print(trained)
"""


def test_a_full_disk_ends_the_recording_and_not_the_run(tmp_path):
    """A file-size limit stands in for the full disk: the write fails half-way with an OSError, as on a full one."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "record")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.stdout.strip() == "8"
    assert "stopped recording; the run continues" in done.stderr
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == [1, 2, 3]
    assert record.status == "cut short"
    assert "File too large" in record.manifest["error"]
    report = check_record(tmp_path / "record")
    assert not report.problems
    assert "cut short after 3 rounds" in report.notes[0]


def test_two_runs_cannot_share_a_folder(folder):
    with pytest.raises(RecordError, match="already holds a record"):
        RecordWriter(folder)
    assert check_record(folder).whole


@pytest.mark.slow
def test_reading_many_rounds_keeps_none_of_them(tmp_path):
    """300 rounds are streamed in less than three rounds' worth of arrays."""
    width = 20_000
    writer = RecordWriter(tmp_path / "record")
    draw = np.random.default_rng(0)
    for number in range(1, 301):
        replies = [Reply(str(node), "ok", {"w": draw.normal(size=width).astype(np.float32)}, 5) for node in range(4)]
        writer.write(Exchange(number, None, replies))
    writer.close()
    tracemalloc.start()
    total = 0.0
    for item in Record(tmp_path / "record"):
        for seen in item.observations:
            total += float(seen.arrays["w"].sum())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total != 0.0
    index = (tmp_path / "record" / "rounds.jsonl").stat().st_size
    # The index itself (who, how many, what metrics) is kept; it is small beside the arrays of a real model.
    assert peak < 3 * 4 * width * 4 + 12 * index


def test_a_view_without_some_nodes_keeps_the_models_that_they_are_in(folder, tmp_path):
    """The model after a round is the mean of all replies; in a view of fewer it would be another one."""
    first = exchange(1)
    mean = {
        name: np.average([reply.arrays[name] for reply in first.replies[:3]], axis=0, weights=[10, 11, 12])
        for name in model(1)
    }
    writer = RecordWriter(tmp_path / "means")
    writer.write(replace(first, mean="message"))
    common = {name: array.astype(np.float32) for name, array in mean.items()}
    writer.write(replace(exchange(2), common=common))
    writer.close()
    whole = Record(tmp_path / "means")
    assert whole.nodes[0] == "node-0"
    view = whole.without(["node-0", "node-gone"])
    assert view.nodes == ("node-1", "node-2")
    assert view.rounds[0].participants == view.rounds[0].sampled == ("node-1", "node-2")
    assert len(whole.rounds[0].observations) == 4
    for name, array in common.items():
        assert np.allclose(view.rounds[1].common[name], array)
    assert not view.silence
    assert view.without(["node-1", "node-2"]).silence == "no client answered a training message in any of 2 rounds"


def test_what_a_record_is_can_be_said_better_until_its_first_round(tmp_path):
    writer = RecordWriter(tmp_path / "record", facts={"site": "A"})
    writer.amend(facts={"run": 7}, view="aggregate", aggregation={"kind": "mean"})
    assert Record(tmp_path / "record").facts == {"site": "A", "run": 7}
    writer.write(Exchange(1, model(0), [Reply("1", "ok", None, 3)], aggregate=model(1)))
    with pytest.raises(RecordError, match="has 1 rounds; what kind of record it is cannot change any more"):
        writer.amend(view="individual")
    writer.close()
    record = Record(tmp_path / "record")
    assert (record.view, record.manifest["aggregation"]) == ("aggregate", {"kind": "mean"})
    assert check_record(record.path).whole
