"""`fedattack observe`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedattack.base.errors import ConfigError
from fedattack.cli.console import tell
from fedattack.cli.options import AsJson, Clients, Every, choose_kept


def observe(
    command: Annotated[list[str], typer.Argument(help="The command, after --.", metavar="-- flwr run …")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the record, such as audit/record.", metavar="DIR")
    ],
    view: Annotated[
        str | None,
        typer.Option(
            help=(
                "individual; or aggregate, which keeps only the sum of each round. By default aggregate under "
                "SecAgg+, else individual."
            )
        ),
    ] = None,
    protocol: Annotated[str, typer.Option(help="What clients send: fedavg, fedsgd or fedmd.")] = "fedavg",
    lr: Annotated[float | None, typer.Option(help="The server's learning rate, for fedsgd.")] = None,
    every: Every = 1,
    clients: Clients = "1",
    as_json: AsJson = False,
) -> None:
    """Run a Flower app unchanged, and record what its server sees.

    fedattack runs a copy of the app on this machine, and wraps the ServerApp in it.

    --every and --clients record less. Before the first round the log says how much the run will write.

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
    keep = choose_kept(every, clients)
    if keep.kinds:
        options |= {"every": every, "clients": keep.clients}
    rounds = observe_command(command, out, options)
    done = f"{rounds} rounds"
    if rounds is None:
        done = "Being recorded"
    tell({"record": str(out), "rounds": rounds}, f"{done} in [bold]{escape(str(out))}[/bold].", as_json)
