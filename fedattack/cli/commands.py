"""The commands: a thin layer over the library."""

import io
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from fedattack.base.errors import ConfigError, FedAttackError, RecordError, ReportError, RunError, in_command, short
from fedattack.base.extra import what_to_install
from fedattack.base.version import __version__
from fedattack.cli.console import err_console, out_console, say, say_progress, show_page, show_table, tell, watch_bars
from fedattack.cli.declared import HIDDEN, LOSS, Declared, pairs
from fedattack.cli.options import (
    ActiveServer,
    AsJson,
    AttackName,
    AuditChanges,
    CellChanges,
    Changes,
    Clients,
    Cluster,
    Device,
    Every,
    FailIf,
    FailIfClaim,
    FirstSeed,
    Folder,
    Groups,
    HoldOut,
    Holds,
    InSketches,
    Junit,
    KeepRecords,
    Layers,
    Memory,
    On,
    Options,
    Out,
    Pdf,
    PresetName,
    PresetOrApp,
    Quiet,
    ReproductionName,
    SeedCount,
    Sensitive,
    SkipDamaged,
    Trust,
    Without,
    chosen_clients,
)

if TYPE_CHECKING:
    from fedattack.attacks import Attack, Knowledge
    from fedattack.audit.finding import Condition, Finding
    from fedattack.base.settings import Value
    from fedattack.claims.check import ClaimAnswer
    from fedattack.claims.measured import Trial
    from fedattack.learning.importing import Asked
    from fedattack.record import Keep
    from fedattack.record.check import CheckReport
    from fedattack.record.folder import Part
    from fedattack.report.worse import Change
    from fedattack.runs.presets import Preset

BAD_INPUT = 2

THRESHOLD_CROSSED = 3

_REPORT = ("findings.json", "run.json", "report.html")


class AuditCommand(TyperCommand):
    """A command that needs all that ``fedattack[audit]`` installs, and says so before it does anything."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises
        ------
        ConfigError
            If the extra is not installed.
        """
        if lacking := what_to_install(ctx.command_path):
            raise ConfigError(lacking)
        return super().invoke(ctx)


class Commands(TyperGroup):
    """All commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Of a misspelt command click itself says what may be meant. Typer, from 0.20 on, would say it again.
        self.suggest_commands = False


app = typer.Typer(
    name="fedattack",
    cls=Commands,
    help="Measure what a Flower federated-learning deployment leaks to its server.",
    epilog="Examples: `fedattack audit quickstart --out runs/first`, then open runs/first/report.html; "
    "`fedattack list` shows presets, attacks and settings.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command(cls=AuditCommand)
def simulate(
    preset: PresetName,
    out: Out,
    changes: Changes = None,
    seed: FirstSeed = None,
    seeds: SeedCount = None,
    on: On = "simulation",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a preset's federated training on Flower, under observation.

    Example: `fedattack simulate quickstart --out runs/first --set alpha=0.1`
    """
    from fedattack.runs.checks import check_data, check_runtime
    from fedattack.runs.presets import load_preset, resolve_settings

    check_runtime(on)
    study = load_preset(preset)
    settings = resolve_settings(study, changes or [])
    check_data(changes or [])
    _simulate(study, settings, out, seed, seeds, on)
    tell({"folder": str(out)}, f"Recorded in [bold]{escape(str(out))}[/bold].", as_json)


@app.command(cls=AuditCommand)
def attack(
    name: AttackName,
    folder: Folder,
    targets: Annotated[
        Path | None, typer.Option(help="Target records, an .npz with x and y, for a record from elsewhere.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The clients' model: a built-in name or module:function.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; by default from the targets.", min=1)] = None,
    hidden: Annotated[int, typer.Option(help="Width of the mlp model.", min=1)] = HIDDEN,
    loss: Annotated[str, typer.Option(help="The clients' loss: a built-in name or module:function.")] = LOSS,
    prior: Annotated[str | None, typer.Option(help="uniform, or examples: clients with more are likelier.")] = None,
    auxiliary: Annotated[
        Path | None, typer.Option(help="The attacker's own examples, an .npz with x and y, for prolin and others.")
    ] = None,
    attributes: Annotated[
        Path | None,
        typer.Option(help="For private-attribute, an .npz with values.NAME and codes.NAME of the auxiliary records."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="The public records of FedMD, an .npz with x in the order of the predictions.")
    ] = None,
    partial: Annotated[
        Path | None,
        typer.Option(help="Clients' examples without one column, an .npz as PartialRecords says, for aia, ara."),
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--property", help="What prolin asks of clients: membership, inversion, ascent or module:function."
        ),
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            help="How clients train, such as epochs=1,batch-size=10,lr=0.01,momentum=0.9; optimizer=Adam or AdamW."
        ),
    ] = None,
    frozen: Annotated[
        str | None,
        typer.Option(
            help="Weights that no client trains and the record lacks: an .npz or .safetensors; or initial, those with "
            "which --model is made.",
        ),
    ] = None,
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    seed: Annotated[int, typer.Option(help="Seed of the attack's own draws.", min=0)] = 0,
    device: Device = "auto",
    skip_damaged: SkipDamaged = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a record, using nothing but the record and the declared knowledge.

    The folder is data: code that it names is imported only if it is named here, too, or with --trust.

    Examples: `fedattack attack sia runs/first`;
    `fedattack attack sia audit --targets mine.npz --model mypackage.models:make_net`;
    `fedattack attack prolin runs/sums --option shadows=exact`
    """
    from fedattack.record.folder import find_parts
    from fedattack.runs.checks import check_attacks, check_device

    given = _options(options, memory, [name])
    check_attacks([name], given)
    check_device(device)
    declared = Declared(
        targets=targets,
        model=model,
        classes=classes,
        hidden=hidden,
        loss=loss,
        prior=prior,
        auxiliary=auxiliary,
        attributes=attributes,
        public=public,
        partial=partial,
        property=wanted,
        training=training,
        frozen=frozen,
    )
    declared.check_words()
    find_parts(folder)
    (chosen,) = _choose([name], given, device)
    trusted = _trust_knowledge(folder, trust)
    files = _attack(chosen, folder, seed, device, skip_damaged, declared, trusted)
    tell({"scores": files}, f"Scores in [bold]{escape(', '.join(files))}[/bold].", as_json)


@app.command(cls=AuditCommand)
def report(
    folder: Folder,
    device: Device = "auto",
    fail_if: FailIf = None,
    junit: Junit = None,
    trust: Trust = False,
    pdf: Pdf = False,
    by: Annotated[str | None, typer.Option(help="Who says what --file adds.", metavar="NAME")] = None,
    filed: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            help="What a person adds to the page: role, scope, residual-risk, risk-owner, next-test or note; "
            "repeatable. Earlier words stay.",
            metavar="FIELD=TEXT",
        ),
    ] = None,
    why: Annotated[str, typer.Option(help="Why that is said, or said anew.", metavar="TEXT")] = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge the scores against the truth; write findings.json, report.html, and tables as CSV files in DIR/tables.

    A model of one's own is imported only with --trust, also one that `attack --model` was given.

    Examples: `fedattack report runs/first --fail-if "sia.asr > 0.3"`; `fedattack report runs/first --pdf`;
    `fedattack report runs/first --by "A. Person" --file "residual-risk=low" --file next-test=2027-05`
    """
    from fedattack.record.folder import find_parts
    from fedattack.runs.checks import check_conditions, check_device, scored_attacks

    conditions = _conditions(fail_if)
    check_device(device)
    check_conditions(conditions, scored_attacks(find_parts(folder)), isolating=True)
    trusted = _trust_knowledge(folder, trust)
    if filed:
        from fedattack.report.filed import add_words, read_words

        add_words(folder, by or "", read_words(filed, by), why)
    _report(folder, device, Gates(conditions, junit), as_json, trusted, pdf=pdf)


