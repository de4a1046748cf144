"""A finished round waits for the one before it to be on the disk, so that a kill costs two at most."""

import threading

import pytest

from fedattack.observe import _recorder
from fedattack.observe._recorder import Recorder
from fedattack.record import Record, RecordWriter
from tests.fuzz import kills
from tests.record.conftest import exchange


@pytest.fixture
def disk(monkeypatch):
    """Holds back what is written until it is told to go on."""
    goes_on = threading.Event()
    real = RecordWriter.write

    def write(self, written):
        assert goes_on.wait(10)
        real(self, written)

    monkeypatch.setattr(RecordWriter, "write", write)
    return goes_on


def test_a_round_is_handed_over_once_the_one_before_is_on_the_disk(tmp_path, disk):
    recorder = Recorder(tmp_path / "record")
    recorder.open()
    recorder.put(exchange(1))
    second = threading.Thread(target=recorder.put, args=(exchange(2),))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    disk.set()
    second.join(10)
    assert not second.is_alive()
    recorder.close()
    assert [round_.number for round_ in Record(tmp_path / "record")] == [1, 2]


def test_a_disk_that_is_too_slow_ends_the_recording_and_not_the_run(tmp_path, disk, monkeypatch, caplog):
    monkeypatch.setattr(_recorder, "_PATIENCE", 0.2)
    recorder = Recorder(tmp_path / "record")
    recorder.open()
    for number in (1, 2, 3):
        recorder.put(exchange(number))
    assert "round 2 could not be written within 0 s; the disk is too slow" in caplog.text
    disk.set()
    monkeypatch.setattr(_recorder, "_PATIENCE", 10.0)
    recorder.close()
    record = Record(tmp_path / "record")
    assert [round_.number for round_ in record] == [1]
    assert record.status == "cut short"


@pytest.mark.slow
def test_a_killed_run_of_flower_loses_two_finished_rounds_at_most():
    result = kills.run_observed(4, seed=0)
    assert result["bad"] == []
    assert sum(result["lost"].values()) == 4
