#include "kernels/team.hpp"

#include <immintrin.h>
#include <sched.h>

#include <limits>
#include <thread>
#include <utility>

namespace longhaul::kernels {
namespace {

int processors_allowed() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0)
        return std::numeric_limits<int>::max();  // more CPUs than a cpu_set_t holds
    return CPU_COUNT(&set);
}

/// State that all teams of the process share.
struct Common {
    std::vector<int> processors;  ///< TeamRules::processors
    std::atomic<bool> yield_cores = false;
    std::atomic<int> num_processors = processors_allowed();
    std::atomic<int> num_threads = 0;  ///< including the calling threads
};

Common& common() {
    static Common all;
    return all;
}

/// Whether there are more threads than processors, so that a spinning thread would keep another from running.
bool crowded() {
    const Common& all = common();
    return all.yield_cores.load(std::memory_order_relaxed) ||
           all.num_threads.load(std::memory_order_relaxed) > all.num_processors.load(std::memory_order_relaxed);
}

/// Number of polls before a waiting thread pauses between polls, before it yields its core, and before it sleeps:
/// microseconds, a fraction of a millisecond, milliseconds.
constexpr int eager_tries = 1 << 12;
constexpr int awake_tries = 1 << 14;
constexpr int idle_tries = 1 << 17;

/// Polls ready(); false if it did not become true within `tries`.
template <class Ready>
bool ready_soon(int tries, const Ready& ready) {
    for (int i = crowded() ? tries - 1 : 0; i < tries; ++i) {
        if (ready()) return true;
        if (i >= eager_tries) _mm_pause();  // leaves more of the core to its other hardware thread
    }
    return false;
}

/// Waits for another thread that is about to finish: polls, then yields.
template <class Ready>
void wait_for(const Ready& ready) {
    if (ready_soon(awake_tries, ready)) return;
    while (!ready()) sched_yield();
}

void stay_on(int processor) {
    cpu_set_t* const set = CPU_ALLOC(processor + 1);
    const std::size_t bytes = CPU_ALLOC_SIZE(processor + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(processor, bytes, set);
    ::sched_setaffinity(0, bytes, set);  // if refused, threads are perhaps slower, but results are right
    CPU_FREE(set);
}

/// Set in worker threads, so that nested calls run in one thread.
thread_local bool serves = false;

}  // namespace

/// A worker thread and its mailbox, one cache line, so that a call arrives in one transfer.
struct Team::Worker {
    struct alignas(64) Letters {
        std::atomic<std::uint32_t> calls = 0;
        std::atomic<bool> asleep = false;
        int size = 0;
        Call call = nullptr;  ///< nullptr: the thread ends
        const void* job = nullptr;
        std::uint64_t run = 0;
        std::uint64_t rounds = 0;  ///< barrier rounds before this run
    };
    Letters letters;
    Progress said;
    std::thread thread;

    /// Waits until there are more calls than the `seen` ones.
    void await_call(std::uint32_t seen) {
        const auto called = [&] { return letters.calls.load(std::memory_order_acquire) != seen; };
        if (ready_soon(idle_tries, called)) return;
        letters.asleep.store(true, std::memory_order_seq_cst);
        letters.calls.wait(seen, std::memory_order_seq_cst);
        letters.asleep.store(false, std::memory_order_relaxed);
    }
};

void set_team_rules(TeamRules rules) {
    Common& all = common();
    all.yield_cores = rules.yield_cores;
    all.num_processors = rules.processors.empty() ? processors_allowed() : static_cast<int>(rules.processors.size());
    all.processors = std::move(rules.processors);
}

Team& Team::mine() {
    thread_local Team team;
    return team;
}

Team::~Team() {
    if (workers_.empty()) return;
    const int size = static_cast<int>(workers_.size()) + 1;
    post(nullptr, nullptr, size);
    for (const auto& worker : workers_) worker->thread.join();
    common().num_threads -= size;
}

Team::Progress& Team::progress_of(int member) {
    return member == 0 ? first_ : workers_[member - 1]->said;
}

void Team::grow(int size) {
    const std::vector<int>& processors = common().processors;
    for (int index = static_cast<int>(workers_.size()) + 1; index < size; ++index) {
        workers_.reserve(index);
        auto worker = std::make_unique<Worker>();
        const bool placed = static_cast<std::size_t>(index) < processors.size();
        const int processor = placed ? processors[index] : -1;
        worker->thread = std::thread([this, &of = *worker, index, processor] {
            if (processor >= 0) stay_on(processor);
            serve(*this, of, index);
        });
        common().num_threads += workers_.empty() ? 2 : 1;  // the first worker also counts its caller
        workers_.push_back(std::move(worker));
    }
}

/// Posts the call to each member of `size` but the first. All are posted before any sleeping thread is looked for.
void Team::post(Call call, const void* job, int size) {
    const std::uint64_t rounds = first_.rounds.load(std::memory_order_relaxed);
    const auto letters_to = [&](int member) -> Worker::Letters& { return workers_[member - 1]->letters; };
    for (int i = 1; i < size; ++i) {
        Worker::Letters& letters = letters_to(i);
        letters.call = call;
        letters.job = job;
        letters.run = runs_;
        letters.rounds = rounds;
        letters.size = size;
        letters.calls.store(letters.calls.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // either a thread sees its call, or we see that it sleeps
    for (int i = 1; i < size; ++i) {
        if (letters_to(i).asleep.load(std::memory_order_seq_cst)) letters_to(i).calls.notify_one();
    }
}

void Team::serve(Team& team, Worker& worker, int index) {
    serves = true;
    for (std::uint32_t seen = 0;; ++seen) {
        worker.await_call(seen);
        const Worker::Letters& letters = worker.letters;
        if (letters.call == nullptr) return;
        const std::uint64_t run = letters.run;
        Member member(team, letters.rounds, index, letters.size);
        letters.call(letters.job, member);
        worker.said.done.store(run, std::memory_order_release);
    }
}

void Team::run_job(int size, Call call, const void* job) {
    const bool alone = size <= 1 || at_work_ || serves;
    if (!alone) {
        grow(size);
        ++runs_;
        at_work_ = true;
        post(call, job, size);
    }
    Member first(*this, first_.rounds.load(std::memory_order_relaxed), 0, alone ? 1 : size);
    call(job, first);
    if (alone) return;
    for (int i = 1; i < size; ++i) {
        const std::atomic<std::uint64_t>& done = progress_of(i).done;
        wait_for([&] { return done.load(std::memory_order_acquire) == runs_; });
    }
    at_work_ = false;
}

void Member::barrier() {
    // Dissemination barrier: in each round a member hears from twice as many members, itself included. A member reads
    // one cache line per round, so n members read n log2(n) lines, not n (n - 1) (kernels/cpu/MEASUREMENTS.md).
    for (int distance = 1; distance < size_; distance *= 2) {
        team_.progress_of(index_).rounds.store(++rounds_, std::memory_order_release);
        const int other = index_ >= distance ? index_ - distance : index_ - distance + size_;
        const std::atomic<std::uint64_t>& rounds = team_.progress_of(other).rounds;
        wait_for([&] { return rounds.load(std::memory_order_acquire) >= rounds_; });
    }
}

}  // namespace longhaul::kernels