@app.command(cls=AuditCommand)
def audit(
    what: PresetOrApp,
    out: Out,
    changes: AuditChanges = None,
    seed: FirstSeed = None,
    seeds: SeedCount = None,
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    on: On = "simulation",
    device: Device = "auto",
    supernodes: Annotated[
        int | None, typer.Option(help="Clients of an app; by default as many as it says, or 10.", min=2)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The app's model, where it cannot be seen: module:function.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="The app's loss, where it cannot be seen.")] = None,
    sensitive: Sensitive = None,
    holds: Holds = None,
    groups: Groups = None,
    without: Without = None,
    hold_out: HoldOut = None,
    server: ActiveServer = None,
    fail_if: FailIf = None,
    junit: Junit = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a preset, or a Flower app of your own as it is; attack what its server saw; and report.

    An app is not edited: a copy is run, in which clients are watched while they train. It is your own code that is run
    and imported. Behind -- goes the whole command that runs it. An app's audit that was stopped goes on when the same
    command is given again; a preset's goes on by `fedattack resume`.

    Examples: `fedattack audit quickstart --out runs/first`;
    `fedattack audit sia-fedavg --out runs/mnist --set dataset=mnist --set alpha=0.1 --fail-if "sia.asr > 0.3"`;
    `fedattack audit path/to/app --out runs/mine --supernodes 20 --set learning-rate=0.1`;
    `fedattack audit --out runs/mine -- flwr run path/to/app --stream`
    """
    from fedattack.cli.apps import AppWords, app_of_words, audit_app
    from fedattack.runs.checks import (
        check_attacks,
        check_cluster,
        check_conditions,
        check_data,
        check_device,
        check_runtime,
    )
    from fedattack.runs.presets import load_preset, resolve_settings

    # Words are checked before torch is imported, which takes seconds, and before a run, which takes minutes.
    conditions = _conditions(fail_if)
    check_runtime(on)
    check_device(device)
    runs = range(seed or 0, (seed or 0) + (seeds or 1))
    choices = AppWords(
        changes=changes or [],
        supernodes=supernodes,
        on=on,
        seeds=runs,
        model=model,
        loss=loss,
        options=options or [],
        memory=memory,
        sensitive=sensitive,
        holds=holds,
        groups=groups,
        without=without or [],
        hold_out=hold_out,
        server=server,
    )
    own = app_of_words(what, choices)
    if own is not None:
        audit_app(own, choices, out, device, Gates(conditions, junit), as_json)
        return
    choices.check_preset()
    study = load_preset(what[0])
    given = _options(options, memory, study.attacks)
    wanted = {**study.options, **given}
    check_attacks(study.attacks, wanted)
    settings = resolve_settings(study, changes or [])
    check_conditions(conditions, study.attacks, isolating=settings["server"] == "isolating")
    check_data(changes or [])
    from fedattack.runs.running import check_free

    check_free(out)
    check_cluster(study.attacks)
    chosen = _choose(study.attacks, wanted, device)
    trusted = _simulate(study, settings, out, seed, seeds, on, given)
    for item in chosen:
        _attack(item, out, 0, device, skip_damaged=False, trusted=trusted)
    _report(out, device, Gates(conditions, junit), as_json, trusted)


@app.command(cls=AuditCommand)
def gather(
    record: Annotated[Path, typer.Argument(help="A record, or the run folder that it is in.", metavar="RECORD")],
    witnesses: Annotated[
        list[Path], typer.Argument(help="Folders that a WitnessMod wrote, of all machines.", metavar="WITNESS…")
    ],
    out: Out,
    model: Annotated[
        str | None, typer.Option(help="The clients' model, in the place of the witnessed: module:function.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="The clients' loss, in the place of the witnessed.")] = None,
    of_app: Annotated[
        Path | None,
        typer.Option(
            "--app", help="Folder of the clients' app, whose code is run: it is asked for losses.", metavar="PATH"
        ),
    ] = None,
    options: Options = None,
    memory: Memory = None,
    device: Device = "auto",
    sensitive: Sensitive = None,
    holds: Holds = None,
    groups: Groups = None,
    without: Without = None,
    fail_if: FailIf = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Put a server's record and its clients' witnesses together, attack the record as audit does, and report.

    Witnesses are what `fedattack.witness.WitnessMod` wrote on the clients' machines, copied to this one. The folders
    are data: a model that they name is imported only with --trust, from the working directory, too.

    Example: `fedattack gather audit/record north/witness south/witness --out runs/mine --trust`
    """
    from fedattack.cli.apps import AppWords, gather_run
    from fedattack.runs.checks import check_device

    check_device(device)
    choices = AppWords(
        model=model,
        loss=loss,
        options=options or [],
        memory=memory,
        sensitive=sensitive,
        holds=holds,
        groups=groups,
        without=without or [],
        app=of_app,
    )
    gather_run(record, witnesses, choices, out, device, fail_if, trust=trust, as_json=as_json)


@app.command(cls=AuditCommand)
def resume(
    folder: Annotated[
        Path, typer.Argument(help="The run folder of a preset's simulate or audit that was stopped.", metavar="DIR")
    ],
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    device: Device = "auto",
    fail_if: FailIf = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped, then attack and report as audit does.

    Each seed goes on after its last whole round, with the settings it was started with and on what it ran on. Attacks
    that have their scores are not made again, unless there is an --option or --memory; a finished run is left as it is.

    Example: `fedattack resume runs/first`
    """
    from fedattack.runs.asked import asked_of_study
    from fedattack.runs.checks import check_attacks, check_cluster, check_conditions, check_device, options_among
    from fedattack.runs.presets import load_preset
    from fedattack.runs.simulating import is_trained, stopped_study
    from fedattack.runs.simulating import resume as go_on

    conditions = _conditions(fail_if)
    check_device(device)
    study = stopped_study(folder)
    preset = load_preset(study["preset"])
    given = _options(options, memory, preset.attacks)
    wanted = {**preset.options, **study.get("options", {}), **given}
    check_attacks(preset.attacks, wanted)
    judged = {*preset.attacks, *_list_scored(folder)}
    check_conditions(conditions, sorted(judged), isolating=study["settings"]["server"] == "isolating")
    names: Sequence[str] = preset.attacks
    if is_trained(folder, study) and not given:
        from fedattack.record.folder import find_parts
        from fedattack.runs.pipeline import list_unscored

        names = list_unscored(find_parts(folder), names)
        if not names:
            findings = _read_report(folder)
            if findings is not None:
                _finish(folder, findings, conditions, as_json)
                return
    check_cluster(names)
    chosen = _choose(names, options_among(wanted, names), device)
    asked = asked_of_study(folder)
    trusted: set[str] = set()
    if trust:
        trusted = _trust(asked)
    with _resumable(folder, _resume(folder, trust=bool(asked))), watch_bars() as watch:
        go_on(folder, command=_command(), watch=watch, trusted=trusted)
    for item in chosen:
        _attack(item, folder, 0, device, skip_damaged=False, trusted=trusted)
    _report(folder, device, Gates(conditions), as_json, trusted)


@app.command()
def observe(
    command: Annotated[list[str], typer.Argument(help="The command, after --.", metavar="-- flwr run …")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the record, such as audit/record.", metavar="DIR")
    ],
    view: Annotated[
        str | None,
        typer.Option(
            help="individual; or aggregate: of each round, the sum alone is kept. By default aggregate under SecAgg+, "
            "else individual."
        ),
    ] = None,
    protocol: Annotated[str, typer.Option(help="What clients send: fedavg, fedsgd or fedmd.")] = "fedavg",
    lr: Annotated[float | None, typer.Option(help="In fedsgd, the server's learning rate.")] = None,
    every: Every = 1,
    clients: Clients = "1",
    layers: Layers = None,
    sketch: InSketches = 0,
    as_json: AsJson = False,
) -> None:
    """Run a Flower app as it is, and record what its server sees.

    A copy of the app is run in its place, in which the ServerApp is wrapped. It must run on this machine.

    The last four options record less. Before the first round the log says how much the run will write.

    Examples: `fedattack observe --out audit/record -- flwr run . --stream`;
    `fedattack observe --out audit/record --every 10 -- flwr run . --stream`
    """
    from fedattack.apps.outside import observe_command
    from fedattack.record.format import PROTOCOLS, VIEWS

    for name, value, known in (("--view", view or VIEWS[0], VIEWS), ("--protocol", protocol, PROTOCOLS)):
        if value not in known:
            raise ConfigError(f"{name} {value}: expected one of {', '.join(known)}")
    options: dict[str, Any] = {"protocol": protocol}
    if lr is not None:
        options["facts"] = {"lr": lr}
    if view is not None:
        options["view"] = view
    keep = _keep(every, clients, layers, sketch)
    if keep.kinds:
        options |= {"every": every, "clients": keep.clients, "layers": keep.layers, "sketch": sketch}
    rounds = observe_command(command, out, options)
    done = f"{rounds} rounds"
    if rounds is None:
        done = "Being recorded"
    tell({"record": str(out), "rounds": rounds}, f"{done} in [bold]{escape(str(out))}[/bold].", as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A record, or a run folder.", metavar="DIR")],
    signer: Annotated[
        str | None,
        typer.Option(help="Who must have signed the record: a public key's file, or its fingerprint SHA256:…"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this record whole? Reads every byte, says who signed it and what the folder asks for; exits with 2 if not.

    Examples: `fedattack check runs/first`; `fedattack check audit --signer recorder.pem.pub`
    """
    from fedattack.record.check import CheckReport, check_record
    from fedattack.record.folder import find_parts, lost_records
    from fedattack.record.signature import read_signer
    from fedattack.runs.asked import asked_of_knowledge, asked_of_study

    wanted = None
    if signer is not None:
        wanted = read_signer(signer)
    paths = [folder]
    lost: dict[Path, str] = {}
    asks: list[str] = []
    if (folder / "record").exists():
        parts = find_parts(folder, some=True)
        paths, lost = [part.record for part in parts], lost_records(folder, parts)
        asks = [request.describe() for request in (*asked_of_knowledge(folder), *asked_of_study(folder))]
    checks = {}
    for path in paths:
        checks[str(path)] = record_check = check_record(path)
        if wanted is not None and record_check.signer != wanted:
            signed = record_check.signer or "nobody"
            record_check.problems.append(f"it is signed by {signed}, and not by {wanted}")
        record_check.remarks.extend(_refusals(path))
    for path, line in lost.items():
        checks[str(path)] = CheckReport(problems=[line])
    if as_json:
        _print_checks(checks, asks)
    else:
        _show_checks(checks, asks)
    if not all(record_check.whole for record_check in checks.values()):
        raise typer.Exit(BAD_INPUT)


def _find_run(folder: Path | None) -> Path | None:
    """Return a folder if it is that of a run, and no record."""
    if folder is not None and (folder / "record").is_dir():
        return folder
    return None


def _refusals(path: Path) -> list[str]:
    """Say which attacks refuse a thinned record; nothing where attacks are not installed."""
    from fedattack.record import Record

    try:
        record = Record(path, thinned=True)
    except RecordError:
        # Nothing attacks a damaged one as it is.
        return []
    if not record.keep.kinds or what_to_install("check"):
        return []
    from fedattack.attacks import ATTACKS

    told: dict[str, list[str]] = {}
    for name, attack in ATTACKS.items():
        if record.view in attack.needs.views and record.protocol in attack.needs.protocols:
            told.setdefault(attack.needs.lack(record).partition(";")[0], []).append(name)
    able = told.pop("", [])
    lines = [f"attacks that need {lack}, and refuse it: {', '.join(names)}" for lack, names in told.items()]
    if able and record.left_out:
        lines.append(f"attacks that take it with --frozen, the weights that are not in it: {', '.join(able)}")
    elif able:
        lines.append(f"attacks that take it: {', '.join(able)}")
    return lines


def _print_checks(checks: Mapping[str, "CheckReport"], asks: Sequence[str]) -> None:
    value = {}
    for path, record_check in checks.items():
        value[path] = vars(record_check) | {"whole": record_check.whole, "asks": asks}
    print(json.dumps(value, indent=2))


def _show_checks(checks: Mapping[str, "CheckReport"], asks: Sequence[str]) -> None:
    for path, record_check in checks.items():
        state = "[red]not whole[/red]"
        if record_check.whole:
            state = "[green]whole[/green]"
        said = f"{state}, {record_check.rounds} readable rounds, {record_check.size / 1e6:.1f} MB"
        if record_check.signer:
            said += f", signed by {record_check.signer}"
        out_console.print(f"{escape(path)}: {said}")
        for line in (*record_check.problems, *record_check.notes, *record_check.remarks):
            out_console.print(f"  - {escape(short(line))}", soft_wrap=True)
    for line in asks:
        out_console.print(f"  - with --trust, it {escape(line)}", soft_wrap=True)


@app.command(cls=AuditCommand)
def claim(
    folder: Annotated[
        Path | None, typer.Argument(help="A record to look at, or a run folder with one or several.", metavar="DIR")
    ] = None,
    declared: Annotated[
        Path | None, typer.Option("--claim", help="What is claimed: a claim.toml.", metavar="FILE")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="What to test; it is imported and run.", metavar="MODULE:FUNCTION")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of the mechanism, for both updates together.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of these draws.", min=0)] = 0,
    clipped: Annotated[bool, typer.Option("--clipped", help="Updates come to the mechanism clipped already.")] = False,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="The mechanism itself draws whether the update takes part.")
    ] = False,
    canaries: Annotated[
        Path | None,
        typer.Option(help="Who the canaries of DIR's run were; a run folder's truth says it.", metavar="CANARIES.TOML"),
    ] = None,
    trust: Trust = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for claim.html and claim.json; without, DIR if it is a run folder.", metavar="FOLDER"
        ),
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Print claim.html to claim.pdf, too, by a browser if one is installed.")
    ] = False,
    fail_if: FailIfClaim = None,
    as_json: AsJson = False,
) -> None:
    """Is a privacy claim true? Holds a declared ε against arithmetic, a record, a test of the mechanism, and canaries.

    Examples: `fedattack claim runs/first --claim claim.toml`;
    `fedattack claim --claim claim.toml --mechanism mypackage.privacy:noisy`;
    `fedattack claim --claim claim.toml --fail-if "claim.verdict == contradicted"`
    """
    from fedattack.claims.claim import read_claim

    run = _find_run(folder)
    out = out or run
    if pdf and out is None:
        raise ConfigError("fedattack claim: --pdf prints the page that --out FOLDER writes; give --out, too")
    if declared is None and mechanism is None and folder is None:
        raise ConfigError(
            "fedattack claim: give --claim FILE, --mechanism module:function, or DIR, the folder of a run"
        )
    conditions = _conditions(fail_if, of_claim=True)
    claim_read = None
    if declared is not None:
        claim_read = read_claim(declared)
    from fedattack.claims.check import check_claim, load_mechanism
    from fedattack.claims.measured import Trial
    from fedattack.cli.canaries import canaries_of

    tested = None
    if mechanism is not None:
        tested = load_mechanism(mechanism)
    trial = Trial(draws, seed, clipped, sampled)
    trusted = _trust_knowledge(run, trust)
    told_apart = canaries_of(folder, canaries, trusted)
    answer = check_claim(
        claim_read,
        tested,
        trial,
        name=mechanism or "",
        record=folder,
        sends_models=run is None or _sends_models(run),
        canaries=told_apart,
    )
    with _gate(conditions, [*answer.findings, answer.whole]):
        if as_json:
            print(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        else:
            _show_answer(answer)
        if out is not None:
            page = _keep_answer(answer, out, folder, declared, mechanism, trial)
            _show_kept(page, as_json, pdf=pdf)


def _sends_models(folder: Path) -> bool:
    """Say whether clients reply models in a run, and not gradients or differences, as far as it is known."""
    from fedattack.attacks.knowledge_files import KNOWLEDGE, read_knowledge
    from fedattack.record.folder import find_parts

    for part in find_parts(folder):
        if (part.knowledge / KNOWLEDGE).exists():
            sends = read_knowledge(part.knowledge).sends
            if sends is not None and sends.factors is not None:
                return False
    return True


def _keep_answer(
    answer: "ClaimAnswer", out: Path, folder: Path | None, declared: Path | None, mechanism: str | None, trial: "Trial"
) -> Path:
    """Write the page of an answer, and what it was made of."""
    from fedattack.claims.advice import Given
    from fedattack.claims.sheet import sheet_of
    from fedattack.report.claim import write_claim

    given = Given(str(folder or ""), str(declared or ""), mechanism or "")
    tried = None
    if mechanism:
        tried = trial
    return write_claim(out, sheet_of(answer, given, trial=tried, command=_command()))


def _show_kept(page: Path, as_json: bool, *, pdf: bool) -> None:
    if not as_json:
        show_page("Report", page)
        if page.with_name("report.html").exists():
            line = f"`fedattack report {in_command(page.parent)}` puts the answer into the report of the run"
            out_console.print(escape(line), soft_wrap=True)
    if pdf:
        _print_page(page, as_json)


def _show_answer(answer: "ClaimAnswer") -> None:
    from fedattack.claims.words import answer_lines, answer_rows

    show_table("", ("", "ε of a message", "ε of the run", "verdict"), answer_rows(answer))
    for line in answer_lines(answer):
        out_console.print(escape(line), soft_wrap=True)


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(help="Where the private key goes; the public one gets .pub behind.")],
) -> None:
    """Make a key by which observers sign their records: set FEDATTACK_SIGNING_KEY to its file.

    Give the public key, or its fingerprint, to whoever gets the record: `fedattack check DIR --signer FILE.pub`.

    Example: `fedattack keygen recorder.pem`
    """
    from fedattack.record.signature import make_key, public_file

    name = make_key(file.expanduser())
    out_console.print(f"{escape(str(file))} signs as [bold]{name}[/bold]; give {escape(str(public_file(file)))} away.")


