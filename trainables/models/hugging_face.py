"""Hugging Face transformers networks from a local folder, trained whole or with low-rank adapters (peft).

Nothing is downloaded: the folder has `config.json` and, unless new weights are drawn, the weights. Texts are token ids
with padding at the end; every batch is cut to its longest text (dynamic padding). This changes computing time only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trainables.extensions.libraries import LOCAL, REMEDY, existing_folder, required_library
from trainables.models.base import ARCHITECTURES
from trainables.registry import Hyperparameter

#: Names of layers in transformers: BERT and ViT `layer`, Llama `layers`, GPT-2 `h`.
LAYERS = r".*\.(?:layers?|h|blocks?)\.(\d+)\."


class HuggingFaceClassifier(nn.Module):
    """Wrap a transformers classifier as a module from token ids [N, L] or images [N, C, H, W] to logits [N, K]."""

    def __init__(self, network: Any, padding: int | None) -> None:
        """Wrap `network`; `padding` is the id that pads texts, `None` for images."""
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        if self.padding is None:
            return self._logits(pixel_values=inputs)
        ids = inputs.long()
        if ids.is_meta:  # transformers reads the values of a mask, and the meta device has none
            return self._logits(input_ids=ids)
        mask = ids != self.padding
        if not torch.compiler.is_compiling():  # an exported program has one length
            # at least one token: a batch of empty texts would have no positions at all
            longest = max(1, int(mask.sum(1).max()))
            ids, mask = ids[:, :longest], mask[:, :longest]
        return self._logits(input_ids=ids, attention_mask=mask.long())

    def _logits(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(**inputs).logits
        return logits

    def group_matcher(self, coarse: bool = False) -> Mapping[str, Any]:
        """Return patterns that number the layers, as timm's networks do: embeddings, each layer, and the head."""
        return {"stem": r".*embeddings", "blocks": [(LAYERS, None)]}


@ARCHITECTURES.add("transformers", tags={"text"}, lanes="transformers looks at its inputs in Python")
def transformers_network(
    input_shape: tuple[int, ...],
    classes: int,
    folder: str,
    pretrained: bool = True,
    lora_rank: Annotated[int | None, "[1, inf)"] = None,
    lora_alpha: Annotated[int | None, "[1, inf)"] = None,
    lora_targets: Sequence[str] = (),
    vocabulary: Annotated[int | None, Hyperparameter(minimum=1, source="the data's")] = None,
) -> nn.Module:
    """Any classifier of texts or images that Hugging Face transformers reads from a local folder.

    Build the folder's network with a head of `classes`; `lora_rank` trains low-rank adapters and the head alone.

    Args:
        input_shape: (tokens,) or (channels, height, width).
        classes: number of classes K.
        folder: folder with `config.json` and the weights.
        pretrained: load the weights in the folder; if false, draw all weights.
        lora_rank: rank of the adapters [Hu et al. 2022 (LoRA): 1 to 64].
        lora_alpha: adapters are scaled by lora_alpha / lora_rank [twice the rank, as is usual].
        lora_targets: names of the layers with adapters, such as `query`, `value` [peft's for this network].
        vocabulary: number of token ids in the data.

    Raises:
        ValueError: a file or package is missing, or the network does not suit the data.
    """
    place, image = existing_folder(folder, "config.json"), len(input_shape) > 1
    library = required_library()
    kind = library.AutoModelForImageClassification if image else library.AutoModelForSequenceClassification
    # on the meta device only shapes are checked: weights would be read for nothing
    drawn = not pretrained or torch.get_default_device().type == "meta"
    if not drawn:
        existing_folder(folder, "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    settings = library.AutoConfig.from_pretrained(place, num_labels=classes, **LOCAL)
    padding = _checked(settings, input_shape, vocabulary)
    try:
        if drawn:
            # no code from the folder is run
            network = kind.from_config(settings, trust_remote_code=False)
        else:
            network = kind.from_pretrained(
                # the head of another number of classes is drawn anew instead of being an error
                place,
                config=settings,
                **LOCAL,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
            )
        if lora_rank is not None:
            _adapt(network, lora_rank, lora_alpha or 2 * lora_rank, lora_targets)
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"transformers cannot build the network in {place} ({str(error).splitlines()[0]})") from error
    return HuggingFaceClassifier(network, padding)


def _checked(settings: Any, input_shape: tuple[int, ...], vocabulary: int | None) -> int | None:
    """Return the id that pads texts, `None` for images.

    Raises:
        ValueError: the network does not suit the data.
    """
    if len(input_shape) > 1:
        own = getattr(settings, "num_channels", input_shape[0]), *[getattr(settings, "image_size", None)] * 2
        # a position embedding has one entry per patch: another size would fail in the first step only
        if own[0] != input_shape[0] or own[1] not in (None, input_shape[1]):
            raise ValueError(f"it takes images of {own}, and the data set's are {input_shape}; give image_size")
        return None
    if vocabulary is None or vocabulary > settings.vocab_size:
        rule = f"it has {settings.vocab_size} token ids, and the data {vocabulary or 'no texts'}"
        raise ValueError(f"{rule}; give a text_table the folder as its tokenizer")
    # GPT-2 and Llama have no padding id; without it, the logits are taken at the wrong token
    if settings.pad_token_id is None:
        raise ValueError("its config.json has no pad_token_id; write that of its tokenizer into it")
    longest = getattr(settings, "max_position_embeddings", input_shape[0])
    if longest < input_shape[0]:
        raise ValueError(f"it takes {longest} tokens, and texts have {input_shape[0]}; give the data set length")
    return int(settings.pad_token_id)


def _adapt(network: Any, rank: int, alpha: int, targets: Sequence[str]) -> None:
    """Add low-rank adapters to a network and train only them and the head."""
    try:
        import peft
    except ImportError as error:
        raise ValueError(f"the package peft is not installed; {REMEDY}") from error
    usual: Mapping[str, Sequence[str]] = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    # peft chooses layers by the type of the network; it has no entry for new types
    layers = [*(targets or usual.get(network.config.model_type, ()))]
    if not layers:
        raise ValueError(f"peft knows no layers of {network.config.model_type}; name them in lora_targets")
    peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers), network)
    # peft freezes everything but its adapters; the head is new and must be trained
    for name, parameter in network.named_parameters():
        if not name.startswith(f"{network.base_model_prefix}."):
            parameter.requires_grad_(True)
