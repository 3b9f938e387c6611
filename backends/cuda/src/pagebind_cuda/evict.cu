// evict: give back pages of rows in a sub-pool that borrows the rows' ids; the ids live on.
//
//     head    pages  [ kept | evicted before | freed | freed | stays ... ]    freed: [max(first, kept), lens / ps)
//     tail    pages  [ kept | .............. | freed | freed | freed     ]    freed: [max(first, kept), ceil(lens / ps))
//     row     as tail, and the row is empty                                   kept = ceil(starts / ps), first = first[r]
//
// Two phases, each a launch of this kernel; where one block has a thread for every lane and page, both are one launch:
//
//     lanes   one block: what each lane gives back, the running totals over lanes, and the rows' new first pages
//     free    one thread a page: find its lane by its running total, unbind, push
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"
#include "free.cuh"
#include "rows.cuh"

constexpr i64 LANES = 1, FREE = 2;
constexpr i64 HEAD = 0, TAIL = 1;  // plan::part; anything else is the whole row

// What `lanes` leaves for the other phase, in the plan's scratch.
struct Totals {
    i64* page_begin;  // [bs + 1]: pages asked by the lanes before
    i64* first_page;  // [bs]: the first page to free
};

struct Batch {
    const i32* request_table;
    i64 max_requests, columns, row_stride;
    const void *req_rows, *starts, *lens;
    i64 bs;
    i32* first;
    i64 capacity;
};

__device__ inline void scan_lanes(const Batch& batch, const Totals& totals, i64* counters) {
    const i64 ps = plan::page_size, tokens = row_tokens(batch.columns);
    i64 clipped = 0, bad_rows = 0, all_pages = 0;
    for (i64 base = 0; base < batch.bs; base += blockDim.x) {
        const i64 b = base + threadIdx.x;
        i64 r = HOLE, pages = 0, begun = 0, kept = 0, begin = 0, end = 0;
        bool good = false, cut = false;
        if (b < batch.bs) {
            r = load(batch.req_rows, plan::row_wide, b);
            good = r >= 0 && r < batch.max_requests;
            bad_rows += !good;
        }
        if (good) {
            const i64 asked_start = load_length(batch.starts, b), asked_len = load_length(batch.lens, b);
            const i64 start = clamp(asked_start, 0, tokens), len = clamp(asked_len, 0, tokens);
            cut = start != asked_start || len != asked_len;
            begun = clamp(batch.first[r], 0, ceil_div(tokens, ps));
            kept = ceil_div(start, ps);
            begin = most(begun, kept);
            end = plan::part == HEAD ? len / ps : ceil_div(len, ps);
            pages = most(end - begin, 0);
        }
        i64 chunk;
        const i64 pages_before = all_pages + block_scan(pages, &chunk);
        if (b < batch.bs) {
            totals.page_begin[b] = pages_before;
            totals.first_page[b] = begin;
        }
        if (good) {
            const i64 fits = least(pages, most(batch.capacity - pages_before, 0));
            clipped += cut || fits < pages;
            i64 moved = 0;
            if (plan::part == HEAD)
                moved = pages > 0 ? begin + fits : most(begun, end);
            else if (plan::part == TAIL)
                moved = least(begun, kept);
            batch.first[r] = i32(moved);
        }
        all_pages += chunk;
    }
    if (threadIdx.x == 0) totals.page_begin[batch.bs] = all_pages;
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
}

KERNEL(evict)(
    const i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* req_rows,  // [bs], int32 or int64
    const void* starts,    // [bs], int32 or int64; tokens
    const void* lens,      // [bs], as starts; tokens
    i64 bs,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* hole_stack,  // [num_physical], index_t
    i64* state,           // [STATE_WORDS], int64
    i32* first,           // [max_requests], int32; pages
    out_t* freed,         // [capacity], out_t; physical pages
    i64 capacity,
    i64 asked_pages,  // the host's count of pages that come back, below 0 where it has none
    i64* scratch,     // [2 * (bs + 1)], int64
    i64* counters,    // `state`, or null
    i64 phases) {
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, nullptr, hole_stack, state};
    const Batch batch{request_table, max_requests, columns, row_stride, req_rows,
                      starts,        lens,         bs,      first,      capacity};
    const Totals totals{scratch, scratch + (bs + 1)};
    if (phases & LANES) scan_lanes(batch, totals, counters);
    __syncthreads();
    const RowPages pages{request_table, row_stride, req_rows, bs, totals.page_begin, totals.first_page};
    if (phases & FREE) free_pages(pages, capacity, at, freed, {true, false, asked_pages}, counters);
}

HOST_ENTRY(evict)
