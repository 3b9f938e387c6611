// extend: give each lane pages for its new tokens, bind them, write the request table and emit the write slots.
//
// Three phases, each a launch of this kernel; a small call runs them all in one block, in one launch:
//
//     lanes    one block: what each lane asks for, the running totals over lanes, and the new positions
//     pages    one thread a page: bind the g-th pair that the positions before the call give
//     tokens   one thread a token: find its lane by its running total, write cell and slot
//
// Positions move in `lanes` already; the other phases work with those from before the call.
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"
#include "entry.cuh"

constexpr i64 LANES = 1, PAGES = 2, TOKENS = 4;

// What `lanes` leaves for the other phases, in the plan's scratch.
struct Totals {
    i64* asked;        // [1]: new pages that lanes ask for
    i64* found;        // [1]: new pages there are
    Span* before;      // [1]: positions before the call
    i64* token_begin;  // [bs + 1]: cells of slots of the lanes before
    i64* page_begin;   // [bs]: new pages of the lanes before
    i64* live;         // [bs]: new tokens that the row has room for
    i64* last_page;    // [bs]: virtual page of the row's last token, HOLE where there is none
    i64* last_entry;   // [bs]: page entry of it, TOMBSTONE where it has none
    index_t* taken;    // [found]: physical page bound for the g-th new page, SINK where it could not be bound
};

struct Batch {
    i32* request_table;
    i64 max_requests, columns, row_stride;
    const void *req_rows, *prefix_lens, *indptr;
    i64 bs, capacity, multiplier, asked_pages;
};

// Tokens that the row of lane b holds, clipped to the row.
__device__ inline i64 prefix_of(const Batch& batch, i64 b) {
    return clamp(load_length(batch.prefix_lens, b), 0, row_tokens(batch.columns));
}

__device__ inline i64 slot_begin(const Batch& batch, i64 b) {
    return clamp(load(batch.indptr, plan::indptr_wide, b), 0, batch.capacity);
}

