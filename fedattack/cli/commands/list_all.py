"""`fedattack list-all`."""

import json

from fedattack.cli.options import AsJson


def list_all(as_json: AsJson = False) -> None:
    """Show presets, threats, attacks, reproductions, datasets and settings."""
    from fedattack.cli.listing import listing, show_listing

    if as_json:
        print(json.dumps(listing(), indent=2))
    else:
        show_listing()
