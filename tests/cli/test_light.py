"""What only reads words answers at once: it imports nothing that takes seconds."""

import os
import subprocess
import sys

import pytest

from tests.apps.projects import MESSAGE_API
from tests.cli.test_check import HEAVY

SCRIPT = """
import sys
from fedattack.cli import main
sys.argv = ["fedattack", *{words!r}]
try:
    main()
except SystemExit as end:
    print("code:", end.code or 0)
print("imported:", *sorted(set({heavy!r}) & {{*sys.modules}}))
"""


def run(*words: str, **variables: str) -> tuple[str, str]:
    """Give a command in a new process; returns what it says, and what of what is heavy it imported."""
    script = SCRIPT.format(words=words, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | variables, check=True
    )
    said, _, imported = done.stdout.rpartition("imported:")
    return said + done.stderr, imported.strip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("audit",), "Three ways to begin"),
        (("list",), "quickstart"),
        (("list", "attacks"), "membership-canary"),
        (("list", "data"), "audiomnist"),
        (("list", "settings"), "local-epochs"),
        (("list", "preset"), "did you mean presets?"),
    ],
)
def test_words_are_answered_without_anything_heavy(words, said):
    told, imported = run(*words)
    assert said in told
    assert imported == ""


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("fedattack audit quick", "quickstart"),
        ("fedattack list da", "data"),
        ("fedattack attack membership-c", "membership-canary"),
        ("fedattack audit quickstart --set local-e", "local-epochs="),
    ],
)
def test_a_shell_completes_words_without_anything_heavy(line, word):
    count = str(len(line.split()) - 1)
    told, imported = run(_FEDATTACK_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count)
    assert word in told
    assert imported == ""


ENDED = """
import atexit, gc, os, sys
from fedattack.cli import main
sys.argv = ["fedattack", "--version"]
atexit.register(lambda: print("frozen:", gc.get_freeze_count(), "threads wait:", os.environ["OMP_WAIT_POLICY"]))
main()
"""


def test_nothing_is_collected_when_a_command_ends():
    # What is registered first is called last.
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=True)
    assert int(done.stdout.split("frozen:")[1].split()[0]) > 0


def test_threads_that_wait_take_no_core_unless_somebody_says_so():
    for stated, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        words = [sys.executable, "-c", ENDED]
        done = subprocess.run(words, capture_output=True, text=True, env=others | stated, check=True)
        assert done.stdout.split("threads wait:")[1].strip() == expected


STARTED = """
import sys
from contextlib import nullcontext
from pathlib import Path
from fedattack.apps import running
from fedattack.cli import apps, main
from fedattack.runs import app, simulating

def start(*arguments, **named):
    print("imported:", *sorted(set({heavy!r}) & {{*sys.modules}}))
    raise RuntimeError("a run of Flower begins here")

running.run_app = simulating.prepare = start
# What is imported beside the run is imported all the same.
apps.importing_beside = simulating.importing_beside = nullcontext
sys.argv = ["fedattack", *{words!r}]
try:
    main()
except (RuntimeError, SystemExit):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_app", [False, True])
def test_a_run_begins_before_anything_is_imported_that_only_attacks_need(is_app, tmp_path):
    what = "quickstart"
    if is_app:
        what = str(MESSAGE_API.copy(tmp_path))
    words = ("audit", what, "--out", str(tmp_path / "out"))
    script = STARTED.format(words=words, heavy={*HEAVY} - {"flwr"})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    first = done.stdout[done.stdout.index("imported:") :].splitlines()[0]
    assert first.removeprefix("imported:").split() == []
