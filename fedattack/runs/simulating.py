"""Run a preset's federated training into a run folder, and go on with one that was stopped."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, FedAttackError, RecordError, RunError, in_command, short
from fedattack.base.files import FolderLock, make_private, open_private
from fedattack.base.untrusted import check_folder, remove_inside
from fedattack.record import Record
from fedattack.record.folder import DEALT, STUDY, Part, new_parts, read_study, write_resumption, write_study
from fedattack.record.format import INDEX, MANIFEST, PROTOCOLS
from fedattack.record.nodes import NODES
from fedattack.runs.app import Value, app_folder, prepare
from fedattack.runs.asked import asked_of_study
from fedattack.runs.checks import check_runtime
from fedattack.runs.deployment import Deployment
from fedattack.runs.pace import TrainingPace
from fedattack.runs.presets import Preset
from fedattack.runs.remote import Remote
from fedattack.runs.runtime import Runtime
from fedattack.runs.settings import check_settings, nodes_of
from fedattack.runs.simulator import Simulator
from fedattack.runs.watch import Watch

# Frameworks have the names of their protocols. Clients of these keep their models for themselves.
_WITHOUT_COMMON_MODEL = [name for name, messages in PROTOCOLS.items() if not messages.sends_model]


def _simulator(clients: int, device: str, log: Path) -> Runtime:
    return Simulator(app_folder(), supernodes=clients, gpus_per_client=_gpu_share(device, clients), log=log)


def _processes(clients: int, device: str, log: Path, *, secure: bool = True) -> Runtime:
    return Deployment(app_folder(), supernodes=clients, secure=secure, log=log)


def _remote(clients: int, device: str, log: Path) -> Runtime:
    return Remote.of_environment(app_folder(), supernodes=clients, log=log)


RUNTIMES: Mapping[str, Callable[[int, str, Path], Runtime]] = {
    "simulation": _simulator,
    "processes": _processes,
    "processes-insecure": partial(_processes, secure=False),
    "superlink": _remote,
}
"""What a preset can run on: takes the number of clients, their device and the file of the log."""


def choose_seeds(preset: Preset, first: int | None, count: int | None) -> list[int]:
    """Choose the seeds of a run: the preset's, the first `count` of them, or `count` from `first` on."""
    seeds = list(preset.seeds[:count] if count else preset.seeds)
    if first is None and (count or 0) <= len(seeds):
        return seeds
    start = preset.seeds[0] if first is None else first
    return list(range(start, start + (count or len(preset.seeds))))


def simulate(
    preset: Preset,
    settings: Mapping[str, Value],
    seeds: Sequence[int],
    out: Path,
    *,
    command: str,
    watch: Watch,
    runtime: str = "simulation",
    options: Mapping[str, str] | None = None,
    before: Callable[[Sequence[Part]], None] = lambda parts: None,
) -> None:
    """Run a preset's federated training into the new run folder `out`, under observation.

    Parameters
    ----------
    settings
        All settings, as :func:`fedattack.runs.presets.resolve_settings` gives them.
    seeds
        One run each.
    out
        The run folder; it must be absent or empty.
    command
        The command line that does the same, kept for the report.
    runtime
        One of :data:`RUNTIMES`.
    options
        Options of the attacks that are to follow, kept for a run that is stopped and goes on.
    before
        Called before the first round, once knowledge and truth of all seeds are written. It may refuse the run.

    Raises
    ------
    ConfigError
        If `out` is taken or cannot be created, or the runtime is unknown.
    FedAttackError
        If the settings do not fit the data, or the preparation crashed; then `out` is as it was before.
    RunError
        If a run does not finish.
    """
    check_runtime(runtime)
    out = out.expanduser().absolute()
    check_free(out)
    is_new = not out.exists()
    try:
        make_private(out)
    except OSError as cause:
        raise ConfigError(f"{out} cannot be created ({cause}); choose a folder that can be written") from None
    with _alone(out):
        if any(out.iterdir()):
            raise _taken(out)
        out.chmod(0o700)
        parts = new_parts(out, seeds)
        configs = _configs(settings, seeds, parts)
        watch.step("prepare data", 0, None)
        try:
            prepare(configs)
            before(parts)
        except BaseException as cause:
            # Nothing is recorded yet, and the same command, or the corrected one, may use the folder again.
            for path in list(out.iterdir()):
                remove_inside(out, path, ConfigError)
            if is_new:
                out.rmdir()
            if isinstance(cause, RunError):
                # There is nothing to resume, which is what a run that did not finish is told otherwise.
                raise FedAttackError(f"{cause}; nothing is recorded yet: run the command again") from None
            raise
        watch.step("prepare data", 1, 1)
        study: dict[str, Any] = {
            "preset": preset.name,
            "attacks": list(preset.attacks),
            "settings": dict(settings),
            "seeds": list(seeds),
            "commands": [command],
            "runtime": runtime,
            "options": dict(options or {}),
            "started": _now(),
        }
        write_study(out, study)
        _train(out, study, [*zip(parts, configs, strict=True)], watch)
        remove_inside(out, out / DEALT, ConfigError)


