"""Attribute inference beside fedkit-learn, the code of Diana et al. 2024 and Driouich et al. 2022.

Its ``AttributeInferenceAttack`` matches gradients: hard values drawn by Gumbel-Softmax, a cosine for each round, plain
gradient descent. Its ``ModelDrivenAttributeInferenceAttack`` fills in the value with the smallest loss under a model.
Both see the same rounds, models and examples as ours. Neither takes a prior.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks import ATTACKS, Knowledge
from fedattack.attacks.knowledge import ModelKnowledge, PartialRecords
from fedattack.attacks.replies import replies_of
from fedattack.audit.truth import Truth
from fedattack.learning.importing import trust_given
from fedattack.record import Record
from fedattack.threats.attribute.aia import METHODS
from fedattack.threats.attribute.ara import attribute_codes, read_updates
from fedattack.threats.attribute.gradient_matching import Matching, Victim
from tests.benchmarks.peers.getting import FEDKIT, PeerMissingError, load_module, quiet
from tests.benchmarks.peers.rows import Method, Row, missing_row
from tests.benchmarks.peers.runs import recorded
from tests.threats.attribute.matched import match_gradients

SETTINGS = {"least squares, diabetes": "aia-model", "network, breast cancer": "ara-cos"}
"""Presets by name."""

STEPS = 200
RATES = (10.0, 100.0, 1_000.0, 10_000.0)
"""Learning rates of fedkit-learn: its scripts try 1 to a million. The one that turns out to be right most counts."""

CRITERIA = {"mse": nn.MSELoss, "cross-entropy": nn.CrossEntropyLoss}


@dataclass(frozen=True)
class Client:
    """One client: what ours attacks, and the same as fedkit-learn takes it.

    Attributes
    ----------
    victim
        Examples without the attribute, and the gradients of the first five rounds.
    sent
        The models that it sent in those rounds.
    last
        The last model that it sent.
    x
        (n, d): the examples with the attribute, by which fedkit-learn counts what is right.
    rows
        (n,): where its examples stand among all partial records.
    """

    victim: Victim
    sent: list[dict[str, NDArray[Any]]]
    last: dict[str, NDArray[Any]]
    x: NDArray[np.float32]
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One seed's record.

    Attributes
    ----------
    partial
        The examples of all clients without the attribute.
    values
        (n,): its true values.
    clients
        All clients, read from the disk.
    """

    record: Record
    knowledge: Knowledge
    model: ModelKnowledge
    partial: PartialRecords
    values: NDArray[np.int64]
    clients: tuple[Client, ...]

    @classmethod
    def of(cls, record: Record, knowledge: Knowledge, truth: Truth) -> "Case":
        """Take what the presets always have."""
        if knowledge.model is None or knowledge.partial is None or truth.attributes is None:
            raise AssertionError("the presets have it")
        partial, values = knowledge.partial, truth.attributes.values
        codes = attribute_codes(partial)
        clients = []
        for name in dict.fromkeys(partial.clients.tolist()):
            rows = np.flatnonzero(partial.clients == name)
            seen = read_updates(record, knowledge, knowledge.model.build(), name, "pre5", len(rows), [])
            if seen is None:
                raise AssertionError("every client of the presets takes part")
            x = partial.x[rows]
            victim = Victim(x, partial.y[rows], codes, seen.received, seen.gradients, partial.prior)
            replies = dict(replies_of(record, knowledge, name))
            sent = [dict(replies[number].arrays or {}) for number in seen.rounds]
            clients.append(Client(victim, sent, seen.last_sent, x + codes[values[rows]], rows))
        return cls(record, knowledge, knowledge.model, partial, values, tuple(clients))

    @property
    def loss(self) -> str:
        """The clients' loss."""
        return trust_given(self.model.loss)

    def right(self, decisions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return 1 (n,) where the values are as decided."""
        return np.asarray(decisions == self.values, dtype=float)


def matched(case: Case, how: Matching, prior: bool = True) -> NDArray[np.float64]:
    """Match gradients by ours, and return what is right (n,)."""
    victims = []
    for client in case.clients:
        victims.append(client.victim if prior else replace(client.victim, prior=None))
    decisions = np.zeros(len(case.values), dtype=np.int64)
    for client, match in zip(case.clients, match_gradients(case.model.build(), case.loss, victims, how), strict=True):
        decisions[client.rows] = match.decisions
    return case.right(decisions)


def by_models(case: Case) -> dict[str, NDArray[np.float64]]:
    """Decode all models by ours, and return what is right (n,) by method."""
    decisions = ATTACKS["aia"].run(case.record, case.knowledge, device="cpu").arrays["decisions"]
    return {name: case.right(row) for name, row in zip(METHODS, decisions, strict=True)}


class OneOrMany(nn.Module):
    """A model that takes single examples, too, as fedkit-learn hands them over."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of examples (n, d) or of one (d,)."""
        outputs: Tensor = self.model(x) if x.ndim > 1 else self.model(x[None])[0]
        return outputs


def fedkit_examples(case: Case, client: Client) -> list[tuple[Tensor, Tensor]]:
    """Return a client's examples as a data set of PyTorch's, labels shaped as the criterion needs them."""
    y = torch.from_numpy(np.asarray(client.victim.y))
    if case.loss == "mse":
        y = y.float().reshape(len(y), 1)
    return [*zip(torch.from_numpy(client.x), y, strict=True)]


def fedkit_common(case: Case, client: Client) -> dict[str, Any]:
    """Return the arguments that all of fedkit-learn's attacks take."""
    return {
        "dataset": fedkit_examples(case, client),
        "sensitive_attribute_id": case.partial.columns[0],
        "sensitive_attribute_type": "binary",
        "initialization": "normal",
        "device": "cpu",
        "criterion": CRITERIA[case.loss](),
        "cast_float": False,
        "optimizer_name": "sgd",
        "success_metric": lambda predicted, true: ((predicted - true).abs() < 1e-4).float().mean(),
        "torch_rng": torch.Generator().manual_seed(0),
    }


def fedkit_matched(code: Any, case: Case, rate: float) -> NDArray[np.float64]:
    """Match gradients by fedkit-learn, and return what is right (n,)."""
    right = np.zeros(len(case.values))
    for client in case.clients:
        with tempfile.TemporaryDirectory() as folder:
            attack = code.AttributeInferenceAttack(
                messages_metadata={
                    "global": _written(Path(folder) / "global", client.victim.states),
                    "local": _written(Path(folder) / "local", client.sent),
                },
                model_init_fn=case.model.build,
                learning_rate=rate,
                logger=SimpleNamespace(add_scalar=lambda *_: None),
                log_freq=STEPS,
                **fedkit_common(case, client),
            )
        with quiet():
            attack.execute_attack(STEPS)
        attack.evaluate_attack()
        right[client.rows] = _as_true(attack.sensitive_attribute, case, client)
    return right


def fedkit_by_model(code: Any, case: Case) -> NDArray[np.float64]:
    """Fill in by fedkit-learn what fits the last model that a client sent, and return what is right (n,)."""
    right = np.zeros(len(case.values))
    for client in case.clients:
        model = case.model.build()
        model.load_state_dict(_tensors(client.last))
        common = fedkit_common(case, client)
        attack = code.ModelDrivenAttributeInferenceAttack(model=OneOrMany(model), learning_rate=1.0, **common)
        attack.execute_attack(1)
        right[client.rows] = _as_true(attack.predicted_features[:, case.partial.columns[0]], case, client)
    return right


def _as_true(predicted: Tensor, case: Case, client: Client) -> NDArray[np.float64]:
    apart = np.abs(predicted.detach().numpy() - client.x[:, case.partial.columns[0]])
    return (apart < 1e-4).astype(float)


def _written(folder: Path, states: Sequence[Any]) -> dict[str, str]:
    """Write models as fedkit-learn's checkpoints, and return their paths by round."""
    folder.mkdir()
    paths = {}
    for number, state in enumerate(states):
        paths[str(number)] = str(folder / f"{number}.pt")
        torch.save({"model_state_dict": _tensors(state)}, paths[str(number)])
    return paths


def _tensors(state: Any) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in state.items()}