@app.command()
def project(
    record: Annotated[
        Path, typer.Argument(help="A record in the individual view, or a run folder with several.", metavar="RECORD")
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the new record, or the new run folder.", metavar="OUT")],
    as_json: AsJson = False,
) -> None:
    """Turn records of single updates into what a secure-aggregation server would have seen.

    Of a run folder the record of each seed is projected; what the attacker knows and the truth are not copied.

    Examples: `fedattack project runs/first/record runs/sums/record`; `fedattack project runs/first runs/sums`
    """
    from fedattack.record import Record, project_record, records_in

    rounds = 0
    for name, path in records_in(record).items():
        rounds += len(project_record(Record(path, thinned=True), out / name))
    tell({"record": str(out), "rounds": rounds}, f"{rounds} rounds in [bold]{escape(str(out))}[/bold].", as_json)


@app.command()
def shrink(
    record: Annotated[Path, typer.Argument(help="A record, or a run folder with several.", metavar="RECORD")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the copy.", metavar="DIR")],
    every: Every = 1,
    clients: Clients = "1",
    layers: Layers = None,
    sketch: InSketches = 0,
    as_json: AsJson = False,
) -> None:
    """Make a smaller copy of a record that is too large to keep; the record stays as it is.

    The copy says what it keeps, and attacks that need more refuse it. `fedattack check` says which. It is signed if
    FEDATTACK_SIGNING_KEY names a key.

    Example: `fedattack shrink runs/first/record --out runs/small/record --every 10`
    """
    import os

    from fedattack.record import Record, check_record, records_in, shrink_record
    from fedattack.record.signature import SIGNING_KEY
    from fedattack.record.size import in_bytes

    keep = _keep(every, clients, layers, sketch)
    before = after = rounds = 0
    for name, path in records_in(record).items():
        whole = Record(path, thinned=True)
        made = shrink_record(whole, out / name, replace(keep, seed=whole.seed or 0), key=os.environ.get(SIGNING_KEY))
        rounds += len(made)
        before += sum(line.file.size for line in whole.lines)
        after += check_record(made.path).size
    line = f"{rounds} rounds in [bold]{escape(str(out))}[/bold]: {in_bytes(after)} of {in_bytes(before)}."
    tell({"record": str(out), "rounds": rounds, "bytes": after, "of": before}, line, as_json)


def _keep(every: int, clients: str, layers: list[str] | None, sketch: int) -> "Keep":
    """Read what is to be kept of a run."""
    from fedattack.record import Keep

    return Keep(every, chosen_clients(clients), tuple(layers or ()), sketch=sketch)


@app.command(cls=AuditCommand)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders with findings.", metavar="DIR…")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the comparison.", metavar="DIR")],
    by: Annotated[str | None, typer.Option(help="The setting to compare by; by default those that differ.")] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            "--fail-if",
            help="worse: exit with 3 if a finding of the second of two runs is surely worse than in the first, the "
            "baseline.",
            metavar="worse",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the findings of several runs side by side, by the settings in which they differ.

    Examples: `fedattack compare runs/n50 runs/n100 runs/n200 --by clients --out runs/by-clients`;
    `fedattack compare runs/released runs/nightly --fail-if worse --out runs/change`
    """
    if len(folders) < 2:
        raise ConfigError(f"there is nothing to compare in {len(folders)} run folder; expected two or more")
    if fail_if not in (None, "worse"):
        raise ConfigError(f"--fail-if {fail_if!r}: expected worse; other gates belong to `fedattack report`")
    if fail_if and len(folders) > 2:
        raise ConfigError(f"--fail-if {fail_if}: got {len(folders)} run folders; expected the baseline and the new one")
    for folder in folders:
        if not (folder / "findings.json").exists():
            raise ConfigError(f"{folder} holds no findings.json; run `fedattack report {in_command(folder)}` first")
    from fedattack.report.compare import compare_runs, read_compared
    from fedattack.report.worse import find_changes

    changes = None
    if fail_if:
        changes = find_changes(*(read_compared(folder).findings for folder in folders))
    page = compare_runs(folders, out, by, changes)
    if as_json:
        told: dict[str, Any] = {"page": str(page)}
        if changes is not None:
            told["worse"] = [change.to_dict() for change in changes if change.is_worse]
        tell(told, "", as_json)
    else:
        show_page("Comparison", page)
    if changes is not None:
        _gate_changes(changes, as_json)


def _gate_changes(changes: Sequence["Change"], as_json: bool) -> None:
    """End the command if a finding is worse than it was."""
    if any(1 in (len(change.before.seeds), len(change.after.seeds)) for change in changes):
        say("note", "an audit has one seed: this speaks of these two runs alone; more seeds tell how much runs differ")
    worse = [change for change in changes if change.is_worse]
    for change in worse:
        err_console.print(f"[red]threshold crossed:[/red] worse: {escape(change.text)}", soft_wrap=True)
    if worse:
        raise typer.Exit(THRESHOLD_CROSSED)
    if not as_json:
        out_console.print(f"Nothing is surely worse, of {len(changes)} findings that both audits tested.")


@app.command(cls=AuditCommand)
def export(
    folder: Annotated[Path, typer.Argument(help="A run folder with a report.", metavar="DIR")],
    mlflow: Annotated[
        str | None,
        typer.Option(
            help="Add a run to this MLflow: a folder, which is made, or a tracking URI such as http://HOST:PORT. Its "
            "experiment is MLFLOW_EXPERIMENT_NAME, or fedattack.",
            metavar="FOLDER|URI",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write events for TensorBoard into this new folder.", metavar="FOLDER")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy findings, their curves by round and the page of a report into MLflow, TensorBoard or both.

    It needs fedattack[mlflow] or fedattack[tensorboard]. Findings name clients: whoever reads the tracker reads them.

    Example: `fedattack export runs/first --mlflow runs/mlflow --tensorboard runs/tensorboard/first`
    """
    from fedattack.runs import trackers

    trackers.check_trackers(mlflow, tensorboard)
    report = trackers.read_report(folder)
    written = {}
    if mlflow:
        written["mlflow"] = trackers.write_mlflow(report, mlflow)
    if tensorboard:
        written["tensorboard"] = trackers.write_tensorboard(report, tensorboard)
    lines = [f"Exported to {name}: [bold]{escape(where)}[/bold]" for name, where in written.items()]
    tell(written, "\n".join(lines), as_json)


