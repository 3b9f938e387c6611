// What a refresh finds of a lane: the columns that are kept, and those to write or to empty.
//
//     begin ... low | low ... high | high ... end        old_begin ... begin, end ... old_end
//        written    |     kept     |   written                emptied, with sink fill
//
// A lane is *large* where one of these is more than `small`: the cells it writes, begin - old_begin, old_end - end. The
// last two, with sink fill, are no less than the cells it empties on either side.
//
// Blocks judge a small lane before, amid and after its owner notes in `built` what it wrote. All they want to know is
// whether it is large, and they find it small, whatever words of it are old and new: to put the new one in the place of
// an old one makes none of the three more, whatever the other words are.
//
//     row, epoch, version   as they are now: what was kept stays so, and more may seem to be
//     first                 begin: cuts nothing of what is kept, and begin - old_begin is 0
//     end                   end: cuts nothing of what is kept, and old_end - end is 0
//     live                  as it is now: cuts nothing
//     without a row         nothing is written; first and end are 0, as begin and end are
//
// Were the emptied cells themselves counted, a lane with [1000, 1010) before and [0, 10) now would have 10 of them, and
// 1,000 for a block that sees its new first and its old end.

// pagebind.ops.refresh_table: words of a row of `built`, and what the first one is without a row.
constexpr i64 BUILT_WORDS = 8;
constexpr i64 BUILT_ROW = 0, BUILT_VERSION = 1, BUILT_EPOCH = 2, BUILT_FIRST = 3, BUILT_END = 4, BUILT_LIVE = 5;
constexpr i64 NOTHING = -1;
// pagebind.ops.touch: words of a row of `versions`.
constexpr i64 VERSION_WORDS = 2, VERSION = 0, CHANGED = 1;

// A row of `built`, which is loaded and stored 16 bytes at a time where it is aligned.
struct alignas(16) Built {
    i32 word[BUILT_WORDS];
};

__device__ inline void pin(Built& words) {
#pragma unroll
    for (i64 i = BUILT_ROW; i <= BUILT_LIVE; ++i) pin(words.word[i]);
}

// A row of `versions`, which is loaded 8 bytes at a time where it is aligned.
struct alignas(8) Versions {
    i32 word[VERSION_WORDS];
};

// What a row says of itself now.
struct Now {
    Versions row;
    i32 live;  // its word of `first`
};

struct Range {
    u32 begin, end;
};
// Ranges of columns that a lane changes: HEAD and TAIL are written, BEFORE and BEHIND emptied.
constexpr u32 HEAD = 0, TAIL = 1, BEFORE = 2, BEHIND = 3;

__device__ inline i32 lower(i32 a, i32 b) { return a < b ? a : b; }
__device__ inline i32 higher(i32 a, i32 b) { return a > b ? a : b; }

struct Lane {
    i64 row = NOTHING;               // of the request table
    u32 begin = 0, end = 0;          // the valid extent; 0, 0 where it is empty
    u32 low = 0, high = 0;           // [low, high) of it is kept
    u32 stop = 0;                    // where the tail ends that is left to write
    u32 old_begin = 0, old_end = 0;  // the extent that was built, within the width; with sink fill
    i32 version = 0, live = 0;
    bool clipped = false, bad_row = false, large = false;

    __device__ static u32 ranges() { return plan::fill_sink ? 4 : 2; }

    __device__ Range range(u32 which) const {
        Range range{begin, low};
        if (which == TAIL) range = {high, stop};
        if (which == BEFORE) range = {old_begin, fewer(old_end, begin)};
        if (which == BEHIND) range = {old_begin > end ? old_begin : end, old_end};
        range.begin = fewer(range.begin, range.end);
        return range;
    }

    __device__ bool is_done() const {
        bool done = true;
        for (u32 which = HEAD; which < ranges(); ++which) done = done && range(which).begin == range(which).end;
        return done;
    }

    // The ranges of another thread's lane.
    __device__ Lane of(int thread) const {
        Lane lane;
        lane.row = __shfl_sync(FULL_WARP, row, thread);
        lane.begin = __shfl_sync(FULL_WARP, begin, thread);
        lane.end = __shfl_sync(FULL_WARP, end, thread);
        lane.low = __shfl_sync(FULL_WARP, low, thread);
        lane.high = __shfl_sync(FULL_WARP, high, thread);
        lane.stop = __shfl_sync(FULL_WARP, stop, thread);
        if (plan::fill_sink) {
            lane.old_begin = __shfl_sync(FULL_WARP, old_begin, thread);
            lane.old_end = __shfl_sync(FULL_WARP, old_end, thread);
        }
        return lane;
    }
};

