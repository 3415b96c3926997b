"""Stanford Sentiment Treebank with two classes (Socher et al. 2013), as parse trees or as word sequences.

A line of the published files is a tree, e.g. `(3 (2 It) (4 (2 's) (4 good)))`: a label from 0 (very negative) to 4
(very positive) and a word or two sub-trees. Neutral sentences (label 2) are excluded: 6,920 / 872 / 1,821.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, Split, hash_of_splits
from trainables.datasets.cache import DataSetUnavailableError, Download, Folder, Source, fetched_folder
from trainables.datasets.raw_inputs import WordIds
from trainables.datasets.text import UNKNOWN, WordVectors, frequent_words, read_word_vectors
from trainables.datasets.transforms import Transform, Undeclared
from trainables.registry import BrokenRule, DataSetSize, Options

SOURCE = Source(
    "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
    "trainDevTestTrees_PTB.zip",
    "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
)
MEMBER = "trees"
FILES = ("train.txt", "dev.txt", "test.txt")
NEUTRAL = 2
REMEDY = "delete the folder and give the data set download: true"
TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Tree:
    """A labelled node: a word, or two sub-trees."""

    label: int
    word: str | None = None
    children: tuple[Tree, ...] = ()

    def words(self) -> list[str]:
        """Return the words at the leaves, from left to right."""
        return [node.word for node in self.post_order() if node.word is not None]

    def post_order(self) -> Iterator[Tree]:
        """Yield all nodes, children before their parent."""
        for child in self.children:
            yield from child.post_order()
        yield self


def parse_tree(line: str) -> Tree:
    """Parse a line as a tree.

    Raises:
        ValueError: the line is truncated or not a binary tree with labels from 0 to 4.

    Example:
        >>> parse_tree("(3 (2 It) (4 works))").words()
        ['It', 'works']
    """
    stack: list[list[Tree | str]] = []
    for token in TOKEN.findall(line):
        if token == "(":
            stack.append([])
        elif token != ")":
            if not stack:
                raise ValueError("text outside of parentheses")
            stack[-1].append(token)
        else:
            if not stack:
                raise ValueError("a closing parenthesis has no opening one")
            node = _node(stack.pop())
            if not stack:
                return node
            stack[-1].append(node)
    raise ValueError("the tree is incomplete")


def _node(parts: list[Tree | str]) -> Tree:
    label, *rest = parts or [""]
    if not isinstance(label, str) or label not in {"0", "1", "2", "3", "4"}:
        raise ValueError(f"a node has the label {label!r}, not 0 to 4")
    children = tuple(part for part in rest if isinstance(part, Tree))
    if len(rest) == 1 and not children:
        return Tree(int(label), str(rest[0]))
    if len(children) != 2 or len(rest) != 2:
        raise ValueError("a node has neither a word nor two sub-trees")
    return Tree(int(label), children=children)


def read_trees(path: Path) -> list[Tree]:
    """Read the trees of a file, one per line.

    Raises:
        DataSetUnavailableError: the file is missing, empty, or a line is broken.
    """
    if not path.is_file():
        raise DataSetUnavailableError(path, "the file is missing", REMEDY)
    trees = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if line.strip():
            try:
                trees.append(parse_tree(line))
            except ValueError as error:
                raise DataSetUnavailableError(path, f"line {number}: {error}", REMEDY) from error
    if not trees:
        raise DataSetUnavailableError(path, "contains no trees", REMEDY)
    return trees


#: Class of a node by its label from 0 to 4; neutral comes last, because roots have only the other two.
NEGATIVE_POSITIVE_NEUTRAL = (0, 0, 2, 1, 1)


def encoded_tree(tree: Tree, ids: dict[str, int], nodes: int, annotated: bool = False) -> NDArray[np.int32]:
    """Return a tree as rows (token, left, right, height) in post-order, [nodes, 4]; see `models.text_networks`.

    If `annotated`, a fifth column is the class of the node: 0 negative, 1 positive, 2 neutral, -1 padding.
    """
    rows = np.zeros((nodes, 4 + annotated), np.int32)
    rows[:, 3:] = -1
    # by identity: equal sub-trees, such as repeated words, are different nodes
    place: dict[int, int] = {}
    for number, node in enumerate(tree.post_order()):
        place[id(node)] = number
        if node.word is not None:
            rows[number, :4] = (ids.get(node.word.lower(), UNKNOWN), 0, 0, 0)
        else:
            left, right = (place[id(child)] for child in node.children)
            rows[number, :4] = (0, left, right, 1 + max(rows[left, 3], rows[right, 3]))
        if annotated:
            rows[number, 4] = NEGATIVE_POSITIVE_NEUTRAL[node.label]
    return rows


def _on_paper(options: Options) -> DataSetSize:
    """Return the size of SST-2; its longest sentence has 52 words, and the binary tree of these has 103 nodes."""
    columns = 5 if options.get("nodes") else 4
    return DataSetSize((52,) if options["form"] == "words" else (103, columns), 2, 6_920, 872, 1_821, text=True)


def _nodes_fault(options: Options) -> BrokenRule | None:
    """Return an error if `nodes` is set but samples are not whole trees; else `None`."""
    if options.get("nodes") and (options.get("form", "trees") != "trees" or options.get("phrases")):
        return "nodes", "nodes = true is for form: trees without phrases, whose nodes it trains on"
    return None


@DATASETS.add("sst2", check=_nodes_fault, size=_on_paper)
def load_sst2(
    folder: Folder = None,
    download: Download = False,
    form: Literal["trees", "words"] = "trees",
    phrases: bool = False,
    nodes: bool = False,
    vocabulary: Annotated[int, "[3, inf)"] = 20_000,
    word_vectors: WordVectors = None,
) -> DataSet:
    """Stanford Sentiment Treebank, two classes, 6,920/872/1,821 sentences as trees or words.

    Load SST with the classes negative (labels 0, 1) and positive (3, 4).

    The vocabulary comes from the training sentences in lower case: ids from 2, by frequency; 1 is an unknown word.

    Source: mukhoti App. D; Socher et al. 2013.

    Args:
        folder: folder of the archive or its unpacked `trees`; see `data_folder`.
        download: download the archive if it is missing.
        form: `trees`, int32 [N, nodes, 4] for `tree_lstm`, or `words`, int32 [N, length] for `text_average`
            [mukhoti App. D].
        phrases: also train on all labelled phrases that are not neutral, as separate samples [mukhoti
            App. D counts 6,920 sentences].
        nodes: train on all nodes of a tree, negative, positive or neutral (mukhoti App. D), and evaluate at
            the root: trees become int32 [N, nodes, 5] [mukhoti App. D annotates every node].
        vocabulary: number of token ids, padding and unknown words included [above SST's 13,800 words].
        word_vectors: file of pretrained vectors in GloVe's format.

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    trees_folder = fetched_folder(SOURCE, MEMBER, folder, download)
    files = [read_trees(trees_folder / name) for name in FILES]
    parts = [np.array([i for i, tree in enumerate(trees) if tree.label != NEUTRAL], np.int64) for trees in files]
    kept = [[trees[index] for index in part] for trees, part in zip(files, parts, strict=True)]
    words = frequent_words(([word.lower() for word in tree.words()] for tree in kept[0]), vocabulary - 2)
    if phrases:
        kept[0] = [node for tree in kept[0] for node in tree.post_order() if node.label != NEUTRAL]
    # a binary tree over n words has 2n − 1 nodes
    longest = max(len(tree.words()) for trees in kept for tree in trees)
    reader = WordIds(longest, vocabulary, None, tuple(words), UNKNOWN + 1, UNKNOWN, punctuation=False)
    train, val, test = (_split(trees, reader, form, nodes) for trees in kept)
    shape = tuple(train.inputs.shape[1:])
    names, vectors = ("negative", "positive"), read_word_vectors(word_vectors, words, vocabulary, UNKNOWN + 1)
    transform = Transform(reader=reader) if form == "words" else Undeclared("its inputs are parse trees of texts")
    facts: dict[str, Any] = {
        "class_names": names,
        "vocabulary": vocabulary,
        "word_vectors": vectors,
        "transform": transform,
    }
    return DataSet("sst2", train, val, test, 2, shape, hash_of_splits(*parts), **facts)


def _split(trees: list[Tree], reader: WordIds, form: str, annotated: bool) -> Split:
    targets = torch.tensor([int(tree.label > NEUTRAL) for tree in trees])
    if form == "words":
        return Split(torch.from_numpy(reader.ids([" ".join(tree.words()) for tree in trees])), targets)
    ids, nodes = {word: number for number, word in enumerate(reader.words, reader.first)}, 2 * reader.length - 1
    return Split(torch.from_numpy(np.stack([encoded_tree(tree, ids, nodes, annotated) for tree in trees])), targets)
