// assign: copy ids into rows, as when a request starts on a shared prefix.
//
// Blocks are pairs of a lane and a part of its ids, as in read_table.
#include "base.cuh"

KERNEL(assign)(
    i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* __restrict__ req_rows,  // [bs], int32 or int64
    const i32* __restrict__ ids,        // [capacity], int32
    i64 capacity,
    const void* __restrict__ indptr,  // [bs + 1], int32 or int64; cells
    i64 bs, i64 parts,
    i64* counters) {  // [STATE_WORDS], int64, or null
    wait_for_previous();
    i64 clipped = 0, bad_rows = 0;
    for (i64 task = blockIdx.x; task < bs * parts; task += gridDim.x) {
        const i64 b = task / parts, part = task % parts;
        const bool counts = part == 0 && threadIdx.x == 0;
        const i64 r = load(req_rows, plan::row_wide, b);
        if (r < 0 || r >= max_requests) {
            bad_rows += counts;
            continue;
        }
        const i64 from = load(indptr, plan::indptr_wide, b), to = load(indptr, plan::indptr_wide, b + 1);
        const i64 lo = clamp(from, 0, capacity), hi = clamp(to, 0, capacity);
        const i64 n = clamp(hi - lo, 0, columns);
        clipped += counts && (lo != from || hi != to || hi - lo != n);
        i32* const row = request_table + r * row_stride;
        for (i64 i = part * blockDim.x + threadIdx.x; i < n; i += parts * blockDim.x) row[i] = ids[lo + i];
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
}

HOST_ENTRY(assign)
