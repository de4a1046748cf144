"""Change a file of a run folder: damage it, or change what it says and seal it again as whoever can write it may."""

import copy
import hashlib
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors.numpy import load_file, save

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308, 1e-320),
    *(
        float("nan"),
        float("inf"),
        "",
        " ",
        "x",
        "nan",
        "0",
        "\x00",
        "a\x00b",
        "\x1b[31mred",
        "<script>alert(1)</script>",
        "$x_1$",
    ),
    *("../../../victim", "/etc/passwd", "canary_module:touch", "os:system", "logging.config:dictConfig", "é" * 3000),
    *([], {}, [[]], [0], [1, 2], ["a"], {"a": 1}, {"base64": "!"}, {"float": "1"}, {"()": "os.system"}),
)
DEEP = "@@DEEP@@"
LONG = "x" * 2_000_000


def json_files(folder: Path) -> list[Path]:
    """List what is JSON, the record's apart."""
    return sorted(path for path in folder.rglob("*.json") if path.name != "manifest.json")


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(draw: random.Random, path: Path) -> str:
    """Damage one file, in one of many ways; returns which."""
    of_content: Sequence[Callable[[random.Random, bytes], bytes]] = (
        *(_flip, _flip, _flip, _set_byte, _digit, _digit, _cut, _insert, _delete, _double, _zeros, _append),
        *(_swap_lines, _repeat_line, _drop_line, _deep, _huge_number, _not_a_number, _key_twice),
    )
    of_file: Sequence[Callable[[random.Random, Path], None]] = (
        *(_remove, _empty, _folder, _pipe, _device, _link_out, _loop, _swap_files, _holes),
    )
    place = draw.randrange(len(of_content) + len(of_file))
    if place < len(of_content):
        change_content = of_content[place]
        path.write_bytes(change_content(draw, path.read_bytes()))
        return change_content.__name__.strip("_")
    change_file = of_file[place - len(of_content)]
    change_file(draw, path)
    return change_file.__name__.strip("_")


def _at_random(draw: random.Random, data: bytes) -> int:
    return draw.randrange(len(data) + 1)


def _flip(draw: random.Random, data: bytes) -> bytes:
    place = _at_random(draw, data[1:])
    return data[:place] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[place : place + 1]) + data[place + 1 :]


def _set_byte(draw: random.Random, data: bytes) -> bytes:
    place = _at_random(draw, data[1:])
    return data[:place] + draw.randbytes(1) + data[place + 1 :]


def _digit(draw: random.Random, data: bytes) -> bytes:
    """Change a digit, which leaves JSON and TOML readable."""
    return _replace_digit(draw, data, b"%d" % draw.randrange(10))


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: _at_random(draw, data)]


def _insert(draw: random.Random, data: bytes) -> bytes:
    place = _at_random(draw, data)
    return data[:place] + draw.randbytes(draw.randrange(1, 40)) + data[place:]


def _delete(draw: random.Random, data: bytes) -> bytes:
    place = _at_random(draw, data)
    return data[:place] + data[place + draw.randrange(1, 40) :]


def _double(draw: random.Random, data: bytes) -> bytes:
    return data + data


def _zeros(draw: random.Random, data: bytes) -> bytes:
    place = _at_random(draw, data)
    size = min(draw.randrange(1, 200), len(data) - place)
    return data[:place] + bytes(size) + data[place + size :]


def _append(draw: random.Random, data: bytes) -> bytes:
    return data + draw.randbytes(draw.randrange(1, 100))


def _swap_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines)


