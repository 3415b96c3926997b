"""`python -m sweeper` is `sweeper`."""

import os
import sys

if __name__ == "__main__":
    from sweeper.core.processes import search_path

    # `python -m` puts the working directory first, which may be a folder from somebody else, with a `torch.py` in it.
    sys.path[:] = search_path()
    os.environ["PYTHONSAFEPATH"] = "1"

    from sweeper.api.main import main

    main()
