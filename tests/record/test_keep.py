"""What a thinned record keeps, what it says of the rest, and who refuses it."""

import json

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, RecordError
from fedattack.base.files import seal
from fedattack.record import (
    Exchange,
    Keep,
    Record,
    RecordWriter,
    Reply,
    check_record,
    project_record,
    shrink_record,
)
from fedattack.record.means import mean_of

ROUNDS, CLIENTS = 7, 4
FROZEN = np.linspace(-1, 1, 12, dtype=np.float32)


def written(path, rounds=ROUNDS, **options):
    """A run that averages, of which ``back.w`` never changes: its exchanges and last model."""
    draw = np.random.default_rng(3)
    common = {"back.w": FROZEN, "head.w": draw.normal(size=(5, 4)).astype(np.float32), "head.n": np.array(0)}
    writer, exchanges = RecordWriter(path, seed=5, **options), []
    for number in range(1, rounds + 1):
        replies = []
        for client in range(CLIENTS):
            step = draw.normal(scale=1e-3, size=(5, 4)).astype(np.float32)
            sent = {"back.w": FROZEN, "head.w": common["head.w"] + step, "head.n": common["head.n"] + 1}
            replies.append(Reply(f"n{client}", "ok", sent, 10 + client, {"loss": 0.5}))
        exchanges.append(Exchange(number, common, replies, config={"lr": 0.1}, mean="message"))
        writer.write(exchanges[-1])
        mean = mean_of([reply.arrays for reply in replies], [reply.num_examples for reply in replies], "message")
        # A server may round; the frozen array and the count stay what they are.
        common = {**mean, "back.w": replies[0].arrays["back.w"], "head.n": replies[0].arrays["head.n"]}
    writer.close(final=common)
    return exchanges, common


def same(left, right):
    return {name: array.tobytes() for name, array in left.items()} == {
        name: array.tobytes() for name, array in right.items()
    }


def test_every_third_round_is_kept_with_the_model_after_it(tmp_path):
    exchanges, final = written(tmp_path / "r", keep=Keep(every=3))
    record = Record(tmp_path / "r", thinned=True)
    assert [item.number for item in record] == [1, 4, 7]
    for item in record:
        whole = exchanges[item.number - 1]
        assert same(item.common, whole.common)
        following = exchanges[item.number].common if item.number < ROUNDS else final
        assert same(item.after, following)
        for seen, reply in zip(item.observations, whole.replies, strict=True):
            assert same(seen.arrays, reply.arrays)
    assert len(list((tmp_path / "r" / "rounds").iterdir())) == 5
    assert check_record(tmp_path / "r").rounds == 3
    assert check_record(tmp_path / "r").whole


def test_no_model_of_a_later_round_stands_for_the_one_after(tmp_path):
    """Where the server's model after a kept round did not pass, nobody takes that of the next kept one for it."""
    writer = RecordWriter(tmp_path / "r", keep=Keep(every=2))
    model = {"w": np.ones(3, dtype=np.float32)}
    for number, common in ((1, model), (2, None), (3, {"w": model["w"] + 1}), (4, None)):
        writer.write(Exchange(number, common, [Reply("a", "ok", model, 1)]))
    writer.close(final=model)
    record = Record(tmp_path / "r", thinned=True)
    assert [item.number for item in record] == [1, 3]
    assert [item.after for item in record] == [None, None]
    assert same(record.final, model)


def test_damaged_rounds_are_left_out_of_a_thinned_record_too(tmp_path):
    written(tmp_path / "r", keep=Keep(every=3))
    (tmp_path / "r" / "rounds" / "000002.safetensors").write_bytes(b"damaged")
    record = Record(tmp_path / "r", thinned=True, skip_damaged=True)
    assert [item.number for item in record] == [1, 7]
    assert [item.number for item in project_record(record, tmp_path / "sums")] == [1, 7]


@pytest.mark.parametrize("path", ["rounds/000000.safetensors", "rounds/000001.safetensors"])
def test_damage_of_a_round_or_of_the_model_after_it_is_found(tmp_path, path):
    written(tmp_path / "r", keep=Keep(every=3, clients=0.5))
    data = bytearray((tmp_path / "r" / path).read_bytes())
    data[-1] ^= 1
    (tmp_path / "r" / path).write_bytes(data)
    assert not check_record(tmp_path / "r").whole


