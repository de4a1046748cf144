"""Do something in a child process, and tell how it ended: an answer, an exception, no end, or too much memory."""

import argparse
import json
import math
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
from pathlib import Path
from typing import Any

from fedattack.base.errors import FedAttackError

ANSWER, REFUSED, TRACEBACK, HANG, DIED, GREEDY = "answer", "refused", "traceback", "hang", "died", "too much memory"

# Seconds between looks at how much memory a child takes.
_LOOK = 0.05


@dataclass(frozen=True)
class Outcome:
    """How it ended; ``told`` is the answer, the message, or the traceback. ``memory`` in bytes is the child's peak."""

    kind: str
    told: Any
    seconds: float
    memory: int
    computed: float = 0.0  # Seconds of a processor that it took, whatever else this machine did.


def in_child(work: Callable[[], Any], *, seconds: float, memory: float = math.inf) -> Outcome:
    """Run ``work`` in a fork of this process, which has imported everything; its answer must fit into JSON.

    It is ended after so many seconds, and where it takes more than so many bytes of memory.
    """
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    content, alive, greedy = b"", True, False
    while alive:
        left = seconds - (time.monotonic() - started)
        if not math.isinf(memory):
            greedy = _resident(child) > memory
        ready, _, _ = select.select([reading], [], [], max(left if math.isinf(memory) else min(left, _LOOK), 0))
        if greedy or (not ready and left <= 0):
            os.kill(child, signal.SIGKILL)
            break
        if not ready:
            continue
        block = os.read(reading, 1 << 16)
        alive = bool(block)
        content += block
    os.close(reading)
    _, status, used = os.wait4(child, 0)
    taken, peak, computed = time.monotonic() - started, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
    if greedy or memory < peak:
        return Outcome(GREEDY, f"more than {memory / 1e6:,.0f} MB", taken, peak, computed)
    if alive:
        return Outcome(HANG, f"no end within {seconds:g} s", taken, peak, computed)
    if status or not content:
        return Outcome(DIED, f"wait status {status}", taken, peak, computed)
    kind, told = json.loads(content)
    return Outcome(kind, told, taken, peak, computed)


def _resident(process: int) -> int:
    """Return how many bytes of a process lie in memory; 0 of one that has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


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


def make_parser(description: str, count: int) -> argparse.ArgumentParser:
    """Return the options that all fuzzers have; the hidden ones are those of :func:`side_by_side`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def side_by_side(module: str, given: argparse.Namespace) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Run a fuzzer in several processes, each with its share of the tries; returns what each found, and all counts."""
    words = [sys.executable, "-m", module, "--count", str(given.count), "--seed", str(given.seed)]
    words += ["--every", str(given.workers)]
    running = [
        subprocess.Popen([*words, "--first", str(first)], stdout=subprocess.PIPE) for first in range(given.workers)
    ]
    results = [json.loads(process.communicate()[0]) for process in running]
    return results, sum((Counter(result["counts"]) for result in results), Counter())
