// touch: tell the tables that follow a request table that rows changed, one thread a lane.
//
//     lane b, row r = req_rows[b]:   versions[r] = (version + 1, tokens[b])
#include "base.cuh"

// pagebind.ops.touch: words of a row of `versions`.
constexpr i64 VERSION_WORDS = 2, VERSION = 0, CHANGED = 1;
constexpr i64 MOST_CHANGED = 0x7fffffff;

KERNEL(touch)(
    i32* versions,  // [max_requests, VERSION_WORDS], int32
    i64 max_requests,
    const void* __restrict__ req_rows,  // [bs], int32 or int64
    const void* __restrict__ tokens,    // [bs], int32 or int64
    i64 bs,
    i64* counters) {  // [STATE_WORDS], int64, or null
    wait_for_previous();
    i64 bad_rows = 0;
    for (i64 b = first_thread(); b < bs; b += all_threads()) {
        const i64 r = load(req_rows, plan::row_wide, b), changed = load(tokens, plan::length_wide, b);
        if (r < 0 || r >= max_requests) {
            bad_rows += 1;
            continue;
        }
        i32* const row = versions + r * VERSION_WORDS;
        atomicAdd(row + VERSION, 1);  // a row may stand in several lanes, and rises by as many
        row[CHANGED] = i32(clamp(changed, 0, MOST_CHANGED));
    }
    count(counters, BAD_ROW, bad_rows);
}

HOST_ENTRY(touch)
