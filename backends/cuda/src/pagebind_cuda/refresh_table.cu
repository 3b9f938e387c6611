// refresh_table: bring a read table up to date by writing only what changed, in one launch.
//
//     steady lanes  as built, but for an appended column: written by the lane's owner, a thread of one block
//     small lanes   few cells to change: the warp of the lane's owner, a thread of one block, writes them, and what was
//                   built, at once
//     large lanes   their cells are shared out evenly to the warps of all blocks; what was built is written by the last
//                   block, after all have read what was before
//
// Every block judges all lanes, and so finds by itself whether all are steady, and whether one is large. Mostly all are
// steady, padded lanes (row NOTHING) too, and the launch is done: an appended column costs three loads that wait for
// each other (the lane's words; the row's words and the column's id; the page) and no look at other blocks. The grid
// follows from the table's size, never from a length.
#include "base.cuh"
#include "block.cuh"
#include "entry.cuh"
#include "build.cuh"
#include "refresh.cuh"

// Of the argument `flags`. Arguments are few, because each further line of them costs as much as a load.
constexpr u32 ALIGNED = 1, COUNTING = 2;

struct Table {
    PageTable pages;
    const i32* __restrict__ ids;  // the request table
    i64 ids_stride;
    out_t* cells;  // [rows, width]
    i64 cells_stride;

    // Writes or empties columns of a lane, COUNT of a thread at once. A warp calls it together; returns how many ids of
    // the thread were past the page table.
    template <u32 COUNT>
    __device__ u32 write(i64 b, i64 r, u32 which, Range range) const {
        const Row row{ids + most(r, 0) * ids_stride, cells + b * cells_stride, range.begin, range.end};
        const u32 first = row.begin + threadIdx.x % WARP;
        u32 bad_ids = 0;
        if (which == BEFORE || which == BEHIND)
            for (u32 c = first; c < row.end; c += WARP) row.cells[c] = 0;
        else
            for (u32 c = first; c < row.end; c += COUNT * WARP)
                bad_ids += write_columns<COUNT>(pages, row, c, WARP);
        return bad_ids;
    }
};

// ---- large lanes: a warp writes strips of columns that lie side by side ---------------------------------------------

__device__ inline u32 strips_of(const Range& range) {
    return range.begin < range.end ? (range.end - range.begin + STRIP - 1) / STRIP : 0;
}

__device__ inline i64 strips_of(const Lane& lane) {
    i64 strips = 0;
    if (lane.large)
        for (u32 which = HEAD; which < Lane::ranges(); ++which) strips += strips_of(lane.range(which));
    return strips;
}

__device__ inline u32 write_strip(const Table& table, i64 b, const Lane& lane, u32 strip) {
    u32 which = HEAD;
    Range range = lane.range(which);
    for (u32 strips = strips_of(range); strip >= strips; strips = strips_of(range)) {
        strip -= strips;
        range = lane.range(++which);
    }
    range.begin += strip * STRIP;
    range.end = fewer(range.end, range.begin + STRIP);
    return table.write<MANY>(b, lane.row, which, range);
}

// Writes this warp's share of the large lanes.
__device__ inline u32 write_share(const Table& table, const Batch& batch) {
    __shared__ i64 begin[MAX_THREADS + 1];  // strips of the lanes before, of as many lanes as there are threads
    u32 bad_ids = 0;
#pragma unroll 1
    for (i64 base = 0; base < batch.rows; base += blockDim.x) {
        i64 total;
        begin[threadIdx.x] = block_scan(strips_of(batch.judge(base + threadIdx.x)), &total);
        if (threadIdx.x == 0) begin[blockDim.x] = total;
        __syncthreads();  // the next scan has more of them before `begin` is written again
        const i64 warps = blockDim.x / WARP;
        const i64 share = ceil_div(total, gridDim.x * warps);
        i64 strip = (blockIdx.x * warps + threadIdx.x / WARP) * share;
        const i64 end = least(strip + share, total);
#pragma unroll 1
        while (strip < end) {
            const i64 i = lane_of(begin, i64(blockDim.x), strip);
            const Lane lane = batch.judge(base + i);
#pragma unroll 1
            for (const i64 last = least(end, begin[i + 1]); strip < last; ++strip)
                bad_ids += write_strip(table, base + i, lane, u32(strip - begin[i]));
        }
    }
    return bad_ids;
}

// ---- steady lanes: as built, but for an appended column ---------------------------------------------------------------

constexpr i64 FURTHEST = 0xffffffff;  // a start that no lane below a span reaches, whatever the page size

// What a steady lane needs to know of a call, in 32 bits: whatever does not fit them makes no lane steady.
struct Steady {
    u32 rows, bs;
    u32 span;  // a lane's tokens are below: pagebind.ops.refresh_table.steady_span
    u32 delta;
    u32 max_requests;
};

