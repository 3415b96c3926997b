"""Networks of transformers from local folders: weights, adapters, padding, layers, and what a folder may lack."""

import io
import json
import shutil

import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.own_tables import tokenized
from trainables.models import build_for, build_model
from trainables.models.base import fit_fault
from trainables.training.fine_tuning import layer_numbers
from trainables.training.loop import Replicate

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # importing transformers takes seconds

TEXTS = [
    f"{'library' if number % 2 else 'game'} number {number % 7} " + "of many " * (number % 5) for number in range(90)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tiny BERT, untrained, and a tokenizer of the texts' words."""
    pytest.importorskip("transformers")
    from tests.trainables.models.tiny_bert import write_tiny_bert

    return write_tiny_bert(tmp_path_factory.mktemp("bert"), TEXTS, pieces=80)


@pytest.fixture(scope="module")
def dataset(folder, tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": t, "kind": n % 2}) for n, t in enumerate(TEXTS)))
    return load_dataset("text_table", file=str(file), text="text", target="kind", tokenizer=str(folder), length=16)


def architecture(folder, **options):
    return {"name": "transformers", "folder": str(folder), **options}


def test_weights_are_the_folders_and_the_head_the_seeds(folder, dataset):
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(build_for(dataset, architecture(folder)).network)
    heads = [network.classifier.weight for network in networks]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    words = [network.bert.embeddings.word_embeddings.weight for network in networks]
    assert torch.equal(words[0], words[2])
    drawn = build_for(dataset, architecture(folder, pretrained=False)).network
    assert not torch.equal(drawn.bert.embeddings.word_embeddings.weight, words[0])


def test_a_batchs_padding_changes_nothing(folder, dataset):
    network = build_for(dataset, architecture(folder)).eval()
    inputs = dataset.train.inputs[:8]
    longest = int((inputs != 0).sum(1).max())
    with torch.no_grad():
        alone = torch.cat([network(row[None]) for row in inputs])
        torch.testing.assert_close(network(inputs), alone, rtol=1e-4, atol=1e-5)
        plain = network.network(input_ids=inputs.long(), attention_mask=(inputs != 0).long()).logits
        torch.testing.assert_close(network(inputs), plain, rtol=1e-4, atol=1e-5)
    assert longest < inputs.shape[1] or dataset.train.inputs.shape[1] <= 16


def test_adapters_and_the_head_train_alone(folder, dataset):
    recipe = {"name": "adamw", "lr": 0.01, "batch_size": 16}
    values = {"loss": {"name": "focal", "gamma": 2.0}, "optimizer": recipe}
    tuned = Replicate(
        {**values, "architecture": architecture(folder, lora_rank=2, lora_targets=["query"])},
        seed=0, dataset=dataset, max_epochs=2,
    )  # fmt: skip
    before = {name: weights.clone() for name, weights in tuned.model.state_dict().items()}
    rows = [tuned.train_epoch() for _ in range(2)]
    changed = {name for name, weights in tuned.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed and all("lora_" in name or "classifier" in name for name in changed)
    assert all("query" in name for name in changed if "lora_" in name)
    assert rows[1]["train_loss"] != rows[0]["train_loss"]


def test_layers_are_numbered_from_embeddings_to_head(folder, dataset):
    numbers = layer_numbers(build_for(dataset, architecture(folder)))
    found = {name.removeprefix("network."): number for name, number in numbers.items()}
    assert found["bert.embeddings.word_embeddings.weight"] == 0
    assert found["bert.encoder.layer.0.output.dense.weight"] == 1
    assert found["bert.encoder.layer.1.output.dense.weight"] == 2
    assert found["classifier.weight"] == max(numbers.values()) == 3


def test_a_space_is_checked_before_it_starts(folder, dataset):
    assert fit_fault(dataset, architecture(folder, lora_rank=2)) is None
    digits = fit_fault(load_dataset("digits"), architecture(folder))
    assert "transformers cannot build the network in" in (digits or "")
    assert "peft" not in (digits or "")
    unknown = fit_fault(dataset, architecture(folder, lora_rank=2, lora_targets=["nothing"]))
    assert "nothing" in (unknown or "")
    missing = fit_fault(dataset, architecture("google-bert/bert-base"))
    assert "hf download google-bert/bert-base --local-dir google-bert/bert-base" in (missing or "")


def test_an_image_network_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes)).save_pretrained(
        tmp_path
    )
    digits = load_dataset("digits")
    network = build_for(digits, architecture(tmp_path, lora_rank=1, lora_targets=["dense", "fc1", "q_proj"]))
    assert network(digits.train.head(3)).shape == (3, 10)
    assert fit_fault(digits, architecture(tmp_path)) is None
    with pytest.raises(ValueError, match="it takes images of"):
        build_model("transformers", (3, 8, 8), 10, folder=str(tmp_path))


def test_what_a_folder_lacks_is_one_sentence(folder, dataset, tmp_path):
    with pytest.raises(ValueError, match=r"there is no config\.json in .*; fetch it: hf download"):
        build_for(dataset, architecture(tmp_path))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=r"there is no model\.safetensors in"):
        build_for(dataset, architecture(tmp_path))
    build_for(dataset, architecture(tmp_path, pretrained=False))
    with pytest.raises(DataSetUnavailableError, match=r"no tokenizer\.json in .*hf download"):
        tokenized(TEXTS, str(tmp_path), 16, "text")


@pytest.mark.parametrize("answer", ["y\n", ""])
def test_code_in_a_folder_is_refused_and_not_asked_about(folder, dataset, tmp_path, monkeypatch, answer):
    """A folder may come from a stranger."""
    ran, place = tmp_path / "ran", tmp_path / "theirs"
    shutil.copytree(folder, place)
    (place / "theirs.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    auto = {"AutoConfig": "theirs.Config", "AutoModelForSequenceClassification": "theirs.Network"}
    settings = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**settings, "model_type": "theirs", "auto_map": auto}))
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(ValueError, match="theirs"):
        build_for(dataset, architecture(place))
    assert not ran.exists()
