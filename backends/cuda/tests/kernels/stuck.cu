// Half of a block waits at a barrier that the other half never reaches.
#include "base.cuh"

KERNEL(stuck)(i64* unused) {  // [1], int64
    if (threadIdx.x % 2 == 0) __syncthreads();
    *unused = 0;
}

HOST_ENTRY(stuck)
