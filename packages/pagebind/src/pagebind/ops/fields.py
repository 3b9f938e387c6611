"""What the fields that several specs have may hold, told once for each name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pagebind.operation import INT32_MAX, INT64_MAX, need_choice, need_count, need_index_dtypes

BOUNDS = {
    "max_bs": (0, INT32_MAX),
    "max_items": (0, INT64_MAX),
    "max_pages": (0, INT32_MAX),
    "max_tokens": (0, INT32_MAX),
    "max_width": (0, INT32_MAX),
    "page_size": (1, INT32_MAX),
    "num_virtual": (1, INT64_MAX),
    "num_physical": (1, INT64_MAX),
    "multiplier": (1, INT64_MAX),
}
"""Field of a count -> the least and the most it may be."""


def need_fields(spec: Any) -> None:
    """Refuse a spec with a count out of bounds, an unknown form or granularity, or a dtype that is no index's.

    Fields are checked in their order; those of other names are their operation's to check.
    """
    for field in fields(spec):
        name, value = field.name, getattr(spec, field.name)
        if name in BOUNDS:
            need_count(name, value, *BOUNDS[name])
        elif name in ("form", "granularity"):
            need_choice(name, value, ("token", "page"))
        elif name.endswith("_dtype"):
            need_index_dtypes(**{name: value})
