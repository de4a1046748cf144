"""Small folders that are made to cost much: how much memory and time do `attack` and `report` take?

    python -m tests.fuzz.costs --count 400 --workers 2

Each try takes a small run folder, in which an attack has all that it needs. It lets clients, knowledge, truth and
scores state large numbers, long lists, wide arrays that are deflated, many nodes, and many or wide replies. Then it
attacks the folder, and reports on it, each in a process of its own, within 60 seconds and a gigabyte.
"""

import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.attacks.registry import THREATS
from fedattack.record import Exchange, Record, Reply, Round
from fedattack.record.others import Others
from fedattack.record.project import rewrite_record
from tests.fuzz import mutate
from tests.fuzz.sandbox import ANSWER, GREEDY, HANG, in_child, make_parser, side_by_side

SECONDS = 60.0
"""Of a processor; a machine that does other things beside takes longer, but no more than :data:`_PATIENCE` times."""
MEMORY = 2**30
"""Bytes of a process, of which torch and what else is imported take 0.7 GB."""

_PATIENCE = 5

ADDED = 100_000
"""Bytes that one file may grow by."""

_MOST_ADDED = 20 * ADDED
"""Bytes that a folder may grow by, where two ways add up; the arrays of many nodes take a block of the disk each."""

_HUGE: tuple[Any, ...] = (10**4, 10**6, 10**9, 10**12, 10**15, 2**53, 0, 1, -1, 0.5, 1e12, 1e300, 1e-300)
_LENGTHS = (1_000, 30_000, 1_000_000, 20_000_000)

# Worlds that take minutes to make, or whose attack takes longer than a try may.
_LEFT_OUT = {("membership-canary", "fedavg"), ("membership-canary", "fedsgd")}

Way = Callable[[random.Random, Path], None]


def list_worlds() -> dict[tuple[str, str], Callable[[Path], Path]]:
    """Return how a folder is made for each attack and protocol, as the tests of every attack have it."""
    worlds = {}
    for threat in THREATS:
        worlds |= import_module(f"tests.threats.{threat}.contract").RUNS
    return {case: write for case, write in worlds.items() if case not in _LEFT_OUT}


def list_options(name: str) -> dict[str, str]:
    """Return the options with which an attack takes little time, in this process alone."""
    options: dict[str, str] = {}
    for threat in THREATS:
        options |= getattr(import_module(f"tests.threats.{threat}.contract"), "QUICK", {}).get(name, {})
    known = ATTACKS[name].options.list_settings()
    options |= {key: value for key, value in (("workers", "1"), ("steps", "3")) if key in known}
    return options


# --- ways to make a folder costly ------------------------------------------------------------------------------------


