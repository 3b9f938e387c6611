// free: unbind virtual ids and push them and their pages back on the stacks, in one launch.
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"
#include "free.cuh"

struct GivenIds {
    const void* ids;
    __device__ i64 operator()(i64 i) const { return load(ids, plan::id_wide, i); }
};

KERNEL(free)(
    const void* __restrict__ ids,  // [n], int32 or int64; virtual pages
    i64 n,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* virtual_stack,  // [num_virtual], index_t
    index_t* hole_stack,     // [num_physical], index_t
    i64* state,              // [STATE_WORDS], int64
    out_t* freed,            // [n], out_t
    i64 asked_pages,         // the host's count of pages that come back, below 0 where it has none
    i64* counters) {         // `state`, or null
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    free_ids(GivenIds{ids}, n, at, freed, {bool(plan::borrowed), true, asked_pages}, counters);
}

HOST_ENTRY(free)
