"""asked_app: the server."""

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from toyapp.client_app import arrays_of, make, model_of

app = ServerApp()


class Own(FedAvg):
    """Sends every other client a narrower model, if asked, and averages in a way of its own."""

    def __init__(self, kind, **options):
        super().__init__(**options)
        self.kind = kind

    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            content, node = message.content, message.metadata.dst_node_id
            if self.kind == "parts" and node % 2:
                part = arrays_of("classifier", make("classifier", 8))
                content = RecordDict({"arrays": part, "config": content["config"]})
            yield Message(content, dst_node_id=node, message_type="train")

    def aggregate_train(self, server_round, replies):
        models = [reply.content["arrays"] for reply in replies if reply.has_content()]
        models = [model_of(self.kind, model) for model in models if "net.0.bias" in model]
        widest = max(len(model.net[0].bias) for model in models)
        states = [model.state_dict() for model in models if len(model.net[0].bias) == widest]
        mean = make(self.kind, widest)
        mean.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
        return arrays_of(self.kind, mean), MetricRecord({})


@app.main()
def main(grid, context):
    kind = context.run_config["kind"]
    strategy = Own(kind, fraction_evaluate=1.0)
    strategy.start(
        grid=grid,
        initial_arrays=arrays_of(kind, make(kind)),
        num_rounds=context.run_config.get("rounds", 2),
        train_config=ConfigRecord({"lr": 0.2}),
    )
