// Entries of a lane's columns, read through its row of the request table; read_table and read_stream share them.
//
//     column c of granularity   page                          token
//     form token                row[c * ps] / ps              row[c] / ps, offset row[c] % ps
//     form page                 row[c]                        row[c / ps], offset c % ps

struct PageTable {
    const index_t* v2p;  // [num_virtual + 1]
    u32 ids;                          // ids of a request table that have a row here: those below
    i64 multiplier;
};

// Cells of a request table are int32: none that is an id reaches this.
constexpr i64 MOST_IDS = 1ll << 31;

__device__ inline PageTable page_table(const index_t* v2p, i64 num_virtual, i64 multiplier) {
    const i64 ids = least(num_virtual, MOST_IDS) * (plan::form_token ? plan::page_size : 1);
    return {v2p, u32(least(ids, MOST_IDS)), multiplier};
}

// The id in the request table that column `c` of a lane is read from. Columns are u32 or i64.
template <class Column>
__device__ inline i32 column_id(const i32* row, Column c) {
    if (plan::form_token == plan::granularity_token) return row[c];
    return plan::form_token ? row[c * plan::page_size] : row[c / Column(plan::page_size)];
}

// One comparison for holes and for ids past the table: a negative id is a large one without its sign.
__device__ inline bool has_row(const PageTable& table, i32 id) { return u32(id) < table.ids; }

__device__ inline bool is_past_table(const PageTable& table, i32 id) { return id >= 0 && !has_row(table, id); }

// Physical page of an id, TOMBSTONE where it has none. 32-bit division is the cheap one.
__device__ inline index_t physical_page(const PageTable& table, i32 id) {
    if (!has_row(table, id)) return index_t(TOMBSTONE);
    return table.v2p[plan::form_token ? u32(id) / u32(plan::page_size) : u32(id)];
}

// Page entry of a physical page that is bound. Unsigned, so that a table full of garbage overflows without harm.
__device__ inline i64 page_entry(i64 physical, i64 multiplier) { return i64(u64(physical) * u64(multiplier)); }

__device__ inline i64 token_entry(i64 entry, i64 offset) {
    return i64(u64(entry) * u64(plan::page_size) + u64(offset));
}

// The entry of column `c`, read from `id` and its page; 0 where there is none.
template <class Column>
__device__ inline out_t column_entry(const PageTable& table, i32 id, index_t physical, Column c) {
    const i64 entry = page_entry(physical < 0 ? 0 : physical, table.multiplier);
    if (!plan::granularity_token) return out_t(entry);
    const i64 offset = plan::form_token ? u32(id) % u32(plan::page_size) : c % Column(plan::page_size);
    return physical < 0 ? 0 : out_t(token_entry(entry, offset));
}
