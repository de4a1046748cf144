"""What was audited, in words made from the settings: a page's title, and the facts that stand below it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from fedattack.attacks.registry import threat_of
from fedattack.audit.numbers import count_words
from fedattack.audit.opened import Run
from fedattack.base.errors import short
from fedattack.data import DATASETS
from fedattack.record import Record

_FRAMEWORKS = {"fedavg": "FedAvg", "fedsgd": "FedSGD", "fedmd": "FedMD"}
_SUMS = {"secagg+": "only sums, by SecAgg+", "projection": "only sums, computed from the replies"}
UNKNOWN = "not known: the record does not say"
# Key of a study that a witness watched: the mods of clients.
_MODS = "mods"
_MOST_LETTERS = 200
# Begins the name of an optimizer that trains by DP-SGD.
_PRIVATE = "private "


def title_of(attacks: Sequence[str], setting: Mapping[str, Any], name: str = "", *, server: str = "passive") -> str:
    """Return the title of an audit: what its attacks ask, if it is one question, of how many clients, on which data.

    Where no dataset is known, `name` is said, such as the run's folder; a server that is not passive is named.
    """
    question = "What does the server learn?"
    threats = {*map(threat_of, attacks)}
    if len(threats) == 1 and (threat := threats.pop()):
        question = threat.question
    facts = []
    if setting.get("clients"):
        facts.append(count_words(setting["clients"], "client"))
    data = _file_or_name(str(setting.get("dataset", name)))
    if data:
        facts.append(data)
    if server != "passive":
        facts.append("active server")
    return f"{question} {', '.join(facts)}".strip()


def audited_of(study: Mapping[str, Any], runs: Sequence[Run], setting: Mapping[str, Any]) -> dict[str, str]:
    """Say what was audited, in words: by what a reader looks for, the fact."""
    return {
        "date": _day(str(runs[-1].record.manifest["ended"] or runs[-1].record.manifest["started"])),
        "data": _data(study, runs[0], setting),
        **_asked_about(setting),
        "clients": _clients(setting),
        "training": _training(runs[0].record, setting),
        "runs": _runs(runs),
        "the server sees": _view(runs[0].record),
        "defence": _defence(study, setting),
    }


def _file_or_name(dataset: str) -> str:
    """Return a dataset's name; of a file its own name, without the folder."""
    # The name may be a path of another machine, with either kind of slash.
    return dataset.replace("\\", "/").rsplit("/", 1)[-1]


def _day(time: str) -> str:
    try:
        day = datetime.fromisoformat(time)
    except ValueError:
        return UNKNOWN
    return f"{day.day} {day:%B %Y}"


def _data(study: Mapping[str, Any], run: Run, setting: Mapping[str, Any]) -> str:
    if "dataset" not in setting:
        return _count_examples(study, run)
    name = str(setting["dataset"])
    text = _file_or_name(name)
    if name in DATASETS:
        text += f": {DATASETS[name].description}"
    if size := _number(setting.get("size")):
        text += f"; {size:,.0f} examples of it"
    return text


def _count_examples(study: Mapping[str, Any], run: Run) -> str:
    """Count what clients trained on, where the truth says so and no dataset is named."""
    if run.truth is None or not run.truth.counts.sum():
        return UNKNOWN
    # Owners may state examples, so that a witness need not have seen them.
    source = "as the audit found" if _MODS in study else "by the truth"
    examples = count_words(int(run.truth.counts.sum()), "training example")
    return f"{examples} at {count_words(len(run.truth.clients), 'client')}, {source}"


def _asked_about(setting: Mapping[str, Any]) -> dict[str, str]:
    for key, title in (("property", "property"), ("private", "attribute"), ("sensitive", "column")):
        # The column that a dataset declares has a name of its own, which the findings say.
        if setting.get(key, "declared") != "declared" and setting[key]:
            return {"asked about": f"{title} {short(str(setting[key]), 60)}"}
    return {}


