"""Attacks on a real GPU: the same scores as on the CPU but for rounding. Skipped where there is none.

On an H200 scores differed by 2e-5 of the largest, on 27 November 2026. :mod:`tests.test_devices` runs attacks on a GPU
that is not there.
"""

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.record import Record
from tests.attacks.test_contract import QUICK, RUNS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is there")
@pytest.mark.parametrize("case", RUNS, ids="-".join)
def test_scores_are_those_of_the_cpu(case, tmp_path):
    name, _ = case
    folder = RUNS[case](tmp_path)
    attack = ATTACKS[name].with_options(QUICK.get(name, {}))
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    here = attack.run(record, known, seed=1, device="cpu")
    there = attack.run(record, known, seed=1, device="cuda")
    assert here.arrays.keys() == there.arrays.keys()
    for key, array in here.arrays.items():
        if array.dtype.kind == "f":
            largest = np.nanmax(np.abs(array), initial=0.0)
            np.testing.assert_allclose(there.arrays[key], array, rtol=0, atol=1e-3 * largest, err_msg=key)
        else:
            np.testing.assert_array_equal(there.arrays[key], array, err_msg=key)
