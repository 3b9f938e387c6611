"""What an operation is: a typed token with a spec, a call, an argument check and the bytes it must move.

Here too are the checks that all specs and calls share, so that their messages read alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import torch

from pagebind.errors import InvalidArgument
from pagebind.words import STATE_WORDS, PageTables

SpecT = TypeVar("SpecT")
CallT = TypeVar("CallT")

Level = Literal["core", "extended"]
Checks = Literal["off", "count", "full"]

INDEX_DTYPES = (torch.int32, torch.int64)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_LENGTH = 2**61
"""Lengths and starts are clamped to `[-MAX_LENGTH, MAX_LENGTH]` before any arithmetic, so that no sum overflows."""


@dataclass(frozen=True)
class LaunchOptions:
    """What a plan may fix beyond its spec; results never depend on it, but for the counters.

    `threads` of a block (cells of a program of Triton) and `programs` (blocks) at most; None leaves the choice to the
    backend. `count` False plans launches that count no faults (`checks=off`); they guard all the same.
    """

    threads: int | None = None
    programs: int | None = None
    count: bool = True

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("programs", self.programs)):
            if value is not None:
                need_count(f"options.{name}", value, 1)
        if not isinstance(self.count, bool):
            raise InvalidArgument(f"options.count is {self.count!r}; it must be True or False")


class Launch(Protocol):
    """What a backend's planner returns: the operation's call, which only launches, and its warm-up.

    A launch trusts the dtypes, shapes, strides and devices of its tensors, and nothing that is in them. It goes by
    these, by addresses and by its other arguments alone: calls where all of them are equal launch the same.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch."""

    def warmup(self) -> None:
        """Compile every variant a later call of this plan can need."""


class RepeatableLaunch(Launch, Protocol):
    """A launch that can make its repetition ready. No backend has to: others are called with the arguments again."""

    def repeatable(self, *args: Any, **kwargs: Any) -> Callable[[], None] | None:
        """Launch, and return what launches the same again; None where this call has no shorter way.

        What is returned gets called any number of times, for calls whose tensors have the same addresses, dtypes,
        shapes, strides and devices, and whose other arguments are equal: by any host thread, by several at once, inside
        captures and outside, with whatever device and stream are current then. It launches on the stream that is
        current then, and holds no tensor of the call.
        """


Planner = Callable[[Any, torch.device, LaunchOptions], Launch]
"""`planner(spec, device, options) -> launch`; raises Unsupported by name for what the backend does not declare."""


@dataclass(frozen=True)
class Operation(Generic[SpecT, CallT]):
    """One operation. `SpecT` is what a plan decides, `CallT` the Protocol of the planned call."""

    name: str
    level: Level
    spec: type[SpecT]
    arguments: Callable[..., bool]
    """`arguments(spec, device, *call arguments)` raises InvalidArgument; False where there is nothing to launch."""
    bytes_moved: Callable[..., int]
    """`bytes_moved(spec, *, lanes, items)`: the fewest bytes a call has to read and write."""
    features: Callable[[SpecT], frozenset[str]]
    """The features beyond the plain operation that a spec asks of a backend."""
    faults: Callable[..., Mapping[str, Sequence[int]]]
    """`faults(spec, *call arguments)`: what a call would count, by counter, with the ids; waits. For `checks=full`."""
    compose: Callable[[SpecT, torch.device, Mapping[str, Planner], LaunchOptions], Launch] | None = None
    """Builds the launch from core operations and torch, for a backend that has no planner for this one."""

    def __post_init__(self) -> None:
        if (self.compose is None) != (self.level == "core"):
            raise TypeError(f"operation {self.name}: extended operations are composed, core ones are not")

    def call_type(self, launch: object) -> CallT:
        """Type `launch` as this operation's call; nothing happens at run time."""
        return cast("CallT", launch)

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


class NoWarmup:
    """A launch around a plain function, for code that compiles nothing."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch."""
        self._run(*args, **kwargs)

    def warmup(self) -> None:
        """Nothing to compile."""


