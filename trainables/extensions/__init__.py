"""User-defined losses, networks, data sets, metrics and post-hoc methods, without a change to this project.

A search space names one by its import path, `{name: "my_losses:Tilted", tilt: {uniform: [0, 2]}}`. `my_losses.py` is
next to the search space's file, in the working directory or among the installed packages. A search space can also use a
plain name that an installed package registers:

    [project.entry-points."calibration_sweeper.losses"]     # or architectures, datasets, metrics, posthoc
    tilted = "my_package.losses:Tilted"

* a loss, in `space.loss`: a subclass of `trainables.losses.Loss`, a `torch.nn.Module` without parameters, or a function
  of (logits [N, K], targets int64 [N], …) that returns [N] values or their mean;
* an architecture, in `space.architecture`: a function or class of (input_shape, classes, …) that returns a
  `torch.nn.Module` from inputs [N, *input_shape] to logits [N, K]. A network for texts has `TAGS = ("text",)` and takes
  `vocabulary: int`, the number of token ids;
* a data set, `dataset`: a function of options that returns a `trainables.datasets.DataSet`; its `transform`, a
  `trainables.datasets.Transform`, says how its inputs were made from raw ones, so that exported models take raw inputs;
* a metric, in `evaluation.metrics`: a function of (probabilities float64 [N, K], targets int64 [N], …) that returns a
  number, a column of `evaluations` (and `posthoc_<method>_<metric>` for the probabilities after each post-hoc method).
  The function's attribute `MODE = "max"` says that larger is better;
* a post-hoc method, in `evaluation.posthoc`: a function or class of (validation logits float64 [N, K], targets int64
  [N], …) that returns a map from logits [M, K] to probabilities [M, K]. `PARAMETERS` names the keys of its
  `parameters`, which become columns.

A column is named after the part behind the colon: `my_metrics:WorstClass` fills `worst_class`.

Hyperparameters are the arguments that follow, each with a type (`float`, `int`, `bool`, `str`, a `Literal` of texts, or
a list of numbers or texts) or a default that implies the type. An argument without a default is required.
`Annotated[float, "[0, 1]: it is a share"]` adds a range and the reason for it; `HYPERPARAMETERS`, a tuple of
`trainables.registry.Hyperparameter`, can also give sources. The name can also refer to a complete
`trainables.registry.Component`.

The state of a loss or network must be in its `state_dict`, as tensors and numbers: checkpoints hold nothing else. A
metric or post-hoc method that cannot be computed raises ValueError. Its columns then stay empty, and another column has
the reason.

The sweep keeps a copy of the code in its folder (`extensions.zip`), from which every training process imports it. The
code can be edited while a sweep runs, and `resume` continues with the code that the sweep started with. Running,
planning or resuming a search space runs the code that it names; `status`, `results`, `report` and `sync` import none.
Worked examples are in `search_spaces/examples/`.

This package imports only `trainables.registry`.
"""
