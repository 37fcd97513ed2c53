#include "kernels/team.hpp"

#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/waiting.hpp"

namespace longhaul::kernels {
namespace {

/// TeamRules::processors
std::vector<int>& member_processors() {
    static std::vector<int> processors;
    return processors;
}

/// Polls before a thread without work sleeps until it is woken; milliseconds.
constexpr std::int64_t idle_polls = 1 << 17;

void stay_on(int processor) {
    cpu_set_t* const set = CPU_ALLOC(processor + 1);
    const std::size_t bytes = CPU_ALLOC_SIZE(processor + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(processor, bytes, set);
    ::sched_setaffinity(0, bytes, set);  // if refused, threads are perhaps slower, but results are right
    CPU_FREE(set);
}

/// Moves the calling thread to another of its processors, if it may use others.
void leave_processor() {
    cpu_set_t all, others;
    if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    others = all;
    CPU_CLR(static_cast<std::size_t>(::sched_getcpu()), &others);
    if (::sched_setaffinity(0, sizeof others, &others) == 0) ::sched_setaffinity(0, sizeof all, &all);
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
    void await_call(std::uint32_t seen, const Progress& caller) {
        const auto called = [&] { return letters.calls.load(std::memory_order_acquire) != seen; };
        for (Wait wait; part_from(caller, said) && wait.spin(idle_polls);) {
            if (called()) return;
        }
        letters.asleep.store(true, std::memory_order_seq_cst);
        letters.calls.wait(seen, std::memory_order_seq_cst);
        letters.asleep.store(false, std::memory_order_relaxed);
    }
};

void set_team_rules(TeamRules rules) {
    thread_counts().always_yield = rules.yield_cores;
    thread_counts().processors =
        rules.processors.empty() ? processors_allowed() : static_cast<int>(rules.processors.size());
    member_processors() = std::move(rules.processors);
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
    thread_counts().threads -= size;
}

Team::Progress& Team::progress_of(int member) {
    return member == 0 ? first_ : workers_[member - 1]->said;
}

void Team::grow(int size) {
    const std::vector<int>& processors = member_processors();
    for (int index = static_cast<int>(workers_.size()) + 1; index < size; ++index) {
        workers_.reserve(index);
        auto worker = std::make_unique<Worker>();
        const bool placed = static_cast<std::size_t>(index) < processors.size();
        const int processor = placed ? processors[index] : -1;
        worker->thread = std::thread([this, &of = *worker, index, processor] {
            if (processor >= 0) stay_on(processor);
            serve(*this, of, index);
        });
        thread_counts().threads += workers_.empty() ? 2 : 1;  // the first worker also counts its caller
        workers_.push_back(std::move(worker));
    }
}

/// Waits for another member that is about to get there.
template <class Ready>
void Team::wait_for(Progress& own, const Progress& awaited, const Ready& ready) {
    for (Wait wait; !ready();) {
        if (part_from(awaited, own))
            wait.pause();
        else
            wait.give_up_core();
    }
}

void Team::Progress::note_processor() {
    const int now = ::sched_getcpu();
    if (processor.load(std::memory_order_relaxed) != now) processor.store(now, std::memory_order_relaxed);
}

/// Whether the calling member and another one are on different processors: else there is nothing to spin for. Tries to
/// go elsewhere, but not all the time: while other programs keep all processors busy, the system brings both together
/// again, and each move costs as much as an operation.
bool Team::part_from(const Progress& other, Progress& own) {
    if (own.processor.load(std::memory_order_relaxed) != other.processor.load(std::memory_order_relaxed)) return true;
    if (thread_counts().oversubscribed()) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now < own.next_move) return false;
    own.next_move = now + std::chrono::milliseconds(1);
    own.processor.store(-1, std::memory_order_relaxed);  // so that the other one does not leave as well
    leave_processor();
    own.note_processor();
    return own.processor.load(std::memory_order_relaxed) != other.processor.load(std::memory_order_relaxed);
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
        worker.await_call(seen, team.first_);
        const Worker::Letters& letters = worker.letters;
        if (letters.call == nullptr) return;
        const std::uint64_t run = letters.run;
        Member member(team, letters.rounds, index, letters.size);
        worker.said.note_processor();
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
        first_.note_processor();
        post(call, job, size);
    }
    Member first(*this, first_.rounds.load(std::memory_order_relaxed), 0, alone ? 1 : size);
    call(job, first);
    if (alone) return;
    for (int i = 1; i < size; ++i) {
        const Progress& awaited = progress_of(i);
        wait_for(first_, awaited, [&] { return awaited.done.load(std::memory_order_acquire) == runs_; });
    }
    at_work_ = false;
}

void Member::barrier() {
    // Dissemination barrier: in each round a member hears from twice as many members, itself included. A member reads
    // one cache line per round, so n members read n log2(n) lines, not n (n - 1) (kernels/cpu/MEASUREMENTS.md).
    for (int distance = 1; distance < size_; distance *= 2) {
        team_.progress_of(index_).rounds.store(++rounds_, std::memory_order_release);
        const int other = index_ >= distance ? index_ - distance : index_ - distance + size_;
        const Team::Progress& awaited = team_.progress_of(other);
        team_.wait_for(team_.progress_of(index_), awaited,
                       [&] { return awaited.rounds.load(std::memory_order_acquire) >= rounds_; });
    }
}

}  // namespace longhaul::kernels
