"""A run that was stopped and goes on ends like one that was not: the reference servers in this process."""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, DataError, RecordError
from fedattack.record import Record, check_record
from fedattack.record.folder import write_resumption
from fedattack.record.format import INDEX, UNFINISHED
from fedattack.record.nodes import read_nodes
from simulations import order
from simulations.study import Study
from strategies.checkpoint import Checkpoint
from tests.runs.test_simulator import wait_until
from tests.worlds.local_grid import FIRST_NODE
from tests.worlds.reference import DEFAULTS, run_app

ROUNDS, DONE = 5, 3
CONFIG = DEFAULTS | {
    "clients": 5,
    "fraction": 0.8,
    "rounds": ROUNDS,
    "seed": 3,
    "lr": 0.1,
    "device": "cpu",
    "size": 500,
}
NOISY = {"defence": "dp-gaussian", "defence-strength": 0.01, "defence-clip": 1.0}
KINDS = {
    "fedavg": {"momentum": 0.9},
    "defended": NOISY,
    "dp-sgd": {"dp-noise": 1.0},
    "fedsgd": {"framework": "fedsgd", "batch-size": 0},
    "fedxgb": {"framework": "fedxgb", "batch-size": 0, "dataset": "diabetes", "size": 300},
    "fishing": {"server": "fishing", "departures": 2},
    "still fishing": {"server": "fishing", "departures": 4},
    "isolating": {"server": "isolating", "victims": 2},
    "projected": {"property": "inversion", "positives": 0.2, "records-per-client": 40},
    "secagg": {"secagg": True},
}
# How far models of the second part may be off: what is only known as a sum is known but for its rounding, and SecAgg+
# rounds at random.
TOLERANCE = {"projected": 1e-6, "secagg": 1e-3}


class Stopped(BaseException):
    """Ends the process of a server."""


def is_round(message, number: int) -> bool:
    return any(dict(item).get("server-round") == number for item in message.content.config_records.values())


def stop(folder, config):
    """Stop a run in its fourth round; returns its notes, and its record if it had been killed at that moment."""
    index, killed = folder / "stopped" / "record" / INDEX, folder / "killed" / "record"

    def drop(message, client):
        if is_round(message, DONE + 1) or (config["secagg"] and index.exists() and lines(index) == DONE):
            assert wait_until(lambda: lines(index) == DONE, 10)
            if not killed.exists():
                shutil.copytree(index.parent, killed)
            raise Stopped

    with pytest.raises(Stopped):
        run_app(folder / "stopped", config, drop)
    return read_nodes(folder / "stopped" / "truth", RecordError, "")


def lines(index) -> int:
    return index.read_bytes().count(b"\n")


def go_on(folder, config, nodes, data: str | None = None):
    """Run what is left; Flower has new ids for the nodes, in another order."""
    file = folder / "resumption" / "run.json"
    write_resumption(file, nodes, Study.of(config).data.fingerprint if data is None else data)
    return run_app(folder, config | {"resume": str(file)}, first=FIRST_NODE + 100)


def by_node(item):
    return sorted(item.observations, key=lambda seen: seen.node)


