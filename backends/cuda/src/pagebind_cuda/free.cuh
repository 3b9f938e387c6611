// Freeing of a list of virtual ids in one launch: unbind, and push ids and pages in lane order. free, truncate and
// release share it.
//
// Every lane pushes at its own index, as if all were served. Where one was not, the last block to finish pushes again
// what was served, without gaps:
//
//     lanes     5  -1   7   5   9           own index    | 5 | . | 7 | . | 9 |
//     served    x       x       x           closed       | 5 | 7 | 9 |

// Writes id and page at `offset` above the old tops, as far as the stacks reach.
__device__ inline void push_page(const Positions& from, const Tables& at, i64 offset, i64 v, i64 p) {
    if (from.virtual_top + offset < at.num_virtual) at.virtual_stack[from.virtual_top + offset] = index_t(v);
    if (from.hole_top + offset < at.num_physical) at.hole_stack[from.hole_top + offset] = index_t(p);
}

// Frees id_of(i) for i < n, writes freed[i], and moves the tops and, if told, the epoch. Every block of the launch and
// every thread of it calls this; id_of(i) must be the same when asked again.
template <class IdOf>
__device__ inline void free_ids(const IdOf& id_of, i64 n, const Tables& at, out_t* freed, bool new_epoch,
                                i64* counters) {
    const Positions from = read_positions(at);
    i64 served = 0, doubles = 0, bads = 0;
    for (i64 i = first_thread(); i < n; i += all_threads()) {
        const i64 v = id_of(i);
        const i64 p = unbind_page(at.v2p, at.num_virtual, at.p2v, at.num_physical, v, &doubles, &bads);
        freed[i] = out_t(p);
        if (p == TOMBSTONE) continue;
        ++served;
        push_page(from, at, i, v, p);
    }
    count(counters, DOUBLE_FREE, doubles);
    count(counters, BAD_FREE, bads);
    i64 pushed;
    block_scan(served, &pushed);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) add(at.state + SERVED, pushed);
        if (!is_last_block(at.state + TICKET)) return;
        __shared__ i64 all;
        if (threadIdx.x == 0) all = exchange(at.state + SERVED, 0);
        __syncthreads();
        pushed = all;
    }
    if (pushed != n) {
        i64 before = 0;
        for (i64 base = 0; base < n; base += blockDim.x) {
            const i64 i = base + threadIdx.x;
            const i64 p = i < n ? i64(*static_cast<volatile out_t*>(freed + i)) : TOMBSTONE;
            i64 chunk;
            const i64 offset = before + block_scan(p != TOMBSTONE, &chunk);
            if (p != TOMBSTONE) push_page(from, at, offset, id_of(i), p);
            before += chunk;
        }
    }
    if (threadIdx.x == 0) {
        at.state[VIRTUAL_TOP] = least(from.virtual_top + pushed, at.num_virtual);
        at.state[HOLE_TOP] = least(from.hole_top + pushed, at.num_physical);
        at.state[EPOCH] = wrapping_sum(at.state[EPOCH], new_epoch);
    }
}
