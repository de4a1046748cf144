"""The run config as typed settings: nothing else in the app reads its keys."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self, get_type_hints

from fedattack.base.errors import ConfigError
from fedattack.claims.canaries.file import MOST_CLIENTS
from fedattack.defences import SETTINGS
from fedattack.learning import LocalSGD

Value = str | int | float | bool

PROPERTIES = ("membership", "inversion", "ascent")
"""What clients may have in common that others lack: a target record among theirs, inverted updates, or ascent of the
loss."""

# Fields that are not named as their keys are.
_KEYS = {"scheme": "partition", "client_property": "property", "positive_share": "positives"}
_FIELDS = {key: name for name, key in _KEYS.items()}


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Settings by which a study is told from others; ``simulations/settings.toml`` says what each means."""

    framework: str
    dataset: str
    size: int
    data_root: str
    scheme: str
    alpha: float
    clients: int
    records_per_client: int
    model: str
    models: str
    student: str
    hidden: int
    dropout: float
    public: str
    public_records: int
    targets: int
    nulls: int
    client_property: str
    positive_share: float
    auxiliary: int
    sensitive: str
    private: str
    victims: int
    isolate: bool
    permute_sensitive: bool
    canary_examples: int
    seed: int
    dealt: str = ""

    @property
    def study(self) -> dict[str, Value]:
        """These settings alone, by the names of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(StudySettings)}

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
        """How many clients, from the first, are asked about and isolated."""
        return self.victims or self.clients


@dataclass(frozen=True, kw_only=True)
class RunSettings(StudySettings):
    """All settings of a run; an empty folder is not written."""

    rounds: int
    fraction: float
    round_timeout: float
    local_epochs: int
    digest_epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    secagg: bool
    device: str
    dp_noise: float
    dp_epsilon: float
    dp_clip: float
    dp_delta: float
    central_noise: float
    central_clip: float
    canaries: int
    defence: str
    defence_strength: float
    defence_clip: float
    soteria_layer: str
    recup_zoo: str
    recup_attributes: str
    recup_weights: str
    recup_values: str
    recup_variant: str
    recup_iterations: int
    recup_models: int
    recup_zoo_models: int
    recup_zoo_width: int
    recup_zoo_epochs: int
    zoo: str = ""
    record: str = ""
    truth: str = ""
    knowledge: str = ""
    resume: str = ""

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> Self:
        """Read a run config, which may leave out what has a default here."""
        values = {}
        # A field's own type is a text where annotations are not evaluated.
        kinds = get_type_hints(cls)
        for field in fields(cls):
            key = _KEYS.get(field.name, field.name.replace("_", "-"))
            if key in run_config or field.default is MISSING:
                values[field.name] = kinds[field.name](run_config[key])
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return these settings with some changed."""
        return dataclasses.replace(self, **changes)

    def by_key(self, keys: Iterable[str]) -> dict[str, Value]:
        """Return the settings of some keys of the run config, by key."""
        return {key: getattr(self, _FIELDS.get(key, key.replace("-", "_"))) for key in keys}

    @property
    def nodes(self) -> int:
        """How many nodes there are: clients, and canaries after them."""
        return self.clients + self.canaries

    @property
    def training(self) -> LocalSGD:
        """How clients train."""
        return LocalSGD(self.local_epochs, self.batch_size, self.lr, self.momentum, self.weight_decay)

    @property
    def defence_settings(self) -> dict[str, Value]:
        """Settings of the clients' defence, by key; without zoos of its own it uses those of the preparation."""
        return self.by_key(SETTINGS) | {"recup-zoo": self.recup_zoo or self.zoo}

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises
        ------
        ConfigError
            If what is asked about contradicts itself, or leaves no examples to the attacker.
        """
        for wrong, message in (
            (self.sensitive and self.client_property, "sensitive and property: expected one of the two"),
            (
                self.private and (self.sensitive or self.client_property or self.isolate),
                "private beside property, sensitive or isolate: expected one of them",
            ),
            (self.isolate and self.client_property, "isolate and property: the property is looked for in sums alone"),
            (self.permute_sensitive and not self.sensitive, "permute-sensitive without sensitive: name a column"),
            (
                self.victims and not (self.sensitive or self.isolate),
                f"victims = {self.victims} without sensitive or isolate: set one of these, or victims = 0",
            ),
            (
                self.victims > self.clients,
                f"victims = {self.victims}: expected at most the {self.clients} clients that there are",
            ),
        ):
            if wrong:
                raise ConfigError(message)
        self._check_canaries()
        if self.client_property:
            self._check_property()
        self._check_auxiliary()

    def _check_canaries(self) -> None:
        for key, count in self.by_key(("canaries", "canary-examples")).items():
            if count == 1:
                raise ConfigError(f"{key} = 1: expected 2 or more, or 0 for none")
        if self.canaries > MOST_CLIENTS:
            raise ConfigError(f"canaries = {self.canaries}: expected at most {MOST_CLIENTS:,}, which can be measured")
        if self.canaries and self.canary_examples:
            raise ConfigError("canaries and canary-examples: expected one of them, since each disturbs the other")
        if self.central_noise and self.secagg:
            raise ConfigError("central-noise and secagg: the server clips replies, which SecAgg+ hides; set one off")
        goals = self.client_property or self.sensitive or self.private or self.isolate
        if goals and (self.canaries or self.central_noise):
            raise ConfigError(
                "canaries or central-noise beside property, sensitive, private or isolate: expected the usual server "
                "and no other question; set one off"
            )

    def _check_property(self) -> None:
        if self.client_property not in PROPERTIES:
            known = ", ".join(PROPERTIES)
            raise ConfigError(f"property = {self.client_property!r}: expected one of {known}, or none")
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
