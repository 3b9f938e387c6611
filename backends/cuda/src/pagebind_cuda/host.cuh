// What CUDA offers, for the host: the kernel files of this folder compile for the CPU with this header.
//
// Blocks run one after another, the last one first. The threads of a block are fibers on one OS thread: each runs until
// it waits at a barrier or a warp operation, or reaches an atomic, where the next one goes on; every other round goes
// through them backwards. So barriers, shuffles and votes are honoured, and lanes really interleave at their atomics.
// Threads that wait at different barriers for ever, or leave one alone, end the launch with an error.
#include <dlfcn.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define PAGEBIND_SANITIZED 1
#else
#define PAGEBIND_SANITIZED 0
#endif

#define __global__
#define __device__
#define __shared__ static

struct Index {
    unsigned x;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr int MOST_THREADS = 1024, LANES_OF_WARP = 32;
constexpr size_t STACK_BYTES = PAGEBIND_SANITIZED ? 128 << 10 : 64 << 10;

enum Wait { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    void* fake_stack = nullptr;  // of AddressSanitizer
    Wait wait = DONE;
    unsigned mask = 0;     // lanes that the warp operation waits for
    unsigned parity = 0;   // which of two slots the next warp operation uses: a lane is at most one ahead
    bool started = false;
};

static Fiber fibers[MOST_THREADS];
static long long slots[2][MOST_THREADS];  // what lanes bring to a warp operation
static int found;    // what a block was asked at a barrier
static int current;
static ucontext_t scheduler;
static void* scheduler_fake_stack;
static const void* scheduler_stack;
static size_t scheduler_bytes;
static void (*thread_body)();
static char message[256];

// The C library's own: AddressSanitizer replaces it by one that wipes what it knows of the stack gone to.
typedef int SwapContext(ucontext_t*, const ucontext_t*);
static SwapContext* const swap_context =
    reinterpret_cast<SwapContext*>(dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "swapcontext"));

