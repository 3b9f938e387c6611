"""A clean rung for every test: no PAGEBIND_ variable, and a working directory without settings."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _bare_ladder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PAGEBIND_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
