// Freeing of a list of virtual ids in one launch: unbind, and push ids and pages in lane order. free, truncate, release
// and evict share it.
//
// Every lane pushes at its own index, as if all were served. Where one was not, the last block to finish pushes again
// what was served, without gaps:
//
//     lanes     5  -1   7   5   9           own index    | 5 | . | 7 | . | 9 |
//     served    x       x       x           closed       | 5 | 7 | 9 |
//
// A borrowed id that has no page is a hole, one that another lane of the call frees is a fault, and both look unbound.
// So the lane that frees a borrowed id leaves its number in the row of v2p, which turns into a tombstone at the end.

constexpr i64 NO_COUNT = -1;

// How the ids of a call are freed.
struct Freeing {
    bool borrowed;   // the ids are another sub-pool's: only pages are pushed
    bool new_epoch;  // whether the epoch moves
    i64 asked;       // the host's count of pages that come back, NO_COUNT or any below 0 where it has none
};

// What the lane that frees a borrowed id leaves in its row of v2p: a number below TOMBSTONE, and back.
__device__ inline i64 claim_of(i64 lane) { return TOMBSTONE - 1 - lane; }

// Whether a lane of this call freed v, which has no page. A number in the table that no lane left there names one that
// was not served, or that has another id.
template <class IdOf>
__device__ inline bool is_claimed(const IdOf& id_of, i64 n, const Tables& at, const out_t* freed, i64 v) {
    if (v <= SINK || v >= at.num_virtual) return false;
    const i64 row = *static_cast<volatile index_t*>(at.v2p + v);
    if (row > claim_of(0) || row < claim_of(n - 1)) return false;
    const i64 lane = claim_of(row);
    return *static_cast<const volatile out_t*>(freed + lane) != TOMBSTONE && id_of(lane) == v;
}

// Writes id and page at `offset` above the old tops, as far as the stacks reach.
__device__ inline void push_page(const Tops& from, const Tables& at, i64 offset, i64 v, i64 p, bool borrowed) {
    if (!borrowed && from.virtual_top + offset < at.num_virtual)
        at.virtual_stack[from.virtual_top + offset] = index_t(v);
    if (from.hole_top + offset < at.num_physical) at.hole_stack[from.hole_top + offset] = index_t(p);
}

// Frees id_of(i) for i < n, writes freed[i], and moves the tops. Every block of the launch and every thread of it calls
// this; id_of(i) must be the same when asked again.
template <class IdOf>
__device__ inline void free_ids(const IdOf& id_of, i64 n, const Tables& at, out_t* freed, const Freeing& how,
                                i64* counters) {
    // On their way while the first ids and pages are looked up; nothing looks at them before.
    const Tops words{at.state[VIRTUAL_TOP], at.state[HOLE_TOP]};
    const i64 epoch = at.state[EPOCH];
    i64 lost = 0, doubles = 0, bads = 0;  // lost: lanes not served
    i64 v = HOLE, p = TOMBSTONE;          // of the thread's last lane
#pragma unroll 1
    for (i64 i = first_thread(); i < n; i += all_threads()) {
        v = id_of(i);
        p = unbind_page(at.v2p, at.num_virtual, at.p2v, at.num_physical, v, how.borrowed ? claim_of(i) : TOMBSTONE,
                        &doubles, &bads);
        freed[i] = out_t(p);
        lost += p == TOMBSTONE;
        if (p == TOMBSTONE) continue;
        Tops now = words;
        pin(now.virtual_top), pin(now.hole_top);
        push_page(clamped(now, at), at, i, v, p, how.borrowed);
    }
    if (!how.borrowed) count(counters, DOUBLE_FREE, doubles);
    count(counters, BAD_FREE, bads);
    i64 pushed = n;
    bool told = __syncthreads_or(lost != 0) != 0;
    if (told) {
        block_scan(lost, &pushed);
        pushed = n - pushed;
    }
    if (gridDim.x > 1) {
        if (told && threadIdx.x == 0) add(at.state + COUNTED, n - pushed);
        if (!is_last_block(at.state + TICKET, &told)) return;
        __shared__ i64 all;
        if (told && threadIdx.x == 0) all = exchange(at.state + COUNTED, 0);
        __syncthreads();
        pushed = told ? n - all : n;
    }
    const Tops from = clamped(words, at);
    doubles = 0;
    if (pushed != n) {
        i64 before = 0;
        for (i64 base = 0; base < n; base += blockDim.x) {
            const i64 i = base + threadIdx.x;
            const i64 page = i < n ? i64(*static_cast<volatile out_t*>(freed + i)) : TOMBSTONE;
            i64 chunk;
            const i64 offset = before + block_scan(page != TOMBSTONE, &chunk);
            if (page != TOMBSTONE)
                push_page(from, at, offset, id_of(i), page, how.borrowed);
            else if (how.borrowed && i < n)
                doubles += is_claimed(id_of, n, at, freed, id_of(i));
            before += chunk;
        }
    }
    if (how.borrowed) {
        count(counters, DOUBLE_FREE, doubles);
        __syncthreads();
        if (gridDim.x == 1 && n <= blockDim.x) {
            if (p != TOMBSTONE) at.v2p[v] = index_t(TOMBSTONE);
        } else {
            for (i64 i = threadIdx.x; i < n; i += blockDim.x)
                if (*static_cast<volatile out_t*>(freed + i) != TOMBSTONE) at.v2p[id_of(i)] = index_t(TOMBSTONE);
        }
    }
    if (how.asked >= 0) count(counters, COUNT_MISMATCH, threadIdx.x == 0 && how.asked != pushed);
    if (threadIdx.x == 0 && n > 0) {
        if (!how.borrowed) at.state[VIRTUAL_TOP] = least(from.virtual_top + pushed, at.num_virtual);
        at.state[HOLE_TOP] = least(from.hole_top + pushed, at.num_physical);
        at.state[EPOCH] = wrapping_sum(epoch, how.new_epoch);
    }
}
