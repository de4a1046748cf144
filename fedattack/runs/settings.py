"""The settings of the reference system: one model of its run config, which the app and the command line read."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from fedattack.base.errors import ConfigError, short
from fedattack.base.registry import installed_in
from fedattack.base.settings import SettingField, SettingsModel, Value, Words, setting
from fedattack.data.partition import SCHEMES
from fedattack.defences import KINDS, SETTINGS
from fedattack.defences.dp_sgd import DpSgdSettings
from fedattack.defences.kinds import DefenceSettings
from fedattack.defences.noise import NoiseSettings
from fedattack.defences.recup import RecupSettings
from fedattack.defences.soteria import SoteriaSettings
from fedattack.learning.stated import MODEL_NAMES

if TYPE_CHECKING:
    from fedattack.learning import LocalSGD

PROPERTIES = ("membership", "inversion", "ascent")
"""What clients may have in common that others lack: a target record among theirs, inverted updates, or ascent of the
loss."""

MODELS = Words((*MODEL_NAMES, ":"))

# A colon at the end of a word means: anything that begins so, such as column:NAME.
PARTITIONS = Words(tuple(f"{name}:" if name == "column" else name for name in SCHEMES))


OTHER_FRAMEWORKS = "fedattack.frameworks"
"""Group of the entry points by which other packages add frameworks; each has the framework's name."""


