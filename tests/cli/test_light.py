"""What only reads words answers at once: it imports nothing that takes seconds."""

import os
import subprocess
import sys

import pytest

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
