"""Run a preset's federated training into a run folder, and go on with one that was stopped."""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, RecordError, short
from fedattack.base.imports import importing_beside
from fedattack.base.settings import Value
from fedattack.base.untrusted import check_folder, remove_inside
from fedattack.record import Record
from fedattack.record.folder import (
    DEALT,
    HOLDINGS,
    KNOWLEDGE,
    STUDY,
    Part,
    RunFolder,
    new_parts,
    read_study,
    write_resumption,
    write_runs,
    write_study,
)
from fedattack.record.format import MANIFEST, PROTOCOLS
from fedattack.record.marks import read_stated
from fedattack.record.nodes import NODES
from fedattack.runs.app import app_folder, prepare
from fedattack.runs.asked import asked_of_study
from fedattack.runs.checks import check_runtime
from fedattack.runs.presets import Preset
from fedattack.runs.running import (
    Run,
    check_clients,
    check_idle,
    is_recorded,
    lock_folder,
    new_folder,
    now,
    open_log,
    run_in_turn,
    whole_rounds,
)
from fedattack.runs.runtimes import RUNTIMES
from fedattack.runs.settings import check_settings, default_settings, lines_of, nodes_of
from fedattack.runs.watch import Watch

# Nodes of a simulation, up to which seeds share one Flower run: its start takes as long as a seed of the quickstart.
# With many more, Flower's own work for a message grows.
_TOGETHER = 200

# Frameworks have the names of their protocols, but for that of trees. Clients of these keep their models for
# themselves.
_WITHOUT_COMMON_MODEL = [name for name, messages in PROTOCOLS.items() if not messages.sends_model]


def choose_seeds(preset: Preset, first: int | None, count: int | None) -> list[int]:
    """Choose the seeds of a run: the preset's, the first `count` of them, or `count` from `first` on."""
    seeds = list(preset.seeds[:count] if count else preset.seeds)
    if first is None and (count or 0) <= len(seeds):
        return seeds
    # More seeds than the preset has follow on the first of them.
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
    load: Callable[[], object] = lambda: None,
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
    load
        Imports what `before` needs, while data is prepared.
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
    with new_folder(out):
        parts = new_parts(out, seeds)
        configs = _configs(settings, seeds, parts)
        watch.step("prepare data", 0, None)
        # Data is divided and written in a process of its own, so that this one never imports the app.
        with importing_beside(load):
            prepare(configs)
        before(parts)
        watch.step("prepare data", 1, 1)
        study: dict[str, Any] = {
            "preset": preset.name,
            "attacks": list(preset.attacks),
            "settings": dict(settings),
            "seeds": list(seeds),
            "commands": [command],
            "runtime": runtime,
            "options": dict(options or {}),
            "started": now(),
        }
        write_study(out, study)
        _train(out, study, [*zip(parts, configs, strict=True)], watch)
        # What clients trained on is as private as their data, and not needed any more.
        remove_inside(out, out / DEALT, ConfigError)


def stopped_study(out: Path) -> dict[str, Any]:
    """Read what a stopped run was.

    Raises
    ------
    ConfigError
        If `out` holds no run that can be gone on with: settings of a form or in a range that no preset has.
    """
    study = read_study(out)
    RunFolder(out).check_ended()
    needed = {"preset", "settings", "seeds", "commands", "runtime"}
    if needed - study.keys() or not study["seeds"]:
        raise ConfigError(
            f"{out} holds no run to continue: expected what `fedattack simulate` or `audit` of a preset wrote there; "
            "the audit of an app is continued by the command that began it"
        )
    if study["runtime"] not in RUNTIMES:
        raise ConfigError(
            f"{out / STUDY}: unknown runtime {short(study['runtime'], 60)!r}: expected one of {', '.join(RUNTIMES)}"
        )
    # A study is a file of anybody: its settings are checked like a user's.
    return study | {"settings": check_settings(study["settings"], str(out / STUDY))}


