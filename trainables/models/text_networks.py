"""Networks for texts: mukhoti's global-pooling CNN, an averaging network, and the Tree-LSTM.

The first two map token ids int64 [N, L], with 0 for padding, to logits [N, K].

The Tree-LSTM takes parsed sentences as binary constituency trees: Tai, Socher and Manning, "Improved Semantic
Representations From Tree-Structured Long Short-Term Memory Networks", 2015, Eqs. 9-14 with N = 2; mukhoti trains it on
SST. A tree is a row of nodes in post-order, int64 [M, 4]: token id (0 for inner nodes), left child, right child
(indices in the row), height (0 for a leaf, -1 for padding). An optional fifth column is the annotated class of a node
(-1 for padding). With this column, training uses all nodes, and evaluation uses the roots.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import ARCHITECTURES
from trainables.registry import Hyperparameter

KERNEL = 5  # words (mukhoti's released code)
Vocabulary = Annotated[int, Hyperparameter(range="[2, inf)", source="mukhoti's released code, 20,000 words")]
WordDimension = Annotated[int, Hyperparameter(range="[1, inf)", source="mukhoti's released code, GloVe 6B 100d")]
TrainEmbedding = Annotated[bool | None, Hyperparameter(source="mukhoti's released code keeps GloVe fixed")]

POOL = 5  # mukhoti's released code
# three convolutions and two poolings without padding must leave one position
MINIMUM_LENGTH = 3 * (KERNEL - 1) + 2 * (POOL - 1) + 1


def token_embedding(
    vocabulary: int, dimension: int, word_vectors: Tensor | None, train_embedding: bool | None
) -> nn.Embedding:
    """Return an embedding whose row 0 (padding) is zero and stays zero.

    Args:
        vocabulary: number of token ids.
        dimension: size of a word vector; ignored if `word_vectors` are given.
        word_vectors: pretrained vectors [vocabulary, dimension] to start from.
        train_embedding: `None` trains it unless word vectors are given (mukhoti's released code keeps GloVe fixed).

    Raises:
        ValueError: `word_vectors` does not have `vocabulary` rows.
    """
    if word_vectors is None:
        embedding = nn.Embedding(vocabulary, dimension, padding_idx=0)
    else:
        if word_vectors.shape[0] != vocabulary:
            raise ValueError(
                f"the word vectors are for {word_vectors.shape[0]} words, but vocabulary = {vocabulary}; "
                f"set the architecture's vocabulary to the data set's"
            )
        # a copy: training must not change the vectors of the data set, which other trials of the process share
        embedding = nn.Embedding.from_pretrained(word_vectors.clone(), freeze=False, padding_idx=0)
    embedding.weight.requires_grad_(word_vectors is None if train_embedding is None else train_embedding)
    return embedding


@ARCHITECTURES.add("global_pooling_cnn", apart=["word_vectors"], tags={"text"})
class GlobalPoolingCNN(nn.Module):
    """Global-pooling convolutional network for token sequences.

    mukhoti's network for 20 Newsgroups: three convolutions over the words, then the maximum over the text.

    Source: mukhoti App. D.

    Args:
        input_shape: (length,) of a padded text; at least 21 tokens.
        classes: number of classes K.
        vocabulary: number of token ids.
        dimension: size of a word vector.
        train_embedding: whether word vectors are trained; `None` trains them unless pretrained ones are given.
        word_vectors: pretrained vectors [vocabulary, dimension].
        channels: channels of the convolutions and units of the hidden layer [mukhoti's released code].
        dropout: rate before the classifier [mukhoti's released code].

    Raises:
        ValueError: the inputs are not token sequences of that length, or the word vectors do not fit.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        vocabulary: Vocabulary = 20_000,
        dimension: WordDimension = 100,
        channels: Annotated[int, "[1, inf)"] = 128,
        dropout: Annotated[float, "[0, 1)"] = 0.3,
        train_embedding: TrainEmbedding = None,
        word_vectors: Tensor | None = None,
    ) -> None:
        """Create three convolutions over the words, the first two max-pooled with stride 1."""
        super().__init__()
        _require_tokens(input_shape, MINIMUM_LENGTH, "global_pooling_cnn")
        self.embedding = token_embedding(vocabulary, dimension, word_vectors, train_embedding)
        self.conv1 = nn.Conv1d(self.embedding.embedding_dim, channels, KERNEL)
        self.conv2 = nn.Conv1d(channels, channels, KERNEL)
        self.conv3 = nn.Conv1d(channels, channels, KERNEL)
        self.hidden = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of token ids [N, L]."""
        words = self.embedding(inputs).transpose(1, 2)
        features = functional.max_pool1d(functional.relu(self.conv1(words)), POOL, stride=1)
        features = functional.max_pool1d(functional.relu(self.conv2(features)), POOL, stride=1)
        # the maximum over all positions: one vector for a text of any length
        text = functional.relu(self.conv3(features)).amax(2)
        logits: Tensor = self.classifier(self.dropout(functional.relu(self.hidden(text))))
        return logits


@ARCHITECTURES.add("text_average", apart=["word_vectors"], tags={"text"})
class AveragingNetwork(nn.Module):
    """Mean of word vectors, one hidden layer: the plain text network.

    A deep averaging network with one hidden layer (Iyyer et al., "Deep Unordered Composition", 2015).

    Source: Iyyer et al. 2015.

    Args:
        width: [our choice].

    Raises:
        ValueError: the inputs are not token sequences, or the word vectors do not fit.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        vocabulary: Vocabulary = 20_000,
        dimension: WordDimension = 100,
        width: Annotated[int, "[1, inf)"] = 100,
        train_embedding: TrainEmbedding = None,
        word_vectors: Tensor | None = None,
    ) -> None:
        """Create the embedding, one hidden layer of `width` units and the classifier."""
        super().__init__()
        _require_tokens(input_shape, 1, "text_average")
        self.embedding = token_embedding(vocabulary, dimension, word_vectors, train_embedding)
        self.hidden = nn.Linear(self.embedding.embedding_dim, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of token ids [N, L]; the mean ignores padding."""
        # divided by the number of words, at least 1: an empty text has mean 0, not NaN
        present = (inputs != 0).unsqueeze(2).to(self.embedding.weight.dtype)
        mean = (self.embedding(inputs) * present).sum(1) / present.sum(1).clamp(min=1)
        logits: Tensor = self.classifier(torch.relu(self.hidden(mean)))
        return logits


def _require_tokens(input_shape: tuple[int, ...], minimum: int, network: str) -> None:
    if len(input_shape) != 1 or input_shape[0] < minimum:
        raise ValueError(
            f"{network} takes texts of at least {minimum} tokens, shape (length,), but the data set's samples have "
            f"shape {tuple(input_shape)}; choose a text data set, or raise its length"
        )


# columns of a node
TOKEN, LEFT, RIGHT, HEIGHT, LABEL = range(5)


@ARCHITECTURES.add(
    "tree_lstm",
    apart=["word_vectors"],
    tags={"text", "follows_data"},
    lanes="its computation follows each sentence's tree, which lanes do not share",
)
class TreeLSTM(nn.Module):
    """Binary constituency Tree-LSTM for parse trees.

    The leaves are words, inner nodes compose their two children, and the root is classified: [N, M, 4] -> [N, K].

    On annotated trees [N, M, 5] there is an additional class, neutral, which roots do not have. In training, the output
    is the logits of all nodes [nodes, K + 1]; `supervised` returns the classes of these nodes. In evaluation, the
    output is the logits of the roots, without the class neutral.

    Source: mukhoti App. D; Tai et al. 2015.

    Args:
        input_shape: (nodes, 4), or (nodes, 5) of annotated trees.
        classes: number of classes K.
        vocabulary: number of token ids.
        dimension: size of a word vector [Tai et al. 2015, section 5.2, GloVe 300d].
        train_embedding: whether word vectors are trained; `None` trains them unless pretrained ones are given [mukhoti
            App. D: vectors were fine-tuned].
        word_vectors: pretrained vectors [vocabulary, dimension].
        width: size of the memory cell [Tai et al. 2015, Table 1].
        dropout: rate before the classifier [Tai et al. 2015, section 5.3].
        output_gate: whether inner nodes have an output gate, as in the model that mukhoti App. D names (Tai et al.
            2015, Eq. 11); the code that mukhoti uses omits it [Tai et al. 2015, Eq. 11].

    Raises:
        ValueError: the inputs are not trees, or the word vectors do not fit.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        vocabulary: Vocabulary = 20_000,
        dimension: Annotated[int, "[1, inf)"] = 300,
        width: Annotated[int, "[1, inf)"] = 150,
        dropout: Annotated[float, "[0, 1)"] = 0.5,
        output_gate: bool = True,
        train_embedding: bool | None = True,
        word_vectors: Tensor | None = None,
    ) -> None:
        """Create a Tree-LSTM with memory cells of `width`; without `output_gate`, as in mukhoti's code, h = tanh(c)."""
        super().__init__()
        if len(input_shape) != 2 or input_shape[1] not in (4, 5):
            raise ValueError(
                f"tree_lstm takes parse trees of shape (nodes, 4), but the data set's samples have shape "
                f"{tuple(input_shape)}; choose sst2 with its default form: trees"
            )
        self.classes = classes
        self.annotated = annotated = input_shape[1] == 5
        self.embedding = token_embedding(vocabulary, dimension, word_vectors, train_embedding)
        self.output_gate = output_gate
        self.leaf = nn.Linear(self.embedding.embedding_dim, 2 * width)  # cell and output gate
        gates = 5 if output_gate else 4  # input, left and right forget, update, output
        self.left = nn.Linear(width, gates * width)
        self.right = nn.Linear(width, gates * width)
        self.dropout = nn.Dropout(dropout)
        # one more class, neutral, for the inner nodes of annotated trees
        self.classifier = nn.Linear(width, classes + annotated)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits at the roots of trees [N, M, 4 or 5]; while training on annotated trees, at all nodes."""
        samples, nodes, columns = inputs.shape
        flat = inputs.reshape(samples * nodes, columns)
        # children are numbered within their tree; adding its first row makes them rows of `flat`
        first = (torch.arange(samples, device=inputs.device) * nodes).repeat_interleave(nodes)
        cell, gate = self.leaf(self.embedding(flat[:, TOKEN])).chunk(2, 1)
        hidden = torch.sigmoid(gate) * torch.tanh(cell)
        # all nodes of one height at once, over the whole batch: their children are lower and therefore done
        heights = flat[:, HEIGHT]
        for height in range(1, int(heights.max()) + 1):
            places = torch.nonzero(heights == height).squeeze(1)
            left, right = first[places] + flat[places, LEFT], first[places] + flat[places, RIGHT]
            new_cell, new_hidden = self.compose(cell[left], hidden[left], cell[right], hidden[right])
            # not in place: autograd still needs the children's states
            cell = cell.index_copy(0, places, new_cell)
            hidden = hidden.index_copy(0, places, new_hidden)
        if self.annotated and self.training:
            every: Tensor = self.classifier(self.dropout(hidden[heights >= 0]))
            return every
        # in post-order the root is the last node before the padding
        roots = (inputs[:, :, HEIGHT] >= 0).sum(1) - 1 + first[::nodes]
        logits: Tensor = self.classifier(self.dropout(hidden[roots]))
        return logits[:, : self.classes]

    def supervised(self, inputs: Tensor) -> Tensor | None:
        """Return the classes of all nodes of annotated trees, in the order of their logits; `None` for other trees."""
        if not self.annotated:
            return None
        flat = inputs.reshape(-1, inputs.shape[2])
        return flat[flat[:, HEIGHT] >= 0][:, LABEL].long()

    def compose(
        self, left_cell: Tensor, left_hidden: Tensor, right_cell: Tensor, right_hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return cell and hidden state [B, width] of parents from the states of their children (Eqs. 9-14)."""
        gates = (self.left(left_hidden) + self.right(right_hidden)).chunk(5 if self.output_gate else 4, 1)
        kept = torch.sigmoid(gates[1]) * left_cell + torch.sigmoid(gates[2]) * right_cell
        cell = torch.sigmoid(gates[0]) * torch.tanh(gates[3]) + kept
        hidden = torch.tanh(cell)
        return cell, torch.sigmoid(gates[4]) * hidden if self.output_gate else hidden
