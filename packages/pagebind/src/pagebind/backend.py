"""The record a backend is, found through the entry-point group `pagebind.backends` or named `module:attribute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pagebind.operation import Planner
from pagebind.words import API_VERSION

ENTRY_POINT_GROUP = "pagebind.backends"

Mode = Literal["gpu", "interpreter", "host", "cpu"]
"""How a backend runs on a device type: on a GPU; its GPU code interpreted or compiled for the host; on the CPU.

`interpreter` and `host` exist to test GPU code without a GPU: `auto` never takes them.
"""

SERVING_MODES: tuple[Mode, ...] = ("gpu", "cpu")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend: who it is, where it runs, what it can, and how to plan each operation. Nothing in it starts a device.

    Loading the module that holds the record must not import a kernel library; `probe` and the planners may.
    """

    name: str
    version: str
    distribution: str
    """Name of the distribution that brings it; messages say `pip install` that."""
    modes: Mapping[str, Mode]
    """Device type -> mode it runs in there, for example `{"cuda": "gpu", "cpu": "interpreter"}`."""
    planners: Mapping[str, Planner]
    """Operation name -> planner. The core operations are required; the extended ones may be missing."""
    features: frozenset[str] = frozenset()
    """What it does beyond plain operations, by the names `Operation.features` uses; the rest is refused by name."""
    probe: Callable[[str], str | None] = lambda device_type: None
    """`probe(device_type)`: None where the backend is usable there, else the reason and the command that mends it."""
    compile_count: Callable[[], int] = lambda: 0
    """Kernels compiled so far in this process."""
    rank: int = 0
    """`auto` takes the usable backend of the highest rank, then the first name."""
    api_version: int = API_VERSION

    @property
    def device_types(self) -> tuple[str, ...]:
        """Device types it has a mode for."""
        return tuple(self.modes)

    def reason_against(self, device_type: str) -> str | None:
        """Return why this backend cannot be used on a device type, or None where it can."""
        if self.api_version != API_VERSION:
            return (
                f"it is made for backend API {self.api_version}, this pagebind has {API_VERSION}: "
                f"pip install --upgrade {self.distribution} pagebind"
            )
        if device_type not in self.modes:
            return f"it runs on {', '.join(self.modes) or 'nothing'}, not on {device_type}"
        try:
            return self.probe(device_type)
        except Exception as error:  # a broken probe must not take the other backends down: its error is the reason
            return f"its probe fails: {type(error).__name__}: {error}"
