"""A client can make its own reply fail and nobody else's, and a bad round costs no good one."""

import threading

import numpy as np
import pytest
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg

from fedattack.base.errors import MESSAGE
from fedattack.observe import ObservedLegacyStrategy, ObservedStrategy, _tracker, legacy
from fedattack.observe._recorder import Recorder
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from tests.observe.test_observers import ROUNDS, run_legacy, run_message

MODEL = ndarrays_to_parameters([np.zeros(3, np.float32)])


class Proxy:
    def __init__(self, node):
        self.cid, self.node_id, self.run_id = str(node), node, 7


class Sampling(LegacyFedAvg):
    """Samples the nodes that a test says, round by round."""

    def __init__(self, sampled):
        super().__init__()
        self.sampled = sampled

    def configure_fit(self, server_round, parameters, client_manager):
        return [(Proxy(node), FitIns(MODEL, {})) for node in self.sampled[server_round - 1]]

    def aggregate_fit(self, server_round, results, failures):
        return MODEL, {}


def reply(node, array):
    return Proxy(node), FitRes(Status(Code.OK, ""), ndarrays_to_parameters([array]), 10, {})


def test_clients_that_send_the_same_arrays_in_double_precision_cost_no_round(tmp_path):
    """As a sum of SecAgg+ comes, which a strategy is handed once for each client."""
    sampled = [(1, 2, 3), (8, 9), (1, 2, 3)]
    observed = ObservedLegacyStrategy(Sampling(sampled), tmp_path / "record")
    for server_round, nodes in enumerate(sampled, start=1):
        observed.configure_fit(server_round, MODEL, None)
        results = [reply(node, np.full(3, node, np.float32)) for node in nodes]
        if server_round == 2:
            results = [reply(node, np.full(3, 0.5)) for node in nodes]
        observed.aggregate_fit(server_round, results, [])
    observed.close()
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == [1, 2, 3]
    assert [{*item.participants} for item in record] == [{"1", "2", "3"}, {"8", "9"}, {"1", "2", "3"}]
    assert check_record(tmp_path / "record").whole


def test_reasons_of_failures_are_joined_once_and_kept_short(monkeypatch):
    taken = []
    recorder = Recorder("never opened")
    monkeypatch.setattr(recorder, "open", lambda: None)
    monkeypatch.setattr(recorder, "put", taken.append)
    observed = ObservedLegacyStrategy.sharing(Sampling([range(20), range(20)]), recorder, None)
    for server_round, failures in ((1, range(20)), (2, range(7))):
        observed.configure_fit(server_round, MODEL, None)
        observed.aggregate_fit(server_round, [], [ValueError(f"reason {i} " + "E" * 10_000) for i in failures])
    for exchange, status in zip(taken, ("failed", "missing"), strict=True):
        assert {seen.status for seen in exchange.replies} == {status}
        (reason,) = {seen.reason for seen in exchange.replies}
        assert len(reason) <= MESSAGE
        assert len({id(seen.reason) for seen in exchange.replies}) == 1
        assert "reason 0 E" in reason


@pytest.mark.parametrize("observer", ["message", "legacy"])
def test_whatever_is_wrong_with_a_reply_fails_this_one_alone(tmp_path, monkeypatch, observer):
    run, module, reading = (
        (run_message, _tracker, "read_reply") if observer == "message" else (run_legacy, legacy, "view_tensors")
    )
    original, calls = getattr(module, reading), []

    def read(*words):
        calls.append(words)
        # In the legacy API, what is sent is read by the same function first.
        if len(calls) == (2 if observer == "message" else 4):
            raise KeyError("what nobody expected")
        return original(*words)

    monkeypatch.setattr(module, reading, read)
    run(FedAvg if observer == "message" else LegacyFedAvg, "strategy", tmp_path / "record")
    record = Record(tmp_path / "record")
    assert (record.status, len(record)) == ("complete", ROUNDS)
    failed = [seen for seen in record.rounds[0].observations if seen.status == "failed"]
    assert len(failed) == 1
    assert "what nobody expected" in failed[0].reason
    assert len(record.rounds[0].participants) == 4


def exchanges():
    for number in (1, 2, 3):
        replies = [Reply(node, "ok", {"w": np.full(2, number, np.float32)}, 3) for node in "ab"]
        yield Exchange(number, {"w": np.zeros(2, np.float32)}, replies)


def test_rounds_that_wait_when_the_recording_fails_are_written(tmp_path, monkeypatch):
    going, original = threading.Event(), RecordWriter.write

    def write(writer, exchange):
        assert going.wait(30)
        original(writer, exchange)

    monkeypatch.setattr(RecordWriter, "write", write)
    recorder = Recorder(tmp_path / "record")
    recorder.open()
    first, second, _ = exchanges()
    recorder.put(first)
    waits = threading.Thread(target=recorder.put, args=(second,))
    waits.start()
    waits.join(0.2)
    recorder.fail("round 3: nothing can be read of it")
    going.set()
    waits.join()
    recorder.close()
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == [1, 2]
    assert (record.status, record.manifest["error"]) == ("cut short", "round 3: nothing can be read of it")


def test_a_round_that_cannot_be_written_costs_no_other(tmp_path, monkeypatch):
    original = RecordWriter.write

    def write(writer, exchange):
        if exchange.number == 2 and exchange.common is not None:
            raise ValueError("what nobody expected")
        original(writer, exchange)

    monkeypatch.setattr(RecordWriter, "write", write)
    recorder = Recorder(tmp_path / "record")
    recorder.open()
    for exchange in exchanges():
        recorder.put(exchange)
    recorder.close()
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == [1, 2, 3]
    assert [item.participants for item in record] == [("a", "b"), (), ("a", "b")]
    error = "round 2 could not be recorded: what nobody expected"
    assert {(seen.status, seen.reason) for seen in record.rounds[1].observations} == {("failed", error)}
    assert (record.status, record.manifest["error"]) == ("cut short", error)
    # The model after a round is the one that the next began with.
    assert record.rounds[0].after is None


def test_a_disk_that_is_full_ends_the_recording(tmp_path, monkeypatch):
    original = RecordWriter.write

    def write(writer, exchange):
        if exchange.number == 2:
            raise OSError(28, "No space left on device")
        original(writer, exchange)

    monkeypatch.setattr(RecordWriter, "write", write)
    recorder = Recorder(tmp_path / "record")
    recorder.open()
    for exchange in exchanges():
        recorder.put(exchange)
    recorder.close()
    record = Record(tmp_path / "record")
    assert ([item.number for item in record], record.status) == ([1], "cut short")


def test_a_start_with_wrong_arguments_leaves_no_record_and_the_corrected_one_makes_it(tmp_path):
    strategy = ObservedStrategy(FedAvg(), tmp_path / "record")
    with pytest.raises(TypeError, match="missing a required argument: 'grid'"):
        strategy.start(num_rounds=3)
    assert not (tmp_path / "record").exists()
    run_message(lambda: strategy, None, None)
    assert check_record(tmp_path / "record").whole
