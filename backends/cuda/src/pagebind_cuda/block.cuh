// What the threads of a block, and the blocks of a launch, do together.

template <class T>
struct Same {
    typedef T type;
};

// The sum of `value` over the threads before this one; `total`, over all of the block. Every thread calls it. `total`
// alone says what is summed: i64, or u32 where that is enough.
template <class Sum>
__device__ inline Sum block_scan(typename Same<Sum>::type value, Sum* total) {
    __shared__ Sum warps[MAX_THREADS / WARP];  // inclusive sums over warps
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, here = blockDim.x / WARP;
    Sum sum = value;
    for (int step = 1; step < WARP; step *= 2) {
        const Sum before = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == WARP - 1) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        Sum all = lane < here ? warps[lane] : 0;
        for (int step = 1; step < WARP; step *= 2) {
            const Sum before = __shfl_up_sync(FULL_WARP, all, step);
            if (lane >= step) all += before;
        }
        if (lane < here) warps[lane] = all;
    }
    __syncthreads();
    const Sum before = sum - value + (warp > 0 ? warps[warp - 1] : 0);
    *total = warps[here - 1];
    __syncthreads();  // the next scan writes `warps` again
    return before;
}

// How many threads before this one say yes; `total`, how many of the block do. Every thread calls it, and meets another
// barrier before it calls it again.
__device__ inline u32 block_count(bool yes, u32* total) {
    __shared__ u32 warps[MAX_THREADS / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, here = blockDim.x / WARP;
    const u32 votes = __ballot_sync(FULL_WARP, yes);
    if (lane == 0) warps[warp] = u32(__popc(votes));
    __syncthreads();
    u32 before = u32(__popc(votes & ((1u << lane) - 1))), all = 0;
#pragma unroll 8
    for (u32 w = 0; w < here; ++w) {
        all += warps[w];
        before += w < warp ? warps[w] : 0;
    }
    *total = all;
    return before;
}

// True for every thread of the block that comes here last; what the others wrote is visible to it. No block waits. The
// ticket is back at 0 afterwards. `*told` says whether this block has something to tell, and then whether any had.
__device__ inline bool is_last_block(i64* ticket, bool* told) {
    __shared__ bool last, any;
    if (gridDim.x == 1) {
        __syncthreads();
        return true;
    }
    constexpr i64 TELLS = 1ll << 32;  // above every number of blocks
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const i64 before = add(ticket, *told ? TELLS + 1 : 1);
        last = before % TELLS == i64(gridDim.x) - 1;
        any = *told || before >= TELLS;
        if (last) exchange(ticket, 0);
    }
    __syncthreads();
    *told = any;
    if (last) __threadfence();
    return last;
}
__device__ inline bool is_last_block(i64* ticket) {
    bool nothing = false;
    return is_last_block(ticket, &nothing);
}

// The largest b with begin[b] <= item, for 0 <= item < begin[lanes]: the lane an item belongs to.
template <class Count>
__device__ inline Count lane_of(const Count* begin, Count lanes, Count item) {
    Count low = 0, high = lanes;
    while (high - low > 1) {
        const Count middle = (low + high) / 2;
        if (begin[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}
