// advance: a token more for every row: its page where it begins one, its cell, its slot, its column, the row's length.
//
//     lanes       0   1   2   3   4   5           takes: token n begins a page, n % page_size == 0
//     takes       x           x   x               page g of the call goes to the g-th lane that takes
//     page g      0           1   2               others go on in the row's last page, which is read before any is bound
//
// One block does all of it where it has a thread for every lane. Above, two launches of as many blocks do it, with the
// lanes side by side in them:
//
//     look    how many lanes of the block take a page, and the last pages of the others
//     step    the rest; each block adds up the counts of those before it
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"
#include "entry.cuh"

constexpr i64 LOOK = 1, STEP = 2;  // both: one block

struct Batch {
    i32* request_table;
    i64 max_requests, row_stride;
    i64 room;  // tokens that a row has room for; all of them fit a length
    const void* req_rows;
    void* seq_lens;
    i64 bs;
    void* table;  // where the plan appends
    i64 table_stride, width, multiplier;
    out_t* slots;
};

// What `look` leaves for `step`, in the plan's scratch, [blocks + 2 * bs].
struct Seen {
    i64* words;
    i64 bs;

    // Lanes of a block that take a page.
    __device__ i64& taking(i64 block) const { return words[block]; }
    // What the row of lane b names as its last page, HOLE where the lane does not go on.
    __device__ i64& id(i64 b) const { return words[gridDim.x + b]; }
    // The physical page of it, TOMBSTONE where it has none.
    __device__ i64& page(i64 b) const { return words[gridDim.x + bs + b]; }
};

// What the calling block does: lanes begin to end - 1.
struct Share {
    i64 begin, end;
};

__device__ inline Share share_of(i64 bs) {
    const i64 lanes = (u32(bs) + gridDim.x - 1) / gridDim.x, begin = least(blockIdx.x * lanes, bs);
    return {begin, least(begin + lanes, bs)};
}

struct Lane {
    i64 row, token;
    i64 page, offset;  // of the token
    bool is_bad, is_cut, fits;

    __device__ bool takes() const { return fits && offset == 0; }
    __device__ bool goes_on() const { return fits && offset != 0; }
};

// 32-bit division is the cheap one.
__device__ inline i64 page_of(i64 token) {
    if (plan::length_wide) return i64(u64(token) / u64(plan::page_size));
    return u32(token) / u32(plan::page_size);
}

// Lane b of those up to `end`; one past them asks for nothing. Both loads are under way before anything looks at them.
__device__ inline Lane read_lane(const Batch& batch, i64 b, i64 end) {
    const bool is_lane = b < end;
    i64 row = HOLE, length = 0;
    if (is_lane) row = load(batch.req_rows, plan::row_wide, b);
    if (is_lane) length = load(batch.seq_lens, plan::length_wide, b);
    pin(row), pin(length);
    const i64 token = clamp(length, 0, batch.room), page = page_of(token);
    const bool is_good = u64(row) < u64(batch.max_requests), is_full = token == batch.room;
    return {row,
            token,
            page,
            token - page * plan::page_size,
            is_lane && !is_good,
            is_good && (is_full || token != length),
            is_good && !is_full};
}

// The virtual page of an id that is no hole.
__device__ inline i64 virtual_page(i32 id) { return plan::form_token ? u32(id) / u32(plan::page_size) : u32(id); }

// The cell that names the lane's last page, of a lane that goes on in it.
__device__ inline const i32* last_cell(const Batch& batch, const Lane& lane) {
    return batch.request_table + lane.row * batch.row_stride + (plan::form_token ? lane.token - 1 : lane.page);
}

// Counts lanes that take a page and reads the last pages of others, before any block binds one.
__device__ inline void look(const Batch& batch, const PageTable& table, const Seen& seen) {
    const Share share = share_of(batch.bs);
    i64 taking = 0, all;
    for (i64 b = share.begin + threadIdx.x; b < share.end; b += blockDim.x) {
        const Lane lane = read_lane(batch, b, share.end);
        const i32 id = lane.goes_on() ? *last_cell(batch, lane) : i32(HOLE);
        seen.id(b) = id;
        seen.page(b) = physical_page(table, id);
        taking += lane.takes();
    }
    block_scan(taking, &all);
    if (threadIdx.x == 0) seen.taking(blockIdx.x) = all;
}

// How many lanes of the blocks before this one take a page; `all`, of all blocks.
__device__ inline i64 taking_before(const Seen& seen, i64* all) {
    i64 before = 0, mine = 0, here;
    for (i64 block = threadIdx.x; block < gridDim.x; block += blockDim.x) {
        const i64 taking = seen.taking(block);
        mine += taking;
        before += block < blockIdx.x ? taking : 0;
    }
    block_scan(mine, all);
    block_scan(before, &here);
    return here;
}

// The physical page and virtual page that a lane's token lies in; TOMBSTONE and HOLE where it has none.
struct Place {
    i64 v, p;
};

// Writes everything of lane b but the positions. `served`: a lane that takes a page got it.
__device__ inline void write_lane(const Batch& batch, const Told& told, i64 b, const Lane& lane, const Place& in,
                                  bool served) {
    i64 slot = 0, id = HOLE;
    if (lane.fits && in.p >= 0) slot = token_entry(page_entry(in.p, batch.multiplier), lane.offset);
    if (lane.fits && in.v >= 0) id = token_entry(in.v, lane.offset);
    batch.slots[b] = out_t(slot);
    if (plan::emits) store(told.token_ids, plan::id_wide, b, id);
    if (!lane.fits) return;
    i32* const row = batch.request_table + lane.row * batch.row_stride;
    if (plan::form_token)
        row[lane.token] = i32(id);
    else if (lane.takes())
        row[lane.page] = i32(in.v);
    if (!served) return;
    store(batch.seq_lens, plan::length_wide, b, lane.token + 1);
    if (!plan::appends || !(plan::granularity_token || lane.takes())) return;
    const i64 column = plan::granularity_token ? lane.token : lane.page;
    const i64 entry = plan::granularity_token ? slot : page_entry(in.p, batch.multiplier);
    if (column < batch.width) store(batch.table, plan::table_wide, b * batch.table_stride + column, entry);
}

