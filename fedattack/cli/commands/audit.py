"""`fedattack audit`."""

from functools import partial
from typing import Annotated

import typer

from fedattack.cli.options import (
    OF_APP,
    ActiveServer,
    AsJson,
    Changes,
    Cluster,
    Control,
    ControlLength,
    Device,
    Everything,
    FailIf,
    FirstSeed,
    Groups,
    HoldOut,
    Holds,
    Junit,
    Memory,
    On,
    Options,
    Out,
    OwnExamples,
    OwnLosses,
    OwnUpdate,
    PresetOrApp,
    Quiet,
    SeedCount,
    Sensitive,
    Without,
)
from fedattack.cli.steps import (
    Gates,
    Output,
    attack_each,
    choose_attacks_on,
    read_conditions,
    read_options,
    report_run,
    train_preset,
)


def audit(
    what: PresetOrApp,
    out: Out,
    changes: Changes = None,
    seed: FirstSeed = None,
    seeds: SeedCount = None,
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    on: On = "simulation",
    device: Device = "auto",
    supernodes: Annotated[
        int | None,
        typer.Option(
            help="Number of clients; by default the number that the app or Flower's configuration says, or 10.",
            min=2,
            rich_help_panel=OF_APP,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The app's model, if fedattack cannot find it: module:function.", rich_help_panel=OF_APP),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="The app's loss, if fedattack cannot find it.", rich_help_panel=OF_APP)
    ] = None,
    examples: OwnExamples = None,
    losses: OwnLosses = None,
    update: OwnUpdate = None,
    sensitive: Sensitive = None,
    holds: Holds = None,
    groups: Groups = None,
    without: Without = None,
    hold_out: HoldOut = None,
    server: ActiveServer = None,
    control: Control = ControlLength.SHORT,
    fail_if: FailIf = None,
    junit: Junit = None,
    everything: Everything = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a preset, or your own Flower app unchanged; attack what its server saw; write a report.

    fedattack runs a copy of your app, and watches clients while they train. This imports and runs your code. After --
    give the whole command that runs the app. To continue a stopped audit of an app, run the same command again. For a
    preset, use `fedattack resume`.

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
    conditions, output = read_conditions(fail_if), Output(as_json, everything)
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
        examples=examples,
        losses=losses,
        update=update,
        options=options or [],
        memory=memory,
        sensitive=sensitive,
        holds=holds,
        groups=groups,
        without=without or [],
        hold_out=hold_out,
        server=server,
        control=control,
    )
    # An app's folder, or a command; a preset otherwise.
    app = app_of_words(what, choices)
    if app is not None:
        audit_app(app, choices, out, device, Gates(conditions, junit), output)
        return
    choices.check_preset()
    study = load_preset(what[0])
    given = read_options(options, memory, study.attacks)
    wanted = {**study.options, **given}
    check_attacks(study.attacks, wanted)
    settings = resolve_settings(study, changes or [])
    check_conditions(conditions, study.attacks, isolating=settings["server"] == "isolating")
    check_data(changes or [])
    from fedattack.record.folder import RunFolder
    from fedattack.runs.running import check_free
    from fedattack.runs.simulating import choose_seeds

    check_free(out)
    check_cluster(study.attacks)
    # Attacks need torch, which takes seconds to import: they are chosen while data is prepared.
    choose = partial(choose_attacks_on, study.attacks, wanted, device)
    if device not in ("auto", "cpu"):
        # Whether this machine has it is known before data is prepared.
        choose()
    numbers = choose_seeds(study, seed, seeds)
    trusted = train_preset(study, settings, numbers, out, on=on, options=given, choose=choose)
    attack_each(choose(), out, device=device, trusted=trusted)
    report_run(RunFolder(out), device, Gates(conditions, junit), output, trusted)
