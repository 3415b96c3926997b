"""Losses, networks, data sets, metrics and post-hoc methods of a user's own, without a change of this project.

A search space names one by its import path, `{name: "my_losses:Tilted", tilt: {uniform: [0, 2]}}`, where `my_losses.py`
lies beside the file, in the working directory or among the installed packages; or by a plain name that an installed
package gives it:

    [project.entry-points."calibration_sweeper.losses"]     # or architectures, datasets, metrics, posthoc
    tilted = "my_package.losses:Tilted"

* a loss, in `space.loss`: a subclass of `trainables.losses.Loss`, a `torch.nn.Module` without parameters, or a function
  of (logits [N, K], targets int64 [N], …) that gives [N] values or their mean;
* an architecture, in `space.architecture`: a function or class of (input_shape, classes, …) that gives a
  `torch.nn.Module` from inputs [N, *input_shape] to logits [N, K]; one for texts has `TAGS = ("text",)` and takes
  `vocabulary: int`, the number of token ids;
* a data set, `dataset`: a function of options that gives a `trainables.datasets.DataSet`;
* a metric, in `evaluation.metrics`: a function of (probabilities float64 [N, K], targets int64 [N], …) that gives a
  number, a column of `evaluations` (and `posthoc_<method>_<metric>` for the probabilities after each post-hoc method);
* a post-hoc method, in `evaluation.posthoc`: a function or class of (validation logits float64 [N, K], targets int64
  [N], …) that gives what maps logits [M, K] to probabilities [M, K]. `PARAMETERS` names the keys of that one's
  `parameters`, which become columns.

A column is called after what stands behind the colon: `my_metrics:WorstClass` fills `worst_class`.

Hyperparameters are the arguments that follow, each with a type (`float`, `int`, `bool`, `str`, a `Literal` of texts, or
a list of numbers) or a default that tells it; one without a default has to be given. `HYPERPARAMETERS`, a tuple of
`trainables.registry.Hyperparameter`, says more: ranges, reasons, sources. The name may also stand for a
`trainables.registry.Component`, which says all of it.

A loss's and a network's own state has to be in their `state_dict`, as tensors and numbers, for that is what checkpoints
hold. A metric or post-hoc method that cannot be computed raises ValueError; its columns stay empty and the reason goes
into a column beside them.

The sweep keeps a copy of the code in its folder (`extensions.zip`), and every process that trains takes it from there,
so the code may be edited while a sweep runs, and `resume` goes on with what the sweep was begun with. Whoever runs,
plans or resumes a search space runs the code that it names; `status`, `results`, `report` and `sync` import none of it.
Worked examples lie in `search_spaces/examples/`.

This package imports what every other one in `trainables` may import, and those that it adapts to.
"""