def _walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all places in a JSON value: what holds each, and its key there."""
    waiting = [value]
    while waiting:
        here = waiting.pop()
        keys = range(len(here)) if isinstance(here, list) else list(here)
        for key in keys:
            yield here, key
            if isinstance(here[key], dict | list):
                waiting.append(here[key])


def _change_json(draw: random.Random, folder: Path, change: Callable[[Any], bool]) -> None:
    """Change a JSON file, the facts of scores, or what a record says, and seal it again.

    ``change`` says whether there is anything to be changed in what it is given.
    """
    records = [path.parent for path in folder.rglob("rounds.jsonl")]
    paths = [*mutate.json_files(folder), *records, *records, *folder.rglob("scores/*.npz")]
    draw.shuffle(paths)
    for path in paths:
        if _change_file(draw, path, change):
            return


def _change_file(draw: random.Random, path: Path, change: Callable[[Any], bool]) -> bool:
    if path.is_dir():
        manifest = json.loads((path / "manifest.json").read_text())
        lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        if not change(draw.choice([manifest, *lines, *lines])):
            return False
        mutate.seal_record(path, manifest, lines)
    elif path.suffix == ".npz":
        arrays = _load(path)
        facts = json.loads(str(arrays["facts"]))
        if not change(facts):
            return False
        np.savez_compressed(path, **arrays | {"facts": np.array(json.dumps(facts))})
    else:
        value = json.loads(path.read_text())
        if not change(value):
            return False
        path.write_bytes(mutate.sealed(value))
        mutate.tell(path)
    return True


def state_number(draw: random.Random, folder: Path) -> None:
    """State another number, in the place of any."""

    def change(value: Any) -> bool:
        places = []
        for holder, key in _walk(value):
            if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
                places.append((holder, key))
        if not places:
            return False
        holder, key = draw.choice(places)
        holder[key] = draw.choice(_HUGE)
        return True

    _change_json(draw, folder, change)


def lengthen_list(draw: random.Random, folder: Path) -> None:
    """Repeat what stands in a list, or in an object under other names."""

    def change(value: Any) -> bool:
        places = [(holder, key) for holder, key in _walk(value) if isinstance(holder[key], dict | list) and holder[key]]
        if not places:
            return False
        holder, key = draw.choice(places)
        here = holder[key]
        count = min(draw.choice((50, 1_000, 30_000)), ADDED // len(json.dumps(here)))
        if isinstance(here, list):
            holder[key] = here * max(1, count)
        else:
            some = next(iter(here.values()))
            here.update({f"{number:x}": some for number in range(count)})
        return True

    _change_json(draw, folder, change)


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def stretch_array(draw: random.Random, folder: Path) -> None:
    """Make arrays longer or wider by what is the same throughout, which takes nothing on the disk."""
    path = draw.choice(sorted(folder.rglob("*.npz")))
    arrays = _load(path)
    name = draw.choice([name for name, array in arrays.items() if array.ndim and array.size])
    axis = draw.randrange(arrays[name].ndim)
    length = draw.choice(_LENGTHS)
    together = [name]
    if axis == 0 and draw.random() < 0.7:
        # Examples and labels, say, are as many.
        size = len(arrays[name])
        together = [key for key, array in arrays.items() if array.ndim and len(array) == size]
    for key in together:
        array = arrays[key]
        more = min(length, 2**27 // max(1, array.itemsize * array.size // array.shape[axis]))
        zeros = np.zeros((*array.shape[:axis], more, *array.shape[axis + 1 :]), array.dtype)
        if draw.random() < 0.5:
            zeros[...] = np.take(array, [0], axis=axis)
        arrays[key] = np.concatenate([array, zeros], axis=axis)
    np.savez_compressed(path, **arrays)
    mutate.tell(path)


def _change_record(folder: Path, change: Callable[[Exchange], Exchange]) -> None:
    record, new = Record(folder / "record"), folder / "new"
    kind = {"view": record.view, "aggregation": record.manifest["aggregation"]}

    def change_round(round_: Round, exchange: Exchange) -> Exchange:
        aggregate = None if round_.aggregate is None else dict(round_.aggregate)
        return replace(change(exchange), aggregate=aggregate)

    rewrite_record(record, new, change_round, **kind)
    shutil.rmtree(record.path)
    new.rename(record.path)


def send_much(draw: random.Random, folder: Path) -> None:
    """Let one client send another reply: arrays of other shapes, many of them, many metrics, a large count."""
    place = draw.randrange(4)
    what = draw.choice((_send_many, _send_wide, _send_metrics, _send_text, _send_families))
    sent = what(draw)

    def change(exchange: Exchange) -> Exchange:
        replies = list(exchange.replies)
        index = place % len(replies)
        replies[index] = replace(replies[index], **sent)
        return replace(exchange, replies=replies)

    _change_record(folder, change)


def _send_many(draw: random.Random) -> dict[str, Any]:
    return {"arrays": {f"a{number}": np.zeros(draw.choice((0, 1, 3)), np.float32) for number in range(700)}}


def _send_wide(draw: random.Random) -> dict[str, Any]:
    shape = draw.choice(((20_000,), (1, 20_000), (20_000, 1), (0, 10**6), (140, 140), (1, 1, 1, 20_000)))
    names = draw.choice((("0",), ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")))
    return {"arrays": {name: np.zeros(shape, np.float32) for name in names}}


def _send_metrics(draw: random.Random) -> dict[str, Any]:
    values: Sequence[Any] = (1.0, 10**300, [1.0] * 40, b"\x01" * 100, "x" * 60)
    return {"metrics": {f"m{number}": draw.choice(values) for number in range(500)}}


def _send_text(draw: random.Random) -> dict[str, Any]:
    large: Sequence[Any] = (b"\x01\x02\x03" * 20_000, [0.5] * 20_000, "x" * 60_000, [1, 2] * 10_000)
    return {"metrics": {"large": draw.choice(large)}, "num_examples": draw.choice(_HUGE)}


def _send_families(draw: random.Random) -> dict[str, Any]:
    return {"metrics": {f"p{number}_{draw.randrange(9)}": float(number) for number in range(3_000)}}


def add_nodes(draw: random.Random, folder: Path) -> None:
    """Let many nodes reply, each with little."""
    count = draw.choice((50, 700))
    sent: dict[str, Any] = draw.choice(({}, {"metrics": {"a": 1.0}}, {"num_examples": 10**6}))

    def change(exchange: Exchange) -> Exchange:
        first = exchange.replies[0].arrays or {}
        tiny = {name: np.zeros(0, np.float32) for name in first}
        if draw.random() < 0.3:
            tiny = {name: array for name, array in first.items() if array.size < 100}
        more = [Reply(f"more{number}", "ok", tiny, **{"num_examples": 5, **sent}) for number in range(count)]
        return replace(exchange, replies=[*exchange.replies, *more])

    _change_record(folder, change)


def add_others(draw: random.Random, folder: Path) -> None:
    """Let many nodes answer an evaluation or a query, all alike."""
    count = draw.choice((10, 1_000, 10_000))
    values: Sequence[dict[str, Any]] = (
        {"x": b"\x01\x02\x03" * 10_000},
        {f"v{number}": [1.0, 2.0, 3.0] for number in range(400)},
        {f"v{number}": float(number) for number in range(2_000)},
        {"x": [0.5] * 8_000},
    )
    others = Others("query", "reply", tuple(f"{number:x}" for number in range(count)), draw.choice(values))
    _change_record(folder, lambda exchange: replace(exchange, others=[others]))


def add_rounds(draw: random.Random, folder: Path) -> None:
    """Repeat a line of the record many times."""
    record = folder / "record"
    manifest = json.loads((record / "manifest.json").read_text())
    lines = [json.loads(line) for line in (record / "rounds.jsonl").read_text().splitlines()]
    count = min(draw.choice((20, 200)), ADDED // len(json.dumps(lines[-1])))
    for _ in range(count):
        lines.append(lines[-1] | {"seq": len(lines), "round": lines[-1]["round"] + 1})
        if draw.random() < 0.5:
            lines[-1]["replies"] = lines[0]["replies"]
    manifest["rounds"] = len(lines)
    mutate.seal_record(record, manifest, lines)


_NODE = ("left_children", "right_children", "split_indices", "split_conditions", "split_type")
_NODE = (*_NODE, "sum_hessian", "base_weights")
_LEAF = (-1, -1, 0, 0.1, 0, 1.0, 0.1)


def _tree(nodes: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return dict(zip(_NODE, map(list, zip(*nodes, strict=True)), strict=True))


def _chain(draw: random.Random, levels: int, features: int) -> dict[str, list[float]]:
    """Grow a tree in which each inner node has a leaf, and the next one."""
    nodes: list[Sequence[float]] = []
    for level in range(levels):
        at = 2 * level
        nodes.append((at + 1, at + 2, draw.randrange(features), draw.random(), 0, levels - level + 1.0, 0.1))
        nodes.append(_LEAF)
    return _tree([*nodes, _LEAF])


def _bush(draw: random.Random, levels: int, features: int) -> dict[str, list[float]]:
    """Grow a tree of so many whole levels."""
    nodes: list[Sequence[float]] = []
    for at in range(2**levels - 1):
        nodes.append((2 * at + 1, 2 * at + 2, draw.randrange(features), draw.random(), 0, 500.0, 0.1))
    return _tree([*nodes, *[_LEAF] * 2**levels])


def send_trees(draw: random.Random, folder: Path) -> None:
    """Let clients send other trees: of many columns, many, deep, wide."""
    from tests.threats.trees.world import as_array, as_json

    features = draw.choice((10, 11, 1_000, 100_000))
    grown: Sequence[list[Any]] = (
        [_tree([_LEAF])] * 500,
        [_chain(draw, 1, features)] * 200,
        [_chain(draw, 60, features) for _ in range(12)],
        [_bush(draw, 9, features), *[_chain(draw, 1, features)] * 50],
    )
    sent = as_array(as_json(draw.choice(grown), features, 0.5))
    every = draw.random() < 0.3

    def change(exchange: Exchange) -> Exchange:
        replies = list(exchange.replies)
        for index, reply in enumerate(replies):
            if reply.arrays and (every or index == 0):
                replies[index] = replace(reply, arrays=dict.fromkeys(reply.arrays, sent))
        return replace(exchange, replies=replies)

    _change_record(folder, change)


WAYS: tuple[Way, ...] = (
    *(state_number, state_number, state_number, lengthen_list, stretch_array, stretch_array, stretch_array),
    *(send_much, send_much, add_nodes, add_others, add_rounds),
)


# --- a try -----------------------------------------------------------------------------------------------------------


def command(words: Sequence[str]) -> dict[str, Any]:
    """Run a command in this process as `fedattack` does; returns its exit code and what it printed of errors."""
    from rich.console import Console

    from fedattack import cli

    sys.argv = ["fedattack", *words]
    out, err = io.StringIO(), io.StringIO()
    cli.out_console, cli.err_console = Console(file=out), Console(file=err, width=200)
    code: Any = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return {"code": code, "err": err.getvalue()[-2000:]}


def build(case: tuple[str, str], write: Callable[[Path], Path], folder: Path) -> Path:
    """Make the folder of an attack, with its scores."""
    folder = write(folder)
    attack = ATTACKS[case[0]].with_options(list_options(case[0]))
    scores = attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    scores.save(folder / "scores" / f"{case[0]}.npz")
    return folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _change_folder(draw: random.Random, folder: Path, ways: Sequence[Way]) -> bool:
    """Change a folder in one way after the other; says whether it is still a small one."""
    most = _size(folder) + _MOST_ADDED
    for way in ways:
        with suppress(Exception):  # what one has done may stand in the way of the next, however
            way(draw, folder)
        if _size(folder) > most:
            return False
    return True


def run(count: int, seed: int, *, every: int = 1, first: int = 0, only: Sequence[str] = ()) -> dict[str, Any]:
    """Make the tries ``first``, ``first + every`` … of ``count``; returns how they ended, and each that is bad."""
    import torch

    torch.set_num_threads(1)
    worlds = {case: write for case, write in list_worlds().items() if not only or case[0] in only}
    counts: Counter[str] = Counter()
    bad: list[dict[str, Any]] = []
    most = [0.0, 0.0]
    originals: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        for number in range(first, count, every):
            draw = random.Random(f"{seed}/{number}")
            case = draw.choice(list(worlds))
            name = case[0]
            if case not in originals:
                originals[case] = build(case, worlds[case], Path(root) / "-".join(case))
            folder = Path(root) / "try"
            shutil.copytree(originals[case], folder)
            ways = [draw.choice(WAYS) for _ in range(draw.choice((1, 1, 2)))]
            if name == "trees" and draw.random() < 0.6:
                ways[0] = send_trees
            if not _change_folder(draw, folder, ways):
                # Many nodes that send much each are no small folder.
                counts["left out: a large folder"] += 1
                shutil.rmtree(folder)
                continue
            words = [part for key, value in list_options(name).items() for part in ("--option", f"{key}={value}")]
            tries: Mapping[str, list[str]] = {
                "report": ["report", str(folder), "--device", "cpu"],
                "attack": ["attack", name, str(folder), "--device", "cpu", *words],
                "report of it": ["report", str(folder), "--device", "cpu"],
            }
            for what, line in tries.items():
                outcome = in_child(partial(command, line), seconds=_PATIENCE * SECONDS, memory=MEMORY)
                most = [max(most[0], outcome.computed), max(most[1], outcome.memory)]
                trouble = ""
                if outcome.kind != ANSWER:
                    trouble = f"{outcome.kind}: {str(outcome.told)[-1500:]}"
                elif outcome.computed > SECONDS:
                    trouble = f"it computed longer than {SECONDS:g} s"
                elif outcome.told["code"] not in (0, 2, 3, 4) or "Traceback" in outcome.told["err"]:
                    trouble = f"exit code {outcome.told['code']}: {outcome.told['err']}"
                counts[f"{what}: {outcome.told['code'] if outcome.kind == ANSWER else outcome.kind}"] += 1
                if trouble:
                    named = [way.__name__ for way in ways]
                    took = f"{outcome.computed:.0f} s, {outcome.memory / 1e6:,.0f} MB"
                    bad.append({"number": number, "case": case, "ways": named, "what": what, "took": took})
                    bad[-1]["trouble"] = trouble
                    print(json.dumps(bad[-1])[:2500], file=sys.stderr, flush=True)
                if outcome.kind in (HANG, GREEDY):
                    break
            shutil.rmtree(folder)
    return {"counts": dict(counts), "bad": bad, "seconds": most[0], "memory": most[1]}


def main() -> None:
    """Make the tries from the command line, in several processes; exits with 1 if one is bad."""
    parser = make_parser("Small folders that are made to cost much: memory and time.", 400)
    given = parser.parse_args()
    if given.every:
        print(json.dumps(run(given.count, given.seed, every=given.every, first=given.first)))
        return
    started = time.monotonic()
    results, counts = side_by_side("tests.fuzz.costs", given)
    bad = sum(len(result["bad"]) for result in results)
    for ended, times in sorted(counts.items()):
        print(f"{times:6d}  {ended}")
    seconds = max(result["seconds"] for result in results)
    memory = max(result["memory"] for result in results)
    print(f"{sum(counts.values())} commands in {(time.monotonic() - started) / 60:.1f} minutes; bad: {bad}")
    print(f"at most {seconds:.0f} s, and {memory / 1e6:,.0f} MB")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
