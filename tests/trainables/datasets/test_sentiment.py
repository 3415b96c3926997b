import pytest
import torch

from trainables.datasets import DataSetUnavailableError, load_dataset, sentiment as module
from trainables.datasets.base import DATASETS
from trainables.models import build_for, fit_fault
from trainables.training.loop import Replicate

TRAIN = """\
(3 (2 It) (4 (2 's) (4 good)))
(1 (2 Not) (3 good))
(2 (2 So) (2 so))
(4 (3 (2 A) (4 (3 lovely) (2 film))) (2 .))

"""
DEV = "(0 (1 bad) (2 film))\n(2 (2 A) (2 film))\n"
TEST = "(4 (4 wonderful) (2 film))\n(1 (2 Not) (3 (2 so) (3 good)))\n"


def write_trees(folder):
    (folder / "trees").mkdir(parents=True)
    for name, text in zip(module.FILES, (TRAIN, DEV, TEST), strict=True):
        (folder / "trees" / name).write_text(text)
    return folder / "trees"


def test_neutral_sentences_are_left_out(tmp_path):
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), vocabulary=50)
    assert [split.targets.tolist() for split in (data.train, data.val, data.test)] == [[1, 0, 1], [0], [1, 0]]
    assert data.input_shape == (7, 4) and data.classes == 2 and data.class_names == ("negative", "positive")


def test_trees_are_rows_in_post_order(tmp_path):
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), vocabulary=50)
    rows = data.train.inputs[0]
    assert rows[:, 3].tolist() == [0, 0, 0, 1, 2, -1, -1]
    assert rows[3, 1:3].tolist() == [1, 2] and rows[4, 1:3].tolist() == [0, 3]
    good = rows[2, 0]
    assert good == data.train.inputs[1, 1, 0] == 2  # the most frequent word of the training sentences
    assert data.val.inputs[0, 0, 0] == 1  # "bad" is not among them


def test_words_are_sequences_with_unknown_ones_marked(tmp_path):
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), form="words", vocabulary=50)
    trees = load_dataset("sst2", folder=str(tmp_path), vocabulary=50)
    assert data.input_shape == (4,) and data.val.inputs[0].tolist()[:3] == [0, 0, 1]
    leaves = trees.train.inputs[2][trees.train.inputs[2][:, 3] == 0][:, 0]
    assert data.train.inputs[2].tolist() == leaves.tolist()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("(3 (2 It) (4 (2 's)", "line 5: the tree is incomplete"),
        ("(7 good)", "label '7'"),
        ("(3 (2 a) (2 b) (2 c))", "neither a word nor two sub-trees"),
        ("(3)", "neither a word nor two sub-trees"),
        ("()", "label ''"),
        ("hello", "text outside of parentheses"),
        (")", "has no opening one"),
    ],
)
def test_broken_lines_are_named(tmp_path, line, sentence):
    path = write_trees(tmp_path) / "train.txt"
    path.write_text(TRAIN.rstrip() + "\n" + line + "\n")
    with pytest.raises(DataSetUnavailableError, match=sentence):
        load_dataset("sst2", folder=str(tmp_path))


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(DataSetUnavailableError, match=r"nlp\.stanford\.edu"):
        load_dataset("sst2", folder=str(tmp_path))
    trees = write_trees(tmp_path)
    (trees / "dev.txt").write_text("\n")
    with pytest.raises(DataSetUnavailableError, match=r"dev\.txt: contains no trees"):
        load_dataset("sst2", folder=str(tmp_path))
    (trees / "dev.txt").unlink()
    with pytest.raises(DataSetUnavailableError, match=r"dev\.txt: the file is missing"):
        load_dataset("sst2", folder=str(tmp_path))


def test_the_tree_network_learns_a_rule_over_trees(tmp_path):
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), vocabulary=50, phrases=True)
    torch.manual_seed(0)
    model = build_for(data, {"name": "tree_lstm", "dimension": 16, "width": 8, "dropout": 0.0})
    assert model.embedding.num_embeddings == 50
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(data.train.inputs), data.train.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert fit_fault(data, {"name": "tree_lstm"}) is None
    assert "choose a text data set" in fit_fault(data, {"name": "text_average"})


def test_every_node_of_a_tree_can_be_annotated(tmp_path):
    """With mukhoti's three classes of nodes: 0 negative, 1 positive, 2 neutral."""
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), vocabulary=50, nodes=True)
    plain = load_dataset("sst2", folder=str(tmp_path), vocabulary=50)
    assert data.input_shape == (7, 5) and data.classes == 2
    assert data.train.inputs[0, :, 4].tolist() == [2, 2, 1, 1, 1, -1, -1]
    for split, other in ((data.train, plain.train), (data.val, plain.val), (data.test, plain.test)):
        assert torch.equal(split.inputs[:, :, :4], other.inputs) and torch.equal(split.targets, other.targets)
    assert fit_fault(data, {"name": "tree_lstm"}) is None


@pytest.mark.parametrize("options", [{"form": "words"}, {"phrases": True}])
def test_nodes_are_those_of_whole_trees(options):
    assert any("nodes = true" in fault for fault in DATASETS["sst2"].faults({"nodes": True, **options}))
    assert DATASETS["sst2"].faults({"nodes": True}) == []


def test_training_takes_the_sum_over_nodes_and_the_mean_over_trees(tmp_path):
    write_trees(tmp_path)
    data = load_dataset("sst2", folder=str(tmp_path), vocabulary=50, nodes=True)
    network = {"name": "tree_lstm", "vocabulary": 50, "dimension": 8, "width": 6, "dropout": 0.0}
    optimizer = {"name": "adagrad", "lr": 0.05, "batch_size": 3}
    configuration = {"loss": {"name": "cross_entropy"}, "architecture": network, "optimizer": optimizer}
    replicate = Replicate(configuration, seed=0, dataset=data, max_epochs=1)
    model = replicate.model.train()
    every, nodes = model(data.train.inputs), model.supervised(data.train.inputs)
    assert every.shape == (len(nodes), 3) == (5 + 3 + 7, 3)
    expected = torch.nn.functional.cross_entropy(every, nodes, reduction="sum") / 3
    torch.testing.assert_close(replicate._loss_of(data.train.inputs, data.train.targets), expected)
    last = [5 - 1, 5 + 3 - 1, 5 + 3 + 7 - 1]  # each tree's root is its last node
    torch.testing.assert_close(model.eval()(data.train.inputs), every[last, :2])
    assert replicate.train_epoch()["val_nll"] > 0
