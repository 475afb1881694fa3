/* SPDX-License-Identifier: Apache-2.0 */
/* The fibres of a block, and which runs next. */

#include "runtime.h"
#include "switch.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>

namespace fwa
{
namespace emulation
{

__thread position here;

/* ---- Kernels by name ---- */

static kernel *kernels;

kernel::kernel(const char *kernel_name, entry kernel_function, int kernel_threads)
    : name(kernel_name), function(kernel_function), threads(kernel_threads), next(kernels)
{
    kernels = this;
}

kernel *find_kernel(const char *name)
{
    kernel *found = kernels;
    while (found && strcmp(found->name, name) != 0)
        found = found->next;
    return found;
}

/* ---- Orders ---- */

bool parse_schedule(const char *words, schedule *result)
{
    *result = {order::forward, 0};
    if (strcmp(words, "forward") == 0)
        return true;
    if (strcmp(words, "reverse") == 0) {
        result->order = order::reverse;
        return true;
    }
    if (strncmp(words, "random", 6) != 0)
        return false;
    result->order = order::random;
    if (words[6] == '\0')
        return true;
    if (words[6] != ':' || words[7] < '0' || words[7] > '9')
        return false;
    char *end;
    result->seed = strtoull(words + 7, &end, 10);
    return *end == '\0';
}

/* SplitMix64. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Visits each index below `count` once: first, first + step, first + 2 step, .. modulo count. Not
 * every permutation is one of these, but drawing one costs as good as nothing. */
struct visit {
    int64_t count, first, step;

    int64_t at(int64_t i) const
    {
        return (first + i * step) % count; /* count < 2^31: no overflow */
    }
};

static visit draw_visit(const schedule &schedule, int64_t count, uint64_t *random)
{
    if (schedule.order == order::forward)
        return {count, 0, 1};
    if (schedule.order == order::reverse)
        return {count, count - 1, count - 1};
    visit drawn{count, (int64_t)(next_random(random) % (uint64_t)count), 1};
    do
        drawn.step = 1 + (int64_t)(next_random(random) % (uint64_t)count);
    while (std::gcd(drawn.step, count) != 1);
    return drawn;
}

/* ---- The machine: all that a host thread needs to run blocks ---- */

static const int max_threads = 1024, max_waves = max_threads / wave;

/* Reached by fibres whose kernel has returned. */
static const rendezvous returned{"returned", 0, 0, 0, nullptr};

class machine
{
  public:
    ~machine();
    bool run(const kernel &kernel, int64_t blocks, int32_t shared_size, const fwa_gpu_args &args,
             const schedule &schedule);
    void arrive(const rendezvous &point, void *handed_over);
    void describe() const;

  private:
    bool prepare(int threads);
    void run_block();
    fibre *begin_pass();
    fibre *end_pass();
    fibre *next_round();
    void choose_wave();
    void resume(fibre &next);
    [[noreturn]] static void enter(fibre::transfer from);

    /* The launch. */
    const kernel *kernel_ = nullptr;
    const fwa_gpu_args *args_ = nullptr;
    schedule schedule_{};
    uint64_t random_ = 0;
    int64_t blocks_ = 0;
    int waves_ = 0;

    /* The block: the waves that neither have returned nor wait at the block's barrier, in the order
     * of their indices, how many have returned, and which of the ready ones runs. */
    int ready_[max_waves];
    int ready_count_ = 0, returned_count_ = 0, chosen_ = 0;

    /* A pass over the chosen wave: each of its lanes runs once, to its next rendezvous. */
    fibre *lanes_ = nullptr;
    int passed_ = 0, first_ = 0, step_ = 1;
    void *handed_over_[wave];

