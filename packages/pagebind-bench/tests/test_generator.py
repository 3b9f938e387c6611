import numpy as np
import pytest
from pagebind.errors import InvalidArgument
from pagebind_bench.replay.generator import PROFILES, generate
from pagebind_bench.replay.traces import block_tokens


@pytest.mark.parametrize("name", list(PROFILES))
def test_lengths_follow_the_published_quantiles(name):
    requests = generate(name, 2000, seed=3, block=0)
    kind = PROFILES[name]
    inputs = [request.input_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]
    for values, points, at in ((inputs, kind.input, (0.5, 0.9, 0.99)), (outputs, kind.output, (0.5, 0.9))):
        np.testing.assert_allclose(np.quantile(values, at), points[: len(at)], rtol=0.02)
        assert 0.95 * points[-1] <= max(values) <= points[-1]
        assert min(values) >= points[0] // 8


@pytest.mark.parametrize("name", list(PROFILES))
def test_arrivals_begin_at_zero_in_order_at_the_published_rate(name):
    count = 2000 if name != "agent" else 1013
    arrivals = np.array([request.arrival_ms for request in generate(name, count, seed=1, block=0)])
    kind = PROFILES[name]
    assert arrivals[0] == 0
    assert (np.diff(arrivals) >= 0).all()
    minutes = count * kind.minutes / kind.requests
    assert 0.75 * minutes < arrivals[-1] / 60_000 < 1.4 * minutes


def test_code_traffic_has_empty_minutes_and_bursts():
    arrivals = np.array([request.arrival_ms for request in generate("code", 8819, seed=0)])
    per_minute = np.bincount((arrivals // 60_000).astype(int))
    per_second = np.bincount((arrivals // 1000).astype(int))
    assert 4 <= (per_minute == 0).sum() <= 24
    assert 20 <= per_second.max() <= 90


@pytest.mark.parametrize("name", list(PROFILES))
def test_the_seed_decides_everything(name):
    assert generate(name, 50, seed=5) == generate(name, 50, seed=5)
    assert generate(name, 50, seed=5) != generate(name, 50, seed=6)


@pytest.mark.parametrize(("name", "block"), [("prefix-chat", 512), ("agent", 64)])
def test_equal_hashes_mean_an_equal_whole_prefix(name, block):
    requests = generate(name, 100, seed=2)
    assert block_tokens(requests, block) == (block, "--block-tokens")
    before: dict[int, tuple[int, int]] = {}  # hash -> its place and the hash before it: by induction, the whole prefix
    shared = 0
    for request in requests:
        for place, hash_id in enumerate(request.hash_ids):
            start = (place, request.hash_ids[place - 1] if place else -1)
            shared += hash_id in before
            assert before.setdefault(hash_id, start) == start
    assert shared > 300


def test_the_block_can_be_chosen_and_left_out():
    assert block_tokens(generate("prefix-chat", 200, seed=0, block=100), 100)[0] == 100
    assert not any(request.hash_ids for request in generate("prefix-chat", 20, seed=0, block=0))
    with pytest.raises(InvalidArgument, match="profile 'chat' has no block hashes"):
        generate("chat", 5, seed=0, block=64)


def test_an_unknown_profile_is_refused():
    with pytest.raises(InvalidArgument, match=r"'agnet' does not exist; profiles: chat, code.*did you mean 'agent'"):
        generate("agnet", 5, seed=0)