class StudySettings(SettingsModel):
    """Settings by which a study is told from others."""

    framework: str = setting(
        "fedavg",
        "what clients send: fedavg (the model that they trained), fedsgd (the gradient over all of their "
        "examples; takes batch-size=0), fedmd (predictions on public records), fedxgb (a tree of XGBoost; takes "
        "batch-size=0)",
        # Packages that are installed when the module is imported; the words are part of the help.
        words=Words(("fedavg", "fedsgd", "fedmd", "fedxgb", *installed_in(OTHER_FRAMEWORKS))),
    )
    dataset: str = setting(
        "digits",
        "a name that `fedattack list data` shows, an .npz file with x and y, or a .toml file that declares a table",
    )
    size: int = setting(0, "use this many examples of the dataset; 0 for all", ge=0)
    data_root: str = setting("", "folder of downloaded datasets; empty for the cache")
    scheme: str = setting(
        "dirichlet",
        "how examples are divided: iid, dirichlet, dirichlet-balanced (clients of similar sizes), linear, square, "
        "exponential, or column:NAME, by the values of a column, or of several (column:NAME,NAME)",
        key="partition",
        words=PARTITIONS,
    )
    alpha: float = setting(1.0, "Dirichlet concentration: small values give each client few classes", gt=0)
    clients: int = setting(10, "number of clients", ge=2, le=100000)
    records_per_client: int = setting(
        0,
        "examples that each client gets, drawn at random; 0 for all examples, divided as partition says; records "
        "for short",
        ge=0,
        alias="records",
    )
    canary_examples: int = setting(
        0,
        "examples of noise, each of which a coin adds to a client's or not, to measure the run's ε; at least 2, or 0 "
        "for none",
        ge=0,
        le=100000,
    )
    model: str = setting(
        "",
        "lenet-mnist, lenet-cifar, sia-cnn, sia-mlp, mlp, linear, student-mlp, decoder, fedmd-cnn-1 to -3, fedmd-mlp-1 "
        "to -3, or module:function; empty for the one that suits the data",
        words=MODELS,
    )
    models: str = setting(
        "",
        "fedmd: the clients' models, separated by commas and dealt in turn; empty for a mix that suits the data",
        words=Words(MODELS.values, several=True),
    )
    student: str = setting("", "fedmd: the model of the attacker's students; empty for student-mlp", words=MODELS)
    public: str = setting(
        "", "fedmd: dataset of the public records, as for dataset; empty to set examples of the run's own aside"
    )
    public_records: int = setting(
        1000,
        "fedmd: how many public records there are, at most a quarter of the training examples where they are set aside",
        ge=1,
    )
    hidden: int = setting(128, "width of the models mlp and decoder", ge=1, le=1000000)
    dropout: float = setting(
        0.0, "dropout after the hidden fully connected layers, for models that have none of their own", ge=0, lt=1
    )
    targets: int = setting(
        100,
        "source and membership inference: target records per client, fewer where a client holds fewer; "
        "property=membership: target records that positive clients hold, and as many more that nobody holds",
        ge=1,
    )
    nulls: int = setting(
        0,
        "membership inference: target records that nobody holds, test examples and training examples that are "
        "left; 0 for source inference, with as many as clients hold",
        ge=0,
    )
    client_property: str = setting(
        "",
        "what a share of the clients has: membership (holds a target record), inversion (sends w − Δ), ascent "
        "(climbs the loss); empty for honest clients. Then the record is in the aggregate view",
        key="property",
        words=Words(PROPERTIES),
    )
    positive_share: float = setting(
        0.1, "share of the clients that have the property; 0 for a null run", ge=0, le=1, key="positives"
    )
    auxiliary: int = setting(
        0,
        "examples that the attacker has, with a property, a sensitive column, private attributes or nulls; 0 for "
        "all that no client and no target uses, with nulls for none",
        ge=0,
    )
    sensitive: str = setting(
        "",
        "attribute inference: the column that the server should not know, by its name or its number from 1, or "
        "declared for the one that the data's source declares; empty for none",
    )
    private: str = setting(
        "",
        "private attributes of the data, separated by commas, such as colour: what a client's examples have in "
        "common and the server should not know; set partition=column: and the same names",
    )
    victims: int = setting(
        0,
        "with sensitive, server=isolating or server=inconsistent: how many clients, counted from the first, are "
        "asked about, isolated or taken out of sums; 0 for all",
        ge=0,
    )
    server: str = setting(
        "passive",
        "passive follows the protocol. Active ones: isolating sends each victim its own model back instead of the "
        "average; inconsistent, with secagg, sends all but one victim a model that does not learn, so that the sum is "
        "the victim's alone, in so many more exchanges a round; imprint sends weights of a first layer from which "
        "examples can be read off; fishing sends weights of the last layer with which only examples of one class "
        "move the layers before it; canary sends weights of a first layer with which only one target moves each neuron",
        words=Words(("passive", "isolating", "inconsistent", "imprint", "fishing", "canary")),
    )
    departures: int = setting(
        0,
        "with server=imprint, fishing or canary: in how many rounds, counted from the first, the server departs; 0 "
        "for all. "
        "Such a round trains nothing",
        ge=0,
    )
    permute_sensitive: bool = setting(
        False,
        "a null run of attribute inference: clients train on examples whose sensitive column is shuffled",
    )
    seed: int = setting(0, "seed of everything random in a run", ge=0, internal=True)
    dealt: str = setting(
        "",
        "file of what clients train on, written before the run; empty to load and divide the data in every process",
        internal=True,
    )

    @property
    def study(self) -> dict[str, Value]:
        """These settings alone, by the names of the fields."""
        return {name: getattr(self, name) for name in StudySettings.model_fields}

    @property
    def has_auxiliary(self) -> bool:
        """Whether the attacker is given examples that no client holds."""
        return bool(self.client_property or self.sensitive or self.private or (self.nulls and self.auxiliary))

    @property
    def has_targets(self) -> bool:
        """Whether some clients hold target records, and nobody holds as many others."""
        return self.client_property == "membership"

    @property
    def positive_count(self) -> int:
        """How many clients have the property."""
        return round(self.positive_share * self.clients)

    @property
    def victim_count(self) -> int:
        """How many clients, from the first, are asked about, isolated, or taken out of sums."""
        return self.victims or self.clients

    @property
    def is_active(self) -> bool:
        """Whether the server departs from the protocol."""
        return self.server != "passive"


