"""Where the peers' code comes from. It is read from a folder that the developer names, and is no part of this project.

A peer that is not in the folder is cloned into it. Where that fails, the folder can be filled by hand, and until then
:class:`PeerMissingError` says what is missing and why.
"""

import contextlib
import importlib.util
import io
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_FOLDER = "no folder of peers was given; name one by --peers"


class PeerMissingError(Exception):
    """A peer cannot be run; the message says why, and what to do."""


@dataclass(frozen=True)
class Clone:
    """A repository of somebody else's, at one commit.

    Attributes
    ----------
    name
        What tables call it.
    folder, url, commit
        Where it lies among the peers, and what it is a clone of.
    files
        What the benchmark runs of it.
    """

    name: str
    folder: str
    url: str
    commit: str
    files: tuple[str, ...]

    def find(self, peers: Path | None) -> Path:
        """Return where the clone is, and make it if it is not there yet.

        Raises
        ------
        PeerMissingError
            If there is none, and none can be made.
        """
        if peers is None:
            raise PeerMissingError(_NO_FOLDER)
        place = peers / self.folder
        get = f"clone {self.url} at {self.commit[:7]}"
        if not place.exists():
            peers.mkdir(parents=True, exist_ok=True)
            reason = _ran("git", "clone", "--quiet", self.url, str(place))
            reason = reason or _ran("git", "-C", str(place), "checkout", "--quiet", self.commit)
            if reason:
                raise PeerMissingError(f"{self.folder} could not be cloned ({reason}); {get}")
        for name in self.files:
            if not (place / name).is_file():
                raise PeerMissingError(f"{self.folder}/{name} is not there; {get}")
        return place


SIA_AUTHORS = Clone(
    "authors' code",
    "source-inference-FL",
    "https://github.com/HongshengHu/source-inference-FL",
    "17bcb210d62673f0617075c2303a5d3956496a9a",
    ("models/Sia.py",),
)
FEDKIT = Clone(
    "fedkit-learn",
    "fedkit-learn",
    "https://github.com/francescodiana99/fedkit-learn",
    "93dfc110c6655d7784294e14f824fda5a922d8fa",
    ("fedklearn/attacks/aia.py", "fedklearn/attacks/utils.py", "fedklearn/utils.py"),
)
FEDMIA_AUTHORS = Clone(
    "authors' code",
    "FedMIA",
    "https://github.com/Liar-Mask/FedMIA",
    "7ee1af2220d4bc0c3757d94526120f5959be701a",
    ("mia_attack_auto.py",),
)
LEAKPRO = Clone(
    "LeakPro",
    "LeakPro",
    "https://github.com/aidotse/LeakPro",
    "c47752fad0fb48cba7d4d03023cdcedf267501c4",
    ("leakpro/attacks/gia_attacks/modular/components/label_inference.py",),
)
JAX_PRIVACY = Clone(
    "jax_privacy",
    "jax_privacy",
    "https://github.com/google-deepmind/jax_privacy",
    "8967688c26d46f3b74bfdfe61ef1f984b887abab",
    ("jax_privacy/auditing.py",),
)

TABLEAK = Clone(
    "authors' code",
    "tableak",
    "https://github.com/eth-sri/tableak",
    "6b8c1c82ffe85bc6fdd96938ac42b6c9b5685300",
    ("attacks/gradient_inversion_attack.py", "attacks/fed_avg_inversion_attack.py", "datasets/ADULT/adult.data"),
)


def load_file(path: Path) -> types.ModuleType:
    """Import one file that belongs to no package.

    Raises
    ------
    PeerMissingError
        If it needs what is not installed.
    """
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PeerMissingError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Data classes look for the module that they are of.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise PeerMissingError(f"{path.name} cannot be imported: {error}") from None
    return module


def load_module(folder: Path, name: str) -> types.ModuleType:
    """Import a module of a package that lies in a folder.

    Raises
    ------
    PeerMissingError
        If it needs what is not installed.
    """
    sys.path.append(str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissingError(f"{name} cannot be imported: {error}") from None
    finally:
        sys.path.remove(str(folder))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what peers print as they go from the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _ran(*words: str) -> str:
    """Run a command, and return the last line of its complaints; empty if it succeeded."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
