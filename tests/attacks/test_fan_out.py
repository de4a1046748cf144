import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
import torch

from fedattack.attacks import _fan_out
from fedattack.attacks._fan_out import fan_out
from fedattack.base.errors import MESSAGE, ConfigError, RunError
from tests.runs.test_simulator import alive, wait_until


def square(number):
    return number * number


def place(number):
    return number, os.getpid(), torch.get_num_threads()


def refuse(number):
    raise ConfigError(f"piece {number} is refused")


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(number, marker):
    """Die in the middle of the fourth piece, but only the first time that somebody does it."""
    if number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


class Unsendable:
    def __reduce__(self):
        return int, ("no number",)


def answer_unsendably(number):
    return Unsendable()


def wait_for(number, array):
    print(os.getpid(), array.filename, flush=True)
    time.sleep(300)


@pytest.mark.slow
def test_workers_and_what_they_were_given_go_with_a_process_that_is_killed():
    """joblib's own workers wait for more work for minutes, and large arrays stay in their files as long."""
    script = dedent("""
        from functools import partial
        import numpy as np
        from fedattack.attacks._fan_out import fan_out
        from tests.attacks.test_fan_out import wait_for
        list(fan_out(partial(wait_for, array=np.zeros(10**6)), range(4), workers=2, memory=1.0))
    """)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    told = [parent.stdout.readline().split() for _ in range(2)]
    workers = [psutil.Process(int(process)) for process, _ in told]
    files = {Path(file) for _, file in told}
    assert all(file.exists() for file in files)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not any(map(alive, workers)), 20)
    assert wait_until(lambda: not any(file.exists() for file in files), 20)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_come_in_the_order_of_the_items(workers):
    assert list(fan_out(square, range(20), workers=workers, memory=1.0)) == [number**2 for number in range(20)]
    assert list(fan_out(square, [], workers=workers, memory=1.0)) == []


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_each_piece_runs_on_one_thread_wherever_it_runs(workers):
    found = list(fan_out(place, range(6), workers=workers, memory=1.0))
    assert [threads for _, _, threads in found] == [1] * 6
    assert ({process for _, process, _ in found} == {os.getpid()}) == (workers < 2)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_whoever_consumes_the_results_keeps_its_threads():
    for _ in fan_out(square, range(3), workers=1, memory=1.0):
        assert torch.get_num_threads() == 2


def test_workers_that_do_not_pay_are_not_started(monkeypatch):
    """What is done in seconds is done here; more of it goes to as many processes as memory allows."""
    started = []
    monkeypatch.setattr(_fan_out, "_PACE", 0.0)
    monkeypatch.setattr(
        _fan_out, "_parallel", lambda work, items, count: started.append(count) or [work(item) for item in items]
    )
    monkeypatch.setattr(_fan_out, "usable_cpus", lambda: 8)
    monkeypatch.setattr(_fan_out, "free_memory", lambda: 1000.0)
    monkeypatch.setattr(_fan_out, "PROCESS", 0.0)
    list(fan_out(square, range(5), workers=0, memory=1.0))
    assert started == []
    monkeypatch.setattr(_fan_out, "PROCESS", 40.0)
    monkeypatch.setattr(_fan_out, "WORTH_WORKERS", -1.0)
    for memory in (1.0, 200.0, 3000.0):
        results = fan_out(square, range(5), workers=0, memory=memory)
        assert list(results) == [0, 1, 4, 9, 16]
    assert started == [8, 3]
    # This process holds two items of 30 bytes for each other one, and has 200 bytes for them.
    monkeypatch.setattr(_fan_out, "PROCESS", 0.0)
    list(fan_out(square, range(5), workers=0, memory=200.0, carried=30.0))
    assert started == [8, 3, 3]


def test_the_pace_is_that_of_a_second_of_work(monkeypatch):
    """The first piece takes longer than the others. What the caller does with results does not count."""
    clock = iter(range(100))
    monkeypatch.setattr(_fan_out.time, "monotonic", lambda: next(clock) / 4)
    monkeypatch.setattr(_fan_out, "usable_cpus", lambda: 2)
    shared = []

    def parallel(work, items, count):
        shared.extend(items)
        return map(work, shared)

    monkeypatch.setattr(_fan_out, "_parallel", parallel)
    items = (number for number in range(100))  # of no length
    assert list(fan_out(square, items, workers=0, memory=1.0, count=100)) == [number**2 for number in range(100)]
    assert shared == list(range(4, 100)), "a quarter of a second each: 24 seconds are worth it"


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_taken_as_they_are_worked_on(workers):
    taken = []
    items = (taken.append(number) or number for number in range(200))
    results = fan_out(place, items, workers=workers, memory=1.0)
    assert next(results)[0] == 0
    assert len(taken) < 150
    assert [number for number, _, _ in results] == list(range(1, 200))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_of_an_item_is_the_callers(workers):
    def items():
        yield from range(20)
        raise ConfigError("item 20 cannot be read")

    results = fan_out(square, items(), workers=workers, memory=1.0)
    for number in range(20):
        assert next(results) == number**2
    with pytest.raises(ConfigError, match="item 20 cannot be read"):
        next(results)


def test_on_a_gpu_pieces_are_done_one_after_another():
    found = list(fan_out(place, range(3), workers=2, memory=1.0, device="cuda"))
    assert {process for _, process, _ in found} == {os.getpid()}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_piece_is_the_callers(workers):
    with pytest.raises(ConfigError, match=r"piece \d is refused"):
        list(fan_out(refuse, range(3), workers=workers, memory=1.0))


def test_results_are_yielded_as_they_come():
    """The caller may stop early, and the rest is then not done."""
    done = []
    results = fan_out(lambda number: done.append(number), range(5), workers=1, memory=1.0)
    next(results)
    next(results)
    assert done == [0, 1]


@pytest.mark.usefixtures("two_threads")
def test_threads_are_put_back_after_an_error():
    with pytest.raises(ConfigError):
        list(fan_out(refuse, range(1), workers=1, memory=1.0))
    assert torch.get_num_threads() == 2


def test_a_worker_that_is_killed_is_told_of_in_one_line():
    with (
        pytest.warns(UserWarning, match="one after another"),
        pytest.raises(RunError, match="a worker of the attack was killed, often ") as told,
    ):
        list(fan_out(die, range(3), workers=2, memory=1.0))
    assert "\n" not in str(told.value)
    assert len(str(told.value)) <= MESSAGE


def test_what_a_killed_worker_had_is_done_by_another(tmp_path):
    """Each piece has one result, in order, whether its worker died before, during or after it."""
    marker = tmp_path / "died"
    items = (number for number in range(12))
    with pytest.warns(UserWarning, match="was killed, often for lack of memory; what is left is done one after"):
        results = list(fan_out(partial(die_once, marker=marker), items, workers=2, memory=1.0))
    assert marker.exists()
    assert results == [number**2 for number in range(12)]


def test_what_cannot_be_sent_between_processes_is_told_of_in_one_line():
    with pytest.raises(
        RunError, match=r"cannot be sent between processes: ValueError: invalid literal.*workers=1"
    ) as told:
        list(fan_out(answer_unsendably, range(3), workers=2, memory=1.0))
    assert "\n" not in str(told.value)
