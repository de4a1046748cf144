"""Tiny federations, written to run folders without running Flower.

In one, clients memorise random labels; in the other some clients have a property, and the server sees sums alone.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedattack.attacks import Knowledge, KnownDefence, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.audit.truth import NOBODY, note_node, write_truth
from fedattack.learning import LocalSGD, build_model, full_gradient, gradient_step, outputs_of, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record

CLIENTS = 4
EACH = 30
FEATURES = 30
CLASSES = 10
LR = 0.2
MODEL = ModelKnowledge(spec="mlp", input_shape=(FEATURES,), classes=CLASSES, hidden=64)

SMALL = ModelKnowledge(spec="mlp", input_shape=(12,), classes=4, hidden=8)
ONE_STEP = LocalSGD(epochs=1, batch_size=12, lr=0.05)
WEIGHTED_MEAN = {"kind": "mean", "weight": "num-examples", "by": "test"}


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    rounds: int = 2,
    part: str = "",
    epochs: int = 60,
    skip: tuple[tuple[int, int], ...] = (),
    close: bool = True,
    protocol: str = "fedavg",
    key: Path | None = None,
    shared: int = 0,
    auxiliary: int = 0,
    defence: KnownDefence | None = None,
    origins: bool = False,
    canaries: int = 0,
) -> Path:
    """Write record, knowledge and truth; ``epochs=0`` gives clients that learn nothing, so that nothing can leak.

    ``skip`` lists (round, client) pairs that were not sampled. In the protocol fedsgd clients send their gradient,
    whatever the epochs, or zeros where there are none. Client 1 holds the first ``shared`` examples of client 0, too.
    With ``auxiliary`` examples the attacker also knows how clients train. With ``origins`` the targets of nobody come
    from the clients in turn: all clients' examples are drawn alike. ``canaries`` clients that hold nothing send noise.
    """
    draw = np.random.default_rng(seed)
    total = CLIENTS * EACH
    x = draw.normal(size=(2 * total, FEATURES)).astype(np.float32)
    y = draw.integers(CLASSES, size=2 * total)
    parts = list(np.arange(total).reshape(CLIENTS, EACH))
    parts[1] = np.concatenate([parts[1], parts[0][:shared]])
    common = _state(build_model("mlp", input_shape=(FEATURES,), classes=CLASSES, hidden=64, seed=seed))
    writer = RecordWriter(folder / "record" / part, seed=seed, facts={"lr": LR}, protocol=protocol, key=key)
    for number in range(1, rounds + 1):
        replies = []
        for client, rows in enumerate(parts):
            if (number, client) in skip:
                continue
            model = MODEL.build()
            _load(model, common)
            if protocol == "fedsgd":
                gradient = full_gradient(model, x[rows], y[rows], seed=0).arrays
                sent = gradient if epochs else {name: np.zeros_like(array) for name, array in gradient.items()}
            else:
                if epochs:
                    train_local(
                        model, x[rows], y[rows], epochs=epochs, batch_size=10, lr=LR, seed=seed + 10 * number + client
                    )
                sent = _state(model)
            replies.append(Reply(f"node{client}", "ok", sent, len(rows), {"train-loss": 0.1}))
        for canary in range(CLIENTS, CLIENTS + canaries):
            noise = np.random.default_rng((seed, number, canary))
            sent = {name: array + noise.normal(size=array.shape).astype(np.float32) for name, array in common.items()}
            replies.append(Reply(f"node{canary}", "ok", sent, EACH, {"train-loss": 0.0}))
        writer.write(Exchange(number, common, replies, config={"lr": LR}, mean="message"))
        mean = {name: sum(reply.arrays[name] for reply in replies) / len(replies) for name in common}
        mean = {name: np.asarray(array, dtype=np.float32) for name, array in mean.items()}
        common = gradient_step(common, mean, LR) if protocol == "fedsgd" else mean
    if close:
        writer.close(final=common)
    order = draw.permutation(2 * total)
    owners = [str(client) for client in range(CLIENTS) for _ in range(EACH)] + [NOBODY] * total
    owners[:shared] = [("0", "1")] * shared
    come_from = [""] * total + [str(row % CLIENTS if origins else "") for row in range(total)]
    targets = Targets(x[order], y[order])
    plants = tuple(str(canary) for canary in range(CLIENTS, CLIENTS + canaries))
    known = Knowledge(model=MODEL, targets=targets, defence=defence, canaries=plants)
    if auxiliary:
        known = replace(known, auxiliary=_noise(auxiliary, seed), training=LocalSGD(epochs or 1, 10, LR))
    write_knowledge(folder / "knowledge" / part, known)
    write_truth(
        folder / "truth" / part,
        clients=[str(client) for client in range(CLIENTS)],
        classes=[str(label) for label in range(CLASSES)],
        counts=np.array([np.bincount(y[rows], minlength=CLASSES) for rows in parts]),
        owners=[owners[row] for row in order],
        origins=[come_from[row] for row in order],
        evaluation=(x[total:], y[total:]),
        targets=targets.fingerprint,
        canaries=plants,
    )
    for client in range(CLIENTS + canaries):
        note_node(folder / "truth" / part, node=f"node{client}", client=str(client))
    for canary in plants:
        note_node(folder / "knowledge" / part, node=f"node{canary}", client=canary)
    return folder


def _noise(count: int, seed: int) -> Targets:
    """Draw examples as :func:`write_run` does, which nobody holds."""
    draw = np.random.default_rng((seed, 1))
    x = draw.normal(size=(count, FEATURES)).astype(np.float32)
    return Targets(x, draw.integers(CLASSES, size=count))


def write_sums_run(folder: Path, **options) -> Path:
    """Write a run whose server sees sums alone: that of :func:`write_run`, with each round's replies projected."""
    each = write_run(folder / "each", **options)
    project_record(Record(each / "record"), folder / "record")
    for name in ("knowledge", "truth"):
        (each / name).rename(folder / name)
    return folder


