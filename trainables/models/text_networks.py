"""Networks for token sequences: mukhoti's global-pooling CNN, and a plain averaging network.

Both map token ids int64 [N, L], 0 being padding, to logits [N, K].
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import ARCHITECTURES
from trainables.registry import Hyperparameter

KERNEL = 5
Vocabulary = Annotated[int, Hyperparameter(range="[2, inf)", source="mukhoti's released code, 20,000 words")]
WordDimension = Annotated[int, Hyperparameter(range="[1, inf)", source="mukhoti's released code, GloVe 6B 100d")]
TrainEmbedding = Annotated[bool | None, Hyperparameter(source="mukhoti's released code keeps GloVe fixed")]

POOL = 5
MINIMUM_LENGTH = 3 * (KERNEL - 1) + 2 * (POOL - 1) + 1


def token_embedding(
    vocabulary: int, dimension: int, word_vectors: Tensor | None, train_embedding: bool | None
) -> nn.Embedding:
    """Return an embedding whose row 0 (padding) is zero and stays zero.

    Args:
        vocabulary: number of token ids.
        dimension: size of a word vector; that of `word_vectors` where given.
        word_vectors: pretrained vectors [vocabulary, dimension] to start from.
        train_embedding: `None` trains it unless word vectors are given (mukhoti's released code keeps GloVe fixed).

    Raises:
        ValueError: the word vectors are for another vocabulary.
    """
    if word_vectors is None:
        embedding = nn.Embedding(vocabulary, dimension, padding_idx=0)
    else:
        if word_vectors.shape[0] != vocabulary:
            raise ValueError(
                f"the word vectors are for {word_vectors.shape[0]} words, but vocabulary = {vocabulary}; "
                f"set the architecture's vocabulary to the data set's"
            )
        embedding = nn.Embedding.from_pretrained(word_vectors.clone(), freeze=False, padding_idx=0)
    embedding.weight.requires_grad_(word_vectors is None if train_embedding is None else train_embedding)
    return embedding


@ARCHITECTURES.add(
    "global_pooling_cnn",
    apart=["word_vectors"],
    tags={"text"},
    stand_in={"name": "global_pooling_cnn", "dimension": 16, "channels": 16},
)
class GlobalPoolingCNN(nn.Module):
    """Global-pooling convolutional network for token sequences.

    mukhoti's network for 20 Newsgroups: three convolutions over the words, then the maximum over the text.

    Source: mukhoti App. D.

    Args:
        input_shape: (length,) of a padded text; at least 21 tokens.
        classes: number of classes K.
        vocabulary: number of token ids.
        dimension: size of a word vector.
        train_embedding: whether word vectors are trained; `None` unless pretrained ones are given.
        word_vectors: pretrained vectors [vocabulary, dimension].
        channels: of the convolutions and the hidden layer [mukhoti's released code].
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
        text = functional.relu(self.conv3(features)).amax(2)
        logits: Tensor = self.classifier(self.dropout(functional.relu(self.hidden(text))))
        return logits


@ARCHITECTURES.add(
    "text_average",
    apart=["word_vectors"],
    tags={"text"},
    stand_in={"name": "text_average", "dimension": 16, "width": 16},
)
class AveragingNetwork(nn.Module):
    """Mean of word vectors, one hidden layer: the plain text network.

    The plain text network (Iyyer et al., "Deep Unordered Composition", 2015).

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
        """Return the logits of token ids [N, L]; padding counts nothing."""
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
