"""Whole states of PyTorch's models, as tasks over the Message API send them."""

from flwr.app import ArrayRecord


def arrays_of(net):
    return ArrayRecord(net.state_dict())


def put(net, arrays):
    net.load_state_dict(arrays.to_torch_state_dict())