// The step of this block's lanes; `alone`, of all lanes, one a thread. The span is known after the first barrier.
template <bool alone>
__device__ inline void step(const Batch& batch, const Tables& at, const Span& span, const PageTable& table,
                            const Told& told, const Seen& seen, i64 asked_pages, i64* counters) {
    const Share share = alone ? Share{0, batch.bs} : share_of(batch.bs);
    i64 asked = 0, g = 0;
    if (!alone) g = taking_before(seen, &asked);
    i64 clipped = 0, bad_rows = 0, bad_ids = 0, bad_binds = 0;
#pragma unroll 1
    for (i64 base = share.begin; base < share.end; base += blockDim.x) {
        const i64 b = base + threadIdx.x;
        const Lane lane = read_lane(batch, b, share.end);
        i32 id = i32(HOLE);
        i64 v = SINK, p = SINK, last = TOMBSTONE;
        // The loads of lanes that take and of those that go on are under way together, first the ids, then the pages.
        if (alone && lane.goes_on()) id = *last_cell(batch, lane);
        if (!alone && lane.goes_on()) id = i32(seen.id(b)), last = seen.page(b);
        u32 taking;
        const i64 k = g + block_count(lane.takes(), &taking);
        if (alone) asked = taking;
        g += taking;
        const bool found = lane.takes() && k < pages_found(span, batch.bs, false);
        if (found) v = at.virtual_stack[span.virtual_top - 1 - k];
        if (found) p = page_taken(span, at, k);
        if (alone) last = physical_page(table, id);
        bool bound = found && are_free(at, v, p);
        __syncthreads();  // every last page has been read; and the next count may begin
        if (bound) bound = bind_free(at, v, p);
        if (plan::emits && lane.takes()) told.page(k, bound ? v : SINK, bound ? p : SINK);
        Place in{bound ? v : SINK, bound ? p : SINK};
        if (!lane.takes()) in = {has_row(table, id) ? virtual_page(id) : HOLE, last};
        if (b < share.end) write_lane(batch, told, b, lane, in, bound || !lane.takes());
        const i64 column = plan::granularity_token ? lane.token : lane.page;
        clipped += lane.is_cut || (plan::appends && !lane.is_bad && b < share.end && column >= batch.width);
        bad_rows += lane.is_bad;
        bad_ids += is_past_table(table, id);
        bad_binds += found && !bound;
        if (alone) break;
    }
    if (__any_sync(FULL_WARP, (clipped | bad_rows | bad_ids | bad_binds) != 0)) {
        count(counters, CLIPPED, clipped);
        count(counters, BAD_ROW, bad_rows);
        count(counters, BAD_ID, bad_ids);
        count(counters, BAD_BIND, bad_binds);
    }
    if (plan::emits)
        for (i64 cell = asked + first_thread(); cell < told.pages; cell += all_threads()) told.page(cell, HOLE, HOLE);
    if ((!alone && !is_last_block(at.state + TICKET)) || threadIdx.x != blockDim.x - WARP) return;
    const i64 found = pages_found(span, asked, false);
    move_positions(span, at, found, false);
    if (counters == nullptr) return;
    if (found < asked) add(counters + STARVED, asked - found);
    if (asked_pages >= 0 && asked_pages != asked) add(counters + COUNT_MISMATCH, 1);
}

KERNEL(advance)(
    i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 row_stride,
    i64 room,              // tokens
    const void* req_rows,  // [bs], int32 or int64
    void* seq_lens,        // [bs], int32 or int64; tokens
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
    out_t* slots,  // [bs], out_t; token entries
    void* table,   // [>= bs, width], int32 or int64; null but where the plan appends
    i64 table_stride, i64 width, i64 multiplier,
    i64 asked_pages,  // the host's count of new pages, below 0 where it has none
    void* token_ids,  // [bs], int32 or int64; virtual token ids; null but where the plan emits, as the next two
    void* new_ids,    // [told_pages], as token_ids; virtual pages
    void* new_pages,  // [told_pages], as token_ids; physical pages
    i64 told_pages,
    i64* scratch,   // [blocks + 2 * bs], int64; not used where one block does it all
    i64* counters,  // `state`, or null
    i64 phases) {
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, virtual_stack, hole_stack, state};
    const Batch batch{request_table, max_requests, row_stride, room,         req_rows,   seq_lens,
                      bs,            table,        table_stride, width, multiplier, slots};
    const PageTable pages = page_table(v2p, num_virtual, multiplier);
    const Told told{token_ids, new_ids, new_pages, told_pages};
    const Seen seen{scratch, bs};
    if (phases == LOOK) {
        look(batch, pages, seen);
        return;
    }
    __shared__ Span span;
    // The last warp, because in a block with one to spare it has no lanes.
    if (threadIdx.x >= blockDim.x - WARP) {
        const Span found =
            chain == nullptr ? span_within(at, read_positions(at), UP, 1, num_physical)
                             : span_in(at, {chain, sub_pools, place});
        if (threadIdx.x == blockDim.x - WARP) span = found;
    }
    if (phases & LOOK)
        step<true>(batch, at, span, pages, told, seen, asked_pages, counters);
    else
        step<false>(batch, at, span, pages, told, seen, asked_pages, counters);
}

HOST_ENTRY(advance)
