// compact: pick the moves that close holes, then copy pages and rebind them.
//
// Two phases, each a launch of this kernel:
//
//     pick   one block: live pages of the band, holes outside it, the stack without those taken, the positions
//     move   one thread a move rebinds; one warp a part of a page copies its bytes
//
// `pick` leaves its moves in `sources` and `targets`, ended by a TOMBSTONE where they are fewer than `retreat`: nothing
// else passes between the phases. Sources lie in the band and targets outside of it, so that no copy reads what another
// writes:
//
//     side high    fresh 1  0 | skip | what stays of the span | band
//     side low                         band | what stays of the span | skip | 0  1 fresh
#include "base.cuh"
#include "block.cuh"
#include "pool.cuh"

constexpr i64 PICK = 1, MOVE = 2;
constexpr int CELLS = 8;  // of a thread in a chunk of `pick`: loads that are under way together
constexpr int LOADS = 4;  // of a lane in a part of `move`: the same
constexpr i64 PART = LOADS * WARP;  // uint4 of a part

constexpr i64 REFUSED = -1;

struct Moves {
    i64 retreat;
    out_t* sources;  // [retreat]
    out_t* targets;  // [retreat]
};

// Which end retreats, and the pages that are taken at the other one.
struct Retreat {
    bool low;
    i64 fresh, skip;
};

// The page of row `first + i` of p2v where it is live, else TOMBSTONE.
struct LiveFrom {
    const Tables& at;
    i64 first;
    __device__ i64 operator()(i64 i) const {
        const i64 v = at.p2v[first + i];
        return v > SINK && v < at.num_virtual ? first + i : TOMBSTONE;
    }
};

// The page in cell i of the hole stack where it is a hole in [first, last], first > SINK, else TOMBSTONE.
struct HoleWithin {
    const Tables& at;
    i64 first, last;
    __device__ i64 operator()(i64 i) const {
        const i64 p = at.hole_stack[i];
        const bool inside = p >= first && p <= last;
        // Read in any case: without a branch, the reads of several cells are under way together.
        return at.p2v[inside ? p : SINK] == TOMBSTONE && inside ? p : TOMBSTONE;
    }
};

// Returns how many of n > 0 cells have a page. Every thread of the block calls it.
template <class PageOf>
__device__ inline i64 count_pages(i64 n, const PageOf& page_of) {
    i64 mine = 0, all;
    for (i64 i = threadIdx.x; i < n; i += CELLS * blockDim.x) {
#pragma unroll
        for (int c = 0; c < CELLS; ++c) {
            const i64 cell = i + c * blockDim.x;
            // Cells past the end read the last one, so that no load waits for a branch.
            mine += (page_of(least(cell, n - 1)) != TOMBSTONE) & (cell < n);
        }
    }
    block_scan(mine, &all);
    return all;
}

// Calls take(rank, page) for every page of n > 0 cells, ranks from 0 in the order of cells, and returns their number.
// Every thread of the block calls it. A warp reads CELLS rows of 32 cells in a chunk, so that its loads are coalesced:
//
//     warp 0 | cells 0 .. 31 | 32 .. 63 | ... |   warp 1 | cells 32 * CELLS .. | ... |
//
// All of a chunk is read before the first take of it, and ranks are no larger than cells: take may write below its rank.
template <class PageOf, class Take>
__device__ inline i64 scan_pages(i64 n, const PageOf& page_of, const Take& take) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 lanes_before = (1u << lane) - 1;
    i64 found = 0;
    for (i64 base = 0; base < n; base += CELLS * blockDim.x) {
        const i64 first = base + warp * CELLS * WARP + lane;
        i64 pages[CELLS];
        u32 votes[CELLS];
#pragma unroll
        for (int c = 0; c < CELLS; ++c) pages[c] = page_of(least(first + c * WARP, n - 1));
        int of_warp = 0;
#pragma unroll
        for (int c = 0; c < CELLS; ++c) {
            votes[c] = __ballot_sync(FULL_WARP, first + c * WARP < n && pages[c] != TOMBSTONE);
            of_warp += __popc(votes[c]);
        }
        i64 chunk;
        i64 rank = found + block_scan(lane == 0 ? of_warp : 0, &chunk) - (lane == 0 ? 0 : of_warp);
#pragma unroll
        for (int c = 0; c < CELLS; ++c) {
            if ((votes[c] >> lane) & 1) take(rank + __popc(votes[c] & lanes_before), pages[c]);
            rank += __popc(votes[c]);
        }
        found += chunk;
    }
    return found;
}

