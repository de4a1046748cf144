"""Seconds that are counted grow with the work, and not with the machine."""

import time

import torch

from fedattack.apps.counting import count_seconds


def test_what_is_counted_grows_with_the_work_and_not_with_the_clock(monkeypatch):
    layer = torch.nn.Linear(64, 64)

    def pass_back(times: int, rows: int = 8) -> None:
        for _ in range(times):
            layer(torch.ones(rows, 64)).sum().backward()

    once, thrice = count_seconds(lambda: pass_back(1)), count_seconds(lambda: pass_back(3))
    assert 2.5 < thrice / once < 3.5
    assert count_seconds(lambda: pass_back(1, 4000)) > 3 * once
    clock = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: 1_000 * clock())
    assert count_seconds(lambda: pass_back(1)) == once
    # What costs nothing is divided by, too.
    assert count_seconds(lambda: None) > 0
