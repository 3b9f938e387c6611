// alloc: take virtual ids and physical pages off the device stacks and bind them, in one launch.
//
// Every block reads the positions before it takes its ticket; the last one moves them. No block waits for another.
//
// Borrowed ids are given, and the k-th lane that has one takes page k. So a block has lanes side by side, and counts by
// itself how many before its first one ask:
//
//     ids       4  -1   9 |  0   2   6 |  3  -1  -1         blocks of 3 lanes
//     page k    0       1 |      2   3 |  4                 before them 0, 2, 4 that ask
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"

// How many of the first `lanes` ask for a page. Every thread of the block calls it.
__device__ inline i64 asking_before(const out_t* ids, i64 lanes) {
    if (lanes == 0) return 0;
    i64 mine = 0, all;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < lanes; i += blockDim.x) mine += ids[i] > SINK;
    block_scan(mine, &all);
    return all;
}

// Gives pages to the lanes of this block whose borrowed id asks for one, and returns how many ask up to its last lane.
__device__ inline i64 take_for_given(const Tables& at, const Span& from, i64 found, const out_t* ids, out_t* pages,
                                     i64 n, i64* starved, i64* bads) {
    const i64 share = ceil_div(n, gridDim.x), begin = least(blockIdx.x * share, n), end = least(begin + share, n);
    i64 asking = asking_before(ids, begin);
    for (i64 base = begin; base < end; base += blockDim.x) {
        const i64 i = base + threadIdx.x, v = i < end ? i64(ids[i]) : SINK;
        i64 chunk;
        const i64 k = asking + block_scan(v > SINK, &chunk);
        i64 p = SINK;
        if (v > SINK && k >= found) {
            ++*starved;
        } else if (v > SINK) {
            p = page_taken(from, at, k);
            if (!bind_taken(at, v, p)) {
                ++*bads;
                p = SINK;
            }
        }
        if (i < end) pages[i] = out_t(p);
        asking += chunk;
    }
    return asking;
}

KERNEL(alloc)(
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* virtual_stack,  // [num_virtual], index_t
    index_t* hole_stack,     // [num_physical], index_t
    i64* state,              // [STATE_WORDS], int64
    const i64* chain,        // [sub_pools, STATE_WORDS], int64, or null
    i64 sub_pools, i64 place,
    out_t* __restrict__ ids,    // [n], out_t; virtual pages; read where they are borrowed
    out_t* __restrict__ pages,  // [n], out_t; physical pages
    i64 n,
    i64* counters) {  // `state`, or null
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    const Span from = read_span(at, {chain, sub_pools, place});
    const i64 found = pages_found(from, n, plan::borrowed);
    i64 starved = 0, bads = 0, asking = n;
    if (plan::borrowed) {
        asking = take_for_given(at, from, found, ids, pages, n, &starved, &bads);
        // The block with the last lanes knows how many ask in all, and tells whoever comes last.
        if (gridDim.x > 1 && blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) exchange(state + COUNTED, asking);
    } else {
        for (i64 i = first_thread(); i < n; i += all_threads()) {
            i64 v = SINK, p = SINK;
            if (i >= found) {
                ++starved;
            } else {
                v = virtual_stack[from.virtual_top - 1 - i];
                p = page_taken(from, at, i);
                if (!bind_taken(at, v, p)) {
                    ++bads;
                    v = p = SINK;
                }
            }
            ids[i] = out_t(v);
            pages[i] = out_t(p);
        }
    }
    count(counters, STARVED, starved);
    count(counters, BAD_BIND, bads);
    if (!is_last_block(state + TICKET) || threadIdx.x != 0) return;
    if (plan::borrowed && gridDim.x > 1) asking = exchange(state + COUNTED, 0);
    move_positions(from, at, least(found, asking), plan::borrowed);
}

HOST_ENTRY(alloc)
