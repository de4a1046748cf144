"""What several tests of apps are given."""

import json
import sys
from pathlib import Path

import pytest

from fedattack.apps import asking
from fedattack.apps.answering import Interview
from fedattack.base.files import write_npz


@pytest.fixture
def here(monkeypatch):
    """Ask an app in this process: another one takes seconds to begin."""

    def run_in_place(request: Path, answers: Path, place: Path, say) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        write_npz(answers, Interview(json.loads(request.read_text())).answer(lambda line: say(0, 1)))

    monkeypatch.setattr(asking, "_run", run_in_place)
