// The tables of a sub-pool on the device: positions, where its span grows, binding and unbinding of one page.

struct Tables {
    index_t* v2p;  // [num_virtual + 1]
    i64 num_virtual;
    index_t* p2v;  // [num_physical + 1]
    i64 num_physical;
    index_t* virtual_stack;  // [num_virtual]
    index_t* hole_stack;     // [num_physical]
    i64* state;              // [STATE_WORDS]
};

// The state blocks of the sub-pools that share a buffer, by rising address.
struct Chain {
    const i64* blocks;  // [sub_pools, STATE_WORDS]; null where the sub-pool shares with none
    i64 sub_pools, place;
};

// The stack tops as a launch finds them; clamped, so that no value leads outside the stacks.
struct Tops {
    i64 virtual_top, hole_top;
};

__device__ inline Tops clamped(const Tops& words, const Tables& at) {
    return {clamp(words.virtual_top, 0, at.num_virtual), clamp(words.hole_top, 0, at.num_physical)};
}
__device__ inline Tops read_tops(const Tables& at) {
    return clamped({at.state[VIRTUAL_TOP], at.state[HOLE_TOP]}, at);
}

// Span of pagebind.ops.span: the pages seat + 1 to seat + watermark, and what is free around them.
struct Span {
    i64 virtual_top, hole_top;
    i64 seat, watermark;
    i64 above, below;  // pages free on either side
    i64 up, down;      // pages of them that growth takes, those above first
};

// The positions as the block holds them, whatever that is.
struct Positions {
    i64 virtual_top, hole_top, watermark, seat;
};

__device__ inline Positions read_positions(const Tables& at) {
    Positions held{at.state[VIRTUAL_TOP], at.state[HOLE_TOP], at.state[WATERMARK], at.state[SEAT]};
    pin(held.virtual_top), pin(held.hole_top), pin(held.watermark), pin(held.seat);
    return held;
}

// The span of a sub-pool that may have the pages [first, end).
__device__ inline Span span_within(const Tables& at, const Positions& held, i64 growth, i64 first, i64 end) {
    const i64 last = at.num_physical - 1;
    const i64 watermark = clamp(held.watermark, 0, last);
    i64 seat = clamp(held.seat, 0, last - watermark);
    if (growth == FLOAT && watermark == 0) seat = least(first - 1 + most(end - first, 0) / 2, last);
    const i64 above = most(end - 1 - (seat + watermark), 0), below = most(seat + 1 - first, 0);
    return {clamp(held.virtual_top, 0, at.num_virtual),
            clamp(held.hole_top, 0, at.num_physical),
            seat,
            watermark,
            above,
            below,
            growth == DOWN ? 0 : above,
            growth == UP ? 0 : below};
}

// The words of a block that its neighbours look at, clamped as pagebind.ops.span does: no sum or product overflows.
struct Neighbour {
    i64 base, page_bytes;  // bytes
    i64 seat, span, reach;  // pages
    i64 growth;
};

__device__ inline i64 growth_in(i64 word) { return word == DOWN || word == FLOAT ? word : UP; }

__device__ inline Neighbour read_neighbour(const i64* block) {
    Neighbour words{block[BASE], block[PAGE_BYTES], block[SEAT], block[WATERMARK], block[REACH], block[GROWTH]};
    pin(words.base), pin(words.page_bytes), pin(words.seat), pin(words.span), pin(words.reach), pin(words.growth);
    return {clamp(words.base, 0, MOST_BASE),
            clamp(words.page_bytes, 1, MOST_PAGE_BYTES),
            clamp(words.seat, 0, MOST_PAGES),
            clamp(words.span, 0, MOST_PAGES),
            clamp(words.reach, 0, MOST_PAGES),
            growth_in(words.growth)};
}

constexpr i64 NO_BOUND = i64(~0ull >> 1);

// read_span of pagebind.ops.span, for a sub-pool of a chain. A warp calls it, of which lane j looks at block j; its first
// lane returns the span.
__device__ inline Span span_in(const Tables& at, const Chain& chain) {
    const i64 lane = threadIdx.x % WARP;
    const Positions held = read_positions(at);
    i64 low = 0, high = NO_BOUND;  // bytes
#pragma unroll 1
    for (i64 j = lane; j < chain.sub_pools; j += WARP) {
        const Neighbour other = read_neighbour(chain.blocks + j * STATE_WORDS);
        low = most(low, other.base + other.page_bytes);  // all pages lie above all sinks
        const i64 leased = other.growth == (j < chain.place ? UP : DOWN) ? most(other.reach - other.span, 0) : 0;
        if (j == chain.place || other.span + leased == 0) continue;
        if (j < chain.place)
            low = most(low, other.base + (other.seat + 1 + other.span + leased) * other.page_bytes);
        else
            high = least(high, other.base + most(other.seat + 1 - leased, 0) * other.page_bytes);
    }
    for (int step = 1; step < WARP && step < chain.sub_pools; step *= 2) {
        low = most(low, __shfl_down_sync(FULL_WARP, low, step));
        high = least(high, __shfl_down_sync(FULL_WARP, high, step));
    }
    const Neighbour own = read_neighbour(chain.blocks + chain.place * STATE_WORDS);
    low = __shfl_sync(FULL_WARP, low, 0);
    high = __shfl_sync(FULL_WARP, high, 0);
    // One division for both: the second lane finds where the room ends. Unsigned, because that is the cheaper one.
    const i64 bytes = own.page_bytes;
    const i64 distance = lane == 1 ? most(high - own.base, 0) : most(low - own.base, 0) + bytes - 1;
    const i64 page = i64(u64(distance) / u64(bytes)), end = __shfl_sync(FULL_WARP, page, 1);
    return span_within(at, held, own.growth, clamp(page, 1, at.num_physical),
                       high == NO_BOUND ? at.num_physical : least(end, at.num_physical));
}

