// truncate: give back a row's tail, as after rejected draft tokens. Pages that hold no kept token are freed.
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"
#include "free.cuh"
#include "rows.cuh"
#include "tail.cuh"

KERNEL(truncate)(
    i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* req_rows,  // [bs], int32 or int64
    const void* seq_lens,  // [bs], int32 or int64; tokens
    const void* keep_lens,  // [bs], as seq_lens; tokens
    i64 bs,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* virtual_stack,  // [num_virtual], index_t
    index_t* hole_stack,     // [num_physical], index_t
    i64* state,              // [STATE_WORDS], int64
    out_t* freed,            // [capacity], out_t; physical pages
    i64 capacity,
    i64 asked_pages,  // the host's count of freed pages, below 0 where it has none
    i64* scratch,     // [4 * (bs + 1)], int64
    i64* counters,    // `state`, or null
    i64 phases) {
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    const Batch batch{request_table, max_requests, columns, row_stride, req_rows, seq_lens,
                      keep_lens, bs, capacity, asked_pages};
    cut_rows<false>(batch, at, freed, scratch, counters, phases);
}

HOST_ENTRY(truncate)