@app.command(cls=AuditCommand)
def reproduce(
    name: ReproductionName,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the results; several may share one.", metavar="DIR")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Run these cells of the table alone, such as dataset=digits; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    changes: CellChanges = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", help="A file that stands for a dataset, .npz or .toml; repeatable.", metavar="NAME=PATH"
        ),
    ] = None,
    seeds: SeedCount = None,
    device: Device = "auto",
    memory: Memory = None,
    cluster: Cluster = "",
    keep_records: KeepRecords = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's table or figure, ours beside the paper's: DIR/NAME.md, .json and .svg.

    Each cell is a run folder in DIR/cells, as `audit` makes them, and the results are written anew after each. Run
    again with the same settings, it goes on where it stopped. A cell's record is dropped once it is judged.

    Examples: `fedattack reproduce sia-table3 --out runs/paper --only dataset=synthetic --only framework=fedavg`;
    `fedattack reproduce sia-fig4 --out runs/paper --data mnist=mnist10k.npz`
    """
    from fedattack.grids.cell import Request, check_request
    from fedattack.grids.reproduce import load_reproduction
    from fedattack.grids.reproduce.asked import check_words

    spec = load_reproduction(name)
    check_words(spec, only or [], changes or [], data or [])
    request = Request(out, changes or [], seeds, device, memory, cluster, keep_records, watch_bars, say_progress)
    check_request(request)
    from fedattack.grids.reproduce.design import reproduce as run

    results = run(spec, request, only=only or [], data=data or [])
    tell(results, f"Results: [bold]{escape(str(out / name))}.md[/bold]", as_json)
    states = [cell["state"] for cell in results["cells"]]
    if "failed" in states or "done" not in states:
        raise typer.Exit(BAD_INPUT)


@app.command(cls=AuditCommand)
def tradeoff(
    preset: PresetName,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results.", metavar="DIR")],
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help="A defence, and strengths other than its usual ones, or a setting and its values, such as "
            "batch-size=16,4; repeatable. All defences if not given.",
            metavar="NAME[=S1,S2,…]",
        ),
    ] = None,
    seeds: SeedCount = None,
    changes: CellChanges = None,
    device: Device = "auto",
    memory: Memory = None,
    cluster: Cluster = "",
    keep_records: KeepRecords = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Sweep the strengths of defences: what each costs a model, and what it takes from the attacks.

    Writes DIR/tradeoff-PRESET.json, .md, .svg and .html. Each cell, a defence at a strength, is a run folder in
    DIR/cells, as `audit` makes them. Run again with the same settings, it goes on where it stopped. Defences that the
    preset cannot take are named with the reason; the exit code is 2 only if they were asked for.

    Example: `fedattack tradeoff quickstart --out runs/tradeoff --defence sparsify=0.9,0.99 --defence dp-gaussian`
    """
    from fedattack.grids.cell import Request, check_request
    from fedattack.grids.tradeoff.grid import check_words
    from fedattack.runs.presets import load_preset

    check_words(load_preset(preset), defences or [], changes or [])
    request = Request(out, changes or [], seeds, device, memory, cluster, keep_records, watch_bars, say_progress)
    check_request(request)
    from fedattack.grids.tradeoff.design import tradeoff as run

    results = run(preset, request, wanted=defences or [])
    name = out / f"tradeoff-{preset}"
    tell(results, f"Results: [bold]{escape(str(name))}.md[/bold], .svg, .json and .html", as_json)
    if not as_json:
        show_page("Page", Path(f"{name}.html"))
        for line in results["summary"]:
            out_console.print(f"- {escape(line)}", soft_wrap=True)
    failed = {cell["defence"] for cell in results["cells"] if cell["state"] != "done"}
    if failed and (defences or "none" in failed):
        raise typer.Exit(BAD_INPUT)