struct Batch {
    i64 max_requests;
    const void* __restrict__ req_rows;  // [bs]
    const void* __restrict__ seq_lens;  // [bs]
    const void* __restrict__ starts;    // [bs]; with plan::windowed
    const i32* __restrict__ versions;   // [max_requests, VERSION_WORDS]
    const i32* __restrict__ first;      // [max_requests]; with plan::borrowed
    i32* built;                         // [rows, BUILT_WORDS]; written
    i64 bs, rows, delta;
    i64 fit;  // tokens
    i32 width, epoch;
    u32 small;
    bool aligned;  // rows of `built` and of `versions`

    __device__ static i64 cell_tokens() { return plan::granularity_token ? 1 : plan::page_size; }

    __device__ Built load_built(i64 b) const {
        const i32* const row = built + b * BUILT_WORDS;
        if (aligned) return *reinterpret_cast<const Built*>(row);
        Built words;
#pragma unroll
        for (i64 i = 0; i < BUILT_WORDS; ++i) words.word[i] = row[i];
        return words;
    }

    __device__ void store_built(i64 b, const Lane& lane) const {
        i32* const row = built + b * BUILT_WORDS;
        const bool none = lane.row == NOTHING;
        const i32 begin = i32(lane.begin), end = i32(lane.end);
        const Built words{{i32(lane.row), lane.version, none ? 0 : epoch, begin, end, lane.live, 0, 0}};
        if (aligned) {
            *reinterpret_cast<Built*>(row) = words;
            return;
        }
#pragma unroll
        for (i64 i = 0; i < BUILT_WORDS; ++i) row[i] = words.word[i];
    }

    // Row and valid extent of a lane; none of rows of the table past the batch. No branch comes before the three loads,
    // so that they are made at once.
    __device__ Lane extent(i64 b) const {
        const i64 at = least(b, bs - 1);
        const i64 r = load(req_rows, plan::row_wide, at), n = load_length(seq_lens, at) + delta;
        const i64 start = plan::windowed ? most(load_length(starts, at), 0) : 0;
        const bool given = b < bs, good = given && r >= 0 && r < max_requests;
        const u64 tokens = u64(clamp(n, 0, fit)), cell = u64(cell_tokens());
        const u64 begin = u64(start) / cell, end = (tokens + cell - 1) / cell;
        const bool some = good && begin < end;
        Lane lane;
        lane.row = good ? r : NOTHING;
        lane.begin = some ? u32(begin) : 0;
        lane.end = some ? u32(end) : 0;
        lane.clipped = good && (n < 0 || n > fit);
        lane.bad_row = given && !good;
        return lane;
    }

    __device__ Now load_now(const Lane& lane) const {
        Now now{{0, 0}, 0};
        if (lane.row == NOTHING) return now;
        const i32* const words = versions + lane.row * VERSION_WORDS;
        if (plan::borrowed) now.live = first[lane.row];
        if (aligned) {
            now.row = *reinterpret_cast<const Versions*>(words);
        } else {
            now.row.word[VERSION] = words[VERSION];
            now.row.word[CHANGED] = words[CHANGED];
        }
        return now;
    }

    // Adds to a lane what of it is kept. Columns fit an i32.
    __device__ void compare(Lane* lane, const Built& before, const Now& now) const {
        const i32* const was = before.word;
        const i32 version = now.row.word[VERSION], changed = now.row.word[CHANGED];
        i32 low = higher(i32(lane->begin), was[BUILT_FIRST]), high = lower(i32(lane->end), was[BUILT_END]);
        const u32 ahead = u32(version) - u32(was[BUILT_VERSION]);
        if (ahead != 0) high = ahead == 1 ? lower(high, higher(changed, 0) / i32(cell_tokens())) : 0;
        lane->version = version;
        lane->live = higher(now.live, 0);
        if (plan::borrowed && lane->live != was[BUILT_LIVE]) {
            const i64 pages = higher(lane->live, was[BUILT_LIVE]);
            low = i32(least(most(low, pages * (plan::granularity_token ? plan::page_size : 1)), lane->end));
        }
        const bool same = lane->row != NOTHING && lane->row == was[BUILT_ROW] && epoch == was[BUILT_EPOCH];
        const bool kept = same && low < high;
        lane->low = kept ? u32(low) : lane->begin;
        lane->high = kept ? u32(high) : lane->begin;
        lane->stop = lane->end;
        lane->large = lane->low - lane->begin + lane->stop - lane->high > small;
        if (plan::fill_sink) {
            lane->old_begin = u32(lower(higher(was[BUILT_FIRST], 0), width));
            lane->old_end = u32(lower(higher(was[BUILT_END], 0), width));
            lane->large = lane->large || lane->old_begin + small < lane->begin || lane->end + small < lane->old_end;
        }
    }

    __device__ Lane judge(i64 b) const {
        Lane lane;
        if (b >= rows) return lane;
        const Built before = load_built(b);
        lane = extent(b);
        compare(&lane, before, load_now(lane));
        return lane;
    }
};
