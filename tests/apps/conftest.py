"""What several tests of apps are given."""

import json
import sys
from pathlib import Path

import pytest

from fedattack.apps import answering, asking


@pytest.fixture
def here(monkeypatch):
    """Ask an app in this process: another one takes seconds to begin."""

    def run_in_place(request: Path, answers: Path, place: Path, say) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        answering.answer(json.loads(request.read_text()), lambda line: say(0, 1))

    # It would bound the tests' own process.
    monkeypatch.setattr(answering, "limit_memory", lambda: None)
    monkeypatch.setattr(asking, "_run", run_in_place)
