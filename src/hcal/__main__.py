"""``python -m hcal``: the command line, also where the script ``hcal`` is not on the path."""

from __future__ import annotations

from hcal.cli import main

if __name__ == "__main__":
    main()