    fibre *current_ = nullptr;
    fibre main_;                       /* the host thread itself */
    std::unique_ptr<fibre[]> threads_; /* kept for later launches, with their stacks */
    int thread_count_ = 0;
};

static thread_local machine own_machine;

void wait(const rendezvous &point, void *handed_over)
{
    here.machine->arrive(point, handed_over);
}

bool run(const kernel &kernel, int64_t blocks, int32_t shared, const fwa_gpu_args &args,
         const schedule &schedule)
{
    return own_machine.run(kernel, blocks, shared, args, schedule);
}

machine::~machine()
{
    for (int i = 0; i < thread_count_; i++)
        threads_[i].release();
}

bool machine::prepare(int threads)
{
    if (!threads_)
        threads_.reset(new (std::nothrow) fibre[max_threads]);
    if (!threads_)
        return false;
    while (thread_count_ < threads) {
        if (!threads_[thread_count_].create(thread_count_, enter))
            return false;
        thread_count_++;
    }
    main_.adopt();
    return true;
}

bool machine::run(const kernel &kernel, int64_t blocks, int32_t shared_size,
                  const fwa_gpu_args &args, const schedule &schedule)
{
    void *shared = nullptr;
    if (!prepare(kernel.threads) ||
        (shared_size > 0 && posix_memalign(&shared, 1024, (size_t)shared_size) != 0))
        return false;
    kernel_ = &kernel;
    args_ = &args;
    schedule_ = schedule;
    random_ = schedule.seed;
    blocks_ = blocks;
    waves_ = kernel.threads / wave;
    const visit order = draw_visit(schedule, blocks, &random_);
    for (int64_t i = 0; i < blocks; i++) {
        if (shared)
            memset(shared, 0xff, (size_t)shared_size);
        here = {0, order.at(i), blocks, static_cast<unsigned char *>(shared), this};
        run_block();
    }
    here = {};
    free(shared);
    return true;
}

void machine::run_block()
{
    returned_count_ = 0;
    current_ = &main_;
    resume(*next_round());
}

/* All waves become ready. */
fibre *machine::next_round()
{
    for (int i = 0; i < kernel_->threads; i++)
        threads_[i].waits = nullptr;
    for (int i = 0; i < waves_; i++)
        ready_[i] = i;
    ready_count_ = waves_;
    choose_wave();
    return begin_pass();
}

void machine::choose_wave()
{
    chosen_ = 0;
    if (ready_count_ > 1 && schedule_.order == order::reverse)
        chosen_ = ready_count_ - 1;
    else if (ready_count_ > 1 && schedule_.order == order::random)
        chosen_ = (int)(next_random(&random_) % (uint64_t)ready_count_);
}

/* Lanes follow each other by an odd step, which visits all: their number is a power of two. */
fibre *machine::begin_pass()
{
    lanes_ = &threads_[ready_[chosen_] * wave];
    passed_ = 1;
    first_ = 0, step_ = 1;
    if (schedule_.order == order::reverse) {
        first_ = wave - 1, step_ = wave - 1;
    } else if (schedule_.order == order::random) {
        const uint64_t drawn = next_random(&random_);
        first_ = (int)(drawn % wave), step_ = (int)(drawn / wave % wave) | 1;
    }
    return &lanes_[first_];
}

/* All lanes of the wave have come to a rendezvous. Returns what runs next. */
fibre *machine::end_pass()
{
    const rendezvous *point = lanes_[0].waits;
    for (int i = 1; i < wave; i++)
        if (lanes_[i].waits != point)
            fail("the lanes of wave %d do not meet", ready_[chosen_]);
    if (point != &block_barrier && point != &returned) {
        if (point->complete)
            point->complete(handed_over_);
        if (schedule_.order == order::random)
            choose_wave();
        return begin_pass();
    }
    returned_count_ += point == &returned;
    ready_count_--;
    for (int i = chosen_; i < ready_count_; i++)
        ready_[i] = ready_[i + 1];
    if (ready_count_ > 0) {
        choose_wave();
        return begin_pass();
    }
    if (returned_count_ == waves_)
        return &main_;
    if (returned_count_ > 0)
        fail("waves wait for others that have returned");
    return next_round();
}

void machine::arrive(const rendezvous &point, void *handed_over)
{
    fibre &self = *current_;
    self.waits = &point;
    handed_over_[self.index % wave] = handed_over;
    fibre *next = passed_ < wave ? &lanes_[(first_ + passed_++ * step_) % wave] : end_pass();
    if (next != &self)
        resume(*next);
}

void machine::resume(fibre &next)
{
    fibre &self = *current_;
    current_ = &next;
    here.thread = next.index;
    switch_fibre(self, next);
}

/* Where a fibre begins; it then runs a kernel for each block, and never ends. */
void machine::enter(fibre::transfer from)
{
    entered_fibre(from);
    for (;;) {
        machine &self = *here.machine;
        self.kernel_->function(*self.args_);
        self.arrive(returned, nullptr);
    }
}

/* ---- What is said where a kernel is wrong ---- */

static void describe_point(const rendezvous *point)
{
    if (!point)
        fputs(" can run", stderr);
    else if (point == &returned)
        fputs(" returned", stderr);
    else if (point->count > 0)
        fprintf(stderr, " in %s<%d, %d> of %d values", point->name, point->from, point->to,
                point->count);
    else
        fprintf(stderr, " at %s", point->name);
}

void machine::describe() const
{
    fprintf(stderr, " (kernel %s, block %lld of %lld, waves of %d)\n", kernel_->name,
            (long long)here.block, (long long)blocks_, wave);
    for (int end, i = 0; i < kernel_->threads; i = end) {
        const rendezvous *point = threads_[i].waits;
        for (end = i + 1; end < kernel_->threads && threads_[end].waits == point;)
            end++;
        if (end - i > 1)
            fprintf(stderr, "    threads %d to %d:", i, end - 1);
        else
            fprintf(stderr, "    thread %d:", i);
        describe_point(point);
        fputc('\n', stderr);
    }
}

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "emulated GPU: ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    here.machine->describe();
    abort();
}

} // namespace emulation
} // namespace fwa
