"""What tests of containers share: commands, a prepared deployment, and what lies in a run folder."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from fedattack.base.errors import RecordError
from fedattack.record import Record, check_record
from fedattack.record.nodes import read_nodes
from tests.docker.test_prepare import run_prepare
from tests.runs.test_simulator import wait_until


def succeeds(*command: str) -> bool:
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode


def said(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def await_that(condition: Callable[[], object], seconds: float, what: str) -> None:
    assert wait_until(lambda: bool(condition()), seconds), f"not within {seconds:.0f} s: {what}"


class Containers:
    """A deployment in a folder of its own, with the compose file of ``docker/``; goes down with its context."""

    def __init__(self, command: list[str], image: str, folder: Path) -> None:
        self.folder, self.project = folder, f"fa{uuid.uuid4().hex[:8]}"
        self._command = [*command, "--project-name", self.project]
        self._environment = {**os.environ, "IMAGE": image}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tell("down", "--volumes", "--timeout", "5")

    def prepare(self, *words: str) -> None:
        run_prepare(self.folder, *words)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a compose command, whose output ``communicate`` returns."""
        return subprocess.Popen(
            [*self._command, *words],
            cwd=self.folder,
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tell(self, *words: str, **environment: str) -> tuple[int, str]:
        """Run a compose command; returns its exit code and output."""
        process = self.start(*words, **environment)
        output, _ = process.communicate()
        return process.returncode, output

    def do(self, *words: str, **environment: str) -> str:
        """Run a compose command that must succeed."""
        code, output = self.tell(*words, **environment)
        assert code == 0, f"{' '.join(words)}: exit code {code}\n{output[-4000:]}\n{self.logs()[-6000:]}"
        return output

    def logs(self, *services: str) -> str:
        return self.tell("logs", "--no-color", *services)[1]

    def container(self, service: str) -> str:
        return said("docker", "ps", "--quiet", "--no-trunc", *self._labelled(service)).strip()

    def _labelled(self, service: str) -> list[str]:
        labels = {"project": self.project, "service": service}
        return [
            word for key, value in labels.items() for word in ("--filter", f"label=com.docker.compose.{key}={value}")
        ]

    def audited(self, name: str) -> Path:
        """The run folder on the host."""
        return self.folder / "runs" / name


def rounds_of(folder: Path) -> int:
    """Count the rounds that a run folder has by now."""
    index = folder / "record" / "rounds.jsonl"
    return index.read_bytes().count(b"\n") if index.exists() else 0


def statuses_of(folder: Path) -> list[dict[str, str]]:
    """For each round of a whole record, what came of each client."""
    found = check_record(folder / "record")
    assert found.whole, found.problems
    clients = clients_of(folder)
    return [{clients[seen.node]: seen.status for seen in item.observations} for item in Record(folder / "record")]


def clients_of(folder: Path) -> dict[str, str]:
    """Which client ran as which node."""
    return read_nodes(folder / "truth", RecordError, "")
