"""Atheris's part of the fuzzing: `python -m tests.fuzzing.guided FOLDER INPUTS SEED`; leaves `FOLDER/counts`.

libFuzzer ends the process itself, so the counts are written with the last input.
"""

import sys
from collections import Counter
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["yaml", "sweeper.space.loading", "sweeper.core.domains", "sweeper.space.file"]
):
    import yaml

    import sweeper.space.loading
from search_spaces import packaged_files
from tests.fuzzing.spaces import check_bytes

MAXIMUM_LENGTH = 2048
"""Bytes: above the longest file that ships, written without its header in YAML's short form."""


def main() -> None:
    """Fuzz the parser, beginning with the files that ship."""
    folder, inputs, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    corpus = folder / "corpus"
    corpus.mkdir()
    for name, path in packaged_files().items():
        space = {key: value for key, value in yaml.safe_load(path.read_text("utf-8")).items() if key != "header"}
        (corpus / name).write_text(yaml.safe_dump(space, default_flow_style=True, width=MAXIMUM_LENGTH))
    counts: Counter[str] = Counter()

    def one(content: bytes) -> None:
        counts[check_bytes(content, folder)] += 1
        if counts.total() == inputs:
            (folder / "counts").write_text(" ".join(f"{answer} {count}" for answer, count in counts.items()))

    limits = ["-timeout=60", "-rss_limit_mb=4096", f"-max_len={MAXIMUM_LENGTH}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], str(corpus), f"-runs={inputs}", f"-seed={seed}", *limits], one)
    atheris.Fuzz()


if __name__ == "__main__":
    assert sweeper.space.loading
    main()
