"""The ServerApp of the reference system."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.common import Scalar
from flwr.serverapp import Grid, ServerApp

from fedattack.base.errors import ConfigError, DataError
from fedattack.observe import ObservedStrategy
from fedattack.record import Record
from fedattack.record.folder import read_resumption
from simulations.departures import make_departure
from simulations.order import OrderedGrid, SharedGrid
from simulations.study import Study, studies_of
from strategies.checkpoint import Checkpoint
from strategies.honest_but_curious import Sampling, SeededFedAvg

# What an honest server knows of its own run; everything else in the run config is the clients' or the auditor's.
_SERVER_FACTS = ("rounds", "fraction", "local-epochs", "batch-size", "lr", "momentum", "weight-decay")


@dataclass(frozen=True)
class ServedRun:
    """One run as its server needs it.

    Attributes
    ----------
    grid
        Lists the nodes in an order that is the same in every run of a seed.
    context
        The ServerApp's.
    study
        The run's data and models.
    checkpoint
        Of a run that this one goes on with.
    """

    grid: Grid
    context: Context
    study: Study
    checkpoint: Checkpoint | None = None

    @property
    def sampling(self) -> Sampling:
        """Which clients take part in a round."""
        settings = self.study.settings
        return Sampling(settings.fraction, settings.nodes, settings.seed)

    @property
    def train_config(self) -> dict[str, Scalar]:
        """What is sent with the model."""
        return {"lr": self.study.settings.lr}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is kept in the record's manifest."""
        facts: dict[str, Any] = self.study.settings.by_key(_SERVER_FACTS)
        framework = self.study.framework
        if framework.shares_model and framework.trains_model:
            facts["model"] = self.study.models.name
        return facts

    @property
    def departure(self) -> dict[str, Any]:
        """Options of a strategy that departs in its first rounds."""
        study = self.study
        return {
            "initial": study.models.initial_arrays(),
            "depart": make_departure(study),
            "departures": study.settings.departures,
        }

    def start(self, strategy: SeededFedAvg, initial: ArrayRecord | None = None, **options: Any) -> None:
        """Run a strategy under an observer.

        Parameters
        ----------
        strategy
            What the server does.
        initial
            Arrays to start from; the study's model without.
        options
            Of :class:`fedattack.observe.ObservedStrategy`, beyond those that all runs have.
        """
        settings, checkpoint = self.study.settings, self.checkpoint
        usual: dict[str, Any] = {
            "seed": settings.seed,
            "facts": self.facts,
            "resumed": checkpoint and checkpoint.names,
            "record_id": settings.record_id,
        }
        # The observer fills in strftime directives; this path is meant as it stands.
        observed = ObservedStrategy(strategy, settings.record.replace("%", "%%"), **usual | options)
        rounds = settings.rounds
        if checkpoint is not None:
            initial = strategy.resume(checkpoint, self.grid)
            rounds -= checkpoint.done
        elif initial is None:
            initial = ArrayRecord(self.study.models.build().state_dict())
        observed.start(
            self.grid,
            initial,
            num_rounds=rounds,
            timeout=settings.round_timeout,
            train_config=ConfigRecord(dict(self.train_config)),
        )


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the framework that the run config names, under observation; of several runs one after the other."""
    studies = studies_of(context.run_config)
    nodes = studies[0].settings.nodes
    ordered = OrderedGrid(grid, nodes * len(studies))
    for place, study in enumerate(studies):
        share = SharedGrid(ordered, place * nodes, nodes)
        study.framework.serve(ServedRun(share, context, study, _checkpoint(study, share)))


def _checkpoint(study: Study, grid: SharedGrid) -> Checkpoint | None:
    """Find what there is to go on with; None where the run starts anew."""
    settings = study.settings
    if not settings.resume:
        return None
    names, data = read_resumption(Path(settings.resume))
    if data != study.data.fingerprint:
        raise DataError("the data are not those of the stopped run; put its data back, or start a run of its own")
    record = Record(settings.record)
    # Those of many clients that were never sampled have said nothing, and have no name in the record.
    grid.nodes_at(map(int, names))
    known = {str(node): names[client] for node, client in grid.partitions.items() if client in names}
    if len(known) < len(names) or not {*names.values()} >= {*record.nodes}:
        raise ConfigError("not every client has said which one it is, now and in the stopped run; resume it again")
    return Checkpoint.of(record, known)