@app.command("what-if", cls=AuditCommand)
def what_if(
    folder: Annotated[Path, typer.Argument(help="A run folder that was attacked, with its truth.", metavar="RUN")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the comparison, to be made.", metavar="DIR")],
    secagg: Annotated[
        bool, typer.Option("--secagg", help="As if secure aggregation had been on: the server sees sums alone.")
    ] = False,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            "--noise",
            help="As if Gaussian noise of this standard deviation had been added to each update; repeatable.",
            metavar="SIGMA",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            help="As if of each update this share of entries had been kept, the largest ones, and the others set to 0; "
            "repeatable.",
            metavar="SHARE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    options: Options = None,
    memory: Memory = None,
    device: Device = "auto",
    keep_records: Annotated[
        bool, typer.Option("--keep-records", help="Keep the altered copies, each about as large as the record.")
    ] = False,
    trust: Trust = False,
    fail_if: FailIf = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the attacks of a finished run again as if its clients had been defended, beside the run as it was.

    Nothing is trained, and nothing in RUN is changed. Copies of its record are altered, attacked and judged. Writes
    DIR/what-if.html, .md and .json, and a report of each copy. The page says what this cannot tell. `tradeoff` trains
    anew. --fail-if is about the altered copies.

    Example: `fedattack what-if runs/first --secagg --noise 0.01 --noise 0.1 --keep 0.1 --out runs/what-if`
    """
    from fedattack.cli.what_if import WhatIfWords, ask_what_if
    from fedattack.grids.cell import Request

    request = Request(
        out, device=device, memory=memory, keep_records=keep_records, watching=watch_bars, tell=say_progress
    )
    words = WhatIfWords(secagg, noise or [], keep or [], seed, options or [], trust)
    ask_what_if(folder, words, request, fail_if, as_json)


@app.command("list", cls=AuditCommand)
def list_all(as_json: AsJson = False) -> None:
    """Show presets, threats, attacks, reproductions, datasets and settings."""
    from fedattack.cli.listing import listing, show_listing

    if as_json:
        print(json.dumps(listing(), indent=2))
    else:
        show_listing()


@app.command(cls=AuditCommand)
def download(
    dataset: Annotated[str, typer.Argument(help="Name of a dataset; `fedattack list` shows them.")],
    root: Annotated[Path | None, typer.Option(help="Folder to put it in; by default the cache.")] = None,
) -> None:
    """Download a dataset. No other command fetches data.

    Example: `fedattack download mnist`
    """
    from fedattack.data import download_dataset

    out_console.print(f"{dataset} is in [bold]{escape(str(download_dataset(dataset, root=root)))}[/bold].")


def _simulate(
    preset: "Preset",
    settings: Mapping[str, "Value"],
    out: Path,
    first: int | None,
    count: int | None,
    on: str,
    options: Mapping[str, str] | None = None,
) -> set[str]:
    """Simulate; returns what the caller named beyond the folder, which attack and report may then follow."""
    from fedattack.runs.forecast import foretell
    from fedattack.runs.settings import leads_out
    from fedattack.runs.simulating import choose_seeds, simulate

    seeds = choose_seeds(preset, first, count)
    trusted = set(leads_out(settings))
    with _resumable(out, _resume(out, trust=bool(trusted))), watch_bars() as watch:
        before = partial(foretell, preset.attacks, settings, say=watch.say, trusted=trusted)
        simulate(
            preset, settings, seeds, out, command=_command(), watch=watch, runtime=on, options=options, before=before
        )
    return trusted


def _trust(asked: Sequence["Asked"]) -> set[str]:
    """Say what the folder asks for and is now trusted with."""
    for item in asked:
        say("trusted", item.describe())
    return {item.value for item in asked}


def _trust_knowledge(folder: Path | None, trust: bool) -> set[str]:
    """Trust what the knowledge in a run folder asks for, if that is wanted; nothing without a folder."""
    from fedattack.runs.asked import asked_of_knowledge

    if folder is None or not trust:
        return set()
    return _trust(asked_of_knowledge(folder))


def _resume(out: Path, *, trust: bool) -> str:
    """Return the command by which a preset's run goes on; ``trust``: whether its settings name something outside."""
    command = f"fedattack resume {in_command(out)}"
    if trust:
        command += " --trust"
    return command


@contextmanager
def _resumable(out: Path, command: str) -> Iterator[None]:
    """Say of a run that ends early, also by SIGTERM, by which command it goes on."""
    from fedattack.base.files import sigterm_raises
    from fedattack.record.folder import STUDY

    try:
        # Examples of clients lie in temporary files, and processes of the app compute: neither outlives the command.
        with sigterm_raises():
            yield
    except (RunError, KeyboardInterrupt, SystemExit):
        # Without it the preparation ended early, and there is nothing to go on with.
        if (out / STUDY).exists():
            err_console.print(escape(f"note: `{command}` goes on after what is recorded"), soft_wrap=True)
        raise


def _command() -> str:
    return shlex.join(["fedattack", *sys.argv[1:]])


def _attack(
    attack: "Attack",
    folder: Path,
    seed: int,
    device: str,
    skip_damaged: bool,
    declared: Declared | None = None,
    trusted: Collection[str] = (),
) -> list[str]:
    from fedattack.runs.asked import known_to
    from fedattack.runs.pipeline import attack_folder

    def knowledge(part: "Part") -> "Knowledge":
        known = known_to(part, trusted)
        if declared is None:
            return known
        return declared.on_top_of(known)

    with watch_bars() as watch:
        return attack_folder(
            attack,
            folder,
            seed=seed,
            device=device,
            skip_damaged=skip_damaged,
            knowledge=knowledge,
            watch=watch,
        )


def _options(options: Sequence[str] | None, memory: str | None, names: Sequence[str]) -> dict[str, str]:
    """Read --option, and --memory for those attacks that have it; the others hold a few models at a time."""
    from fedattack.runs.checks import check_memory, options_among

    given = dict(pairs("--option", options or []))
    check_memory(memory)
    if memory is not None:
        given |= options_among({"memory": memory}, names)
    return given


def _choose(names: Sequence[str], options: Mapping[str, str], device: str) -> list["Attack"]:
    """Find attacks, and the device that they compute on; from here on torch is imported."""
    from fedattack.learning import pick_device
    from fedattack.runs.pipeline import choose_attacks

    pick_device(device)
    return choose_attacks(names, options)


def _list_scored(folder: Path) -> list[str]:
    """List the attacks that have scores, also those that the run did not begin with."""
    from fedattack.record.folder import find_parts
    from fedattack.runs.checks import scored_attacks

    try:
        return scored_attacks(find_parts(folder))
    except RecordError:
        # A run that was stopped early has no record, and nothing is scored.
        return []


def _read_report(folder: Path) -> "list[Finding] | None":
    """Return the findings of a whole report; None if it lacks something or is damaged, or scores are newer."""
    from fedattack.report.validate import read_findings, read_run

    files = [folder / name for name in _REPORT]
    if not all(file.exists() and file.stat().st_size for file in files):
        return None
    written = min(file.stat().st_mtime for file in files)
    if any(scores.stat().st_mtime > written for scores in folder.glob("scores/**/*.npz")):
        return None
    try:
        read_run(folder)
        return read_findings(folder)
    except ReportError:
        return None


def _finish(folder: Path, findings: Sequence["Finding"], conditions: Sequence["Condition"], as_json: bool) -> None:
    """Say that nothing is left to do; gates are held against the findings that are there."""
    with _gate(conditions, findings):
        if as_json:
            print(json.dumps([finding.to_dict() for finding in findings], indent=2, allow_nan=False))
        else:
            out_console.print(f"[bold]{escape(str(folder))}[/bold] is finished: nothing is left to do.", soft_wrap=True)
            show_page("Report", folder / "report.html")


@dataclass(frozen=True)
class Gates:
    """What findings are held against, and where that is written as JUnit XML, if anywhere."""

    conditions: Sequence["Condition"]
    junit: Path | None = None


def _report(
    folder: Path,
    device: str,
    gates: Gates,
    as_json: bool,
    trusted: Collection[str] = (),
    *,
    pdf: bool = False,
) -> None:
    from fedattack.report import read_run, render_table
    from fedattack.report.junit import write_junit
    from fedattack.runs.pipeline import judge_folder

    with watch_bars() as watch:
        findings, page = judge_folder(folder, device=device, watch=watch, trusted=trusted)
    if gates.junit is not None:
        write_junit(gates.junit, findings, read_run(folder), gates.conditions)
    with _gate(gates.conditions, findings):
        if as_json:
            print(json.dumps([finding.to_dict() for finding in findings], indent=2, allow_nan=False))
        else:
            out_console.print(render_table(findings, read_run(folder)))
            show_page("Report", page)
        if pdf:
            _print_page(page, as_json)


@contextmanager
def _gate(conditions: Sequence["Condition"], findings: Sequence[Any]) -> Iterator[None]:
    """Show findings; then end the command if a condition holds, also where they could not be shown."""
    problem: Exception | None = None
    try:
        yield
    except (FedAttackError, OSError) as cause:
        problem = cause
    crossed = [condition for condition in conditions if condition.is_crossed(findings)]
    if problem is not None and not crossed:
        raise problem
    if problem is not None:
        _show_error(problem)
    for condition in crossed:
        err_console.print(f"[red]threshold crossed:[/red] {escape(condition.text)}", soft_wrap=True)
    if crossed:
        raise typer.Exit(THRESHOLD_CROSSED)


def _show_error(problem: Exception) -> None:
    err_console.print(f"[red]error:[/red] {escape(short(str(problem)))}", soft_wrap=True)


def _in_one_line(problem: click.ClickException) -> str:
    """Say what of the command line is wrong as everything else is said, and not in a box below the usage."""
    context = getattr(problem, "ctx", None)
    said = problem.format_message().rstrip(".")
    if context is not None:
        said += f"; see `{context.command_path} --help`"
    return said


def _print_page(page: Path, as_json: bool) -> None:
    from fedattack.report.pdf import write_pdf

    printed = write_pdf(page)
    if not as_json:
        show_page("On paper", printed)


def _conditions(texts: list[str] | None, *, of_claim: bool = False) -> list["Condition"]:
    """Parse conditions before any long work, so that a typing error does not cost a run."""
    from fedattack.audit.finding import parse_fail_if

    return [parse_fail_if(text, of_claim=of_claim) for text in texts or []]


def _version(value: bool) -> None:
    if value:
        print(f"fedattack {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# What the system's loader, torch and Python say where there is too little of it.
_OF_MEMORY = re.compile(
    "failed to map segment|cannot allocate|can't allocate|out of memory|can't start new thread", re.I
)


def _limit_met(problem: Exception) -> str:
    """Say which limit of this machine, and no fault of the program, ended a command; empty if it was none."""
    if isinstance(problem, ModuleNotFoundError):
        return what_to_install("this command")
    if isinstance(problem, RecursionError):
        return "something that is read lies in too many others to be read; take out some levels"
    if isinstance(problem, UnicodeEncodeError):
        text = problem.object[problem.start : problem.end]
        return f"{text!a} cannot be written as {problem.encoding}; rename what has it in its name"
    if isinstance(problem, MemoryError) or _OF_MEMORY.search(str(problem)):
        reason = short(str(problem), 120) or "nothing more could be had"
        return f"there is not enough memory for this ({reason}); end other programs, or raise the limit (ulimit -v)"
    return ""


def _write_any_text() -> None:
    """Show what the terminal's encoding has no character for by its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line: one line and exit code 2 on bad input, 3 on a crossed threshold."""
    _write_any_text()
    try:
        code = app(prog_name="fedattack", standalone_mode=False)
    except (FedAttackError, OSError) as problem:
        # Whatever the system refuses (a folder of somebody else, a full disk) is no fault of the program.
        _show_error(problem)
        code = BAD_INPUT
    except click.exceptions.Abort:
        err_console.print("interrupted")
        code = 130
    except click.ClickException as problem:
        # Older versions of click have no such error, and show the help at once.
        if isinstance(problem, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            problem.show()
        else:
            _show_error(ConfigError(_in_one_line(problem)))
        code = BAD_INPUT
    except (ImportError, MemoryError, RuntimeError, UnicodeEncodeError) as problem:
        line = _limit_met(problem)
        if not line:
            raise
        _show_error(RunError(line))
        code = BAD_INPUT
    sys.exit(code or 0)
