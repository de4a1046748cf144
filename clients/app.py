"""The ClientApp. Its NumPyClients serve the legacy workflow as they are and Message-API strategies over the bridge."""

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from clients.fedavg import FedAvgClient
from fedattack.audit.truth import note_node
from fedattack.bridge import numpy_client_bridge
from simulations.study import study_of


def client_fn(context: Context) -> Client:
    """Make the client that this node runs, and note in the truth folder which partition the node holds."""
    config = context.run_config
    client = int(context.node_config["partition-id"])
    if truth := str(config["truth"]):
        note_node(truth, node=str(context.node_id), client=str(client))
    study = study_of(tuple(sorted(config.items())))
    return FedAvgClient(study, client, config).to_client()


app = ClientApp(client_fn=client_fn, mods=[numpy_client_bridge])
