"""What the copy of an app wraps its ServerApp in, so that it is seen what the server's own process evaluates on."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedattack.witness import watching_server


class WitnessedServerApp(ServerApp):
    """A ServerApp that runs another one and is watched meanwhile.

    Parameters
    ----------
    inner
        The project's own.
    folder
        Where witnesses write.
    """

    def __init__(self, inner: ServerApp, folder: Path | str) -> None:
        super().__init__()
        self._inner = inner
        self._folder = Path(folder)

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the inner app."""
        with watching_server(self._folder):
            self._inner(grid, context)
