"""Autoencoders where there is no app to ask: a line says so, and what the guide tells to write is enough."""

import re

import pytest
from torch.nn import functional as F  # noqa: N812

from fedattack.apps.auditing import list_trusted
from fedattack.record.folder import Part
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.projects import ASKED
from tests.apps.test_asking import run
from tests.apps.worlds import attack_all, pose_all
from tests.witness.apps import load

CLIENTS = load(ASKED, "client_app")


class Scored(CLIENTS.Net):
    """What the guide tells to write: the same arrays, and the loss in the place of the output."""

    def __init__(self) -> None:
        super().__init__(out=CLIENTS.FEATURES)

    def forward(self, x):
        return F.mse_loss(super().forward(x), x)


def test_without_the_app_a_line_says_what_to_do(tmp_path):
    part = Part(tmp_path, "")
    run(part, "autoencoder")
    (posed,) = pose_all([part])
    reason = posed.reasons["losses"]
    assert re.search(r"only the app itself knows it.*--model", reason.what)
    assert reason.remedy == "the clients' app, which is asked for losses: --app PATH"


@pytest.mark.slow
def test_with_a_label_of_zero_and_a_model_that_returns_its_loss_they_are_asked_about(tmp_path):
    part = Part(tmp_path, "")
    run(part, "stated autoencoder")
    posed = pose_all([part], model=f"{__name__}:Scored", loss="own")
    attacked = attack_all([part], posed)
    assert attacked.scored == ("sia", "membership", "exact", "plaintext")
    findings, _ = judge_folder(tmp_path, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    found = {f"{finding.attack}.{finding.metric}": finding for finding in findings}
    assert found["sia.asr"].verdict == found["membership.auc"].verdict == "leak"
