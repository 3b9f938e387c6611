// read_table: translate each lane's virtual pages into the rectangle that attention kernels read, in one launch.
//
//     columns of lane b, from its begin    | 0 ... cover                      | cover ... end
//     written by                           | warps of the blocks of lane b    | warps of all blocks, evenly
//
// All blocks run at once, and each reads all lengths: so each knows by itself whether a lane goes on past FAR times
// `cover`. If none does, each row is written by its own blocks to the end; if one does, what is past `cover` of all rows
// is shared out, and one long row among short ones is written by everybody. The grid follows from the planned sizes and
// the number of rows, never from a length.
//
//     blocks   | first table: a grid as above | second table, where there is one: another |
#include "base.cuh"
#include "block.cuh"
#include "entry.cuh"
#include "build.cuh"

// What a lane is made of, as it stands in the batch.
struct Lane {
    i64 row;
    i64 length, start;  // tokens
};

constexpr i64 FAR = 2;

struct Batch {
    const i32* request_table;  // [max_requests, columns]
    i64 max_requests, row_stride;
    const void* __restrict__ req_rows;  // [bs]
    const void* __restrict__ seq_lens;  // [bs]
    const void* __restrict__ starts;    // [bs]; windowed
    u32 bs;
    out_t* out;  // [out_rows, width]
    i64 out_stride;
    i64 delta, fit;  // tokens
    u32 cover;       // columns
    bool windowed;   // known when compiled

    // Lane b, or the last one. All loads are under way before anything looks at them.
    __device__ Lane lane(u32 b) const {
        const u32 at = fewer(b, bs - 1);
        Lane lane{load(req_rows, plan::row_wide, at), load(seq_lens, plan::length_wide, at), 0};
        if (windowed) lane.start = load(starts, plan::length_wide, at);
        return lane;
    }

    // Keeps the loads where they stand. Compilers move them behind the branch that first looks at one, where each waits
    // for the one before.
    __device__ void pin(Lane& lane) const {
        ::pin(lane.row), ::pin(lane.length);
        if (windowed) ::pin(lane.start);
    }

    __device__ static i64 cell_tokens() { return plan::granularity_token ? 1 : plan::page_size; }
    __device__ i64 tokens(const Lane& lane) const { return bounded(lane.length) + delta; }
    __device__ i64 start(const Lane& lane) const { return windowed ? most(bounded(lane.start), 0) : 0; }

    __device__ bool fits(const Lane& lane) const { return u64(tokens(lane)) <= u64(fit); }
    __device__ bool is_good(u32 b, const Lane& lane) const { return (b < bs) & (u64(lane.row) < u64(max_requests)); }

    // The valid extent of a lane's row: begin <= end.
    __device__ void extent(const Lane& lane, u32* begin, u32* end) const {
        const u64 n = fits(lane) ? u64(tokens(lane)) : tokens(lane) < 0 ? 0 : u64(fit), cell = u64(cell_tokens());
        *end = u32((n + cell - 1) / cell);
        *begin = windowed ? u32(least(u64(start(lane)) / cell, *end)) : 0;
    }

    // The row of lane b, empty for a bad row and for a row past the batch. All of a launch waits for it: no branch.
    __device__ Row row(u32 b, const Lane& lane) const {
        const bool good = is_good(b, lane);
        u32 begin, end;
        extent(lane, &begin, &end);
        Row row{request_table + (good ? lane.row : 0) * row_stride, out + b * out_stride, begin, end};
        if (!good) row.begin = row.end = 0;
        ::pin(row.ids), ::pin(row.cells);
        return row;
    }

    // The counter of what is wrong with lane b, 0 for nothing.
    __device__ u32 fault(u32 b, const Lane& lane) const {
        const u32 wrong = is_good(b, lane) ? (fits(lane) ? 0 : u32(CLIPPED)) : u32(BAD_ROW);
        return b < bs ? wrong : 0;
    }

    // Whether a lane may go on past FAR times `cover`; a window begins and ends inside of columns.
    __device__ bool goes_on(const Lane& lane) const {
        return tokens(lane) - start(lane) > (FAR * i64(cover) - (windowed ? 2 : 0)) * cell_tokens();
    }

    // What is past `cover`, for write_balanced. A bad row counts as if it were a good one.
    __device__ u32 units(u32 b) const {
        u32 begin, end;
        extent(lane(b), &begin, &end);
        return units_of(begin + cover, end);
    }
    __device__ Row row(u32 b) const {
        Row row = this->row(b, lane(b));
        row.begin = fewer(row.begin + cover, row.end);
        return row;
    }
};