# ---- checks of specs -------------------------------------------------------------------------------------------------


def need_count(name: str, value: int, least: int, most: int = INT64_MAX) -> None:
    """Refuse a count of a spec that is no int or lies outside `[least, most]`."""
    if type(value) is int and least <= value <= most:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}; it must be an int")
    if not least <= value <= most:
        bound = f"at least {least}" if most == INT64_MAX >= value else f"from {least} to {most}"
        raise InvalidArgument(f"{name} is {value}; it must be {bound}")


def need_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value of a spec that is not one of `choices`."""
    if value not in choices:
        raise InvalidArgument(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def need_index_dtypes(**dtypes: torch.dtype) -> None:
    """Refuse dtypes that are neither int32 nor int64."""
    for name, dtype in dtypes.items():
        need_choice(name, dtype, INDEX_DTYPES)


def largest_entry(num_physical: int, multiplier: int, page_size: int, granularity: str) -> int:
    """Return `(num_physical - 1) * multiplier` per page, `... * page_size + page_size - 1` per token."""
    largest = (num_physical - 1) * multiplier
    return largest if granularity == "page" else largest * page_size + page_size - 1


def need_entries_fit(
    num_physical: int, multiplier: int, page_size: int, granularity: str, field: str, dtype: torch.dtype
) -> None:
    """Refuse a spec whose largest entry does not fit the `dtype` that it has in its `field`."""
    largest = largest_entry(num_physical, multiplier, page_size, granularity)
    most = INT32_MAX if dtype is torch.int32 else INT64_MAX
    if largest > most:
        advice = f"plan {field}=torch.int64" if largest <= INT64_MAX else "lower the multiplier or num_physical"
        raise InvalidArgument(
            f"the largest {granularity} entry is {largest} (num_physical {num_physical}, multiplier {multiplier}, "
            f"page_size {page_size}), more than {dtype} holds ({most}); {advice}"
        )


# ---- checks of calls -------------------------------------------------------------------------------------------------


def need_tensor(name: str, value: torch.Tensor, dtype: torch.dtype, ndim: int, device: torch.device) -> None:
    """Refuse what is not an `ndim`-dimensional tensor of `dtype` on `device` whose last dimension is dense."""
    try:
        if (
            isinstance(value, torch.Tensor)
            and value.dtype is dtype
            and value.device == device
            and len(strides := value.stride()) == ndim  # `stride(-1)` alone takes three times as long
            and (strides[-1] == 1 or (value.shape[-1] <= 1 and value.layout is torch.strided))
        ):
            return
    except RuntimeError:  # what has no strides has no way to say so
        need_strided(name, value)
        raise
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{name} is a {type(value).__name__}; it must be a {dtype} tensor on {device}")
    if value.dtype is not dtype:
        raise InvalidArgument(f"{name} has dtype {value.dtype}; this plan takes {dtype}: convert it, or plan for it")
    if value.dim() != ndim:
        raise InvalidArgument(f"{name} has shape {list(value.shape)}; it must have {ndim} dimension(s)")
    if value.device != device:
        raise InvalidArgument(f"{name} is on {value.device}; this plan runs on {device}: move it, or plan for it")
    need_strided(name, value)
    raise InvalidArgument(
        f"{name} has strides {list(value.stride())}; the last dimension must be dense (stride 1): call .contiguous()"
    )


def need_strided(name: str, value: torch.Tensor) -> None:
    """Refuse a sparse or a nested tensor: what kernels are given is an address and strides."""
    if value.is_nested:
        raise InvalidArgument(f"{name} is a nested tensor; it must be a dense one: pad it, or pack it yourself")
    if value.layout is not torch.strided:
        raise InvalidArgument(f"{name} is sparse ({value.layout}); it must be a dense tensor: call .to_dense()")


def need_length(name: str, value: torch.Tensor, length: int, of: str) -> None:
    """Refuse a tensor whose first dimension is not `length`, which is said to be that of `of`."""
    if value.shape[0] != length:
        raise InvalidArgument(f"{name} has {value.shape[0]} element(s); {of} has {length}")


def need_at_most(name: str, value: int, most: int, planned: str) -> None:
    """Refuse a size of a call that exceeds what was planned under the name `planned`."""
    if value > most:
        raise InvalidArgument(f"{name} is {value}; this plan has {planned}={most}: plan for more, or pass less")


def need_separate_rows(name: str, value: torch.Tensor) -> None:
    """Refuse a 2-D output whose rows overlap in memory."""
    if value.shape[0] > 1 and value.stride(0) < value.shape[1]:
        raise InvalidArgument(
            f"{name} has row stride {value.stride(0)} and {value.shape[1]} columns: its rows overlap; "
            "pass a tensor whose rows are apart"
        )


def need_state(state: torch.Tensor | None, device: torch.device) -> None:
    """Refuse a state block that is neither None nor int64 `[32]` on `device`."""
    if state is None:
        return
    need_tensor("state", state, torch.int64, 1, device)
    need_length("state", state, STATE_WORDS, "a state block")


def need_page_table(name: str, table: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a `v2p` or `p2v` of a wrong kind, or without a row for the sink and one for the sentinel."""
    need_tensor(name, table, dtype, 1, device)
    if table.shape[0] < 2:
        raise InvalidArgument(f"{name} has {table.shape[0]} row(s); it needs one for the sink and a sentinel behind")


