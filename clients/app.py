"""The ClientApp. Its NumPyClients serve the legacy workflow directly, and Message-API strategies through the bridge."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from clients.fedavg import FedAvgClient
from clients.poisoning import AscendingClient, InvertingClient
from fedattack.defences import DP_SGD
from fedattack.defences.mods import CheckedModel, DefenceMod
from fedattack.observe.bridge import numpy_client_bridge
from fedattack.record.folder import read_resumption
from fedattack.record.nodes import note_node
from simulations.frameworks import framework_of
from simulations.study import CLIENT_PROPERTY, Study, find_client

# What a client is that has the run's property. A holder of a target record is honest: the record is among its own.
POSITIVE: Mapping[str, type[FedAvgClient]] = {
    "membership": FedAvgClient,
    "inversion": InvertingClient,
    "ascent": AscendingClient,
}


def kind_of(study: Study, client: int) -> Callable[..., NumPyClient]:
    """Return a client's class: honest, unless it has the run's property, or is a canary, which follow all clients."""
    if client >= study.settings.clients:
        # Most runs have none, and their clients need not pay for the import.
        from clients.canary import CanaryClient

        return CanaryClient
    if study.is_positive(client):
        return POSITIVE[study.settings.client_property]
    return study.framework.load_client()


def client_fn(context: Context) -> Client:
    """Make the client that this node runs; if the run asks for it, note which partition the node holds."""
    study, client = find_client(context)
    settings = study.settings
    node = str(context.node_id)
    if settings.resume:
        # The record keeps the name of a node that it knew before the run was stopped.
        node = _names(settings.resume).get(str(client), node)
    if settings.truth:
        note_node(settings.truth, node=node, client=str(client))
    is_canary = client >= settings.clients
    if (settings.sensitive or is_canary) and settings.knowledge:
        # A server that knows its customers knows whose node is whose. Attacks have to leave canaries out.
        note_node(settings.knowledge, node=node, client=str(client))
    return kind_of(study, client)(study, client, context.state).to_client()


@lru_cache(maxsize=1)
def _names(resumption: str) -> Mapping[str, str]:
    """By client, the names in the record of a run that goes on; none on a client's own machine, which has no file."""
    return read_resumption(Path(resumption))[0] if os.access(resumption, os.R_OK) else {}


def tell_partition(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: say which partition this node holds, so that a simulation can order its nodes."""
    if message.metadata.message_type != "get_properties":
        return call_next(message, context)
    properties = ConfigRecord({CLIENT_PROPERTY: str(context.node_config["partition-id"])})
    return Message(RecordDict({"getpropertiesres.properties": properties}), reply_to=message)


def secure_aggregation(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: take part in SecAgg+ if the run asks for it."""
    if find_client(context)[0].settings.secagg:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def defend(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: apply the run's defence to the update; DP-SGD is already part of the training."""
    settings = find_client(context)[0].settings
    if settings.defence == DP_SGD:
        return call_next(message, context)
    framework = framework_of(settings.framework)
    mod = DefenceMod(
        settings.defence_settings, sends=framework.sends, seed=settings.seed, names=framework.array_names or None
    )
    return mod(message, context, call_next)


def check_model(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod: check what the server sends, if the run asks for it."""
    settings = find_client(context)[0].settings
    if settings.check_model == "none":
        return call_next(message, context)
    mod = CheckedModel(settings.check_model == "refuse", framework_of(settings.framework).sends)
    return mod(message, context, call_next)


# SecAgg+ comes first of those that change replies, and so is outermost: it masks what the others, the defence among
# them, have made of the reply.
app = ClientApp(
    client_fn=client_fn, mods=[tell_partition, secure_aggregation, defend, check_model, numpy_client_bridge]
)
