// A write one past the end, by one thread, after a barrier.
#include "base.cuh"

KERNEL(past)(i32* cells, i64 n) {  // [n], int32
    __syncthreads();
    for (i64 i = first_thread(); i < n; i += all_threads()) cells[i] = 1;
    __syncthreads();
    if (first_thread() == 33) cells[n] = 1;  // the fault
}

HOST_ENTRY(past)
