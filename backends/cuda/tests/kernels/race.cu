// A lost update: every thread reads, passes an atomic, and writes back. Threads that interleave lose additions.
#include "base.cuh"

KERNEL(race)(i64* sum, i64* other) {  // [1], int64 each
    const i64 seen = *sum;
    add(other, 1);
    *sum = seen + 1;
}

HOST_ENTRY(race)