// Builds a table by `blocks` blocks, of which this is number `block`; the other arguments are the kernel's.
__device__ __forceinline__ void build(const PageTable& table, const Batch& batch, i64 out_rows, i64 width, i64 bs,
                                      i64 lanes, i64 parts, i64 inverse, i64 cover, i64* counters, u32 block,
                                      u32 blocks) {
    const u32 rows = u32(plan::fill_sink ? out_rows : bs);
    const u32 part = u32(u64(block) * u64(inverse) >> 32), lane = threadIdx.x % WARP;
    // The warp's columns of a row: the 32 from `own` on, and every `apart` from there.
    const u32 own = part * blockDim.x + threadIdx.x - lane, apart = u32(parts) * blockDim.x;
    u32 b = block - part * u32(lanes);
    Lane given = batch.lane(b), other = batch.lane(threadIdx.x);
    batch.pin(given), batch.pin(other);
    bool goes_on = batch.goes_on(other);  // any of the lanes that this thread looks at
    bool asked = width <= FAR * cover, shared = false;
#pragma unroll 1
    for (;;) {
        Row row = batch.row(b, given);
        if (const u32 fault = batch.fault(b, given); fault && counters != nullptr && own + lane == 0)
            add(counters + fault, 1);
        const u32 end = row.end;
        u32 first = row.begin + own, bad_ids = 0;
        row.end = fewer(end, row.begin + batch.cover);
#pragma unroll 1
        for (;;) {
            bad_ids += write_row(table, row, first, apart);
            if (!asked) {  // only now, so that the first columns wait for no other lane
#pragma unroll 1
                for (u32 i = threadIdx.x + blockDim.x; i < u32(bs); i += blockDim.x)
                    goes_on |= batch.goes_on(batch.lane(i));
                shared = __syncthreads_or(goes_on);
                asked = true;
            }
            if (shared || row.end == end) break;
            first += batch.cover;
            row.end = end;
        }
        count(counters, BAD_ID, bad_ids);
        if (plan::fill_sink) {
            for (u32 c = own + lane; c < row.begin; c += apart) row.cells[c] = 0;
            for (u32 c = own + lane + end; c < width; c += apart) row.cells[c] = 0;
        }
        b += u32(lanes);
        if (b >= rows) break;
        given = batch.lane(b);
        batch.pin(given);
    }
    if (shared) count(counters, BAD_ID, write_balanced(table, batch, bs, block, blocks));
}

constexpr int MOST_THREADS = 288, MOST_BLOCKS = 4;  // or more and smaller ones: what 56 registers of a thread allow

// What `plan::beside` says of the second table.
[[maybe_unused]] constexpr i64 WHOLE = 1, WINDOW = 2;

// Kernels without a second table do not have its arguments; in the host build all have them.
#if defined(PAGEBIND_HOST) || PAGEBIND_BESIDE
#define TWO_TABLES 1
#endif

// Neither `request_table` nor `v2p` nor `out` is __restrict__: where registers are short, loads of what no store can
// change are moved behind the stores of other columns, and one column waits for another.
RESIDENT_KERNEL(read_table, MOST_THREADS, MOST_BLOCKS)(
    const i32* request_table,  // [max_requests, columns], int32
    i64 max_requests, i64 row_stride,
    const void* __restrict__ req_rows,  // [bs], int32 or int64
    const void* __restrict__ seq_lens,  // [bs], int32 or int64; tokens
    const void* __restrict__ starts,    // [bs], as seq_lens; tokens; windowed
    const index_t* v2p,                 // [num_virtual + 1], index_t
    i64 num_virtual,
    out_t* out,  // [out_rows, width], out_t
    i64 out_rows, i64 width, i64 out_stride, i64 bs,
    i64 fit,               // the longest that a lane can be, in tokens
    i64 lanes, i64 parts,  // the grid: `parts` blocks for each of `lanes` rows
    i64 inverse,           // 2^32 / lanes, rounded up: a division would stand before the first load
    i64 cover,             // columns
    i64 delta, i64 multiplier,
    i64* counters  // [STATE_WORDS], int64, or null
#ifdef TWO_TABLES
    ,
    i64 blocks,  // of the first table; those behind them are the second's, whose arguments follow
    const void* __restrict__ other_starts, const index_t* other_v2p, i64 other_num_virtual, out_t* other_out,
    i64 other_rows, i64 other_width, i64 other_stride, i64 other_fit, i64 other_lanes, i64 other_parts,
    i64 other_inverse, i64 other_cover, i64 other_multiplier, i64* other_counters
#endif
) {
    wait_for_previous();
    u32 here = gridDim.x;
#ifdef TWO_TABLES
    if (plan::beside) {
        here = u32(blocks);
        if (blockIdx.x >= here) {
            const PageTable table = page_table(other_v2p, other_num_virtual, other_multiplier);
            const Batch batch{request_table, max_requests, row_stride, req_rows, seq_lens, other_starts, u32(bs),
                              other_out, other_stride, delta, other_fit, u32(other_cover), plan::beside == WINDOW};
            build(table, batch, other_rows, other_width, bs, other_lanes, other_parts, other_inverse, other_cover,
                  other_counters, blockIdx.x - here, gridDim.x - here);
            return;
        }
    }
#endif
    const PageTable table = page_table(v2p, num_virtual, multiplier);
    const Batch batch{request_table, max_requests, row_stride, req_rows, seq_lens, starts, u32(bs),
                      out,           out_stride,   delta,      fit,      u32(cover), plan::windowed != 0};
    build(table, batch, out_rows, width, bs, lanes, parts, inverse, cover, counters, blockIdx.x, here);
}

HOST_ENTRY(read_table)