// AddressSanitizer must know of every change of stacks, or it takes the other stack's frames for overflows.
static void leave_for([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t bytes) {
#if PAGEBIND_SANITIZED
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}
static void arrived([[maybe_unused]] void* fake, [[maybe_unused]] const void** from, [[maybe_unused]] size_t* bytes) {
#if PAGEBIND_SANITIZED
    __sanitizer_finish_switch_fiber(fake, from, bytes);
#endif
}

static void suspend(Wait wait) {
    Fiber& self = fibers[current];
    self.wait = wait;
    leave_for(&self.fake_stack, scheduler_stack, scheduler_bytes);
    swap_context(&self.context, &scheduler);
    arrived(self.fake_stack, &scheduler_stack, &scheduler_bytes);
}

static void fiber_main() {
    arrived(nullptr, &scheduler_stack, &scheduler_bytes);
    for (;;) {
        thread_body();
        suspend(DONE);
    }
}

static void resume(int thread) {
    Fiber& fiber = fibers[thread];
    if (!fiber.started) {
        if (fiber.stack == nullptr) fiber.stack = static_cast<char*>(malloc(STACK_BYTES));
        if (fiber.stack == nullptr) abort();
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
        fiber.started = true;
    }
    current = thread;
    threadIdx.x = unsigned(thread);
    leave_for(&scheduler_fake_stack, fiber.stack, STACK_BYTES);
    swap_context(&scheduler, &fiber.context);
    arrived(scheduler_fake_stack, nullptr, nullptr);
}

// Lets every warp go on whose lanes are all at the same warp operation. True if there was one.
static bool release_warps(int threads) {
    bool released = false;
    for (int first = 0; first < threads; first += LANES_OF_WARP) {
        for (int lane = 0; lane < LANES_OF_WARP; ++lane) {
            const Fiber& leader = fibers[first + lane];
            if (leader.wait != AT_WARP) continue;
            const unsigned mask = leader.mask;
            bool all = (mask >> lane) & 1;
            for (int other = 0; other < LANES_OF_WARP; ++other)
                if ((mask >> other) & 1)
                    all = all && fibers[first + other].wait == AT_WARP && fibers[first + other].mask == mask;
            if (!all) continue;
            for (int other = 0; other < LANES_OF_WARP; ++other)
                if ((mask >> other) & 1) fibers[first + other].wait = READY;
            released = true;
        }
    }
    return released;
}

static bool run_block(int threads) {
    found = 0;
    for (int i = 0; i < threads; ++i) fibers[i].wait = READY;
    for (bool forward = true;; forward = !forward) {
        int waiting[4] = {};
        for (int i = 0; i < threads; ++i) {
            const int thread = forward ? i : threads - 1 - i;
            if (fibers[thread].wait == READY) resume(thread);
        }
        for (int i = 0; i < threads; ++i) ++waiting[fibers[i].wait];
        if (waiting[DONE] == threads) return true;
        if (waiting[AT_BLOCK] == threads) {
            for (int i = 0; i < threads; ++i) fibers[i].wait = READY;
        } else if (!release_warps(threads) && waiting[READY] == 0) {
            snprintf(message, sizeof message,
                     "block %u stands still: of %d threads %d wait at a block barrier, %d at a warp operation, "
                     "%d have left",
                     blockIdx.x, threads, waiting[AT_BLOCK], waiting[AT_WARP], waiting[DONE]);
            for (int i = 0; i < threads; ++i) fibers[i].started = false;
            return false;
        }
    }
}

// One warp operation: bring `value`, wait for the lanes of `mask`, and see all they brought.
static const long long* meet(unsigned mask, long long value) {
    Fiber& self = fibers[current];
    long long* const table = slots[self.parity ^= 1];
    table[current] = value;
    self.mask = mask;
    suspend(AT_WARP);
    return table + current / LANES_OF_WARP * LANES_OF_WARP;
}

template <auto kernel>
struct Launch;

template <class... Arguments, void (*kernel)(Arguments...)>
struct Launch<kernel> {
    static inline const long long* values;
    template <size_t... at>
    static void call(std::index_sequence<at...>) {
        kernel((Arguments)(values[at])...);
    }
    static void thread() { call(std::index_sequence_for<Arguments...>{}); }

    static const char* run(long long blocks, long long threads, const long long* arguments, long long count) {
        if (count != sizeof...(Arguments)) {
            snprintf(message, sizeof message, "%lld arguments for a kernel of %zu", count, sizeof...(Arguments));
            return message;
        }
        values = arguments;
        thread_body = thread;
        gridDim.x = unsigned(blocks);
        blockDim.x = unsigned(threads);
        for (long long block = blocks - 1; block >= 0; --block) {
            blockIdx.x = unsigned(block);
            if (!run_block(int(threads))) return message;
        }
        return nullptr;
    }
};

}  // namespace host

// `launch(blocks, threads, arguments, count, plan)` of the library: null, or what went wrong.
#define PAGEBIND_HOST_ENTRY(kernel)                                                                               \
    extern "C" __attribute__((visibility("default"))) const char* launch(                                         \
        long long blocks, long long threads, const long long* arguments, long long count, const long long* values) { \
        plan::set(values);                                                                                        \
        return host::Launch<kernel>::run(blocks, threads, arguments, count);                                      \
    }

static inline void __syncthreads() { host::suspend(host::AT_BLOCK); }
static inline int __syncthreads_or(int predicate) {
    if (predicate) host::found = 1;
    host::suspend(host::AT_BLOCK);
    const int result = host::found;
    host::suspend(host::AT_BLOCK);
    host::found = 0;
    host::suspend(host::AT_BLOCK);  // no thread asks the next question before all have wiped this one's answer
    return result;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane) {
    return T(host::meet(mask, value)[lane & 31]);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
    const int lane = host::current % 32;
    const long long* const all = host::meet(mask, value);
    return T(all[lane >= int(delta) ? lane - int(delta) : lane]);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
    const int lane = host::current % 32;
    const long long* const all = host::meet(mask, value);
    return T(all[lane + int(delta) < 32 ? lane + int(delta) : lane]);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const long long* const all = host::meet(mask, predicate != 0);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane)
        if ((mask >> lane) & 1) votes |= unsigned(all[lane]) << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

// Another thread of the block may come first at every atomic.
template <class T>
static inline T atomicCAS(T* at, T expected, T value) {
    host::suspend(host::READY);
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
template <class T>
static inline T atomicExch(T* at, T value) {
    host::suspend(host::READY);
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
template <class T>
static inline T atomicAdd(T* at, T value) {
    host::suspend(host::READY);
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
