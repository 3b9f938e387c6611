// Columns of a read table, written by the threads of a launch. read_table and refresh_table share it.

// Columns [begin, end) of a table's row, begin <= end. Widths fit an int32: no sum with a few columns overflows.
struct Row {
    const i32* ids;  // the row of the request table
    out_t* cells;
    u32 begin, end;
};

__device__ inline u32 fewer(u32 a, u32 b) { return a < b ? a : b; }

// Writes columns first, first + apart, ... of a row, COUNT of them, as far as the row goes, and returns how many of
// their ids are past the table. First all ids are loaded, then all pages, so that their latencies overlap. A column past
// the end reads as a hole and loads nothing; a `break` there would put the loads in a row.
//
// No access of 16 bytes: where a thread has 4 columns side by side, a warp's gather touches 4 times the lines.
template <u32 COUNT>
__device__ inline u32 write_columns(const PageTable& table, const Row& row, u32 first, u32 apart) {
    i32 ids[COUNT];
    index_t pages[COUNT];
    u32 bad_ids = 0;
#pragma unroll
    for (u32 k = 0; k < COUNT; ++k)
        ids[k] = first + k * apart < row.end ? column_id(row.ids, first + k * apart) : i32(HOLE);
#pragma unroll
    for (u32 k = 0; k < COUNT; ++k) {
        pages[k] = physical_page(table, ids[k]);
        bad_ids += is_past_table(table, ids[k]);
    }
#pragma unroll
    for (u32 k = 0; k < COUNT; ++k) {
        const u32 c = first + k * apart;
        const out_t entry = column_entry(table, ids[k], pages[k], c);
        if (c < row.end) row.cells[c] = entry;
    }
    return bad_ids;
}

// Columns that a thread has in flight: as many as its registers hold.
constexpr u32 FEW = 4, MANY = sizeof(index_t) + sizeof(out_t) > 8 ? FEW : 8;

// Writes every `apart`-th column of a row, for each lane of a warp from `first` + its number on.
__device__ inline u32 write_row(const PageTable& table, const Row& row, u32 first, u32 apart) {
    const u32 lane = threadIdx.x % WARP;
    u32 bad_ids = 0;
#pragma unroll 1
    for (; first < row.end; first += MANY * apart)
        bad_ids += MANY > FEW && first + FEW * apart < row.end
                       ? write_columns<MANY>(table, row, first + lane, apart)
                       : write_columns<FEW>(table, row, first + lane, apart);
    return bad_ids;
}

// ---- rows of any lengths, shared out evenly -------------------------------------------------------------------------
//
// Units of 1,024 columns are counted row after row, so that one number names a unit. Each block has equally many of
// them, side by side, and its warps go through them by strips of 256 columns (128 where entries or pages are int64):
//
//     row            0     1   2          3             blocks of 2 units
//     units      | 0  1 | 2 |   | 3  4  5  6  7 |       0 1 | 2 3 | 4 5 | 6 7
//     begin        0      2   3   3             (8)

constexpr u32 UNIT = 1024;  // columns; so many that the units of ROWS rows fit 32 bits
constexpr u32 ROWS = 1024;  // rows that are shared out at once
constexpr u32 STRIP = MANY * WARP;
constexpr u32 STRIPS = UNIT / STRIP;

__device__ inline u32 units_of(u32 begin, u32 end) { return begin < end ? (end - begin + UNIT - 1) / UNIT : 0; }

// Writes rows 0 to n - 1, of which `rows.units(i)` tells the units and `rows.row(i)` all; a row may turn out to be
// shorter than its units. Every thread of the `blocks` blocks that share them calls it; this block is number `block`.
// Returns how many ids of the thread are past the table.
template <class Rows>
__device__ inline i64 write_balanced(const PageTable& table, const Rows& rows, i64 n, u32 block, u32 blocks) {
    __shared__ u32 begin[ROWS + 1];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    i64 bad_ids = 0;
#pragma unroll 1
    for (i64 base = 0; base < n; base += ROWS) {
        const u32 here = u32(least(n - base, ROWS)), each = (here + blockDim.x - 1) / blockDim.x;
        const u32 first = fewer(threadIdx.x * each, here), last = fewer(first + each, here);
        u32 units = 0, total;
#pragma unroll 1
        for (u32 i = first; i < last; ++i) {
            begin[i] = units;
            units += rows.units(base + i);
        }
        const u32 before = block_scan(units, &total);
#pragma unroll 1
        for (u32 i = first; i < last; ++i) begin[i] += before;
        if (threadIdx.x == 0) begin[here] = total;
        __syncthreads();
        const u32 share = (total + blocks - 1) / blocks;
        const u32 high = u32(least(u64(block + 1) * share, total));
        u32 unit = u32(least(u64(block) * share, total)), strip = warp, next = 0, origin = 0;
        Row row;
#pragma unroll 1
        for (;; strip += warps) {
            unit += strip / STRIPS;
            strip %= STRIPS;
            if (unit >= high) break;
            if (unit >= next) {
                const u32 i = lane_of(begin, here, unit);
                next = begin[i + 1];
                row = rows.row(base + i);
                origin = row.begin - begin[i] * UNIT;
            }
            bad_ids += write_columns<MANY>(table, row, origin + unit * UNIT + strip * STRIP + lane, WARP);
        }
        __syncthreads();  // the rows of the next turn take the place of these
    }
    return bad_ids;
}
