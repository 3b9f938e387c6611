"""Generate a trace: seeded, with lengths and arrivals that follow the published quantiles of four public traces.

Lengths are log-linear between the quantiles. Below the median, where none is published, they reach down to an eighth of
it. They are drawn stratified, one from each of `count` equal slices of probability, so that short traces follow the
quantiles too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pagebind.errors import InvalidArgument, did_you_mean

from pagebind_bench.replay.traces import Request

MINUTE_MS = 60_000.0
LOWEST = 8
"""The shortest length is the median divided by this."""


@dataclass(frozen=True)
class Profile:
    """A kind of traffic. Lengths are tokens: `input` at p50, p90, p99 and max, `output` at p50, p90 and max."""

    name: str
    input: tuple[int, int, int, int]
    output: tuple[int, int, int]
    requests: int
    minutes: int
    arrivals: Callable[[np.random.Generator, Profile, int], np.ndarray]
    prefixes: Callable[[np.random.Generator, np.ndarray, int], list[tuple[int, ...]]] | None = None
    block: int = 0
    """Tokens of a hashed block; 0 for traffic without hashes."""
    turns: int = 1
    """Requests of a session, each longer than the one before; 1 where lengths come in any order."""

    def quantiles(self, points: tuple[int, ...]) -> tuple[list[float], list[int]]:
        """Return the probabilities and lengths between which lengths are log-linear."""
        inner = [0.5, 0.9, 0.99, 1.0] if len(points) == 4 else [0.5, 0.9, 1.0]
        return [0.0, *inner], [max(points[0] // LOWEST, 1), *points]


def generate(profile: str, count: int, seed: int, block: int | None = None) -> list[Request]:
    """Return `count` requests of a profile; the same for the same arguments. `block` replaces the profile's own.

    >>> len(generate("chat", 100, seed=0))
    100
    """
    if profile not in PROFILES:
        raise InvalidArgument(
            f"profile {profile!r} does not exist; profiles: {', '.join(PROFILES)}{did_you_mean(profile, PROFILES)}"
        )
    if count < 1:
        raise InvalidArgument(f"--requests is {count}; a generated trace needs at least 1")
    kind = PROFILES[profile]
    rng = np.random.default_rng(seed)
    inputs = _lengths(rng, *kind.quantiles(kind.input), count)
    outputs = _lengths(rng, *kind.quantiles(kind.output), count)
    arrivals = kind.arrivals(rng, kind, count)
    if kind.turns > 1:
        for start in range(0, count, kind.turns):
            inputs[start : start + kind.turns].sort()
    hashes: list[tuple[int, ...]] = [()] * count
    size = kind.block if block is None else block
    if kind.prefixes is not None and size > 0:
        hashes = kind.prefixes(rng, inputs, size)
    elif block:
        raise InvalidArgument(f"--block-tokens is {block}, but profile {profile!r} has no block hashes; leave it out")
    order = np.argsort(arrivals, kind="stable")
    first = float(arrivals[order[0]])
    return [Request(float(arrivals[i]) - first, int(inputs[i]), int(outputs[i]), hashes[i]) for i in order]


def _lengths(rng: np.random.Generator, at: list[float], points: list[int], count: int) -> np.ndarray:
    slices = (rng.permutation(count) + rng.random(count)) / count
    return np.rint(np.exp(np.interp(slices, at, np.log(points)))).astype(np.int64)


# ---- arrivals, in milliseconds ---------------------------------------------------------------------------------------


def _poisson(rng: np.random.Generator, kind: Profile, count: int) -> np.ndarray:
    return np.cumsum(rng.exponential(kind.minutes * MINUTE_MS / kind.requests, count))


def _bursts(rng: np.random.Generator, kind: Profile, count: int) -> np.ndarray:
    """12 of 58 minutes are empty; in the others requests come in bursts of a second, 67 at most."""
    per_minute = kind.requests / (kind.minutes - 12)
    arrivals: list[float] = []
    minute = 0
    while len(arrivals) < count:
        if minute == 0 or rng.random() >= 12 / 58:
            left = int(rng.poisson(per_minute))
            while left > 0:
                burst = min(int(rng.geometric(1 / 8)), left, 67)
                at = (minute + rng.random()) * MINUTE_MS
                arrivals += (at + rng.random(burst) * 1000).tolist()
                left -= burst
        minute += 1
    return np.sort(np.array(arrivals))[:count]


def _grid(rng: np.random.Generator, kind: Profile, count: int) -> np.ndarray:
    """Arrivals are stamped on a 3 s grid."""
    return np.asarray(np.floor(_poisson(rng, kind, count) / 3000) * 3000)


def _sessions(rng: np.random.Generator, kind: Profile, count: int) -> np.ndarray:
    """Sessions start 60 s apart; a turn follows the one before it after half a minute on average."""
    starts = np.arange(-(-count // kind.turns)) * MINUTE_MS
    waits = rng.exponential(MINUTE_MS / 2, (len(starts), kind.turns))
    waits[:, 0] = 0
    return np.asarray((starts[:, None] + np.cumsum(waits, axis=1)).reshape(-1)[:count])


# ---- shared prefixes -------------------------------------------------------------------------------------------------


def _followed_up(rng: np.random.Generator, inputs: np.ndarray, block: int) -> list[tuple[int, ...]]:
    """Three in five requests begin like one of the last 200; the last block is rounded up."""
    hashes: list[tuple[int, ...]] = []
    fresh = 0
    for number, tokens in enumerate(inputs.tolist()):
        head: tuple[int, ...] = ()
        if number and rng.random() < 0.6:
            other = int(rng.integers(max(number - 200, 0), number))
            head = hashes[other][: min(int(inputs[other]), tokens) // block]
        missing = -(-tokens // block) - len(head)
        hashes.append((*head, *range(fresh, fresh + missing)))
        fresh += missing
    return hashes


def _grown(rng: np.random.Generator, inputs: np.ndarray, block: int) -> list[tuple[int, ...]]:
    """Every turn of a session begins with the whole blocks of the turn before; only whole blocks have a hash."""
    hashes: list[tuple[int, ...]] = []
    turns = PROFILES["agent"].turns
    fresh = 0
    for number, tokens in enumerate(inputs.tolist()):
        head = hashes[-1] if number % turns else ()
        missing = max(tokens // block - len(head), 0)
        hashes.append((*head, *range(fresh, fresh + missing)))
        fresh += missing
    return hashes


PROFILES: dict[str, Profile] = {
    kind.name: kind
    for kind in (
        # Azure/AzurePublicDataset, 2023 conversation and code traces.
        Profile("chat", (1020, 2735, 4142, 14_050), (129, 424, 1000), 19_366, 58, _poisson),
        Profile("code", (1469, 5194, 7436, 7437), (13, 55, 1899), 8819, 58, _bursts),
        # kvcache-ai/Mooncake, conversation trace.
        Profile(
            "prefix-chat", (6909, 27_367, 85_401, 126_195), (350, 597, 2000), 12_031, 59, _grid, _followed_up, block=512
        ),
        # callanjfox/kv-cache-tester, coding-agent sessions.
        Profile(
            "agent",
            (75_240, 261_114, 661_932, 700_672),
            (237, 794, 6299),
            1013,
            60,
            _sessions,
            _grown,
            block=64,
            turns=17,
        ),
    )
}
