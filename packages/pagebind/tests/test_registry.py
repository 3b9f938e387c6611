"""Finding backends: names, reasons, duplicates, and what auto takes."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch
from pagebind import Backend, available_backends, get_backend, ops, registry
from pagebind.errors import BackendNotFound, BackendUnavailable, ConfigError, DuplicateBackend
from pagebind.ops import OPERATIONS


def planner(spec, device, options):
    raise AssertionError("nothing is planned here")


CORE = {name: planner for name, op in OPERATIONS.items() if op.level == "core"}
slow = Backend(name="slow", version="1", distribution="d-slow", modes={"cpu": "cpu"}, planners=CORE)
fast = replace(slow, name="fast", distribution="d-fast", rank=5)
broken = replace(slow, name="broken", rank=9, probe=lambda device_type: "its library is missing: pip install it")
old = replace(slow, name="old", rank=9, api_version=0)
gpu = replace(slow, name="gpu", rank=9, modes={"cuda": "gpu", "cpu": "interpreter"})
coreless = replace(slow, name="coreless", planners={})
not_a_backend = 7


@pytest.fixture
def installed(monkeypatch):
    def install(*names, extra=()):
        points = [EntryPoint(name, f"{__name__}:{name}", registry.ENTRY_POINT_GROUP) for name in names]
        monkeypatch.setattr(registry, "entry_points", lambda group: [*points, *extra])
        monkeypatch.setitem(__import__("sys").modules, __name__, __import__("sys").modules[__name__])

    return install


def test_auto_takes_the_best_usable_and_says_why_not_the_others(installed):
    installed("slow", "fast", "broken", "old", "gpu", "not_a_backend")
    found = {c.name: c for c in available_backends("cpu")}
    assert [name for name, c in found.items() if c.chosen] == ["fast"]
    assert get_backend(device="cpu") is fast
    assert "library is missing" in found["broken"].reason
    assert "backend API 0" in found["old"].reason
    assert "mode interpreter is for tests" in found["gpu"].note
    assert "rank 0, below fast (5)" in found["slow"].note
    assert "is a int, not a pagebind.Backend" in found["not_a_backend"].reason


def test_explicit_choice_never_falls_back(installed, monkeypatch):
    installed("slow", "broken", "gpu")
    monkeypatch.setenv("PAGEBIND_BACKEND", "broken")
    with pytest.raises(BackendUnavailable, match=r"'broken' \(from PAGEBIND_BACKEND\).*pip install it"):
        get_backend(device="cpu")
    assert get_backend("gpu", device="cpu") is gpu, "a test mode is taken when it is asked for"
    with pytest.raises(BackendUnavailable, match="not on cuda"):
        registry.choose(registry.resolve(backend="slow").backend, "cuda")


def test_unknown_name_says_what_exists_and_what_to_do(installed):
    installed("slow", "fast")
    with pytest.raises(BackendNotFound, match=r"'fats' \(from argument backend\).*installed: fast, slow.*mean 'fast'"):
        get_backend("fats")
    with pytest.raises(BackendNotFound, match="pip install pagebind-triton"):
        get_backend("triton")


def test_two_distributions_of_one_name_are_refused(installed):
    installed("slow", extra=[EntryPoint("slow", f"{__name__}:fast", registry.ENTRY_POINT_GROUP)])
    with pytest.raises(DuplicateBackend, match="'slow' is offered by"):
        available_backends("cpu")


def test_a_distribution_that_fails_to_load_is_shown_with_its_reason(installed):
    installed("slow", extra=[EntryPoint("bad", "no_such_module_here:backend", registry.ENTRY_POINT_GROUP)])
    reasons = {c.name: c.reason for c in available_backends("cpu")}
    assert "No module named" in reasons["bad"]
    assert reasons["slow"] is None
    with pytest.raises(BackendUnavailable, match="cannot be loaded"):
        get_backend("bad")


def test_module_attribute_names_a_backend_that_is_not_installed(installed):
    installed()
    assert get_backend(f"{__name__}:fast", device="cpu") is fast
    for name in (f"{__name__}:nothing", "no_such_module_here:x", f"{__name__}:not_a_backend"):
        with pytest.raises(BackendNotFound):
            get_backend(name, device="cpu")
    with pytest.raises(BackendUnavailable, match="no planner for read_table, bind, unbind, translate"):
        get_backend(f"{__name__}:coreless", device="cpu")


def test_none_usable_names_every_reason(installed):
    installed("broken", "gpu")
    with pytest.raises(BackendUnavailable, match=r"broken: its library is missing.*gpu: mode interpreter is for tests"):
        get_backend(device="cpu")


@pytest.mark.parametrize("value", ["SLOW", " slow", "slow\n"])
def test_a_name_in_another_case_or_with_spaces_is_refused_and_the_right_one_offered(installed, monkeypatch, value):
    installed("slow", "fast")
    monkeypatch.setenv("PAGEBIND_BACKEND", value)
    with pytest.raises(BackendNotFound, match=r"\(from PAGEBIND_BACKEND\) is not installed.*did you mean 'slow'\?"):
        get_backend(device="cpu")
    with pytest.raises(ConfigError, match=r"\(from argument device\) is no device: (?s:.*); did you mean 'cpu'\?"):
        get_backend("slow", device=value.replace("slow", "cpu").replace("SLOW", "CPU"))


@pytest.mark.parametrize("device", ["cpuu", "cuda:99"])
def test_device_that_does_not_exist_is_refused(device):
    if device == "cuda:99" and torch.cuda.is_available() and torch.cuda.device_count() > 99:
        pytest.fail("this test needs a machine of fewer than 100 GPUs")
    with pytest.raises(ConfigError, match=f"'{device}' .from argument device"):
        registry.resolve_device(registry.resolve(device=device).device)


def test_a_named_backend_brings_the_device_it_runs_on_where_that_is_auto(installed, monkeypatch):
    installed("slow", "gpu")
    monkeypatch.setattr(registry, "resolve_device", lambda setting: torch.device("cuda", 0))
    named, auto = registry.resolve(backend="slow"), registry.resolve()
    assert registry.settle(named.backend, named.device) == (slow, torch.device("cpu"))
    assert registry.settle(auto.backend, auto.device) == (gpu, torch.device("cuda", 0))
    told = registry.resolve(backend="slow", device="cuda")
    with pytest.raises(BackendUnavailable, match="not on cuda"):
        registry.settle(told.backend, told.device)


def test_a_feature_that_no_operation_asks_for_is_refused_by_name(installed):
    installed()
    misspelt = replace(slow, features=frozenset({"windowd"}))
    with pytest.raises(BackendUnavailable, match=r"declares 'windowd'.*did you mean 'windowed'"):
        registry.settle(misspelt, registry.resolve(device="cpu").device)


def test_every_feature_that_a_spec_asks_for_is_listed():
    small = {"max_bs": 1, "page_size": 2}
    asked = set()
    for form in ("token", "page"):
        for granularity in ("token", "page"):
            table = {"num_physical": 2, "form": form, "granularity": granularity, "windowed": True, **small}
            for fill in ("prefix", "sink"):
                beside = ops.Beside(num_physical=2)
                asked |= ops.READ_TABLE.features(ops.ReadTableSpec(max_width=1, fill=fill, beside=beside, **table))
            asked |= ops.READ_STREAM.features(ops.ReadStreamSpec(max_items=1, with_table=True, **table))
        asked |= ops.EXTEND.features(ops.ExtendSpec(max_tokens=1, num_virtual=2, num_physical=2, form=form, **small))
        asked |= ops.TRUNCATE.features(ops.TruncateSpec(max_pages=1, form=form, **small))
        asked |= ops.RELEASE.features(ops.ReleaseSpec(max_pages=1, form=form, shared=True, **small))
    asked |= ops.TRANSLATE.features(ops.TranslateSpec(max_items=1, page_size=1, num_physical=2, ranks=2))
    asked |= ops.ALLOC.features(ops.AllocSpec(max_items=1, borrowed=True))
    asked |= ops.EXTEND.features(ops.ExtendSpec(max_tokens=1, num_virtual=2, num_physical=2, emits=True, **small))
    asked |= ops.ADVANCE.features(ops.AdvanceSpec(num_virtual=2, num_physical=2, appends=True, **small))
    asked |= ops.COMPACT.features(ops.CompactSpec(max_pages=1, page_bytes=16))
    assert asked == ops.FEATURES