def check_free(out: Path) -> None:
    """Check that a folder may become a run folder: it is absent or empty.

    Raises
    ------
    ConfigError
        If it is not, or another run is at work in it.
    """
    out = out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise _taken(out)
    if out.is_dir() and any(out.iterdir()):
        with _alone(out):
            raise _taken(out)


def _taken(out: Path) -> ConfigError:
    taken = f"{out} exists already; give this run a folder of its own, or delete that one first"
    if (out / STUDY).exists():
        taken += f"; `fedattack resume {in_command(out)}` goes on with the run that is there"
    return ConfigError(taken)


def stopped_study(out: Path) -> dict[str, Any]:
    """Read what a stopped run was.

    Raises
    ------
    ConfigError
        If `out` holds no run that can be gone on with: settings of a form or in a range that no preset has.
    """
    study = read_study(out)
    needed = {"preset", "settings", "seeds", "commands", "runtime"}
    if needed - study.keys() or not study["seeds"]:
        raise ConfigError(
            f"{out} holds no run to go on with: expected what `fedattack simulate` or `audit` of a preset wrote there; "
            "the run of an app cannot be resumed, and `fedattack gather` attacks what is recorded of it"
        )
    if study["runtime"] not in RUNTIMES:
        raise ConfigError(
            f"{out / STUDY}: unknown runtime {short(study['runtime'], 60)!r}: expected one of {', '.join(RUNTIMES)}"
        )
    return study | {"settings": check_settings(study["settings"], str(out / STUDY))}


def is_recorded(out: Path, study: Mapping[str, Any]) -> bool:
    """Whether all rounds of all seeds are in the record, so that nothing is left to train.

    Raises
    ------
    RecordError
        If what is recorded is damaged.
    """
    rounds = int(study["settings"]["rounds"])
    return all(_is_recorded(part, rounds) for part in new_parts(out, study["seeds"]))


def _is_recorded(part: Part, rounds: int) -> bool:
    """Whether a record is whole; a server that was asked to end may have closed it in good order before that."""
    if not (part.record / MANIFEST).exists():
        return False
    record = Record(part.record)
    return record.status == "complete" and max(_whole_rounds(record), default=0) >= rounds


def _whole_rounds(record: Record) -> list[int]:
    """List the rounds after which a run can go on; none if no client ever answered."""
    return [] if record.silence else [item.number for item in record if not item.unfinished]


