// Giving back the tail of rows: truncate and release share it.
//
//     tokens   0 ....... keep - 1 | keep ........ len - 1
//     pages    [ kept ][ kept     |      ][ freed ][ freed ]          freed: [ceil(keep / ps), ceil(len / ps))
//     cleared  truncate: [keep, len)     release: [0, len)            cells of those tokens, or of those pages
//
// Three phases, each a launch of one kernel; where one block can free all pages, the first two are one launch:
//
//     lanes    one block: what each lane frees and clears, and the running totals over lanes
//     free     one thread a page: find its lane by its running total, unbind, push
//     clear    one thread a cell of the request table, after every id has been read

constexpr i64 LANES = 1, FREE = 2, CLEAR = 4;

// What `lanes` leaves for the other phases, in the plan's scratch.
struct Totals {
    i64* page_begin;  // [bs + 1]: pages asked by the lanes before
    i64* cell_begin;  // [bs + 1]: cells cleared by the lanes before
    i64* first_page;  // [bs]: the first page to free
    i64* first_cell;  // [bs]: the first cell to clear
};

struct Batch {
    i32* request_table;
    i64 max_requests, columns, row_stride;
    const void *req_rows, *seq_lens, *keep_lens;
    i64 bs, capacity, asked_pages;
};

__device__ inline Totals totals_in(i64* scratch, i64 bs) {
    return {scratch, scratch + (bs + 1), scratch + 2 * (bs + 1), scratch + 3 * (bs + 1)};
}

template <bool whole_row>
__device__ inline void scan_lanes(const Batch& batch, const Totals& totals, i64* counters) {
    const i64 ps = plan::page_size, tokens = row_tokens(batch.columns);
    i64 clipped = 0, bad_rows = 0, all_pages = 0, all_cells = 0;
    for (i64 base = 0; base < batch.bs; base += blockDim.x) {
        const i64 b = base + threadIdx.x;
        i64 pages = 0, cells = 0, first = 0, len = 0, keep = 0;
        bool good = false, cut = false;
        if (b < batch.bs) {
            const i64 r = load(batch.req_rows, plan::row_wide, b);
            good = r >= 0 && r < batch.max_requests;
            bad_rows += !good;
        }
        if (good) {
            const i64 asked_len = load_length(batch.seq_lens, b);
            const i64 asked_keep = batch.keep_lens == nullptr ? 0 : load_length(batch.keep_lens, b);
            len = clamp(asked_len, 0, tokens);
            keep = clamp(asked_keep, 0, tokens);
            cut = len != asked_len || keep != asked_keep;
            first = ceil_div(keep, ps);
            pages = most(ceil_div(len, ps) - first, 0);
        }
        i64 chunk_pages, chunk_cells;
        const i64 pages_before = all_pages + block_scan(pages, &chunk_pages);
        if (good) {
            const i64 room = most(batch.capacity - pages_before, 0);
            // Pages past the capacity stay in their row, and so do the tokens in them.
            const i64 end = pages > room ? least(len, (first + room) * ps) : len;
            if (pages > room) cut = true;
            const i64 from = whole_row ? 0 : plan::form_token ? keep : first;
            cells = most((plan::form_token ? end : ceil_div(end, ps)) - from, 0);
            clipped += cut;
            totals.first_cell[b] = from;
        }
        const i64 cells_before = all_cells + block_scan(cells, &chunk_cells);
        if (b < batch.bs) {
            totals.page_begin[b] = pages_before;
            totals.cell_begin[b] = cells_before;
            totals.first_page[b] = first;
        }
        all_pages += chunk_pages;
        all_cells += chunk_cells;
    }
    i64 mismatches = 0;
    if (threadIdx.x == 0) {
        totals.page_begin[batch.bs] = all_pages;
        totals.cell_begin[batch.bs] = all_cells;
        mismatches = batch.asked_pages >= 0 && batch.asked_pages != all_pages;
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
    count(counters, COUNT_MISMATCH, mismatches);
}

__device__ inline void clear_cells(const Batch& batch, const Totals& totals) {
    for (i64 item = first_thread(); item < totals.cell_begin[batch.bs]; item += all_threads()) {
        const i64 b = lane_of(totals.cell_begin, batch.bs, item);
        i32* const row = batch.request_table + load(batch.req_rows, plan::row_wide, b) * batch.row_stride;
        row[totals.first_cell[b] + item - totals.cell_begin[b]] = i32(HOLE);
    }
}

// The kernel of both operations. More than one phase only in a launch of one block, where a barrier is enough.
template <bool whole_row>
__device__ inline void cut_rows(const Batch& batch, const Tables& at, out_t* freed, i64* scratch, i64* counters,
                                i64 phases) {
    const Totals totals = totals_in(scratch, batch.bs);
    if (phases & LANES) scan_lanes<whole_row>(batch, totals, counters);
    __syncthreads();
    const RowPages pages{batch.request_table, batch.row_stride, batch.req_rows, batch.bs, totals.page_begin,
                         totals.first_page};
    if (phases & FREE) free_pages(pages, batch.capacity, at, freed, {false, false, NO_COUNT}, counters);
    __syncthreads();
    if (phases & CLEAR) clear_cells(batch, totals);
}