class RunSettings(DpSgdSettings, RecupSettings, SoteriaSettings, NoiseSettings, DefenceSettings, StudySettings):
    """All settings of a run; an empty folder is not written."""

    rounds: int = setting(20, "rounds of training", ge=1, le=1000000)
    fraction: float = setting(1.0, "share of the clients that is sampled in each round", le=1, gt=0)
    round_timeout: float = setting(
        3600.0,
        "seconds after which the server goes on without the clients that have not answered; with SecAgg+, in each "
        "of its stages",
        gt=0,
    )
    local_epochs: int = setting(1, "passes over its examples that a client makes in a round", ge=1)
    digest_epochs: int = setting(
        1,
        "fedmd: passes over the public records by which a client takes up the consensus, before those over its own",
        ge=0,
    )
    batch_size: int = setting(64, "examples per local step; 0 for all of a client's examples", ge=0)
    lr: float = setting(
        0.01,
        "learning rate of the clients' SGD; with framework=fedsgd that of the server's step, with fedxgb XGBoost's eta",
        gt=0,
    )
    tree_depth: int = setting(6, "fedxgb: levels of a tree, at most", ge=1, le=20)
    momentum: float = setting(0.0, "momentum of the clients' SGD", ge=0, le=1)
    weight_decay: float = setting(0.0, "L2 regularisation of the clients' SGD", ge=0)
    statistics: bool = setting(
        False,
        "fedavg: clients send, with their model, how many examples of each class they have, and the mean of each "
        "input over these; not under DP-SGD",
    )
    statistics_least: int = setting(1, "statistics: classes of fewer examples are sent as empty", ge=1)
    statistics_noise: float = setting(
        0.0, "statistics: standard deviation of the Gaussian noise on each count and mean; 0 for none", ge=0
    )
    central_noise: float = setting(
        0.0,
        "central differential privacy: the server clips each update, and adds noise to their mean, by Flower's "
        "own wrapper; this is the noise multiplier, for clients that weigh the same; 0 for none",
        ge=0,
    )
    central_clip: float = setting(
        1.0, "central-noise: norm C to which updates are clipped; the length of what canaries send", gt=0
    )
    canaries: int = setting(
        0,
        "additional clients, each of which sends a random direction, to measure the run's ε; at least 2, or 0 for none",
        ge=0,
        le=1000,
    )
    recup_zoo_models: int = setting(20, "recup: models in a zoo that is trained before the run", ge=1)
    recup_zoo_width: int = setting(512, "recup: largest width of their hidden layers; the paper's is 2048", ge=1)
    recup_zoo_epochs: int = setting(20, "recup: epochs of their training", ge=1)
    device: str = setting(
        "auto",
        "auto (CUDA when there is one and the model is large), cpu or cuda",
        words=Words(("auto", "cpu", "cuda", "cuda:")),
    )
    check_model: str = setting(
        "none",
        "whether clients compare the model that they are sent with what an honest server could have sent: none, warn, "
        "or refuse to train",
        words=Words(("none", "warn", "refuse")),
    )
    secagg: bool = setting(
        False, "run Flower's SecAgg+ (true), or plain averages (false), recorded as sums where there is a property"
    )
    zoo: str = setting("", "folder of the model zoos that are trained before the run", internal=True)
    record: str = setting("", "folder of the record", internal=True)
    record_id: str = setting("", "id of the record, which knowledge and truth name", internal=True)
    truth: str = setting("", "folder of the truth", internal=True)
    knowledge: str = setting("", "folder of what the attacker is assumed to know", internal=True)
    resume: str = setting("", "file that says what the run continues from; empty for a new run", internal=True)
    runs: str = setting(
        "",
        "file with what differs between several runs that follow each other in one Flower run; empty for one",
        internal=True,
    )

    @property
    def nodes(self) -> int:
        """How many nodes there are: clients, and canaries after them."""
        return self.clients + self.canaries

    @property
    def training(self) -> "LocalSGD":
        """How clients train."""
        from fedattack.learning import LocalSGD

        return LocalSGD(self.local_epochs, self.batch_size, self.lr, self.momentum, self.weight_decay)

    @property
    def defence_settings(self) -> dict[str, Value]:
        """Settings of the clients' defence, by key; without zoos of its own it uses those of the preparation."""
        # An explicit zoo wins over the one that is trained before the run.
        return self.by_key(SETTINGS) | {"recup-zoo": self.recup_zoo or self.zoo}

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises
        ------
        ConfigError
            If what is asked about contradicts itself, or leaves no examples to the attacker.
        """
        # Pairs of a condition and its message, in the order in which people are told.
        for wrong, message in (
            (self.sensitive and self.client_property, "sensitive and property: expected one of the two"),
            (
                self.private and (self.sensitive or self.client_property),
                "private together with property or sensitive: expected one of them",
            ),
            (
                self.private and self.server not in ("passive", "inconsistent"),
                f"private together with server = {self.server!r}: expected 'passive' or 'inconsistent'",
            ),
            (self.permute_sensitive and not self.sensitive, "permute-sensitive without sensitive: name a column"),
            (
                self.victims > self.clients,
                f"victims = {self.victims}: expected at most the {self.clients} clients that there are",
            ),
        ):
            if wrong:
                raise ConfigError(message)
        if self.statistics and self.framework != "fedavg":
            raise ConfigError(f"statistics with framework = {self.framework!r}: expected fedavg")
        self._check_server()
        self._check_canaries()
        if self.client_property:
            self._check_property()
        self._check_auxiliary()

    def _check_server(self) -> None:
        named = f"server = {self.server!r}"
        has_victims = self.server in ("isolating", "inconsistent")
        if self.is_active and self.client_property:
            raise ConfigError(f"{named} and property: the property is looked for in sums of a passive server")
        if self.server == "inconsistent" and not self.secagg:
            raise ConfigError(f"{named} takes updates out of sums, and without secagg there are none: set secagg=true")
        if has_victims and self.framework != "fedavg":
            raise ConfigError(f"{named}: expected framework = 'fedavg', whose clients send models")
        if self.departures and (has_victims or not self.is_active):
            raise ConfigError(
                f"departures = {self.departures} with {named}: set server=imprint, fishing or canary, or departures = 0"
            )
        if self.server == "fishing" and self.secagg:
            raise ConfigError(f"{named} brings out single examples of single clients: set secagg=false")
        if self.victims and not (self.sensitive or has_victims):
            raise ConfigError(
                f"victims = {self.victims} without sensitive, server=isolating or server=inconsistent: set one of "
                "these, or victims = 0"
            )

    def _check_canaries(self) -> None:
        # ε is measured by telling two groups apart: one canary has no counterpart.
        for key, count in self.by_key(("canaries", "canary-examples")).items():
            if count == 1:
                raise ConfigError(f"{key} = 1: expected 2 or more, or 0 for none")
        if self.canaries and self.canary_examples:
            raise ConfigError("canaries and canary-examples: expected one of them, since each disturbs the other")
        if self.central_noise and self.secagg:
            raise ConfigError("central-noise and secagg: the server clips replies, which SecAgg+ hides; set one off")
        # Canaries and noise change what the server sees; attacks on these questions would be judged by another run.
        asks = any((self.client_property, self.sensitive, self.private, self.is_active))
        if asks and (self.canaries or self.central_noise):
            raise ConfigError(
                "canaries or central-noise together with property, sensitive, private or an active server: expected "
                "the usual server and no other question; set one off"
            )

    def _check_property(self) -> None:
        is_null = self.positive_share == 0
        if self.positive_count == self.clients or not (self.positive_count or is_null):
            raise ConfigError(
                f"positives = {self.positive_share} of {self.clients} clients is {self.positive_count}: expected some "
                "clients with the property and some without, or positives = 0 for a null run"
            )

    def _check_auxiliary(self) -> None:
        if self.records_per_client or self.auxiliary:
            return
        for key, value in self.by_key(("sensitive", "private", "property")).items():
            if value:
                raise ConfigError(
                    f"{key} = {value!r} leaves no examples to the attacker, because clients get all; set "
                    "records-per-client or auxiliary"
                )


@cache
def settings_model() -> type[RunSettings]:
    """Return the model of all settings, those of defences among them that :class:`RunSettings` does not know."""
    further = [kind.settings for kind in KINDS.values() if not issubclass(RunSettings, kind.settings)]
    if not further:
        return RunSettings
    # A class cannot inherit from the same base twice: a dict keeps each once, in order.
    bases: Any = (RunSettings, *dict.fromkeys(further))
    model: type[RunSettings] = create_model("RunSettings", __base__=bases)
    return model


def read_settings(run_config: Mapping[str, Value]) -> RunSettings:
    """Read a run config.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value of another type or out of range.
    """
    return settings_model().of(run_config)


def load_settings() -> dict[str, SettingField]:
    """Return what each setting may be."""
    return settings_model().list_settings()


def open_settings() -> dict[str, SettingField]:
    """Read those that a user may choose."""
    return {name: setting for name, setting in load_settings().items() if not setting.internal}


def default_settings() -> dict[str, Value]:
    """Return what these are where nobody chooses."""
    return {name: setting.default for name, setting in open_settings().items()}


IMPORTS = ("model", "models", "student")
"""Settings that may be import paths; ``models`` is a list, separated by commas."""

FOLDERS = ("data-root", "recup-zoo")
"""Settings that are folders."""

PATHS = ("dataset", "public", *FOLDERS)
"""Settings that may be paths."""


def nodes_of(settings: Mapping[str, Value]) -> int:
    """Return how many nodes a run has: its clients, and canaries beside them."""
    return int(settings["clients"]) + int(settings["canaries"])


def lines_of(settings: Mapping[str, Value]) -> int:
    """Return how many lines the record of a run has, at most: its rounds, or their exchanges."""
    sampled = max(1, round(float(settings["fraction"]) * int(settings["clients"])))
    victims = int(settings["victims"]) or int(settings["clients"])
    rounds = int(settings["rounds"])
    if settings["server"] != "inconsistent":
        return rounds
    return rounds * min(sampled, victims + 1)


def leads_out(settings: Mapping[str, Value]) -> dict[str, str]:
    """List what settings name beyond themselves: code to import, files to read; by what is named, the setting."""
    named: dict[str, str] = {}
    for key in IMPORTS:
        words = str(settings.get(key, "")).split(",")
        # Only what has a colon is imported; other words are names of models of this package.
        named |= {word.strip(): key for word in words if ":" in word}
    for key in PATHS:
        text = str(settings.get(key, ""))
        # By the ending or a slash, as the loader tells files from names.
        is_name = key not in FOLDERS and "/" not in text and not text.endswith((".npz", ".toml"))
        if text and not is_name:
            named[text] = key
    return named


def check_settings(values: Mapping[str, Value], where: str) -> dict[str, Value]:
    """Check settings that were read from a file, which has all of them.

    Raises
    ------
    ConfigError
        If a setting is unknown, internal or not there, or its value is of another type or out of range.
    """
    known = open_settings()
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {short(key, 60)!r}; the file was changed")
    for key in known:
        if key not in values:
            raise ConfigError(f"{where}: the setting {key!r} is not there; the file was changed")
    try:
        return {name: setting.check(values[name]) for name, setting in known.items()}
    except ConfigError as cause:
        raise ConfigError(f"{where}: {cause}") from None