// Writes the moves and what is left of the stack and the span, and returns the number of moves; REFUSED, with nothing
// of the tables written, where the host's counts are not those of the device.
__device__ inline i64 pick(const Tables& at, const Chain& chain, const Moves& moves, const Retreat& how) {
    const i64 hole_top = at.state[HOLE_TOP], watermark = at.state[WATERMARK], seat = at.state[SEAT];
    if (seat < 0 || watermark < moves.retreat || watermark >= at.num_physical - seat) return REFUSED;
    if (hole_top < most(moves.retreat - how.fresh, 0) || hole_top > watermark) return REFUSED;
    if (how.fresh + how.skip > 0) {
        const Span span = read_span(at, chain);
        if (how.skip > 0 && moves.retreat != watermark) return REFUSED;
        if (how.fresh + how.skip > (how.low ? span.above : span.below)) return REFUSED;
    }
    const i64 stays = watermark - moves.retreat;
    const i64 band = seat + 1 + (how.low ? 0 : stays), first = seat + 1 + (how.low ? moves.retreat : 0);
    const HoleWithin hole{at, first, first + stays - 1};
    const i64 live = scan_pages(moves.retreat, LiveFrom{at, band}, [&](i64 k, i64 p) { moves.sources[k] = out_t(p); });
    const i64 holes = count_pages(hole_top, hole), missing = live - holes;
    if (missing > how.fresh || (how.fresh > 0 && missing != how.fresh)) return REFUSED;
    const i64 kept = most(-missing, 0);
    scan_pages(hole_top, hole, [&](i64 rank, i64 p) {
        if (rank < kept)
            at.hole_stack[rank] = index_t(p);
        else
            moves.targets[holes - 1 - rank] = out_t(p);
    });
    for (i64 j = threadIdx.x; j < missing; j += blockDim.x)
        moves.targets[holes + j] = out_t(how.low ? seat + watermark + how.skip + 1 + j : seat - how.skip - j);
    if (threadIdx.x == 0) {
        at.state[HOLE_TOP] = kept;
        at.state[WATERMARK] = stays + how.fresh;
        at.state[SEAT] = how.low ? seat + moves.retreat + how.skip : seat - how.fresh - how.skip;
        at.state[EPOCH] = wrapping_sum(at.state[EPOCH], 1);
    }
    return live;
}

__device__ inline void rebind_pages(const Tables& at, const Moves& moves) {
    for (i64 k = first_thread(); k < moves.retreat; k += all_threads()) {
        const i64 from = moves.sources[k], to = moves.targets[k];
        if (from == TOMBSTONE) break;
        if (from <= SINK || from >= at.num_physical || to <= SINK || to >= at.num_physical) continue;
        const i64 v = at.p2v[from];
        if (v <= SINK || v >= at.num_virtual) continue;
        at.p2v[from] = index_t(TOMBSTONE);
        // A fresh page that is bound, or a hole that is twice on the stack, leaves v without one: tables stay inverse.
        at.v2p[v] = index_t(compare_and_swap(at.p2v + to, TOMBSTONE, v) == TOMBSTONE ? to : TOMBSTONE);
    }
}

__device__ inline void copy_pages(const Moves& moves, i64 num_physical, uint4* buffer, i64 page_words) {
    const i64 parts = ceil_div(page_words, PART), warps = all_threads() / WARP;
    const int lane = threadIdx.x % WARP;
    for (i64 item = first_thread() / WARP; item < moves.retreat * parts; item += warps) {
        const i64 k = item / parts, first = (item - k * parts) * PART + lane;
        const i64 from = moves.sources[k], to = moves.targets[k];
        if (from == TOMBSTONE) break;
        if (from <= SINK || from >= num_physical || to <= SINK || to >= num_physical) continue;
        const uint4* const source = buffer + from * page_words;
        uint4* const target = buffer + to * page_words;
        uint4 words[LOADS];
#pragma unroll
        for (int c = 0; c < LOADS; ++c)
            if (first + c * WARP < page_words) words[c] = source[first + c * WARP];
#pragma unroll
        for (int c = 0; c < LOADS; ++c)
            if (first + c * WARP < page_words) target[first + c * WARP] = words[c];
    }
}

KERNEL(compact)(
    index_t* v2p,  // [num_virtual + 1], index_t
    i64 num_virtual,
    index_t* p2v,  // [num_physical + 1], index_t
    i64 num_physical,
    index_t* hole_stack,  // [num_physical], index_t
    i64* state,           // [STATE_WORDS], int64
    const i64* chain,     // [sub_pools, STATE_WORDS], int64, or null
    i64 sub_pools, i64 place,
    i64 retreat,
    i64 low,  // 1 where the low end retreats, else 0
    i64 fresh, i64 skip,
    out_t* sources,   // [>= retreat], out_t; physical pages
    out_t* targets,   // [>= retreat], out_t; physical pages
    uint4* buffer,    // [>= num_physical * page_words], 16 bytes each; null where pages have no bytes
    i64 page_words,   // 16 bytes each
    i64* counters,    // `state`, or null
    i64 phase) {
    wait_for_previous();
    const Tables at{v2p, num_virtual, p2v, num_physical, nullptr, hole_stack, state};
    const Moves moves{retreat, sources, targets};
    if (phase == MOVE) {
        rebind_pages(at, moves);
        if (buffer != nullptr) copy_pages(moves, num_physical, buffer, page_words);
        return;
    }
    const i64 live = pick(at, {chain, sub_pools, place}, moves, {low != 0, fresh, skip});
    for (i64 k = most(live, 0) + threadIdx.x; k < retreat; k += blockDim.x) {
        sources[k] = out_t(TOMBSTONE);
        targets[k] = out_t(TOMBSTONE);
    }
    count(counters, COUNT_MISMATCH, live == REFUSED && threadIdx.x == 0);
}

HOST_ENTRY(compact)