def resume(out: Path, *, command: str, watch: Watch, trusted: Collection[str] = ()) -> None:
    """Go on with the federated training of a run folder where it was stopped, each seed after its last whole round.

    The record keeps its nodes' names and goes on as if nothing had been, but for a note in its manifest. A seed of
    which no round is recorded starts anew, and one that is complete is left alone.

    Parameters
    ----------
    command, watch
        See :func:`simulate`.
    trusted
        What of :func:`asked_of_study` may be followed.

    Raises
    ------
    ConfigError
        If `out` holds no run that can be gone on with, or another is at work in it.
    TrustError
        If its settings name code, files or machines outside of it that are not trusted.
    RecordError
        If what is recorded is damaged.
    RunError
        If a run does not finish.
    """
    out = out.expanduser().absolute()
    check_folder(out, RecordError, to_write=True)
    study = stopped_study(out)
    for asked in asked_of_study(out):
        if asked.value not in trusted:
            raise asked.refuse()
    with _alone(out):
        seeds = study["seeds"]
        parts = new_parts(out, seeds)
        jobs: list[tuple[Part, dict[str, Value]]] = []
        anew: list[Path] = []
        for part, config in zip(parts, _configs(study["settings"], seeds, parts), strict=True):
            finished: list[int] = []
            if part.record.is_dir():
                # Its server may have outlived whoever started it.
                with _alone(part.record):
                    pass
            if _is_recorded(part, int(config["rounds"])):
                continue
            if (part.record / MANIFEST).exists():
                record = Record(part.record)
                finished = _whole_rounds(record)
            if finished:
                jobs.append((part, config | _going_on(part, config, record)))
            else:
                # Its clients may have noted who they were all the same.
                anew += [part.record, part.truth / NODES, part.knowledge / NODES]
                jobs.append((part, config))
        for folder in anew:
            remove_inside(out, folder, ConfigError)
        if jobs:
            study["commands"].append(command)
            write_study(out, study)
            _train(out, study, jobs, watch)
        # Also after a run that was killed when all its rounds were recorded.
        remove_inside(out, out / DEALT, ConfigError)


def _going_on(part: Part, config: Mapping[str, Value], record: Record) -> dict[str, Value]:
    """Return what the config of a run that goes on has of its own."""
    if config["framework"] in _WITHOUT_COMMON_MODEL:
        raise ConfigError(
            f"{part.label} cannot be gone on with: clients of {config['framework']} keep their models in Flower's "
            "state, which ended with the run; start it anew in another folder"
        )
    truth = read_truth(part.truth)
    truth.check_nodes(record.nodes, seed=int(config["seed"]))
    write_resumption(part.resumption, truth.nodes, truth.data)
    return {"resume": str(part.resumption)}


def _alone(out: Path) -> FolderLock:
    try:
        return FolderLock(out)
    except BlockingIOError:
        raise ConfigError(f"another run is at work in {out}; wait for its end, or choose another folder") from None


def _configs(settings: Mapping[str, Value], seeds: Sequence[int], parts: Sequence[Part]) -> list[dict[str, Value]]:
    return [
        {
            **settings,
            "seed": seed,
            "zoo": str(part.zoo),
            "dealt": str(part.dealt),
            "record": str(part.record),
            "truth": str(part.truth),
            "knowledge": str(part.knowledge),
        }
        for seed, part in zip(seeds, parts, strict=True)
    ]


def _train(out: Path, study: dict[str, Any], jobs: Sequence[tuple[Part, Mapping[str, Value]]], watch: Watch) -> None:
    settings = study["settings"]
    nodes, rounds = nodes_of(settings), int(settings["rounds"])
    pace = TrainingPace(len(jobs), rounds, watch.say)
    log = out / "flower.log"
    open_private(log, "ab").close()
    with RUNTIMES[study["runtime"]](nodes, str(settings["device"]), log) as runner:
        for place, (part, config) in enumerate(jobs):
            what, index = f"train {part.name or 'rounds'}", part.record / INDEX

            def advance(what: str = what, index: Path = index, place: int = place) -> None:
                done = index.read_bytes().count(b"\n") if index.exists() else 0
                watch.step(what, done, rounds)
                pace.seen(place, done)

            result = runner.run(config, on_poll=advance)
            advance()
            _tell_of_clients(part, result.client_error, watch)
    write_study(out, study | {"finished": _now()})


def _tell_of_clients(part: Part, client_error: str | None, watch: Watch) -> None:
    """Warn of clients that failed.

    Raises
    ------
    RunError
        If none answered in any round: there is nothing to attack.
    """
    if (part.record / MANIFEST).exists() and (silence := Record(part.record).silence):
        if client_error is not None:
            silence = f"{silence.partition(':')[0]}: {client_error}"
        raise RunError(f"{part.label}: {silence}")
    if client_error:
        watch.say("warning", f"a client failed: {client_error}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _gpu_share(device: str, clients: int) -> float:
    """Return the share of a GPU that each simulated client asks Ray for, so that clients train on it side by side."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return 0.0
    return torch.cuda.device_count() / min(clients, os.cpu_count() or 1)
