"""A file of predictions from elsewhere for tests of its import."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CLASSES, SIZES = 4, {"val": 90, "test": 60}


def written(path, change=lambda row: row, keep=lambda row: True):
    """Write a file of three configurations, two seeds, two epochs and two splits; return its rows."""
    random = np.random.RandomState(0)
    targets = {split: random.randint(0, CLASSES, size) for split, size in SIZES.items()}
    rows = []
    runs = [(lr, loss) for lr, loss in ((0.1, "cross_entropy"), (0.1, "focal"), (0.3, "cross_entropy"))]
    for lr, loss in runs:
        for seed, epoch, split in ((s, e, p) for s in (3, 7) for e in (2, 9) for p in SIZES):
            logits = random.randn(SIZES[split], CLASSES)
            logits[np.arange(SIZES[split]), targets[split]] += 1 + epoch / 9 + 3 * lr
            for sample, target in enumerate(targets[split]):
                run = {"lr": lr, "loss": loss, "loss_gamma": 2.0 if loss == "focal" else None, "seed": seed}
                place = {"epoch": epoch, "split": split, "sample": sample, "target": int(target)}
                row = change({**run, **place, "logits": logits[sample].astype(np.float32).tolist()})
                rows += [row] if keep(row) else []
    random.shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return rows
