// Freeing of pages of rows, lane after lane and page after page: truncate, release and evict share it.
//
//     lane            0         1     2               page c of the call is page first[b] + c - begin[b] of lane b,
//     pages asked     3         0     2               with b the last lane that begins at or before it
//     begin           0         3     3    (5)

// What a phase before leaves of every lane, and where its row lies.
struct RowPages {
    const i32* request_table;
    i64 row_stride;
    const void* req_rows;  // [bs]
    i64 bs;
    const i64* begin;  // [bs + 1]: pages asked by the lanes before
    const i64* first;  // [bs]: the first page to free

    // The virtual id of the c-th page to free: that of the page's first cell.
    __device__ i64 operator()(i64 c) const {
        const i64 b = lane_of(begin, bs, c);
        const i64 page = first[b] + c - begin[b];
        const i32* const row = request_table + load(req_rows, plan::row_wide, b) * row_stride;
        const i64 id = row[plan::form_token ? page * plan::page_size : page];
        return plan::form_token && id >= 0 ? id / plan::page_size : id;
    }
};

// Frees the pages that fit `freed`, [capacity], and fills the rest of it.
__device__ inline void free_pages(const RowPages& pages, i64 capacity, const Tables& at, out_t* freed,
                                  const Freeing& how, i64* counters) {
    const i64 n = least(pages.begin[pages.bs], capacity);
    for (i64 c = n + first_thread(); c < capacity; c += all_threads()) freed[c] = out_t(TOMBSTONE);
    free_ids(pages, n, at, freed, how, counters);
}
