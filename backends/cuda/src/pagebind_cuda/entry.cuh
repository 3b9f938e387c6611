// Entries of a lane's columns, read through its row of the request table; read_table and read_stream share them.
//
//     column c of granularity   page                          token
//     form token                row[c * ps] / ps              row[c] / ps, offset row[c] % ps
//     form page                 row[c]                        row[c / ps], offset c % ps

// Columns that a thread has in flight: first all ids are loaded, then all pages, so that their latencies overlap. A
// column past the end reads as a hole and loads nothing; a `break` there would put the loads in a row.
constexpr int BATCH = 4;

struct PageTable {
    const index_t* __restrict__ v2p;  // [num_virtual + 1]
    i64 num_virtual;
    i64 multiplier;
};

// The id in the request table that column `c` of a lane is read from.
__device__ inline i32 column_id(const i32* __restrict__ row, i64 c) {
    if (plan::form_token == plan::granularity_token) return row[c];
    return plan::form_token ? row[c * plan::page_size] : row[c / plan::page_size];
}

// Virtual page of an id. Cells are int32, and 32-bit division is the cheap one; a hole becomes a page past any.
__device__ inline i64 virtual_page(i32 id) {
    if (id < 0) return MAX_LENGTH;
    return plan::form_token ? u32(id) / u32(plan::page_size) : u32(id);
}

__device__ inline bool is_past_table(const PageTable& table, i32 id) {
    return id >= 0 && virtual_page(id) >= table.num_virtual;
}

// Physical page of an id, TOMBSTONE where it has none.
__device__ inline i64 physical_page(const PageTable& table, i32 id) {
    const i64 v = virtual_page(id);
    return v < table.num_virtual ? i64(table.v2p[v]) : TOMBSTONE;
}

// Page entry of a physical page that is bound. Unsigned, so that a table full of garbage overflows without harm.
__device__ inline i64 page_entry(i64 physical, i64 multiplier) { return i64(u64(physical) * u64(multiplier)); }

__device__ inline i64 token_entry(i64 entry, i64 offset) {
    return i64(u64(entry) * u64(plan::page_size) + u64(offset));
}

// The entry of column `c`, read from `id` and its page; 0 where there is none.
__device__ inline i64 column_entry(const PageTable& table, i32 id, i64 physical, i64 c) {
    if (physical < 0) return 0;
    const i64 entry = page_entry(physical, table.multiplier);
    if (!plan::granularity_token) return entry;
    return token_entry(entry, plan::form_token ? u32(id) % u32(plan::page_size) : c % plan::page_size);
}
