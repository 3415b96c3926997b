"""What ranks train in the tests: every loss, and networks that normalise, or draw, over a batch."""

from __future__ import annotations

from trainables.losses import LOSSES

PLAIN = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 32}
MLP = {"name": "mlp", "width": 16}
NORMALISED = {"name": "resnet8"}
DROPPING = {"name": "wide_resnet", "depth": 10, "width": 0.5, "dropout": 0.3}


def _configuration(loss, network=MLP, **recipe):
    return {"loss": loss, "architecture": network, "optimizer": {**PLAIN, **recipe}}


VARIANTS = [
    {"name": "selective_risk", "history": "epoch"},
    {"name": "mmce", "variant": "plain"},
    {"name": "kde_xe", "variant": "top_label", "norm": 2},
    {"name": "hessian_trace", "base": "focal", "gamma": 2.0, "probes": 2},
]
CASES = {
    **{name: _configuration({"name": name}) for name in LOSSES},
    **{f"{loss['name']} {'-'.join(map(str, list(loss.values())[1:]))}": _configuration(loss) for loss in VARIANTS},
    "normalised": _configuration({"name": "kde_xe"}, NORMALISED, gradient_clip=2.0, reduction="sum"),
    "normalised, three derivatives": _configuration({"name": "hessian_trace"}, NORMALISED),
    "fine-tuned": _configuration(
        {"name": "focal"}, NORMALISED, freeze=1, layer_decay=0.7, ema=0.8, sharpness="sam", rho=0.1, gradient_clip=1.0
    ),
    "sharpness and dropout": _configuration({"name": "hessian_trace"}, DROPPING, sharpness="asam", ema=0.5),
    "dropout": _configuration({"name": "adafocal"}, DROPPING, checkpoint="best_val_nll", schedule="cosine"),
}