def test_a_share_of_the_clients_is_the_same_in_each_round_and_says_who_took_part(tmp_path):
    exchanges, _ = written(tmp_path / "r", keep=Keep(clients=0.5, seed=5))
    record = Record(tmp_path / "r", thinned=True)
    chosen = {seen.node for seen in record.rounds[0].observations if seen.arrays is not None}
    assert len(chosen) == 2
    for item, whole in zip(record, exchanges, strict=True):
        assert same(item.common, whole.common)
        assert len(item.participants) == CLIENTS
        for seen, reply in zip(item.observations, whole.replies, strict=True):
            assert (seen.num_examples, seen.metrics) == (reply.num_examples, reply.metrics)
            assert (seen.arrays is not None) == (seen.node in chosen)


def test_each_client_is_as_likely_as_any_other_to_be_kept():
    nodes = [str(number) for number in range(10)]
    counts = dict.fromkeys(nodes, 0)
    for seed in range(2000):
        chosen = Keep(clients=0.3, seed=seed).nodes(nodes)
        assert chosen == Keep(clients=0.3, seed=seed).nodes(nodes[::-1])
        assert len(chosen) == 3
        for node in chosen:
            counts[node] += 1
    # 600 each, five standard deviations of 20 at most away from it.
    assert max(abs(count - 600) for count in counts.values()) < 103


def test_clients_are_chosen_by_id(tmp_path):
    written(tmp_path / "r", keep=Keep(clients=("n2", "nobody")))
    for item in Record(tmp_path / "r", thinned=True):
        assert [seen.node for seen in item.observations if seen.arrays is not None] == ["n2"]


@pytest.mark.parametrize(
    "keep",
    [Keep(every=2), Keep(clients=0.5, seed=5), Keep(3, 0.5, 5)],
    ids=lambda keep: "-".join(keep.kinds),
)
def test_a_shrunk_record_is_what_the_observer_would_have_written(tmp_path, keep):
    written(tmp_path / "whole")
    written(tmp_path / "thin", keep=keep)
    before = {path: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    shrink_record(Record(tmp_path / "whole"), tmp_path / "shrunk", keep)
    assert {path: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()} == before
    left, right = Record(tmp_path / "thin", thinned=True), Record(tmp_path / "shrunk", thinned=True)
    assert left.manifest["kept"] == right.manifest["kept"]
    assert [line.file.xxh3 for line in left.lines] == [line.file.xxh3 for line in right.lines]
    assert same(left.final, right.final)
    assert check_record(tmp_path / "shrunk").whole


def test_a_shrunk_record_can_be_shrunk_again(tmp_path):
    written(tmp_path / "whole")
    first = shrink_record(Record(tmp_path / "whole"), tmp_path / "a", Keep(every=2, clients=0.5, seed=5))
    second = shrink_record(first, tmp_path / "b", Keep(every=3))
    assert [item.number for item in second] == [1, 7]
    assert second.keep == Keep(6, 0.5, 5)
    assert second.keep.kinds == ("rounds", "clients")
    with pytest.raises(ConfigError, match="keeps the replies of 50 % of each round's clients already"):
        shrink_record(first, tmp_path / "c", Keep(clients=0.5))


def test_what_cannot_be_shrunk_is_refused_in_a_line(tmp_path):
    written(tmp_path / "whole")
    record = Record(tmp_path / "whole")
    with pytest.raises(ConfigError, match="nothing is to be left out"):
        shrink_record(record, tmp_path / "out", Keep())
    sums = project_record(record, tmp_path / "sums")
    with pytest.raises(RecordError, match="a record of sums has no single client's reply"):
        shrink_record(sums, tmp_path / "out", Keep(clients=0.5))
    with pytest.raises(RecordError, match="a sum takes the replies of all"):
        project_record(shrink_record(record, tmp_path / "few", Keep(clients=0.5)), tmp_path / "out")
    with pytest.raises(RecordError, match="already holds a record"):
        shrink_record(record, tmp_path / "sums", Keep(every=2))
    (tmp_path / "whole" / "rounds" / "000002.safetensors").write_bytes(b"damaged")
    with pytest.raises(RecordError, match="does not match its checksum"):
        shrink_record(record, tmp_path / "out", Keep(every=2))
    assert not (tmp_path / "out").exists()


def test_a_thinned_record_is_projected_as_it_is(tmp_path):
    written(tmp_path / "whole")
    thin = shrink_record(Record(tmp_path / "whole"), tmp_path / "thin", Keep(every=3))
    sums = project_record(thin, tmp_path / "sums")
    whole = project_record(Record(tmp_path / "whole"), tmp_path / "all")
    assert [item.number for item in sums] == [1, 4, 7]
    assert sums.keep == thin.keep
    for item in sums:
        assert same(item.aggregate, whole.rounds[item.number - 1].aggregate)


def test_who_needs_a_whole_record_is_refused_a_thinned_one(tmp_path):
    written(tmp_path / "r", keep=Keep(every=10))
    with pytest.raises(RecordError, match="keeps every 10th round, and this needs a whole record"):
        Record(tmp_path / "r")


def test_a_whole_record_has_no_key_of_what_is_kept(tmp_path):
    written(tmp_path / "thin", keep=Keep(every=2))
    written(tmp_path / "whole")
    thin, whole = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("thin", "whole"))
    assert thin["version"] == whole["version"] == 2
    assert thin.keys() - whole.keys() == {"kept"}
    assert Record(tmp_path / "whole").manifest["kept"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"kept": {"every": 0, "clients": 1.0, "seed": 0}},
        {"kept": {"every": 2, "clients": 2.0, "seed": 0}},
        {"kept": {"every": 2, "clients": [], "seed": 0}},
        {"kept": {"every": 2, "clients": 1.0, "precision": "exact", "seed": 0}},
        {"kept": {"every": 2, "clients": 1.0}},
        {"kept": None},
        {"kept": [2]},
    ],
    ids=str,
)
def test_odd_notes_of_what_is_kept_are_refused(tmp_path, change):
    resealed(tmp_path / "r", change)
    with pytest.raises(RecordError, match="sealed, but not in the form that fedattack writes"):
        Record(tmp_path / "r", thinned=True)


