"""Models of transformers are made of plain text, of which nothing is imported or fetched."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from fedattack.base.errors import ModelError
from fedattack.learning.pretrained import from_description

TINY = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}


def text(**more) -> str:
    return json.dumps(TINY | more)


def test_without_the_package_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match="one of the package transformers; install it here"):
        from_description("BertModel", text())


@pytest.mark.parametrize("name", ["AutoModel", "BertConfig", "pipeline", "os", "NoSuchModel"])
def test_only_models_are_made(name):
    pytest.importorskip("transformers", reason="it makes these models")
    with pytest.raises(ModelError, match="transformers has no model"):
        from_description(name, text())


@pytest.mark.parametrize("config", ["[1]", "{", '"text"', "[" * 100_000])
def test_what_is_no_configuration_is_refused(config):
    pytest.importorskip("transformers", reason="it makes these models")
    with pytest.raises(ModelError, match=r"a configuration is not (valid JSON|a JSON object)"):
        from_description("BertModel", config)


def test_what_names_code_or_places_is_left_out():
    pytest.importorskip("transformers", reason="it makes these models")
    config = text(
        _name_or_path="/nowhere",
        auto_map={"AutoModel": "stranger/repo--modeling.Model"},
        attn_implementation="stranger/kernel",
        quantization_config={"quant_method": "bitsandbytes"},
        num_labels=4,
    )
    model = from_description("BertForSequenceClassification", config)
    assert model.config._attn_implementation == "eager"
    assert not hasattr(model.config, "auto_map")
    assert model.classifier.out_features == 4


@pytest.fixture
def imitation(monkeypatch):
    """Something like transformers, of which the calls are looked at."""

    class Config(SimpleNamespace):
        @classmethod
        def from_dict(cls, settings):
            return cls(**settings)

        def to_dict(self):
            return vars(self)

    class PreTrainedModel(torch.nn.Module):
        config_class = Config

        def __init__(self, config):
            super().__init__()
            self.config, self.offline = config, sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE

    class ByDefault(PreTrainedModel):
        class config_class(Config):  # noqa: N801 - as transformers calls it
            def to_dict(self):
                return vars(self) | {"vision": {"use_pretrained_backbone": True}}

    package = SimpleNamespace(PreTrainedModel=PreTrainedModel, Net=PreTrainedModel, ByDefault=ByDefault)
    monkeypatch.setitem(sys.modules, "transformers", package)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("Net", {"backbone": "stranger/net", "backbone_kwargs": {"trust_remote_code": True}}),
        ("Net", {"parts": [{"inner": {"backbone": "stranger/net"}}]}),
        ("Net", {"architecture": "hf-hub:stranger/net"}),
        ("ByDefault", {}),
    ],
)
def test_a_part_that_would_be_fetched_is_refused(imitation, name, config):
    with pytest.raises(ModelError, match="from elsewhere, and nothing is fetched"):
        from_description(name, json.dumps(config))


def test_nothing_is_fetched_while_a_model_is_made(imitation):
    constants = pytest.importorskip("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE
    made = from_description("Net", text(backbone=None, parts=[{"auto_map": {}, "size": 3}]))
    assert made.offline is True
    assert constants.HF_HUB_OFFLINE is before
    assert made.config.parts == [{"size": 3}]


def test_an_adapter_is_put_in():
    pytest.importorskip("peft", reason="it makes the adapter")
    adapter = {"r": 2, "target_modules": ["query"], "auto_mapping": {"parent_library": "os"}, "peft_type": "LORA"}
    model = from_description("BertForSequenceClassification", text(), json.dumps(adapter))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert [name.split(".")[-3] for name in trained] == ["lora_A", "lora_B"]
    ids = torch.tensor([[1, 2, 3]])
    assert model(input_ids=ids).logits.shape == (1, 2)
