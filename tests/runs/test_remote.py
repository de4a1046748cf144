"""What clients of a SuperLink write down of themselves is read as what somebody else wrote."""

import os

import pytest

from fedattack.base.errors import RunError
from fedattack.record.nodes import NODES, note_node, read_nodes
from fedattack.runs.remote import _MOST_NOTE, Remote


@pytest.fixture
def notes(tmp_path):
    """The folder of a client's notes on the truth, and what fetches them."""
    truth = tmp_path / "run" / "truth"
    client = tmp_path / "notes" / "client-0"
    theirs = client / truth.relative_to(truth.anchor)
    (theirs / NODES).mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    remote = Remote(
        tmp_path, supernodes=1, log=tmp_path / "log", superlink="http://127.0.0.1:1", notes=tmp_path / "notes"
    )
    return theirs, truth, lambda: remote._fetch_notes([truth])


def test_a_note_is_copied_once(notes):
    theirs, truth, fetch = notes
    note_node(theirs, node="7", client="0")
    fetch()
    fetch()
    assert read_nodes(truth, RunError, "") == {"7": "0"}


def test_a_note_that_is_a_pipe_or_has_no_end_is_refused(notes):
    theirs, truth, fetch = notes
    os.mkfifo(theirs / NODES / "7.json")
    with pytest.raises(RunError, match=r"7.json cannot be read \(it is a pipe.*; a client wrote it; delete it"):
        fetch()
    (theirs / NODES / "7.json").unlink()
    (theirs / NODES / "7.json").write_bytes(b"x" * (_MOST_NOTE + 1))
    with pytest.raises(RunError, match="has 65,537 bytes; expected at most 65,536"):
        fetch()
    assert not (truth / NODES / "7.json").exists()
