"""A CSV of `pagebind bench`, read back: what figures and tables are made from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pagebind.errors import InvalidArgument

from pagebind_bench.bench.record import COLUMNS, TEXT


def read(path: Path) -> pd.DataFrame:
    """Read a CSV of `pagebind bench`; raises InvalidArgument where it is none."""
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(TEXT, "string"))
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise InvalidArgument(f"{path} cannot be read as a CSV: {error}") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InvalidArgument(f"{path} has no column {missing[0]!r}: it is no CSV of this version of pagebind bench")
    if table["key"].duplicated().any():
        raise InvalidArgument(f"{path} has a key twice: {table['key'][table['key'].duplicated()].iloc[0]}")
    return table
