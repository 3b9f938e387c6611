// The tables of a sub-pool on the device: positions, binding and unbinding of one page.

struct Tables {
    index_t* v2p;  // [num_virtual + 1]
    i64 num_virtual;
    index_t* p2v;  // [num_physical + 1]
    i64 num_physical;
    index_t* virtual_stack;  // [num_virtual]
    index_t* hole_stack;     // [num_physical]
    i64* state;              // [STATE_WORDS]
};

// The first words of a state block, as a launch finds them; clamped, so that no value leads outside the stacks.
struct Positions {
    i64 virtual_top, hole_top, watermark;
};

__device__ inline Positions read_positions(const Tables& at) {
    return {clamp(at.state[VIRTUAL_TOP], 0, at.num_virtual), clamp(at.state[HOLE_TOP], 0, at.num_physical),
            clamp(at.state[WATERMARK], 0, at.num_physical - 1)};
}

// How many of `asked` pages there are: min(asked, top, holes + room).
__device__ inline i64 pages_found(const Positions& from, const Tables& at, i64 asked) {
    return least(asked, least(from.virtual_top, from.hole_top + at.num_physical - 1 - from.watermark));
}

// Writes the positions after `taken` pages. One thread of the launch calls it, when no other reads them any more.
__device__ inline void move_positions(const Positions& from, const Tables& at, i64 taken) {
    const i64 holes = least(taken, from.hole_top);
    at.state[VIRTUAL_TOP] = from.virtual_top - taken;
    at.state[HOLE_TOP] = from.hole_top - holes;
    at.state[WATERMARK] = from.watermark + taken - holes;
}

// The physical page that the g-th taking of a call gets: holes from the top down, then the frontier.
__device__ inline i64 page_taken(const Positions& from, const Tables& at, i64 g) {
    return g < from.hole_top ? i64(at.hole_stack[from.hole_top - 1 - g]) : from.watermark + 1 + (g - from.hole_top);
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

// Unbinds v and returns its page; TOMBSTONE for a hole, which is no fault, and for what is counted instead.
__device__ inline i64 unbind_page(index_t* v2p, i64 num_virtual, index_t* p2v, i64 num_physical, i64 v, i64* doubles,
                                  i64* bads) {
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
    if (p < 0 || compare_and_swap(v2p + v, p, TOMBSTONE) != p) {
        ++*doubles;
        return TOMBSTONE;
    }
    p2v[p] = index_t(TOMBSTONE);
    return p;
}