def need_tables(tables: PageTables, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse tables of a sub-pool whose dtypes, shapes or devices do not belong together."""
    if not isinstance(tables, PageTables):
        raise InvalidArgument(f"tables is a {type(tables).__name__}; it must be a PageTables")
    v2p, p2v, virtual_stack, hole_stack, state, _, _ = tables
    try:
        fit = [(t.dtype, t.device, t.stride()) for t in tables[:4]] == [(dtype, device, (1,))] * 4
    except (AttributeError, RuntimeError):  # no tensor, or one that has no strides
        fit = False
    if not fit:
        for name in ("v2p", "p2v", "virtual_stack", "hole_stack"):
            need_tensor(name, getattr(tables, name), dtype, 1, device)
    (virtual_rows,), (physical_rows,) = v2p.shape, p2v.shape
    if min(virtual_rows, physical_rows) < 2:
        need_page_table("v2p", v2p, dtype, device)
        need_page_table("p2v", p2v, dtype, device)
    need_length("virtual_stack", virtual_stack, virtual_rows - 1, "num_virtual")
    need_length("hole_stack", hole_stack, physical_rows - 1, "num_physical")
    if state is None:
        raise InvalidArgument("tables.state is None; these operations take their positions from the state block")
    need_state(state, device)
    if tables.chain is None:
        return
    need_tensor("tables.chain", tables.chain, torch.int64, 2, device)
    sub_pools, words = tables.chain.shape
    if words != STATE_WORDS or tables.chain.stride(0) != STATE_WORDS:
        raise InvalidArgument(
            f"tables.chain has shape {[sub_pools, words]}; it must be dense, one state block of {STATE_WORDS} a row"
        )
    need_count("tables.place", tables.place, 0, sub_pools - 1)
    if tables.state.data_ptr() != tables.chain.data_ptr() + tables.place * STATE_WORDS * tables.chain.element_size():
        raise InvalidArgument(f"tables.state is not row {tables.place} of tables.chain, which tables.place names")


def need_rows(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    max_bs: int,
    row_dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Check a request table with the rows of a batch, and return the batch size."""
    need_tensor("request_table", request_table, torch.int32, 2, device)
    need_tensor("req_rows", req_rows, row_dtype, 1, device)
    bs = req_rows.shape[0]
    need_at_most("the batch size", bs, max_bs, "max_bs")
    return bs


def plain(value: torch.Tensor) -> list[Any]:
    """Return the values of a tensor as a list; waits for the device. Only `faults` functions use it."""
    return value.tolist()