def resealed(path, change):
    """Write a record of every second round whose manifest says something else."""
    written(path, keep=Keep(every=2))
    file = path / "manifest.json"
    value = {key: item for key, item in json.loads(file.read_text()).items() if key != "check"}
    file.write_text(json.dumps(seal(value | change)))


def test_rounds_that_a_former_writer_kept_are_read_and_gone_on_with(tmp_path):
    former = {"every": 2, "clients": 1.0, "layers": [], "seed": 0}
    resealed(tmp_path / "r", {"kept": former, "left_out": []})
    record = Record(tmp_path / "r", thinned=True)
    assert [item.number for item in record] == [1, 3, 5, 7]
    assert record.keep == Keep(2)
    RecordWriter(tmp_path / "r", seed=5, resume=True, keep=Keep(2)).close()
    assert Record(tmp_path / "r", thinned=True).keep == Keep(2)


FROZEN_ONE = {"name": "back.w", "shape": [12], "dtype": "float32", "role": "parameter", "xxh3": None}


@pytest.mark.parametrize(
    ("kept", "left_out", "words"),
    [
        ({"layers": ["head.*"]}, [FROZEN_ONE], "keeps only some arrays of the model"),
        ({"layers": []}, [FROZEN_ONE], "lacks some arrays of the model"),
        ({"layers": [], "sketch": 12}, [], "keeps sketches in place of updates"),
        ({"layers": {}}, [], "keeps only some arrays of the model"),
        ({"layers": []}, None, "lacks some arrays of the model"),
    ],
)
def test_layers_and_sketches_of_a_former_writer_are_refused_by_name(tmp_path, kept, left_out, words):
    resealed(tmp_path / "r", {"kept": {"every": 1, "clients": 1.0, "seed": 0, **kept}, "left_out": left_out})
    line = rf"manifest\.json: the record {words}, .* only whole updates; attack it with the version that wrote it"
    for read in (lambda path: Record(path, thinned=True), check_record, Record):
        with pytest.raises(RecordError, match=line):
            read(tmp_path / "r")
    with pytest.raises(RecordError, match=line):
        RecordWriter(tmp_path / "r", seed=5, resume=True)


def test_a_stopped_run_goes_on_keeping_the_same(tmp_path):
    exchanges, _ = written(tmp_path / "whole")
    keep = Keep(every=2, clients=0.5)
    writer = RecordWriter(tmp_path / "r", seed=5, keep=keep)
    for exchange in exchanges[:3]:
        writer.write(exchange)
    writer.close(error="stopped")
    with pytest.raises(RecordError, match="has the kept"):
        RecordWriter(tmp_path / "r", seed=5, resume=True, keep=Keep(every=3))
    again = RecordWriter(tmp_path / "r", seed=5, resume=True, keep=keep)
    for exchange in exchanges[3:]:
        again.write(exchange)
    again.close()
    record = Record(tmp_path / "r", thinned=True)
    assert [item.number for item in record] == [1, 3, 5, 7]
    assert record.rounds[1].after is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0: expected a whole number"),
        ({"every": 1.5}, "every=1.5"),
        ({"clients": 0}, "clients=0: expected a share above 0"),
        ({"clients": "n1"}, "expected a share above 0 and up to 1, or a list of ids"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Keep(**options)


def test_the_record_of_an_isolating_server_is_kept_whole(tmp_path):
    with pytest.raises(RecordError, match="server that is isolating is kept whole"):
        RecordWriter(tmp_path / "r", server="isolating", keep=Keep(every=2))
