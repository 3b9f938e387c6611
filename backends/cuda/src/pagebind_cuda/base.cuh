// The integers, the constants of pagebind.words and what a plan fixes. Every kernel file begins with this one.
//
// No system header is included in the GPU build, so that NVRTC needs no CUDA toolkit.
#ifdef PAGEBIND_HOST
#include "host.cuh"
#endif

typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Dtypes of the variant: of v2p, p2v and the stacks; of what the kernel writes besides.
#if PAGEBIND_INDEX_WIDE
typedef i64 index_t;
#else
typedef i32 index_t;
#endif
#if PAGEBIND_OUT_WIDE
typedef i64 out_t;
#else
typedef i32 out_t;
#endif

// pagebind.words, pagebind.operation and pagebind.ops.span; the launch layer passes every value.
constexpr i64 SINK = PAGEBIND_SINK;
constexpr i64 TOMBSTONE = PAGEBIND_TOMBSTONE;
constexpr i64 HOLE = PAGEBIND_HOLE;
constexpr i64 MAX_LENGTH = PAGEBIND_MAX_LENGTH;
constexpr i64 STATE_WORDS = PAGEBIND_STATE_WORDS;
constexpr i64 VIRTUAL_TOP = PAGEBIND_VIRTUAL_TOP;
constexpr i64 HOLE_TOP = PAGEBIND_HOLE_TOP;
constexpr i64 WATERMARK = PAGEBIND_WATERMARK;
constexpr i64 EPOCH = PAGEBIND_EPOCH;
constexpr i64 SEAT = PAGEBIND_SEAT;
constexpr i64 REACH = PAGEBIND_REACH;
constexpr i64 CLIPPED = PAGEBIND_CLIPPED;
constexpr i64 BAD_ROW = PAGEBIND_BAD_ROW;
constexpr i64 BAD_ID = PAGEBIND_BAD_ID;
constexpr i64 DOUBLE_FREE = PAGEBIND_DOUBLE_FREE;
constexpr i64 BAD_FREE = PAGEBIND_BAD_FREE;
constexpr i64 BAD_BIND = PAGEBIND_BAD_BIND;
constexpr i64 STARVED = PAGEBIND_STARVED;
constexpr i64 COUNT_MISMATCH = PAGEBIND_COUNT_MISMATCH;
constexpr i64 TICKET = PAGEBIND_TICKET;
constexpr i64 COUNTED = PAGEBIND_SCRATCH;  // lanes that other blocks counted, for the last one
constexpr i64 GROWTH = PAGEBIND_GROWTH;
constexpr i64 BASE = PAGEBIND_BASE;
constexpr i64 PAGE_BYTES = PAGEBIND_PAGE_BYTES;
constexpr i64 UP = PAGEBIND_UP;
constexpr i64 DOWN = PAGEBIND_DOWN;
constexpr i64 FLOAT = PAGEBIND_FLOAT;
constexpr i64 MOST_PAGES = PAGEBIND_MOST_PAGES;
constexpr i64 MOST_PAGE_BYTES = PAGEBIND_MOST_PAGE_BYTES;
constexpr i64 MOST_BASE = PAGEBIND_MOST_BASE;

// What a plan fixes. On the GPU these are constants of the variant, so that divisions by a page size become shifts. The
// host build is one for all plans: there they are set before each launch, in the order of PLANNED in launch.py.
namespace plan {
#ifdef PAGEBIND_HOST
static i64 page_size, form_token, granularity_token, fill_sink, ranks, row_wide, length_wide, indptr_wide, id_wide,
    borrowed, emits, part, windowed, appends, table_wide, beside;
static void set(const i64* values) {
    i64* const names[] = {&page_size,   &form_token,  &granularity_token, &fill_sink, &ranks, &row_wide,
                          &length_wide, &indptr_wide, &id_wide,           &borrowed,  &emits, &part,
                          &windowed,    &appends,     &table_wide,        &beside};
    for (i64* name : names) *name = *values++;
}
#else
constexpr i64 page_size = PAGEBIND_PAGE_SIZE;
constexpr i64 form_token = PAGEBIND_FORM_TOKEN;  // the request table holds token ids, not page ids
constexpr i64 granularity_token = PAGEBIND_GRANULARITY_TOKEN;  // entries are of tokens, not of pages
constexpr i64 fill_sink = PAGEBIND_FILL_SINK;
constexpr i64 ranks = PAGEBIND_RANKS;
constexpr i64 row_wide = PAGEBIND_ROW_WIDE;  // int64, not int32: req_rows
constexpr i64 length_wide = PAGEBIND_LENGTH_WIDE;  // seq_lens, starts and the like
constexpr i64 indptr_wide = PAGEBIND_INDPTR_WIDE;
constexpr i64 id_wide = PAGEBIND_ID_WIDE;
constexpr i64 borrowed = PAGEBIND_BORROWED;  // the virtual ids are another sub-pool's
constexpr i64 emits = PAGEBIND_EMITS;        // extend and advance write what they took, too
constexpr i64 part = PAGEBIND_PART;          // what evict gives back of a row: HEAD, TAIL or ROW of evict.cu
constexpr i64 windowed = PAGEBIND_WINDOWED;  // a read table's call has starts
constexpr i64 appends = PAGEBIND_APPENDS;    // advance writes to a read table
constexpr i64 table_wide = PAGEBIND_TABLE_WIDE;  // that table
constexpr i64 beside = PAGEBIND_BESIDE;  // a read table's call has a second one: WHOLE or WINDOW in read_table.cu
#endif
}  // namespace plan

