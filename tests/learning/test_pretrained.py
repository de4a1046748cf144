"""Models of transformers are made of plain text, of which nothing is imported or fetched."""

import json
import sys

import pytest
import torch

from fedattack.errors import ModelError
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


@pytest.mark.parametrize("config", ["[1]", "{", '"text"'])
def test_what_is_no_configuration_is_refused(config):
    pytest.importorskip("transformers", reason="it makes these models")
    with pytest.raises(ModelError, match="a configuration is no JSON"):
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


def test_an_adapter_is_put_in():
    pytest.importorskip("peft", reason="it makes the adapter")
    adapter = {"r": 2, "target_modules": ["query"], "auto_mapping": {"parent_library": "os"}, "peft_type": "LORA"}
    model = from_description("BertForSequenceClassification", text(), json.dumps(adapter))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert [name.split(".")[-3] for name in trained] == ["lora_A", "lora_B"]
    ids = torch.tensor([[1, 2, 3]])
    assert model(input_ids=ids).logits.shape == (1, 2)
