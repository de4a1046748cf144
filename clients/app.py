"""The ClientApp. Its NumPyClients serve the legacy workflow as they are and Message-API strategies over the bridge."""

from collections.abc import Mapping

from flwr.app import Context, Message
from flwr.client import Client
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from clients.fedavg import FedAvgClient
from clients.fedmd import FedMDClient
from clients.fedsgd import FedSGDClient
from clients.poisoning import AscendingClient, InvertingClient
from fedattack.bridge import numpy_client_bridge
from fedattack.defences import DP_SGD
from fedattack.defences.mods import DefenceMod
from fedattack.nodes import note_node
from simulations.privacy import NAMES, SENDS, defence_settings
from simulations.study import Study, study_of

# What an honest client is in each framework of simulations.study.FRAMEWORKS.
HONEST: Mapping[str, type[FedAvgClient]] = {
    "fedavg": FedAvgClient,
    "fedmd": FedMDClient,
    "fedsgd": FedSGDClient,
}

# What a client is that has the run's property. A holder of a target record is honest: the record is among its own.
POSITIVE: Mapping[str, type[FedAvgClient]] = {
    "membership": FedAvgClient,
    "inversion": InvertingClient,
    "ascent": AscendingClient,
}


def kind_of(study: Study, client: int) -> type[FedAvgClient]:
    """Say what a client is: honest, unless it has the run's property."""
    return POSITIVE[study.client_property] if study.is_positive(client) else HONEST[study.framework]


def client_fn(context: Context) -> Client:
    """Make the client that this node runs, and note where the run asks for it which partition the node holds."""
    config = context.run_config
    client = int(context.node_config["partition-id"])
    if truth := str(config["truth"]):
        note_node(truth, node=str(context.node_id), client=str(client))
    study = study_of(tuple(sorted(config.items())))
    if study.sensitive and (knowledge := str(config["knowledge"])):
        # A server that knows its customers knows whose node is whose.
        note_node(knowledge, node=str(context.node_id), client=str(client))
    return kind_of(study, client)(study, client, config, context.state).to_client()


def secure_aggregation(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: take part in SecAgg+ where the run asks for it."""
    if context.run_config["secagg"]:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def defend(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: change the update as the run asks for; DP-SGD is in the training already."""
    config = context.run_config
    if config["defence"] == DP_SGD:
        return call_next(message, context)
    framework = str(config["framework"])
    mod = DefenceMod(
        defence_settings(config), sends=SENDS[framework], seed=int(config["seed"]), names=NAMES.get(framework)
    )
    return mod(message, context, call_next)


# SecAgg+ comes first, and so is outermost: it masks what the others, the defence among them, have made of the reply.
app = ClientApp(client_fn=client_fn, mods=[secure_aggregation, defend, numpy_client_bridge])
