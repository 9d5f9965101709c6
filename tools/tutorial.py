"""Draw the pictures of the tutorial: run its Python blocks in the gallery's style, and keep what they save.

python tools/tutorial.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run the page in an empty folder and move its pictures to the docs."""
    sys.path.insert(0, str(ROOT))
    import matplotlib as mpl

    from docs.gallery_style import STYLE

    mpl.use("svg")
    mpl.rcParams.update(STYLE)
    # On GitHub's dark pages a drawing without paper could not be read.
    mpl.rcParams["savefig.facecolor"] = "white"
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # the same picture is the same file
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(io.StringIO()):
            exec("\n".join(programs), {"__name__": "__main__"})
        for picture in sorted(Path(folder).glob("tutorial-*.svg")):
            shutil.move(picture, ROOT / "docs" / "assets" / picture.name)
            print(f"wrote docs/assets/{picture.name}")


if __name__ == "__main__":
    main()
