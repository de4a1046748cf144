"""`fedattack simulate`."""

from rich.markup import escape

from fedattack.cli.console import tell
from fedattack.cli.options import AsJson, Changes, FirstSeed, On, Out, PresetName, Quiet, SeedCount
from fedattack.cli.steps import train_preset


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
    """Run a preset's federated training on Flower, and record what its server sees.

    Example: `fedattack simulate quickstart --out runs/first --set alpha=0.1`
    """
    from fedattack.runs.checks import check_data, check_runtime
    from fedattack.runs.presets import load_preset, resolve_settings
    from fedattack.runs.simulating import choose_seeds

    check_runtime(on)
    study = load_preset(preset)
    settings = resolve_settings(study, changes or [])
    check_data(changes or [])
    train_preset(study, settings, choose_seeds(study, seed, seeds), out, on=on)
    tell({"folder": str(out)}, f"Recorded in [bold]{escape(str(out))}[/bold].", as_json)