def assert_alike(ours: Record, theirs: Record, tolerance: float) -> None:
    assert [item.number for item in ours] == [item.number for item in theirs] == [*range(1, ROUNDS + 1)]
    # SecAgg+ takes the clients in no order of its own; where the order decides over the last bit, it is the same.
    assert tolerance or [item.sampled for item in ours] == [item.sampled for item in theirs]
    assert [sorted(item.sampled) for item in ours] == [sorted(item.sampled) for item in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.config == other.config
        pairs = [(one.common, other.common), (one.aggregate, other.aggregate), (one.after, other.after)]
        for mine, yours in zip(by_node(one), by_node(other), strict=True):
            assert mine.num_examples == yours.num_examples
            assert mine.metrics == pytest.approx(yours.metrics, rel=100 * tolerance)
            pairs += [(mine.arrays, yours.arrays)]
            pairs += [(mine.received, yours.received)] if mine.singled_out else []
            assert mine.singled_out == yours.singled_out
        for mine, yours in pairs:
            assert (mine is None) == (yours is None)
            for name in mine or {}:
                assert mine[name].dtype == yours[name].dtype
                np.testing.assert_allclose(mine[name], yours[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(kind, tmp_path):
    config = CONFIG | KINDS[kind]
    whole = run_app(tmp_path / "whole", config)
    nodes = stop(tmp_path, config)
    stopped = Record(tmp_path / "stopped" / "record")
    assert stopped.status == "cut short"
    assert [item.unfinished for item in stopped] == [False] * DONE + [True]
    assert {seen.reason for seen in stopped.rounds[-1].observations} == {UNFINISHED}
    assert Record(tmp_path / "killed" / "record").status == "open"
    for how in ("stopped", "killed"):
        before = (tmp_path / how / "record" / INDEX).read_bytes().splitlines()[:DONE]
        record = go_on(tmp_path / how, config, nodes)
        assert check_record(record.path).whole
        assert_alike(record, whole, TOLERANCE.get(kind, 0.0))
        # What was recorded stays as it was, and the manifest says that there was a break.
        assert (record.path / INDEX).read_bytes().splitlines()[:DONE] == before
        assert [item["after"] for item in record.manifest["resumed"]] == [DONE]
        assert record.nodes == whole.nodes


def test_clients_that_take_part_after_the_break_alone_are_known_too(tmp_path, monkeypatch):
    """Of many clients only those are asked that are drawn."""
    monkeypatch.setattr(order, "FEW", 0)
    config = CONFIG | {"clients": 8, "fraction": 0.25}
    whole = run_app(tmp_path / "whole", config)
    nodes = stop(tmp_path, config)
    record = go_on(tmp_path / "stopped", config, nodes)
    known = read_nodes(tmp_path / "stopped" / "truth", RecordError, "")
    assert {*nodes} < {*known} == {*record.nodes}
    assert sorted(known.values()) == sorted(read_nodes(tmp_path / "whole" / "truth", RecordError, "").values())
    for one, other in zip(record, whole, strict=True):
        for name, array in (one.after or {}).items():
            assert np.array_equal(array, other.after[name])


@pytest.mark.parametrize("kind", ["fedavg", "projected", "secagg"])
def test_after_the_last_round_the_model_that_it_led_to_is_all_that_is_missing(kind, tmp_path):
    """A run that is killed between its last round and its end."""
    config = CONFIG | KINDS[kind]
    nodes = stop(tmp_path, config)
    record = go_on(tmp_path / "killed", config | {"rounds": DONE}, nodes)
    assert [item.number for item in record] == [*range(1, DONE + 1)]
    whole = run_app(tmp_path / "whole", config | {"rounds": DONE})
    for name, array in whole.final.items():
        np.testing.assert_allclose(record.rounds[-1].after[name], array, rtol=0, atol=TOLERANCE.get(kind, 0.0))


def test_a_client_that_does_not_say_which_it_is_does_not_spoil_the_record(tmp_path):
    nodes = stop(tmp_path, CONFIG)
    index = tmp_path / "stopped" / "record" / INDEX
    before = index.read_bytes()
    del nodes[max(nodes)]
    with pytest.raises(ConfigError, match="not every client has said which one it is"):
        go_on(tmp_path / "stopped", CONFIG, nodes)
    assert index.read_bytes() == before


def test_fedmd_does_not_go_on(tmp_path):
    config = CONFIG | {"framework": "fedmd", "partition": "iid", "public-size": 50}
    config = {key: value for key, value in config.items() if key in DEFAULTS}
    nodes = stop(tmp_path, config)
    with pytest.raises(ConfigError, match="clients keep their models in Flower's state"):
        go_on(tmp_path / "stopped", config, nodes)


def test_other_data_are_refused_and_the_record_stays(tmp_path):
    nodes = stop(tmp_path, CONFIG)
    path = tmp_path / "stopped" / "record"
    before = (path / INDEX).read_bytes()
    with pytest.raises(DataError, match="not those of the stopped run"):
        go_on(tmp_path / "stopped", CONFIG, nodes, data="other")
    assert (path / INDEX).read_bytes() == before
    assert json.loads((path / "manifest.json").read_text())["status"] == "cut short"


def test_there_must_be_a_round_to_go_on_after(tmp_path):
    def drop(message, client):
        if is_round(message, 1):
            raise Stopped

    with suppress(Stopped):
        run_app(tmp_path, CONFIG, drop)
    with pytest.raises(RecordError, match="no finished round"):
        Checkpoint.of(Record(tmp_path / "record"), {})
