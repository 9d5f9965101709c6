"""docs/json.md lists the fields of what every command prints with ``--json``, and nothing else."""

from __future__ import annotations

import pytest

from hcal.cli.app import app
from tools import json_page


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_the_commands_print() -> None:
    assert json_page.page() == json_page.PAGE.read_text(encoding="utf-8"), (
        "run python tools/json_page.py"
    )


def test_every_command_has_its_schema_on_the_page() -> None:
    text = json_page.PAGE.read_text(encoding="utf-8")
    names = {str(info.name) for info in app.registered_commands}
    for name in names - {"view"}:  # which shows a page until it is stopped
        assert f"## `hcal/{name}/1`" in text
