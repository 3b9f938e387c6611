// Each thread's sum over its block by shuffles and a barrier, the votes of its warp, and one atomic of all blocks.
#include "base.cuh"
#include "block.cuh"

KERNEL(block)(
    i64* sums,    // [blocks * threads], int64: values of the threads before, in the block
    i64* totals,  // [blocks], int64
    i64* votes,   // [blocks * threads], int64: ballot of the odd threads of the warp
    i64* all,     // [1], int64: added to by every thread
    i64* last) {  // [2], int64: ticket, and what the last block saw in `all`
    const i64 thread = first_thread();
    i64 total;
    sums[thread] = block_scan(thread, &total);
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
    votes[thread] = __ballot_sync(FULL_WARP, thread % 2);
    // An addition by compare-and-swap, tried again where another thread came first.
    i64 seen = all[0];
    while (true) {
        const i64 found = compare_and_swap(all, seen, seen + 1);
        if (found == seen) break;
        seen = found;
    }
    if (is_last_block(last) && threadIdx.x == 0) last[1] = all[0];
}

HOST_ENTRY(block)
