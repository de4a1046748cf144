"""Do something in a child process, and tell how it ended: an answer, an exception, no end, or too much memory."""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedattack.base.errors import FedAttackError

ANSWER, REFUSED, TRACEBACK, HANG, DIED = "answer", "refused", "traceback", "hang", "died"


@dataclass(frozen=True)
class Outcome:
    """How it ended; ``told`` is the answer, the message, or the traceback. ``memory`` in bytes is the child's peak."""

    kind: str
    told: Any
    seconds: float
    memory: int


def in_child(work: Callable[[], Any], *, seconds: float) -> Outcome:
    """Run ``work`` in a fork of this process, which has imported everything; its answer must fit into JSON."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    content, alive = b"", True
    while alive:
        left = seconds - (time.monotonic() - started)
        ready, _, _ = select.select([reading], [], [], max(left, 0))
        if not ready:
            os.kill(child, signal.SIGKILL)
            break
        block = os.read(reading, 1 << 16)
        alive = bool(block)
        content += block
    os.close(reading)
    _, status, used = os.wait4(child, 0)
    taken, memory = time.monotonic() - started, used.ru_maxrss * 1024
    if alive:
        return Outcome(HANG, f"no end within {seconds:g} s", taken, memory)
    if status or not content:
        return Outcome(DIED, f"wait status {status}", taken, memory)
    kind, told = json.loads(content)
    return Outcome(kind, told, taken, memory)


def _answer(work: Callable[[], Any], writing: int) -> None:
    """Do the work and tell; never returns."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            told = (ANSWER, work())
        except FedAttackError as problem:
            told = (REFUSED, str(problem))
        except MemoryError:
            told = (TRACEBACK, "MemoryError\n" + traceback.format_exc())
        except BaseException:
            told = (TRACEBACK, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(told).encode())
    finally:
        os._exit(0)


def side_by_side(module: str, given: argparse.Namespace) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Run a fuzzer in several processes, each with its share of the tries; returns what each found, and all counts."""
    words = [sys.executable, "-m", module, "--count", str(given.count), "--seed", str(given.seed)]
    words += ["--every", str(given.workers)]
    running = [
        subprocess.Popen([*words, "--first", str(first)], stdout=subprocess.PIPE) for first in range(given.workers)
    ]
    results = [json.loads(process.communicate()[0]) for process in running]
    return results, sum((Counter(result["counts"]) for result in results), Counter())
