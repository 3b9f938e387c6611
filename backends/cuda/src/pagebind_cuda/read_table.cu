// read_table: translate each lane's virtual pages into the rectangle that attention kernels read.
//
//     block = (row, part): its threads stride over the row's columns, `parts` blocks apart
//
//     row b   | part 0 | part 1 | part 0 | part 1 | part 0 ...      the loop ends where seq_lens says, on the device
//
// The grid follows from the planned sizes and the number of rows, never from a length.
#include "base.cuh"
#include "entry.cuh"

KERNEL(read_table)(
    const i32* __restrict__ request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* __restrict__ req_rows,  // [bs], int32 or int64
    const void* __restrict__ seq_lens,  // [bs], int32 or int64; tokens
    const void* __restrict__ starts,    // [bs], as seq_lens, or null; tokens
    const index_t* __restrict__ v2p,    // [num_virtual + 1], index_t
    i64 num_virtual,
    out_t* __restrict__ out,  // [out_rows, width], out_t
    i64 out_rows, i64 width, i64 out_stride, i64 bs, i64 parts, i64 delta, i64 multiplier,
    i64* counters) {  // [STATE_WORDS], int64, or null
    const i64 cell_tokens = plan::granularity_token ? 1 : plan::page_size;
    const i64 fit = least(width * cell_tokens, row_tokens(columns));
    const i64 rows = plan::fill_sink ? out_rows : bs;
    const PageTable table{v2p, num_virtual, multiplier};
    const i64 step = parts * blockDim.x;
    i64 clipped = 0, bad_rows = 0, bad_ids = 0;
    for (i64 task = blockIdx.x; task < rows * parts; task += gridDim.x) {
        const i64 b = task / parts, part = task % parts;
        const bool counts = part == 0 && threadIdx.x == 0;
        i64 r = 0, begin = 0, end = 0;  // columns of the valid extent
        if (b < bs) {
            r = load(req_rows, plan::row_wide, b);
            if (r < 0 || r >= max_requests) {
                bad_rows += counts;
                r = 0;
            } else {
                const i64 n = load_length(seq_lens, b) + delta;
                clipped += counts && (n < 0 || n > fit);
                end = ceil_div(clamp(n, 0, fit), cell_tokens);
                begin = starts == nullptr ? 0 : most(load_length(starts, b), 0) / cell_tokens;
            }
        }
        const i32* const row = request_table + r * row_stride;
        out_t* const cells = out + b * out_stride;
        const i64 first = part * blockDim.x + threadIdx.x;
        if (plan::fill_sink) {
            for (i64 c = first; c < least(begin, width); c += step) cells[c] = 0;
            for (i64 c = most(begin, end) + first; c < width; c += step) cells[c] = 0;
        }
        for (i64 c0 = begin + first; c0 < end; c0 += BATCH * step) {
            i32 ids[BATCH];
            i64 pages[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) ids[k] = c0 + k * step < end ? column_id(row, c0 + k * step) : i32(HOLE);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) pages[k] = physical_page(table, ids[k]);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                const i64 c = c0 + k * step;
                bad_ids += is_past_table(table, ids[k]);
                const out_t entry = out_t(column_entry(table, ids[k], pages[k], c));
                if (c < end) cells[c] = entry;
            }
        }
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
    count(counters, BAD_ID, bad_ids);
}

HOST_ENTRY(read_table)
