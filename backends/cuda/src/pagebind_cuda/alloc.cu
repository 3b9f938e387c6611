// alloc: take virtual ids and physical pages off the device stacks and bind them, in one launch.
//
// Every block reads the positions before it takes its ticket; the last one moves them. No block waits for another.
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"

KERNEL(alloc)(
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* virtual_stack,  // [num_virtual], index_t
    index_t* hole_stack,     // [num_physical], index_t
    i64* state,              // [STATE_WORDS], int64
    out_t* __restrict__ ids,    // [n], out_t; virtual pages
    out_t* __restrict__ pages,  // [n], out_t; physical pages
    i64 n,
    i64* counters) {  // `state`, or null
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    const Positions from = read_positions(at);
    const i64 found = pages_found(from, at, n);
    i64 starved = 0, bads = 0;
    for (i64 i = first_thread(); i < n; i += all_threads()) {
        i64 v = SINK, p = SINK;
        if (i >= found) {
            ++starved;
        } else {
            v = virtual_stack[from.virtual_top - 1 - i];
            p = page_taken(from, at, i);
            if (!bind_page(v2p, num_virtual, p2v, num_physical, v, p)) {
                ++bads;
                v = p = SINK;
            }
        }
        ids[i] = out_t(v);
        pages[i] = out_t(p);
    }
    count(counters, STARVED, starved);
    count(counters, BAD_BIND, bads);
    if (is_last_block(state + TICKET) && threadIdx.x == 0) move_positions(from, at, found);
}

HOST_ENTRY(alloc)
