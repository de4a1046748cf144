"""`fedattack attack`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import tell
from fedattack.cli.declared import HIDDEN, LOSS, Declared
from fedattack.cli.options import (
    AsJson,
    AttackName,
    Cluster,
    Device,
    Folder,
    Memory,
    Options,
    Quiet,
    SkipDamaged,
    Trust,
)
from fedattack.cli.steps import attack_run, choose_attacks_on, read_options, trust_knowledge


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
    prior: Annotated[
        str | None,
        typer.Option(
            help=(
                "What the attacker assumes about owners: uniform, or examples, where a client with more examples "
                "is likelier."
            )
        ),
    ] = None,
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
        typer.Option(
            help=("Clients' examples without one column, an .npz as PartialRecords describes, for aia and ara.")
        ),
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
            help=(
                "Weights that no client trains and the record lacks: an .npz or .safetensors; or initial, the "
                "weights with which --model is made."
            ),
        ),
    ] = None,
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    seed: Annotated[int, typer.Option(help="Seed of the attack's random draws.", min=0)] = 0,
    device: Device = "auto",
    skip_damaged: SkipDamaged = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a record, using only the record and the knowledge that you declare.

    The folder is data: fedattack imports code that it names only if you also name it here, or with --trust.

    Examples: `fedattack attack sia runs/first`;
    `fedattack attack sia audit --targets mine.npz --model mypackage.models:make_net`;
    `fedattack attack prolin runs/sums --option shadows=exact`
    """
    from fedattack.record.folder import RunFolder
    from fedattack.runs.checks import check_attacks, check_device

    given = read_options(options, memory, [name])
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
    opened = RunFolder(folder)
    opened.check_ended()
    # Here links and damage are refused, before torch is imported.
    _ = opened.parts
    (chosen,) = choose_attacks_on([name], given, device)
    trusted = trust_knowledge(opened, trust)
    files = attack_run(
        chosen, folder, device=device, seed=seed, skip_damaged=skip_damaged, declared=declared, trusted=trusted
    )
    tell({"scores": files}, f"Scores are in [bold]{escape(', '.join(files))}[/bold].", as_json)