// The span, for every thread of the block, each of which calls it once; in a chain one warp looks for all.
__device__ inline Span read_span(const Tables& at, const Chain& chain) {
    if (chain.blocks == nullptr) return span_within(at, read_positions(at), UP, 1, at.num_physical);
    __shared__ Span span;
    if (threadIdx.x < WARP) {
        const Span found = span_in(at, chain);
        if (threadIdx.x == 0) span = found;
    }
    __syncthreads();
    return span;
}

// How many of `asked` pages there are; `borrowed` ids come from no stack.
__device__ inline i64 pages_found(const Span& from, i64 asked, bool borrowed) {
    const i64 pages = least(asked, from.hole_top + from.up + from.down);
    return borrowed ? pages : least(pages, from.virtual_top);
}

// Writes the positions after `taken` pages. One thread of the launch calls it, when no other reads them any more.
__device__ inline void move_positions(const Span& from, const Tables& at, i64 taken, bool borrowed) {
    const i64 holes = least(taken, from.hole_top), grown = taken - holes;
    if (!borrowed) at.state[VIRTUAL_TOP] = from.virtual_top - taken;
    at.state[HOLE_TOP] = from.hole_top - holes;
    at.state[WATERMARK] = from.watermark + grown;
    if (grown > 0) at.state[SEAT] = from.seat - most(grown - from.up, 0);
}

// The physical page that the g-th taking of a call gets: holes from the top down, then pages above the span, then below.
__device__ inline i64 page_taken(const Span& from, const Tables& at, i64 g) {
    if (g < from.hole_top) return at.hole_stack[from.hole_top - 1 - g];
    const i64 grown = g - from.hole_top;
    return grown < from.up ? from.seat + from.watermark + 1 + grown : from.seat - (grown - from.up);
}

// Binds v and p unless either is bound or outside the tables. Taking v2p first and giving it back where p is bound
// leaves the tables inverse to each other, whatever other lanes do meanwhile.
__device__ inline bool bind_page(index_t* v2p, i64 num_virtual, index_t* p2v, i64 num_physical, i64 v, i64 p) {
    if (v <= SINK || v >= num_virtual || p <= SINK || p >= num_physical) return false;
    // A page that was bound before the call never takes v away from another lane, not even for a moment.
    if (*static_cast<volatile index_t*>(p2v + p) != TOMBSTONE) return false;
    if (compare_and_swap(v2p + v, TOMBSTONE, p) != TOMBSTONE) return false;
    if (compare_and_swap(p2v + p, TOMBSTONE, v) == TOMBSTONE) return true;
    compare_and_swap(v2p + v, p, TOMBSTONE);
    return false;
}

// Whether v and p lie inside the tables and neither is bound. The row of p is looked at while v may be on its way yet.
__device__ inline bool are_free(const Tables& at, i64 v, i64 p) {
    i64 page = SINK, id = SINK;
    if (p > SINK && p < at.num_physical) id = *static_cast<volatile index_t*>(at.p2v + p);
    if (v > SINK && v < at.num_virtual) page = *static_cast<volatile index_t*>(at.v2p + v);
    return page == TOMBSTONE && id == TOMBSTONE;
}

// Binds v and p, which were free, as bind_page does, off the stacks, where no two lanes have the same page unless the
// stacks are wrong. So both rows are taken at once; one that was taken alone is given back.
__device__ inline bool bind_free(const Tables& at, i64 v, i64 p) {
    index_t *const page = at.v2p + v, *const id = at.p2v + p;
    const bool page_is_ours = compare_and_swap(page, TOMBSTONE, p) == TOMBSTONE;
    const bool id_is_ours = compare_and_swap(id, TOMBSTONE, v) == TOMBSTONE;
    if (page_is_ours && id_is_ours) return true;
    if (page_is_ours) compare_and_swap(page, p, TOMBSTONE);
    if (id_is_ours) compare_and_swap(id, v, TOMBSTONE);
    return false;
}
__device__ inline bool bind_taken(const Tables& at, i64 v, i64 p) { return are_free(at, v, p) && bind_free(at, v, p); }

// What a plan that emits writes of the pages it takes; all int32 or int64 by plan::id_wide.
struct Told {
    void* token_ids;  // [items]: virtual token ids
    void* new_ids;    // [pages]: virtual pages, in the order of taking
    void* new_pages;  // [pages]: physical pages
    i64 pages;

    // Writes the g-th page, if it has a cell.
    __device__ void page(i64 g, i64 v, i64 p) const {
        if (g >= pages) return;
        store(new_ids, plan::id_wide, g, v);
        store(new_pages, plan::id_wide, g, p);
    }
};

// Unbinds v, leaving `left` in its row of v2p, and returns its page; TOMBSTONE for a hole, which is no fault, and for
// what is counted instead.
__device__ inline i64 unbind_page(index_t* v2p, i64 num_virtual, index_t* p2v, i64 num_physical, i64 v, i64 left,
                                  i64* doubles, i64* bads) {
    if (v < 0) return TOMBSTONE;
    if (v == SINK || v >= num_virtual) {
        ++*bads;
        return TOMBSTONE;
    }
    const i64 p = *static_cast<volatile index_t*>(v2p + v);  // another lane may be freeing it
    if (p == SINK || p >= num_physical) {
        ++*bads;
        return TOMBSTONE;
    }
    if (p < 0 || compare_and_swap(v2p + v, p, left) != p) {
        ++*doubles;
        return TOMBSTONE;
    }
    p2v[p] = index_t(TOMBSTONE);
    return p;
}