def _repeat_line(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    return b"".join(lines)


def _drop_line(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    lines.pop(draw.randrange(len(lines)))
    return b"".join(lines)


def _deep(draw: random.Random, data: bytes) -> bytes:
    return draw.choice((b"[", b'{"a":')) * draw.choice((150, 1_000, 100_000))


def _replace_digit(draw: random.Random, data: bytes, text: bytes) -> bytes:
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return data
    place = draw.choice(places)
    return data[:place] + text + data[place + 1 :]


def _huge_number(draw: random.Random, data: bytes) -> bytes:
    return _replace_digit(draw, data, b"9" * draw.choice((20, 5_000)))


def _not_a_number(draw: random.Random, data: bytes) -> bytes:
    return _replace_digit(draw, data, draw.choice((b"NaN", b"Infinity", b"1e999", b"-", b"null")))


def _key_twice(draw: random.Random, data: bytes) -> bytes:
    """Say a key of a JSON object twice, the second time with another value."""
    if not data.startswith(b"{"):
        return data
    value = draw.choice((b"0", b'"x"', b"[]", b"null"))
    keys = [part for part in data.split(b'"')[1::2] if part.isalnum()] or [b"seed"]
    return b'{"' + draw.choice(keys) + b'":' + value + b"," + data[1:]


def _remove(draw: random.Random, path: Path) -> None:
    path.unlink()


def _empty(draw: random.Random, path: Path) -> None:
    path.write_bytes(b"")


def _holes(draw: random.Random, path: Path) -> None:
    """Make the file longer than is read, at no cost on the disk."""
    os.truncate(path, 2**29)


def _folder(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(draw: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/dev/stdin")))


def _link_out(draw: random.Random, path: Path) -> None:
    """Put the file elsewhere, and a link to it in its place."""
    outside = path.parents[draw.randrange(3)].parent / f"elsewhere-{path.name}"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def _loop(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _swap_files(draw: random.Random, path: Path) -> None:
    """Exchange the contents with another file of the same kind."""
    others = [other for other in path.parent.iterdir() if other.suffix == path.suffix and other != path]
    if others:
        other = draw.choice(others)
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)


# --- changed, and sealed again ---------------------------------------------------------------------------------------


def change(draw: random.Random, value: Any) -> Any:
    """Return a JSON value with one thing in it changed."""
    value = copy.deepcopy(value)
    holder, key = None, None
    here = value
    while isinstance(here, dict | list) and here and (holder is None or draw.random() < 0.75):
        holder = here
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        here = here[key]
    if holder is None:
        return draw.choice(NASTY)
    if draw.random() < 0.4:
        holder[key] = plausible(draw, here, holder)
        return value
    way = draw.random()
    if way < 0.1:
        holder.pop(key)
    elif way < 0.2 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(here))
    elif way < 0.25 and isinstance(holder, dict):
        holder[draw.choice(("x", "check", "a" * 5000, "../x", ""))] = holder.pop(key)
    elif way < 0.3 and isinstance(holder, dict):
        other = draw.choice(list(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif way < 0.33:
        holder[key] = draw.choice((DEEP, LONG, {"a": DEEP}))
    elif way < 0.55 and isinstance(here, int | float) and not isinstance(here, bool):
        holder[key] = draw.choice((here + 1, here - 1, -here, here * 10, here + 0.5, here * 10**9))
    elif way < 0.6 and isinstance(here, str):
        holder[key] = draw.choice((here + "x", here[:-1], here.upper(), here[::-1]))
    else:
        holder[key] = draw.choice(NASTY)
    return value


def plausible(draw: random.Random, here: Any, holder: Any) -> Any:
    """Return another value of the same kind, such as stands elsewhere in the same file."""
    if isinstance(here, bool):
        return not here
    if isinstance(here, int):
        return draw.choice((here + 1, max(here - 1, 0), here * 2, 0, 1, 3, 1000))
    if isinstance(here, float):
        return draw.choice((here * 0.5, here * 2, -here, 0.0, 1.0, 0.999, 1e-9, 1e6))
    beside = list(holder.values()) if isinstance(holder, dict) else list(holder)
    alike = [item for item in beside if type(item) is type(here) and item != here]
    if isinstance(here, str):
        return draw.choice([*alike, "", "node0", "0", "1", "*", "x" * 300, "$a_b$", "<b>&", "fedavg", "fedsgd", "mlp"])
    if isinstance(here, list) and here:
        return draw.choice(([*here, here[-1]], here[:-1], here[::-1], [here[0]], []))
    return copy.deepcopy(draw.choice(alike)) if alike else here


def compact(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode("utf-8", "replace")


def sealed(value: Any) -> bytes:
    """Encode an object with its own checksum, whatever is in it."""
    if not isinstance(value, dict):
        return compact(value)
    body = compact({key: item for key, item in value.items() if key != "check"})
    check = hashlib.sha256(body).hexdigest()
    return body[:-1] + (b"," if len(body) > 2 else b"") + f'"check":"{check}"}}'.encode()


def change_json(draw: random.Random, path: Path) -> None:
    """Change one thing in a JSON file and seal it; what held its checksum is told."""
    value = json.loads(path.read_text())
    was_sealed = isinstance(value, dict) and value.pop("check", None) is not None
    changed = change(draw, value)
    path.write_bytes(sealed(changed) if was_sealed else compact(changed))
    tell(path)


def tell(path: Path) -> None:
    """Write a file's new checksum where the files beside it, or run.json, hold it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for holder, key in (("holdings.json", "files"), ("knowledge.json", "files")):
        file = path.parent / holder
        if file.exists() and file != path:
            value = json.loads(file.read_text())
            if path.name in value.get(key, {}):
                value[key][path.name] = digest
                file.write_bytes(sealed(value))
    if path.name == "findings.json":
        run = path.parent / "run.json"
        run.write_bytes(sealed(json.loads(run.read_text()) | {"findings_sha256": digest}))


def change_npz(draw: random.Random, path: Path) -> None:
    """Change one array of an ``.npz``; what held its checksum is told."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    name = draw.choice(list(arrays))
    way = draw.random()
    if name == "facts" and way < 0.7:
        facts = change(draw, json.loads(str(arrays[name])))
        arrays[name] = np.array(compact(facts).decode())
    elif way < 0.05:
        del arrays[name]
    elif way < 0.1:
        arrays[draw.choice(("x", "y", "zzz", "../x"))] = arrays.pop(name)
    elif way < 0.15:
        path.write_bytes(_lying_header(arrays, name, draw))
        tell(path)
        return
    else:
        arrays[name] = change_array(draw, arrays[name])
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    tell(path)


def change_array(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """Return an array of another type, shape or with other values."""
    way = draw.randrange(12)
    array = np.array(array)
    numeric = array.dtype.kind in "biuf"
    if way == 0 and numeric:
        return array.astype(draw.choice((np.float64, np.float16, np.int8, np.uint8, np.int64, np.bool_, np.complex64)))
    if way == 1:
        return array.astype(str)
    if way == 2:
        return array.reshape(-1)
    if way == 3:
        return array[None]
    if way == 4:
        return array[:0] if array.ndim else np.zeros(0)
    if way == 5 and array.ndim:
        return array[: len(array) // 2]
    if way == 6 and array.ndim:
        return np.concatenate([array, array])
    if way == 7:
        return array.astype(object)
    if way == 8 and array.ndim:
        return array[::-1]
    if array.size and numeric:
        array = array.astype(np.float64) if array.dtype.kind == "f" else array.copy()
        flat = array.reshape(-1)
        values = (np.nan, np.inf, -np.inf, 1e300, -1.0, 0.5, 1e9) if array.dtype.kind == "f" else (-1, 1, 0, 7, 127)
        with np.errstate(all="ignore"):
            flat[draw.randrange(flat.size) if way < 11 else slice(None)] = draw.choice(values)
        return array
    if array.size:
        flat = array.astype("<U40").reshape(-1)
        flat[draw.randrange(flat.size)] = draw.choice(("", "*", "stranger", "$x_", "../x", "\x1b[2J", "<b>"))
        return flat.reshape(array.shape)
    return np.zeros(3)


def _lying_header(arrays: dict[str, np.ndarray], name: str, draw: random.Random) -> bytes:
    """Write an archive in which one array says that it is huge, and is not, or inflates to much more than the file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            stream = io.BytesIO()
            np.save(stream, array)
            data = stream.getvalue()
            if key == name:
                shape = draw.choice(("(1000000000000,)", "(99999999999999999999,)", "(-1,)", "(3000000, 3000000)"))
                header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
                if draw.random() < 0.3:
                    header = draw.choice(("{", "(" * 5_000, "-" * 6_000, "{[]: 1}", header.replace("<f8", "O"), "{}"))
                data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(64)
                if draw.random() < 0.2:
                    data += bytes(300_000_000)
            archive.writestr(f"{key}.npy", data)
    return buffer.getvalue()


def change_record(draw: random.Random, record: Path) -> str:
    """Change one thing in a record, arrays too, and seal all of it again; returns what was changed."""
    manifest = json.loads((record / "manifest.json").read_text())
    lines = [json.loads(line) for line in (record / "rounds.jsonl").read_text().splitlines()]
    way = draw.random()
    if way < 0.3:
        manifest = change(draw, {key: value for key, value in manifest.items() if key != "check"})
        what = "manifest"
    elif way < 0.75:
        place = draw.randrange(len(lines))
        lines[place] = change(draw, {key: value for key, value in lines[place].items() if key != "check"})
        what = "line"
    elif way < 0.85:
        what = "lines"
        kind = draw.randrange(3)
        if kind == 0:
            draw.shuffle(lines)
        elif kind == 1:
            lines.insert(draw.randrange(len(lines) + 1), copy.deepcopy(draw.choice(lines)))
        else:
            lines.pop(draw.randrange(len(lines)))
        if isinstance(manifest, dict) and draw.random() < 0.7:
            manifest["rounds"] = len(lines)
    else:
        what = "arrays"
        _change_tensors(draw, record, draw.choice(lines))
    seal_record(record, manifest, lines)
    return what


def _change_tensors(draw: random.Random, record: Path, line: dict[str, Any]) -> None:
    path = record / line["file"]
    arrays = load_file(path)
    name = draw.choice(list(arrays))
    way = draw.random()
    if way < 0.1:
        del arrays[name]
    elif way < 0.15:
        arrays[f"{name}x"] = arrays.pop(name)
    else:
        changed = change_array(draw, arrays[name])
        arrays[name] = changed if changed.dtype.kind in "biuf" else arrays[name] * 0
    data = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
    path.write_bytes(data)
    line |= {"bytes": len(data), "xxh3": xxhash.xxh3_128(data).hexdigest()}
    if "sha256" in line:
        line["sha256"] = hashlib.sha256(data).hexdigest()


def seal_record(record: Path, manifest: Any, lines: Sequence[Any]) -> None:
    previous = manifest.get("id", "") if isinstance(manifest, dict) else ""
    rows = []
    for line in lines:
        if isinstance(line, dict):
            line = {key: value for key, value in line.items() if key != "check"}
            line = line | {"previous": previous} if "previous" in line else line
        row = sealed(line)
        previous = row[-66:-2].decode("utf-8", "replace")
        rows.append(row)
    (record / "rounds.jsonl").write_bytes(b"\n".join(rows) + b"\n" if rows else b"")
    if isinstance(manifest, dict) and manifest.get("head") is not None:
        manifest = manifest | {"head": previous}
    (record / "manifest.json").write_bytes(sealed(manifest))


# --- TOML ------------------------------------------------------------------------------------------------------------

TOML = """file = "people.csv"
target = "income"
task = "classification"
sensitive = "sex"
groups = ["town"]
columns = ["age", "sex", "work"]
categorical = ["work"]
missing = "impute"
header = true

[domain]
sex = ["F", "M"]
"""


def table(draw: random.Random) -> str:
    """Return a CSV that fits :data:`TOML`."""
    rows = ["age,sex,work,town,income"]
    rows += [f"{draw.randrange(18, 80)},{draw.choice('FM')},{draw.choice('abc')},t{n % 3},{n % 2}" for n in range(60)]
    return "\n".join(rows) + "\n"


def change_toml(draw: random.Random, text: str) -> str:
    """Return a declaration with one value, key or character changed."""
    lines = text.splitlines()
    place = draw.randrange(len(lines))
    way = draw.random()
    if way < 0.5 and "=" in lines[place]:
        key = lines[place].partition("=")[0]
        values = (
            *("''", "1", "-1", "nan", "1e400", "true", "[]", "[1]", "['a', 'a']", "{a = 1}", "2026-11-22", "'x'"),
            *(
                "'../../victim'",
                "'/etc/passwd'",
                "'/dev/zero'",
                "[" * 2000 + "]" * 2000,
                "'" + "x" * 5000 + "'",
                "9" * 400,
            ),
            *("'income'", "'sex'", "'age'", "['age']", "['sex', 'town']", "'regression'", "'refuse'", "false"),
        )
        lines[place] = f"{key}= {draw.choice(values)}"
    elif way < 0.6:
        lines.pop(place)
    elif way < 0.7:
        lines.insert(place, draw.choice(lines))
    elif way < 0.8:
        lines.insert(
            place, draw.choice(("openml = 'adult'", "openml = '../../x'", "version = -1", "x = 1", "[x]", "\x00"))
        )
    else:
        data = bytearray("\n".join(lines).encode())
        data[draw.randrange(len(data))] = draw.randrange(256)
        return data.decode("utf-8", "replace")
    return "\n".join(lines) + "\n"
