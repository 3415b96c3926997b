"""A Hugging Face Trainer, which the last class turns into a sweep; its model is tiny and built from scratch."""

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from trainables.losses import build_loss
from trainables.training.transformers import TrainerLoop

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
ORDER = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(0))
PARTS = dict(zip(("train", "val", "test"), ORDER.split([1000, 397, 400]), strict=True))


class Digits(torch.utils.data.Dataset):
    def __init__(self, part):
        self.rows = PARTS[part]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        row = self.rows[place]
        return {"pixel_values": (IMAGES[row] / 16).float().view(1, 8, 8), "labels": LABELS[row]}


def tiny(hidden):
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes))


class Loop(TrainerLoop):
    def trainer(self, configuration, arguments):
        loss = build_loss(**configuration["loss"])
        arguments |= {"learning_rate": configuration["lr"], "per_device_train_batch_size": 50}
        arguments |= {"lr_scheduler_type": "cosine", "warmup_steps": 20}
        return Trainer(
            tiny(configuration["hidden"]),
            TrainingArguments(**arguments),
            train_dataset=Digits("train"),
            compute_loss_func=lambda outputs, labels, **_: loss(outputs.logits, labels),
        )

    def data(self, split):
        return Digits(split)
