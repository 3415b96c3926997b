"""Descriptions of Debian packages by section, and a tiny transformer: made where a test runs, from lists of apt.

Packages of one source are in one split: their descriptions resemble each other. The tokenizer is trained on training
texts; the network has learnt to tell the other sections apart before, as a pretrained one has seen other texts.
"""

import hashlib
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SECTIONS = ("admin", "devel", "doc", "games", "graphics", "net", "science", "sound", "text", "utils")
ELSEWHERE = ("libs", "perl", "python", "haskell", "golang", "java", "ruby", "x11", "php", "misc")
MOST = 1200
"""Packages of a section."""


def descriptions(sections: tuple[str, ...]) -> list[dict[str, str]]:
    """Return a row a package of these sections: its description in a line, section, and split by its source."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    rows, counts = [], Counter[str]()
    for block in listed.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        section = fields.get("Section", "").rpartition("/")[2]
        if section in sections and "Description" in fields and counts[section] < MOST:
            counts[section] += 1
            source = fields.get("Source", fields["Package"]).split(" ")[0]
            tenth = hashlib.sha256(source.encode()).digest()[0] * 10 // 256
            part = "train" if tenth < 6 else "val" if tenth < 8 else "test"
            rows.append({"description": fields["Description"], "section": section, "part": part})
    return rows


def write_packages(folder: Path, *, hidden: int = 64, pieces: int = 4000, epochs: int = 2) -> tuple[Path, Path]:
    """Write `packages.parquet` and the folder `model` of a tiny BERT that has read the other sections; return both."""
    import torch

    from tests.trainables.models.tiny_bert import write_tiny_bert
    from trainables.datasets.own_tables import tokenized
    from trainables.extensions.libraries import required_library

    rows, others = descriptions(SECTIONS), descriptions(ELSEWHERE)
    pq.write_table(pa.Table.from_pylist(rows), folder / "packages.parquet")
    model = folder / "model"
    model.mkdir()
    texts = [row["description"] for row in rows if row["part"] == "train"]
    write_tiny_bert(model, texts, pieces=pieces, hidden=hidden)
    torch.manual_seed(0)
    network = required_library().AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(ELSEWHERE))
    inputs, _ = tokenized([row["description"] for row in others], str(model), 32)
    ids, targets = torch.from_numpy(inputs).long(), torch.tensor([ELSEWHERE.index(row["section"]) for row in others])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for batch in (batch for _ in range(epochs) for batch in torch.randperm(len(ids)).split(64)):
        batch = batch.sort().values
        loss = network(input_ids=ids[batch], attention_mask=(ids[batch] != 0).long(), labels=targets[batch]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.bert.save_pretrained(model)
    return folder / "packages.parquet", model
