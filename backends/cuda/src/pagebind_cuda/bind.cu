// bind: write given pairs of a virtual and a physical page into both tables, unless either is bound.
#include "base.cuh"
#include "pool.cuh"

KERNEL(bind)(
    const void* __restrict__ virtuals,   // [n], int32 or int64; virtual pages
    const void* __restrict__ physicals,  // [n], as virtuals; physical pages
    i64 n,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    i64* counters) {  // [STATE_WORDS], int64, or null
    wait_for_previous();
    i64 bads = 0;
    for (i64 i = first_thread(); i < n; i += all_threads()) {
        const i64 v = load(virtuals, plan::id_wide, i);
        if (v < 0) continue;
        bads += !bind_page(v2p, num_virtual, p2v, num_physical, v, load(physicals, plan::id_wide, i));
    }
    count(counters, BAD_BIND, bads);
}

HOST_ENTRY(bind)
