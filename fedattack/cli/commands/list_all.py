"""`fedattack list`."""

import json
from typing import Annotated

import typer

from fedattack.base.errors import ConfigError, instead
from fedattack.cli.options import AsJson, complete_topic


def list_all(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="What to list; by default, the presets.",
            metavar="[presets|attacks|data|settings]",
            autocompletion=complete_topic,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what you can choose from: presets by their question, attacks, data, settings.

    Examples: `fedattack list`; `fedattack list attacks`; `fedattack list settings --json`
    """
    from fedattack.cli.listing import TOPICS, listing, show_listing

    if topic is not None and topic not in TOPICS:
        raise ConfigError(f"fedattack list {topic}: {instead(topic, TOPICS)}")
    if not as_json:
        show_listing(topic)
        return
    there = listing()
    if topic is not None:
        there = {key: there[key] for key in TOPICS[topic]}
    print(json.dumps(there, indent=2))