// Kernels are launched with at most this many threads; the bound keeps their registers within reach of that.
constexpr int MAX_THREADS = 1024;
constexpr int WARP = 32;
constexpr u32 FULL_WARP = 0xffffffffu;

#ifdef PAGEBIND_HOST
#define KERNEL(name) static void name##_kernel
#define RESIDENT_KERNEL(name, threads, blocks) KERNEL(name)
#define __forceinline__ inline
#define HOST_ENTRY(name) PAGEBIND_HOST_ENTRY(name##_kernel)
#else
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(MAX_THREADS) name##_kernel
// For kernels all of whose blocks are to run at once: `blocks` of `threads` fit a multiprocessor.
#define RESIDENT_KERNEL(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name##_kernel
#define HOST_ENTRY(name)
#endif

// The first statement of every kernel: nothing of memory is read or written before it. Launches are programmatic
// dependent ones (driver.py): the blocks are there before the grid ahead of them in the stream has ended, and its writes
// are seen once it has. Older GPUs launch in turn.
__device__ inline void wait_for_previous() {
#if !defined(PAGEBIND_HOST) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
__device__ inline i64 most(i64 a, i64 b) { return a > b ? a : b; }
__device__ inline i64 clamp(i64 value, i64 low, i64 high) { return most(low, least(value, high)); }
// An epoch only ever differs from an older one; what garbage it began with does not matter.
__device__ inline i64 wrapping_sum(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
__device__ inline i64 ceil_div(i64 a, i64 b) { return a / b + (a % b != 0); }  // a >= 0

// Keeps what loads or computes a value where it stands: compilers like to move it behind the branches that look at it.
__device__ inline void pin([[maybe_unused]] i64& value) {
#ifndef PAGEBIND_HOST
    asm volatile("" : "+l"(value));
#endif
}
__device__ inline void pin([[maybe_unused]] i32& value) {
#ifndef PAGEBIND_HOST
    asm volatile("" : "+r"(value));
#endif
}
template <class T>
__device__ inline void pin([[maybe_unused]] T*& value) {
#ifndef PAGEBIND_HOST
    asm volatile("" : "+l"(value));
    __builtin_assume(__isGlobal(value));  // which the line above makes it forget
#endif
}

// Ends the thread, in line: compilers put the block of a `return` behind all others, and a jump there waits for its
// instructions.
#ifdef PAGEBIND_HOST
#define LEAVE_IF(condition) \
    if (condition) return
#else
#define LEAVE_IF(condition) asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p exit; }" ::"r"(u32(condition)))
#endif

// Element i of a vector of int32 or int64.
__device__ inline i64 load(const void* vector, i64 wide, i64 i) {
    return wide ? static_cast<const i64*>(vector)[i] : static_cast<const i32*>(vector)[i];
}

__device__ inline void store(void* vector, i64 wide, i64 i, i64 value) {
    if (wide)
        static_cast<i64*>(vector)[i] = value;
    else
        static_cast<i32*>(vector)[i] = i32(value);
}

// A length or a start, such that no sum of a few of them overflows.
__device__ inline i64 bounded(i64 length) {
    return plan::length_wide ? clamp(length, -MAX_LENGTH, MAX_LENGTH) : length;
}
__device__ inline i64 load_length(const void* lengths, i64 b) {
    return bounded(load(lengths, plan::length_wide, b));
}

// Width of a request table of `columns` cells, in tokens.
__device__ inline i64 row_tokens(i64 columns) {
    return plan::form_token ? columns : least(columns * plan::page_size, MAX_LENGTH);
}

__device__ inline i64 first_thread() { return i64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline i64 all_threads() { return i64(gridDim.x) * blockDim.x; }

__device__ inline i64 compare_and_swap(i32* at, i64 expected, i64 value) {
    return atomicCAS(at, i32(expected), i32(value));
}
__device__ inline i64 compare_and_swap(i64* at, i64 expected, i64 value) {
    return i64(atomicCAS(reinterpret_cast<u64*>(at), u64(expected), u64(value)));
}
__device__ inline i64 add(i64* at, i64 value) { return i64(atomicAdd(reinterpret_cast<u64*>(at), u64(value))); }
__device__ inline i64 exchange(i64* at, i64 value) { return i64(atomicExch(reinterpret_cast<u64*>(at), u64(value))); }

// Adds a warp's faults to a counter, with one atomic where there are any. Every thread of the block calls it;
// `counters` is the state block, or null where nothing is counted.
__device__ inline void count(i64* counters, i64 word, i64 faults) {
    if (counters == nullptr || !__any_sync(FULL_WARP, faults != 0)) return;
    for (int step = WARP / 2; step > 0; step /= 2) faults += __shfl_down_sync(FULL_WARP, faults, step);
    if (threadIdx.x % WARP == 0) add(counters + word, faults);
}