def rows(peers: Path | None, seeds: Sequence[int]) -> Iterator[Row]:
    """Attack the same records by both, in turns."""
    code, missing = None, ""
    try:
        code = load_module(FEDKIT.find(peers), "fedklearn.attacks.aia")
    except PeerMissingError as reason:
        missing = str(reason)
    logging.getLogger().setLevel(logging.WARNING)
    for name, preset in SETTINGS.items():
        yield from _setting(code, missing, f"attribute inference, {name}", preset, seeds)


def _setting(code: Any, missing: str, setting: str, preset: str, seeds: Sequence[int]) -> Iterator[Row]:
    budget = f"{STEPS} steps, 5 rounds"
    blind = Method("ours, cosine, without a prior", budget)
    cosine = Method("ours, cosine", budget)
    lbfgs = Method("ours, L2 with L-BFGS", f"at most {STEPS} steps, 4 starts, 5 rounds")
    models = {
        "last-returned": Method("ours, last returned model", "one model"),
        "reconstructed": Method("ours, local model reconstructed", "all rounds"),
        "moments": Method("ours, moments", "all rounds"),
    }
    tried = {rate: Method(f"fedkit-learn, gradients matched, rate {rate:g}", budget) for rate in RATES}
    filled = Method("fedkit-learn, last returned model", "one model")
    for seed in seeds:
        with recorded(preset, (), seed) as run:
            case = Case.of(*run)
            blind.right.append(blind.run(matched, case, Matching("cos", STEPS), False))
            if code is not None:
                for rate, theirs in tried.items():
                    theirs.right.append(theirs.run(fedkit_matched, code, case, rate))
                filled.right.append(filled.run(fedkit_by_model, code, case))
            cosine.right.append(cosine.run(matched, case, Matching("cos", STEPS)))
            lbfgs.right.append(lbfgs.run(matched, case, Matching("l2", STEPS, restarts=4)))
            # One attack finds all three; its time is that of the whole.
            whole = models["moments"].run(by_models, case)
            for method, ours in models.items():
                ours.right.append(whole[method])
    best = max(tried.values(), key=lambda method: np.mean([seed.mean() for seed in method.right or [np.zeros(1)]]))
    for ours in (blind, cosine, lbfgs):
        yield ours.row(setting, best)
    for ours in models.values():
        # Only a least-squares problem has moments to decode.
        if any(seed.any() for seed in ours.right):
            yield ours.row(setting, filled)
    for theirs in (best, filled):
        yield missing_row(setting, theirs.name, missing) if missing else theirs.row(setting)
