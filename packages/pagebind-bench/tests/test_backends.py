"""Every installed backend that is usable here replays to the digest of every other."""

import pytest
import torch
from pagebind.registry import available_backends
from pagebind_bench.replay.loop import Loop
from pagebind_bench.replay.settings import Settings
from pagebind_bench.replay.traces import Request

TRACE = [Request(15 * n, 17 + n % 4, 5 + n % 3, (1, 2, 10 + n)) for n in range(5)]


@pytest.mark.parametrize("form", ["page", "token"])
def test_the_digest_is_free_of_backend_and_device(form):
    digests = {}
    for place in ["cpu", "cuda"][: 1 + torch.cuda.is_available()]:
        for candidate in available_backends(place):
            if candidate.reason is None:
                settings = Settings(
                    pages=16,
                    page_size=4,
                    max_batch=3,
                    max_context=32,
                    chunk=32,
                    block_tokens=8,
                    form=form,
                    verify="every",
                    sample_every=1,
                    cost_step_ms=10.0,
                    cost_prefill_us=0.0,
                    cost_entry_us=0.0,
                )
                loop = Loop(TRACE, settings, backend=candidate.name, device=place)
                loop.run()
                assert {name for name, _ in loop.record.called()} == {
                    "extend",
                    "read_table",
                    "assign",
                    "release",
                    "free",
                }
                digests[candidate.name, place] = loop.digest.hexdigest()
    assert digests
    assert len(set(digests.values())) == 1, digests