__device__ inline void scan_lanes(const Batch& batch, const Tables& at, const Chain& chain, const Totals& totals,
                                  i64* counters) {
    const i64 ps = plan::page_size, tokens = row_tokens(batch.columns);
    i64 clipped = 0, bad_rows = 0, bad_ids = 0, all_cells = 0, all_pages = 0;
    for (i64 base = 0; base < batch.bs; base += blockDim.x) {
        const i64 b = base + threadIdx.x;
        i64 cells = 0, pages = 0;
        if (b < batch.bs) {
            const i64 from = load(batch.indptr, plan::indptr_wide, b);
            const i64 to = load(batch.indptr, plan::indptr_wide, b + 1);
            const i64 lo = slot_begin(batch, b), hi = slot_begin(batch, b + 1);
            cells = most(hi - lo, 0);
            const i64 r = load(batch.req_rows, plan::row_wide, b);
            i64 live = 0, last_page = HOLE, last_entry = TOMBSTONE;
            if (r < 0 || r >= batch.max_requests) {
                ++bad_rows;
            } else {
                const i64 prefix = prefix_of(batch, b);
                live = least(cells, tokens - prefix);
                pages = ceil_div(prefix + live, ps) - ceil_div(prefix, ps);
                clipped += lo != from || hi != to || hi < lo || live < cells ||
                           prefix != load_length(batch.prefix_lens, b);
                if (live > 0 && prefix % ps != 0) {
                    const i32* const row = batch.request_table + r * batch.row_stride;
                    const i64 id = row[plan::form_token ? prefix - 1 : (prefix - 1) / ps];
                    const i64 v = plan::form_token && id >= 0 ? id / ps : id;
                    bad_ids += v >= at.num_virtual;
                    if (v >= 0 && v < at.num_virtual) {
                        const i64 p = at.v2p[v];
                        last_page = v;
                        if (p >= 0) last_entry = page_entry(p, batch.multiplier);
                    }
                }
            }
            totals.live[b] = live;
            totals.last_page[b] = last_page;
            totals.last_entry[b] = last_entry;
        }
        i64 chunk_cells, chunk_pages;
        const i64 cells_before = all_cells + block_scan(cells, &chunk_cells);
        const i64 pages_before = all_pages + block_scan(pages, &chunk_pages);
        if (b < batch.bs) {
            totals.token_begin[b] = cells_before;
            totals.page_begin[b] = pages_before;
        }
        all_cells += chunk_cells;
        all_pages += chunk_pages;
    }
    i64 starved = 0, mismatches = 0;
    const Span from = read_span(at, chain);
    if (threadIdx.x == 0) {
        const i64 found = pages_found(from, all_pages, false);
        totals.token_begin[batch.bs] = all_cells;
        totals.asked[0] = all_pages;
        totals.found[0] = found;
        totals.before[0] = from;
        move_positions(from, at, found, false);
        starved = all_pages - found;
        mismatches = batch.asked_pages >= 0 && batch.asked_pages != all_pages;
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
    count(counters, BAD_ID, bad_ids);
    count(counters, STARVED, starved);
    count(counters, COUNT_MISMATCH, mismatches);
}

__device__ inline void bind_pages(const Tables& at, const Totals& totals, const Told& told, i64* counters) {
    const Span from = totals.before[0];
    const i64 found = totals.found[0];
    i64 bads = 0;
    for (i64 g = first_thread(); g < found; g += all_threads()) {
        const i64 v = at.virtual_stack[from.virtual_top - 1 - g], p = page_taken(from, at, g);
        const bool bound = bind_page(at.v2p, at.num_virtual, at.p2v, at.num_physical, v, p);
        totals.taken[g] = index_t(bound ? p : SINK);
        bads += !bound;
        if (plan::emits) told.page(g, bound ? v : SINK, bound ? p : SINK);
    }
    count(counters, BAD_BIND, bads);
    if (plan::emits) {
        for (i64 g = found + first_thread(); g < told.pages; g += all_threads()) {
            const i64 nothing = g < totals.asked[0] ? SINK : HOLE;
            told.page(g, nothing, nothing);
        }
    }
}

__device__ inline void write_tokens(const Batch& batch, const Tables& at, const Totals& totals, out_t* slots,
                                    const Told& told) {
    const i64 ps = plan::page_size, found = totals.found[0], top = totals.before[0].virtual_top;
    for (i64 item = first_thread(); item < totals.token_begin[batch.bs]; item += all_threads()) {
        const i64 b = lane_of(totals.token_begin, batch.bs, item), j = item - totals.token_begin[b];
        i64 slot = 0, id = HOLE;
        if (j < totals.live[b]) {
            const i64 prefix = prefix_of(batch, b), token = prefix + j, offset = token % ps;
            const i64 new_page = token / ps - ceil_div(prefix, ps);  // below 0: the row's last page
            i64 v = SINK, entry = 0;
            if (new_page < 0) {
                v = totals.last_page[b];
                entry = totals.last_entry[b];
            } else {
                const i64 g = totals.page_begin[b] + new_page;
                const i64 p = g < found ? i64(totals.taken[g]) : SINK;
                if (p != SINK) v = at.virtual_stack[top - 1 - g];
                entry = page_entry(p, batch.multiplier);
            }
            if (entry >= 0) slot = token_entry(entry, offset);
            if (v != HOLE) id = v * ps + offset;
            i32* const row = batch.request_table + load(batch.req_rows, plan::row_wide, b) * batch.row_stride;
            if (plan::form_token)
                row[token] = i32(id);
            else if (new_page >= 0 && offset == 0)
                row[token / ps] = i32(v);
        }
        const i64 cell = slot_begin(batch, b) + j;
        slots[cell] = out_t(slot);
        if (plan::emits) store(told.token_ids, plan::id_wide, cell, id);
    }
}

KERNEL(extend)(
    i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 columns, i64 row_stride,
    const void* req_rows,     // [bs], int32 or int64
    const void* prefix_lens,  // [bs], int32 or int64; tokens
    const void* indptr,       // [bs + 1], int32 or int64; tokens
    i64 bs,
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* virtual_stack,  // [num_virtual], index_t
    index_t* hole_stack,     // [num_physical], index_t
    i64* state,              // [STATE_WORDS], int64
    const i64* chain,        // [sub_pools, STATE_WORDS], int64, or null
    i64 sub_pools, i64 place,
    out_t* slots,  // [capacity], out_t; token entries
    i64 capacity, i64 multiplier,
    i64 asked_pages,  // the host's count of new pages, below 0 where it has none
    void* token_ids,  // [capacity], int32 or int64; virtual token ids; null but where the plan emits, as the next two
    void* new_ids,    // [told_pages], as token_ids; virtual pages
    void* new_pages,  // [told_pages], as token_ids; physical pages
    i64 told_pages,
    i64* scratch,    // [5 * (bs + 1) + 2 + words of a Span], int64
    index_t* taken,  // [as many pages as a call can take], index_t
    i64* counters,   // `state`, or null
    i64 phases) {
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    const Batch batch{request_table, max_requests, columns, row_stride, req_rows,   prefix_lens,
                      indptr,        bs,           capacity, multiplier, asked_pages};
    const Told told{token_ids, new_ids, new_pages, told_pages};
    i64* const lanes = scratch + 2 + sizeof(Span) / sizeof(i64);
    const Totals totals{scratch,
                        scratch + 1,
                        reinterpret_cast<Span*>(scratch + 2),
                        lanes,
                        lanes + (bs + 1),
                        lanes + 2 * (bs + 1),
                        lanes + 3 * (bs + 1),
                        lanes + 4 * (bs + 1),
                        taken};
    // More than one phase only in a launch of one block, where a barrier is enough between them.
    if (phases & LANES) scan_lanes(batch, at, {chain, sub_pools, place}, totals, counters);
    __syncthreads();
    if (phases & PAGES) bind_pages(at, totals, told, counters);
    __syncthreads();
    if (phases & TOKENS) write_tokens(batch, at, totals, slots, told);
}

HOST_ENTRY(extend)