// What the owner of a steady lane has to write of it. It waits for the page, which nothing else of a launch waits for.
struct Appended {
    u32 b = 0, column = 0;
    i32 id = HOLE, first = 0;
    index_t physical = TOMBSTONE;
    bool grows = false, shrinks = false;  // a column more; its window begins later

    __device__ void write(const Table& table, const Batch& batch) const {
        i32* const words = batch.built + b * u64(BUILT_WORDS);
        if (grows) {
            table.cells[b * table.cells_stride + column] = column_entry(table.pages, id, physical, column);
            words[BUILT_END] = i32(column + 1);
        }
        if (shrinks) words[BUILT_FIRST] = first;
    }
};

// Whether a lane is steady; what is to be written of it, if the thread owns it. Nothing else makes up the time of a
// launch, so loads are made in three groups, each as soon as it can be, and no branch comes between: the lane's words;
// its row's and the column's id; the page. It agrees with Batch::judge, which finds a steady lane done afterwards; but an
// owner's lane that appends an id past the table, which is to be counted, is none, and goes by that owner's judge alone.
// A lane of row NOTHING, which pads a batch, is steady where it was one before: `nobodies` counts those that are owned.
// Only for tables that are aligned.
__device__ inline bool is_steady(const Table& table, const Batch& batch, const Steady& call, u32 b, bool owned,
                                 Appended* appended, u32* nobodies) {
    const u32 at = fewer(b, call.bs - 1);
    Built before = reinterpret_cast<const Built*>(batch.built)[b];
    i64 r = load(batch.req_rows, plan::row_wide, at), n = load(batch.seq_lens, plan::length_wide, at);
    i64 start = plan::windowed ? load(batch.starts, plan::length_wide, at) : 0;
    pin(r), pin(n), pin(start), pin(before);
    const i32* const was = before.word;
    const bool given = b < call.bs;
    const bool has_row = plan::row_wide ? u64(r) < call.max_requests : u32(r) < call.max_requests;
    // Past 32 or 64 bits a sum is none below the span, either.
    const bool fits = plan::length_wide ? u64(n) + u64(i64(i32(call.delta))) < call.span : u32(n) + call.delta < call.span;
    const bool good = given & has_row & fits;
    const u32 cell = u32(Batch::cell_tokens()), tokens = u32(n) + call.delta, row = u32(r);
    const u32 end = (tokens + (cell - 1)) / cell, last = end - 1;
    const u32 begin = plan::windowed ? fewer(u32(clamp(start, 0, FURTHEST)) / cell, end) : 0;
    const bool some = good & (begin < end);
    i32 version = 0, live = 0, id = HOLE;
    if (good) version = batch.versions[row * u64(VERSION_WORDS) + VERSION];
    if (plan::borrowed && good) live = higher(batch.first[row], 0);
    if (some & owned) id = column_id(table.ids + row * table.ids_stride, last);
    index_t physical = physical_page(table.pages, id);
    pin(version), pin(live), pin(physical);
    const i32 first = i32(begin);
    const u32 more = end - u32(was[BUILT_END]);
    const bool same = (was[BUILT_ROW] == i32(row)) & (was[BUILT_EPOCH] == batch.epoch) &
                      (was[BUILT_VERSION] == version) & (!plan::borrowed | (was[BUILT_LIVE] == live));
    const bool moves = plan::windowed && !plan::fill_sink;  // a window's first column, which nothing empties
    const bool begins = moves ? was[BUILT_FIRST] <= first : was[BUILT_FIRST] == first;
    const bool past = (more != 0) & is_past_table(table.pages, id);
    const bool kept = good & same & (some ? begins & (more <= 1) & !past : (was[BUILT_FIRST] | was[BUILT_END]) == 0);
    const bool mine = kept & some & owned;
    const bool grows = mine & (more != 0), shrinks = moves & mine & (was[BUILT_FIRST] != first);
    *appended = {b, last, id, first, physical, grows, shrinks};
    const bool nobody = given & (r == NOTHING);
    *nobodies += owned & nobody;
    const bool padded = (was[BUILT_ROW] == NOTHING) & ((was[BUILT_VERSION] | was[BUILT_EPOCH] | was[BUILT_FIRST] |
                                                        was[BUILT_END] | was[BUILT_LIVE]) == 0);
    // Without a sink fill each row that is looked at has a lane.
    return nobody | (plan::fill_sink && !given) ? padded : kept;
}

__device__ inline u32 low_half(i64 two) { return u32(two); }
__device__ inline u32 high_half(i64 two) { return u32(u64(two) >> 32); }

