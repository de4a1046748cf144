import os

import pytest
import torch

# Rich wraps at the terminal's width; messages are compared as whole lines.
os.environ["COLUMNS"] = "200"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tests' tensors are tiny: a second thread only waits for the first."""
    torch.set_num_threads(1)
