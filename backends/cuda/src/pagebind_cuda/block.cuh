// What the threads of a block, and the blocks of a launch, do together.

// The sum of `value` over the threads before this one; `total`, over all of the block. Every thread calls it.
__device__ inline i64 block_scan(i64 value, i64* total) {
    __shared__ i64 warps[MAX_THREADS / WARP];  // inclusive sums over warps
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, here = blockDim.x / WARP;
    i64 sum = value;
    for (int step = 1; step < WARP; step *= 2) {
        const i64 before = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == WARP - 1) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        i64 all = lane < here ? warps[lane] : 0;
        for (int step = 1; step < WARP; step *= 2) {
            const i64 before = __shfl_up_sync(FULL_WARP, all, step);
            if (lane >= step) all += before;
        }
        if (lane < here) warps[lane] = all;
    }
    __syncthreads();
    const i64 before = sum - value + (warp > 0 ? warps[warp - 1] : 0);
    *total = warps[here - 1];
    __syncthreads();  // the next scan writes `warps` again
    return before;
}

// True for every thread of the block that comes here last; what the others wrote is visible to it. No block waits. The
// ticket is back at 0 afterwards.
__device__ inline bool is_last_block(i64* ticket) {
    __shared__ bool last;
    if (gridDim.x == 1) {
        __syncthreads();
        return true;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = add(ticket, 1) == i64(gridDim.x) - 1;
        if (last) exchange(ticket, 0);
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// The largest b with begin[b] <= item, for 0 <= item < begin[lanes]: the lane an item belongs to.
__device__ inline i64 lane_of(const i64* begin, i64 lanes, i64 item) {
    i64 low = 0, high = lanes;
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (begin[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}