KERNEL(refresh_table)(
    i64* state,                             // [STATE_WORDS], int64
    i32* built,                             // [>= rows, BUILT_WORDS], int32
    const void* __restrict__ req_rows,      // [bs], int32 or int64
    const void* __restrict__ seq_lens,      // [bs], int32 or int64; tokens
    const i32* __restrict__ versions,       // [max_requests, VERSION_WORDS], int32
    const i32* __restrict__ request_table,  // [max_requests, columns], int32
    i64 owners_flags,      // blocks that own lanes, a power of two; ALIGNED: rows of both are, to 16 and 8 bytes; COUNTING
    i64 rows_bs,           // rows of `out` that are looked at: bs, or all of them with sink fill; bs
    i64 span_delta,        // of Steady
    i64 requests_ids,      // max_requests; ids of the request table that have a row in v2p
    i64 row_stride,
    const index_t* __restrict__ v2p,  // [num_virtual + 1], index_t
    out_t* __restrict__ out,          // [>= rows, width], out_t
    i64 out_stride, i64 multiplier,
    i64 fit,               // the longest that a lane can be, in tokens
    i64 width_small,       // columns of `out`; cells that a lane may have to change without being large
    const void* __restrict__ starts,  // [bs], as seq_lens; tokens; with plan::windowed
    const i32* __restrict__ first) {  // [max_requests], int32; pages; with plan::borrowed
    wait_for_previous();
    const i32 epoch = i32(state[EPOCH]);
    const u32 owners = low_half(owners_flags), flags = high_half(owners_flags);
    const Steady call{low_half(rows_bs), high_half(rows_bs), low_half(span_delta), high_half(span_delta),
                      low_half(requests_ids)};
    const i64 rows = call.rows;
    const Batch batch{call.max_requests, req_rows, seq_lens, starts, versions, first, built, call.bs, rows,
                      i32(call.delta), fit, i32(low_half(width_small)), epoch, high_half(width_small),
                      (flags & ALIGNED) != 0};
    const Table table{{v2p, high_half(requests_ids), multiplier}, request_table, row_stride, out, out_stride};
    const bool owner = (threadIdx.x & (owners - 1)) == blockIdx.x;
    i64* const counters = flags & COUNTING ? state : nullptr;
    u32 clipped = 0, bad_rows = 0, bad_ids = 0, nobodies = 0;
    bool steady = batch.aligned, large = false;
    Appended appended;
    if (steady)
#pragma unroll 1
        for (u32 b = threadIdx.x; b < call.rows;) {
            steady = is_steady(table, batch, call, b, owner, &appended, &nobodies) & steady;
            b += blockDim.x;
            if (b < call.rows) appended.write(table, batch);
        }
    // The last one's page is on its way meanwhile. What is not written here is judged anew.
    const bool done = !__syncthreads_or(!steady);
    if (done) appended.write(table, batch);
    if (done && nobodies != 0 && counters != nullptr) add(counters + BAD_ROW, nobodies);
    LEAVE_IF(done);
#pragma unroll 1
    for (i64 base = 0; base < rows; base += blockDim.x) {
        const i64 b = base + threadIdx.x;
        const bool owned = owner && b < rows;
        Lane lane;
        if (b < rows) {
            const Built before = batch.load_built(b);
            lane = batch.extent(b);
            const Now now = batch.load_now(lane);
            // The last column is the one that is appended: its id and page are on their way before it is known.
            const bool some = owned && lane.begin < lane.end;
            const u32 last = lane.end - 1;
            const i32 id = some ? column_id(request_table + lane.row * row_stride, last) : i32(HOLE);
            const index_t physical = physical_page(table.pages, id);
            batch.compare(&lane, before, now);
            if (some && !lane.large && lane.high < lane.end) {
                bad_ids += is_past_table(table.pages, id);
                out[b * out_stride + last] = column_entry(table.pages, id, physical, last);
                lane.stop = last;
            }
        }
        large = large || lane.large;
        const bool mine = owned && !lane.large;
        for (u32 left = __ballot_sync(FULL_WARP, mine && !lane.is_done()); left != 0; left &= left - 1) {
            const int thread = __popc((left & (0 - left)) - 1);
            const Lane other = lane.of(thread);
            const i64 at = base + threadIdx.x / WARP * WARP + thread;
#pragma unroll 1
            for (u32 which = HEAD; which < Lane::ranges(); ++which)
                bad_ids += table.write<FEW>(at, other.row, which, other.range(which));
        }
        if (mine) batch.store_built(b, lane);
        clipped += owned && lane.clipped;
        bad_rows += owned && lane.bad_row;
    }
    count(counters, CLIPPED, clipped);
    count(counters, BAD_ROW, bad_rows);
    if (__syncthreads_or(large)) {
        // Lanes are judged anew: small ones may be found done, large ones as they were.
        bad_ids += write_share(table, batch);
        if (is_last_block(state + TICKET)) {
#pragma unroll 1
            for (i64 b = threadIdx.x; b < rows; b += blockDim.x) {
                const Lane lane = batch.judge(b);
                if (lane.large) batch.store_built(b, lane);
            }
        }
    }
    count(counters, BAD_ID, bad_ids);
}

HOST_ENTRY(refresh_table)
