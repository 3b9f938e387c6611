// translate: token ids -> the ids kernels write through (slot mapping), 1-D or 2-D, strided, also in place.
//
//     id = v * (ps * ranks) + o,   o = offset * ranks + owner        ranks: the context-parallel group, 1 without
#include "base.cuh"
#include "entry.cuh"

KERNEL(translate)(
    const void* ids,  // [rows, columns], int32 or int64; may be `out`
    i64 rows, i64 columns, i64 id_row_stride, i64 id_stride,
    const index_t* __restrict__ v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    out_t* out,  // [rows, columns], out_t
    i64 out_row_stride, i64 out_stride, i64 multiplier, i64 rank,
    i64* counters) {  // [STATE_WORDS], int64, or null
    wait_for_previous();
    const u64 widened = u64(plan::page_size) * u64(plan::ranks);
    i64 bad_ids = 0;
    for (i64 item = first_thread(); item < rows * columns; item += all_threads()) {
        const i64 i = rows == 1 ? 0 : item / columns, j = rows == 1 ? item : item % columns;
        const i64 id = load(ids, plan::id_wide, i * id_row_stride + j * id_stride);
        i64 entry = 0;
        if (id >= 0) {
            // Narrow ids are divided in 32 bits, which is the cheap way.
            const i64 v = plan::id_wide ? u64(id) / widened : u32(id) / u32(widened);
            const i64 o = id - v * i64(widened);
            const i64 p = v < num_virtual ? i64(v2p[v]) : TOMBSTONE;
            bad_ids += v >= num_virtual;
            if (p >= 0 && o % plan::ranks == rank) entry = token_entry(page_entry(p, multiplier), o / plan::ranks);
        }
        out[i * out_row_stride + j * out_stride] = out_t(entry);
    }
    count(counters, BAD_ID, bad_ids);
}

HOST_ENTRY(translate)