def write_predictions_run(folder: Path, **options) -> Path:
    """Write a run of FedMD: that of :func:`write_run`, with what the clients' models predict in place of the models."""
    models = write_run(folder / "models", **options)
    public = np.random.default_rng(99).normal(size=(60, FEATURES)).astype(np.float32)
    writer = RecordWriter(folder / "record", protocol="fedmd", seed=options.get("seed", 0))
    consensus = None
    for item in Record(models / "record"):
        replies = []
        for seen in item.observations:
            model = MODEL.build()
            _load(model, dict(seen.arrays))
            replies.append(Reply(seen.node, "ok", {"predictions": outputs_of(model, public)}, seen.num_examples))
        writer.write(Exchange(item.number, consensus, replies))
        consensus = {"predictions": np.mean([reply.arrays["predictions"] for reply in replies], axis=0)}
    writer.close(final=consensus)
    write_knowledge(folder / "knowledge", replace(read_knowledge(models / "knowledge"), public=public))
    (models / "truth").rename(folder / "truth")
    return folder


def blobs(count: int, draw: np.random.Generator) -> Targets:
    """Draw records of four overlapping classes, whose model still learns after many rounds."""
    y = draw.integers(SMALL.classes, size=count)
    centres = np.eye(SMALL.classes, SMALL.input_shape[0])
    return Targets((centres[y] + draw.normal(0, 0.7, (count, SMALL.input_shape[0]))).astype(np.float32), y)


def odd_record() -> Targets:
    """Return a record unlike the others, whose presence in a batch shows."""
    x = np.zeros((1, *SMALL.input_shape), dtype=np.float32)
    x[0, -4:] = 3.0
    return Targets(x, np.array([0]))


def write_property_run(
    folder: Path,
    *,
    asked: str = "inversion",
    positives: tuple[int, ...] = (1, 6),
    clients: int = 8,
    rounds: int = 20,
    sampled: int = 4,
    sizes: tuple[int, ...] = (12,),
    absent: tuple[int, ...] = (),
    teams: int = 0,
    auxiliary: int = 900,
    model: ModelKnowledge = SMALL,
    training: LocalSGD = ONE_STEP,
    view: str = "aggregate",
    seed: int = 0,
) -> Path:
    """Write record, knowledge and truth of a federation in which ``positives`` have the property ``asked``.

    ``sizes`` are the clients' numbers of records, repeated in turn; clients of ``absent`` are sampled in the first
    round and do not answer. With ``teams`` clients always take part in groups of that many, the same ones together.
    """
    draw = np.random.default_rng(seed)
    known, target = blobs(auxiliary, draw), odd_record()
    data = [blobs(sizes[client % len(sizes)], draw) for client in range(clients)]
    if asked == "membership":
        for client in positives:
            data[client].x[0], data[client].y[0] = target.x[0], target.y[0]
    common = _state(build_model(model.spec, input_shape=model.input_shape, classes=model.classes, hidden=8, seed=seed))
    writer = RecordWriter(
        folder / "record", view=view, seed=seed, aggregation=WEIGHTED_MEAN if view == "aggregate" else None
    )
    there = [client for client in range(clients) if client not in absent]
    for number in range(1, rounds + 1):
        if teams:
            groups = np.arange(clients).reshape(-1, teams)
            chosen = groups[draw.permutation(len(groups))[: sampled // teams]].reshape(-1).tolist()
        else:
            chosen = sorted(draw.choice(there, size=sampled, replace=False).tolist())
        replies = []
        for client in chosen:
            local = model.build()
            _load(local, common)
            has = client in positives
            train_local(
                local,
                data[client].x,
                data[client].y,
                seed=seed + 1_000 * number + client,
                maximise=has and asked == "ascent",
                **vars(training),
            )
            sent = _state(local)
            if has and asked == "inversion":
                sent = {name: 2 * common[name] - array for name, array in sent.items()}
            replies.append(Reply(f"node{client:02}", "ok", sent, len(data[client])))
        weight = {reply.node: reply.num_examples / sum(item.num_examples for item in replies) for reply in replies}
        mean = {
            name: sum(weight[reply.node] * reply.arrays[name].astype(np.float64) for reply in replies)
            for name in common
        }
        if number == 1:
            replies += [Reply(f"node{client:02}", "missing", reason="no answer") for client in absent]
        if view == "aggregate":
            replies = [Reply(item.node, item.status, None, item.num_examples, reason=item.reason) for item in replies]
        writer.write(Exchange(number, common, replies, aggregate=mean if view == "aggregate" else None))
        common = {name: mean[name].astype(array.dtype) for name, array in common.items()}
    writer.close(final=common)
    targets = target if asked == "membership" else None
    write_knowledge(
        folder / "knowledge",
        Knowledge(
            model=model,
            targets=targets,
            auxiliary=known,
            training=training,
            property=asked,
            positive_share=max(len(positives), 1) / clients,
        ),
    )
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=[str(label) for label in range(model.classes)],
        counts=np.array([np.bincount(item.y, minlength=model.classes) for item in data]),
        evaluation=(known.x, known.y),
        targets=targets.fingerprint if targets is not None else "",
        positives=np.array([[client in positives for client in range(clients)]]),
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client:02}", client=str(client))
    return folder


def _state(model) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def _load(model, state) -> None:
    import torch

    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
