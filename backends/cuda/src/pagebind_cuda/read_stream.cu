// read_stream: the same entries packed end to end (CSR by indptr), optionally together with the table in one launch.
//
//     lane b: columns [begin, end)   ->   out[lo + i] for i < room,   table[b, begin + i] below the table's width
//
// Blocks are pairs of a lane and a part of its columns.
#include "base.cuh"
#include "entry.cuh"

// Columns that a thread has in flight: first all ids are loaded, then all pages, so that their latencies overlap. A
// column past the end reads as a hole and loads nothing; a `break` there would put the loads in a row.
constexpr int BATCH = 4;

KERNEL(read_stream)(
    const i32* __restrict__ request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* __restrict__ req_rows,  // [bs], int32 or int64
    const void* __restrict__ seq_lens,  // [bs], int32 or int64; tokens from the start on
    const void* __restrict__ starts,    // [bs], as seq_lens, or null; tokens
    const index_t* __restrict__ v2p,    // [num_virtual + 1], index_t
    i64 num_virtual,
    const void* __restrict__ indptr,  // [bs + 1], int32 or int64; items
    out_t* __restrict__ out,          // [capacity], out_t
    i64 capacity,
    out_t* __restrict__ table,  // [>= bs, width], out_t, or null
    i64 width, i64 table_stride, i64 bs, i64 parts, i64 delta, i64 multiplier,
    i64* counters) {  // [STATE_WORDS], int64, or null
    wait_for_previous();
    const i64 cell_tokens = plan::granularity_token ? 1 : plan::page_size;
    const i64 tokens = row_tokens(columns);
    const PageTable entries = page_table(v2p, num_virtual, multiplier);
    const i64 step = parts * blockDim.x;
    i64 clipped = 0, bad_rows = 0, bad_ids = 0;
    for (i64 task = blockIdx.x; task < bs * parts; task += gridDim.x) {
        const i64 b = task / parts, part = task % parts;
        const bool counts = part == 0 && threadIdx.x == 0;
        const i64 r = load(req_rows, plan::row_wide, b);
        if (r < 0 || r >= max_requests) {
            bad_rows += counts;
            continue;
        }
        const i64 start = starts == nullptr ? 0 : most(load_length(starts, b), 0);
        const i64 asked = load_length(seq_lens, b) + delta;
        const i64 n = clamp(asked, 0, most(tokens - start, 0));
        const i64 begin = start / cell_tokens, items = n > 0 ? ceil_div(start + n, cell_tokens) - begin : 0;
        const i64 lo = load(indptr, plan::indptr_wide, b);
        const i64 hi = least(load(indptr, plan::indptr_wide, b + 1), capacity);
        const i64 streamed = lo < 0 || hi <= lo ? 0 : least(items, hi - lo);
        const i64 tabled = table == nullptr ? 0 : clamp(width - begin, 0, items);
        clipped += counts && (asked != n || streamed < items || (table != nullptr && tabled < items));
        const i32* const row = request_table + r * row_stride;
        const i64 end = most(streamed, tabled);
        for (i64 i0 = part * blockDim.x + threadIdx.x; i0 < end; i0 += BATCH * step) {
            i32 ids[BATCH];
            index_t pages[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k)
                ids[k] = i0 + k * step < end ? column_id(row, begin + i0 + k * step) : i32(HOLE);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) pages[k] = physical_page(entries, ids[k]);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                const i64 i = i0 + k * step;
                bad_ids += is_past_table(entries, ids[k]);
                const out_t entry = column_entry(entries, ids[k], pages[k], begin + i);
                if (i < streamed) out[lo + i] = entry;
                if (i < tabled) table[b * table_stride + begin + i] = entry;
            }
        }
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
    count(counters, BAD_ID, bad_ids);
}

HOST_ENTRY(read_stream)
