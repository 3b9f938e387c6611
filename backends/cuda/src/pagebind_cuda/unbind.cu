// unbind: the fused tombstone free. One lane a page: gather, tombstone both tables, emit the page in lane order.
#include "base.cuh"
#include "pool.cuh"

KERNEL(unbind)(
    const void* __restrict__ ids,  // [n], int32 or int64; virtual pages
    i64 n,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    out_t* __restrict__ freed,  // [n], out_t
    i64* counters) {            // [STATE_WORDS], int64, or null
    wait_for_previous();
    i64 doubles = 0, bads = 0;
    for (i64 i = first_thread(); i < n; i += all_threads())
        freed[i] = out_t(unbind_page(v2p, num_virtual, p2v, num_physical, load(ids, plan::id_wide, i), TOMBSTONE,
                                     &doubles, &bads));
    count(counters, DOUBLE_FREE, doubles);
    count(counters, BAD_FREE, bads);
}

HOST_ENTRY(unbind)
