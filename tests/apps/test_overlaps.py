"""Windows of one series overlap; images that share a background do not."""

import numpy as np

from fedattack.apps.overlaps import share_of_overlapping


def windows(series, width=24):
    return np.lib.stride_tricks.sliding_window_view(series, width)[..., None].astype(np.float32)


def test_windows_of_one_series_overlap():
    series = np.random.default_rng(0).normal(size=150)
    every = windows(series)
    assert share_of_overlapping(every[100:112], every[:100]) == 1.0
    # Half of a window is shared by those that begin at most half of one later.
    assert 0.3 < share_of_overlapping(every[100:127], every[:100]) < 0.6


def test_other_series_and_images_of_few_levels_do_not():
    rng = np.random.default_rng(1)
    assert share_of_overlapping(windows(rng.normal(size=80)), windows(rng.normal(size=80))) == 0.0
    images = rng.integers(0, 17, size=(60, 1, 8, 8)).astype(np.float32)
    assert share_of_overlapping(images[:20], images[20:]) == 0.0
    assert share_of_overlapping(images[:0], images) == 0.0