def _number(value: Any) -> float:
    """Return a number of a record's facts or of a study, or 0 for what is none; both may be of any making."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value


def _clients(setting: Mapping[str, Any]) -> str:
    share, count = _number(setting.get("fraction", 1.0)), _number(setting.get("clients"))
    if not count:
        return UNKNOWN
    if 0 < share < 1:
        # A fraction of 1 needs no words, and 0 stands for what nobody stated.
        return f"{count:,.0f}, {100 * share:.3g}% of them a round"
    return f"{count:,.0f}"


def _training(record: Record, setting: Mapping[str, Any]) -> str:
    rounds = len(record)
    if is_empty(record):
        return "not known: no round was recorded"
    if not rounds:
        return "none: the server sent no training message"
    text = f"{_FRAMEWORKS.get(record.protocol, record.protocol)}, {count_words(rounds, 'round')}"
    if _number(setting["rounds"]) > rounds:
        text += f" of {setting['rounds']} asked for,"
    epochs = _number(setting.get("local-epochs"))
    if epochs and record.protocol == "fedavg":
        text += f" of {count_words(round(epochs), 'local epoch')}"
    if "model" in setting:
        text += f", model {short(str(setting['model']), 60)}"
    return text


def _runs(runs: Sequence[Run]) -> str:
    seeds = list(map(str, map(attrgetter("seed"), runs)))
    if len(seeds) == 1:
        return f"1 (seed {seeds[0]})"
    return f"{len(seeds)} (seeds {', '.join(seeds)})"


def is_empty(record: Record) -> bool:
    """Whether a record holds nothing at all, as of a run that failed before its first round ended."""
    return not len(record) and next(record.others, None) is None


def _view(record: Record) -> str:
    if is_empty(record):
        return "not known: no round was recorded"
    if record.view == "aggregate":
        # Absent where somebody else's record says nothing of how the sums were made.
        by = (record.manifest["aggregation"] or {}).get("by")
        return _SUMS.get(str(by), "sums alone")
    return "each client's reply"


def _defence(study: Mapping[str, Any], setting: Mapping[str, Any]) -> str:
    # Without settings nobody said that there was no defence.
    if "settings" not in study:
        return _say_seen(study)
    defences = []
    name = setting.get("defence", "none")
    if name != "none":
        defences.append(f"{short(str(name), 60)}, strength {_number(setting.get('defence-strength')):g}")
    # A stated budget decides the noise: only one of the two is said.
    epsilon, noise = _number(setting.get("dp-epsilon")), _number(setting.get("dp-noise"))
    if epsilon:
        defences.append(f"DP-SGD up to ε = {epsilon:g}")
    elif noise:
        defences.append(f"DP-SGD, noise multiplier {noise:g}")
    return "; ".join(defences) or "none"


def _say_seen(study: Mapping[str, Any]) -> str:
    """Say which defence the witness saw at the clients; what a server does is not seen."""
    if _MODS not in study:
        return UNKNOWN
    seen = [f"the mod {mod}" for mod in study[_MODS]]
    seen += [f"training by {name}" for name in study.get("optimizers", ()) if name.startswith(_PRIVATE)]
    if not seen and study.get("optimizers"):
        return "no mod and no private optimizer was seen at the clients"
    if not seen:
        return "no mod was seen at the clients"
    return short(f"seen at the clients: {', '.join(seen)}", _MOST_LETTERS)


def training_of(study: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Say how clients train and which model, where no settings say so; empty if nothing is known.

    Returns
    -------
    dict
        ``by``: who says so; ``facts``: the values by their names; ``config``: the numbers of an app's run config.
    """
    if "settings" in study:
        return {}
    knowledge = run.knowledge
    facts: dict[str, Any] = {}
    if knowledge.model is not None:
        facts["model"] = short(str(knowledge.model.spec), _MOST_LETTERS)
    training = knowledge.training
    if training is not None:
        facts |= {
            "optimizer": training.optimizer,
            "learning rate": training.lr,
            "epochs a round": training.epochs,
            "batch size": training.batch_size or "all examples",
            "momentum": training.momentum,
            "weight decay": training.weight_decay,
        }
    elif study.get("optimizers"):
        facts["optimizer"] = [short(name, _MOST_LETTERS) for name in study["optimizers"]]
    told: dict[str, Any] = {}
    if facts:
        told = {"by": "as the witness saw" if _MODS in study else "as the attacker knows", "facts": facts}
    if study.get("config"):
        told["config"] = dict(study["config"])
    return told