def is_trained(out: Path, study: Mapping[str, Any]) -> bool:
    """Whether all rounds of all seeds are in the record, so that nothing is left to train.

    Raises
    ------
    RecordError
        If what is recorded is damaged.
    """
    rounds = int(study["settings"]["rounds"])
    return all(is_recorded(part, rounds) for part in new_parts(out, study["seeds"]))


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
    for asked in asked_of_study(RunFolder(out)):
        if asked.value not in trusted:
            raise asked.refuse()
    with lock_folder(out):
        seeds = study["seeds"]
        parts = new_parts(out, seeds)
        jobs: list[tuple[Part, dict[str, Value]]] = []
        anew: list[Path] = []
        for part, config in zip(parts, _configs(study["settings"], seeds, parts), strict=True):
            finished: list[int] = []
            # A server that outlived its command would write into the same record.
            check_idle(part)
            # Knowledge and truth name the record before it is there; a run of an earlier version names none.
            config["record-id"] = read_stated([part.truth / HOLDINGS, part.knowledge / KNOWLEDGE])
            if is_recorded(part, int(config["rounds"])):
                continue
            if (part.record / MANIFEST).exists():
                record = Record(part.record)
                finished = whole_rounds(record)
            if finished:
                jobs.append((part, config | _going_on(part, config, record)))
            else:
                # Its clients may have noted who they were all the same.
                anew += [part.record, part.truth / NODES, part.knowledge / NODES]
                jobs.append((part, config))
        # After all jobs are known: a fault in one of them removes nothing.
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
            f"{part.label} cannot be continued: clients of {config['framework']} keep their models in Flower's "
            "state, which ended with the run; start it again in another folder"
        )
    truth = read_truth(part.truth)
    truth.check_nodes(record.nodes, seed=int(config["seed"]))
    # Flower gives new node ids: the server maps these to the names that the record has.
    write_resumption(part.resumption, truth.nodes, truth.data)
    return {"resume": str(part.resumption)}


def _configs(settings: Mapping[str, Value], seeds: Sequence[int], parts: Sequence[Part]) -> list[dict[str, Value]]:
    return [
        {
            **settings,
            "seed": seed,
            "zoo": str(part.zoo),
            "dealt": str(part.dealt),
            "record": str(part.record),
            "record-id": secrets.token_hex(16),
            "truth": str(part.truth),
            "knowledge": str(part.knowledge),
        }
        for seed, part in zip(seeds, parts, strict=True)
    ]


def _train(out: Path, study: dict[str, Any], jobs: Sequence[tuple[Part, Mapping[str, Value]]], watch: Watch) -> None:
    settings = study["settings"]
    nodes, make = nodes_of(settings), RUNTIMES[study["runtime"]]
    batches = _batches(out, jobs, study["runtime"] == "simulation" and nodes * len(jobs) <= _TOGETHER)
    supernodes = nodes * max(len(parts) for parts, _ in batches)
    with make(app_folder(), supernodes, str(settings["device"]), open_log(out)) as runner:
        # Defences of other packages have settings of their own.
        runner.declare(default_settings())
        runs: list[tuple[Sequence[Part], Run]] = []
        for parts, config in batches:
            # `parts` and `config` are bound as defaults: the loop's variables change before `run` is called.
            def run(
                advance: Callable[[], None], parts: Sequence[Part] = parts, config: Mapping[str, Value] = config
            ) -> None:
                client_error = runner.run(config, on_poll=advance)
                # The last lines of the record are written after the last poll.
                advance()
                for part in parts:
                    check_clients(part, client_error, watch)

            runs.append((parts, run))
        run_in_turn(out, study, runs, lines_of(settings), watch)


def _batches(
    out: Path, jobs: Sequence[tuple[Part, Mapping[str, Value]]], together: bool
) -> list[tuple[list[Part], Mapping[str, Value]]]:
    """Say which seeds one Flower run trains, one after the other, and by which run config."""
    if not together or len(jobs) == 1:
        return [([part], config) for part, config in jobs]
    parts, configs = zip(*jobs, strict=True)
    first, runs = configs[0], out / DEALT / "runs.json"
    common = {}
    for key, value in first.items():
        # The values that all seeds share stand in the run config, others in a file: Flower's config is
        # flat.
        if all(config.get(key) == value for config in configs):
            common[key] = value
    # A seed that starts anew has nothing to go on with, and another may have.
    varying = sorted({*chain.from_iterable(configs)} - common.keys())
    of_each = []
    for config in configs:
        of_each.append({key: config.get(key, "") for key in varying})
    write_runs(runs, of_each)
    return [([*parts], {**common, "runs": str(runs)})]
