// Thread pool of the CPU kernels: the threads of a team run one operation after another together. Between operations
// they spin for a while, because waking a thread takes as long as an operation of a small model.
//
// Why not OpenMP: its parallel regions need more hand-overs between cores. Measured on two Zen 5 cores
// (tests/bench/team_bench; larger teams were not measured): a call takes 0.13 microseconds instead of 0.44 if the cores
// share an L3, 0.55 instead of 1.0 if they do not; with a barrier in it 0.14 instead of 0.64, and 0.59 instead of 1.4.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace longhaul::kernels {

class Team;

/// One thread of a team during a run.
class Member {
  public:
    [[nodiscard]] int index() const { return index_; }  ///< 0: the calling thread
    [[nodiscard]] int size() const { return size_; }

    /// Waits until all members are here. All members must call it equally often.
    void barrier();

    /// This member's part of [0, count): the parts are equal and fixed.
    struct Share {
        std::int64_t first, end;
    };
    [[nodiscard]] Share share_of(std::int64_t count) const {
        return {index_ * count / size_, (index_ + 1) * count / size_};
    }

  private:
    friend class Team;
    Member(Team& team, std::uint64_t rounds, int index, int size)
        : team_(team), rounds_(rounds), index_(index), size_(size) {}

    Team& team_;
    std::uint64_t rounds_;  ///< barrier rounds, over all runs
    int index_, size_;
};

/// Processor affinity of the teams of this process, and how their threads wait.
struct TeamRules {
    /// Member i > 0 is pinned to processors[i]. The calling thread (member 0) is not pinned, because threads that it
    /// starts for other work would inherit the affinity; it runs on the processor that the others leave free. Empty: no
    /// pinning.
    std::vector<int> processors = {};
    /// A waiting thread sleeps or yields its core. This is always done if the process has more threads than processors.
    bool yield_cores = false;
};

/// Applies to teams that grow from now on. Must not run while a team of another thread grows.
void set_team_rules(TeamRules rules);

class Team {
  public:
    /// The team of the calling thread. It lives as long as the thread and keeps as many threads as were ever requested.
    static Team& mine();

    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    /// Calls work(Member&) in `size` threads, the calling one first, and returns when all have ended. Called inside a
    /// running team, it uses one thread. `work` must not throw. Throws std::system_error, before any work is done, if
    /// threads cannot be created.
    template <class Work>
    void run(int size, const Work& work) {
        const auto call = [](const void* job, Member& member) noexcept { (*static_cast<const Work*>(job))(member); };
        run_job(size, call, &work);
    }

  private:
    friend class Member;
    using Call = void (*)(const void* job, Member& member) noexcept;
    struct Worker;

    Team() = default;
    void run_job(int size, Call call, const void* job);
    void grow(int size);
    void post(Call call, const void* job, int size);
    static void serve(Team& team, Worker& worker, int index);

    /// Progress that a member publishes to the others, in a cache line that only this member writes.
    struct alignas(64) Progress {
        std::atomic<std::uint64_t> rounds = 0;  ///< barrier rounds
        std::atomic<std::uint64_t> done = 0;    ///< number of the last finished run
        /// That its last run began on; in a cache line of its own, because it is read while waiting and rarely written.
        alignas(64) std::atomic<int> processor = -1;
        std::chrono::steady_clock::time_point next_move;  ///< before that it does not look for another processor

        void note_processor();
    };
    [[nodiscard]] Progress& progress_of(int member);
    static bool part_from(const Progress& other, Progress& own);
    template <class Ready>
    void wait_for(Progress& own, const Progress& awaited, const Ready& ready);

    Progress first_;
    std::vector<std::unique_ptr<Worker>> workers_;
    alignas(64) std::uint64_t runs_ = 0;  // not in a cache line that the members read
    bool at_work_ = false;
};

}  // namespace longhaul::kernels
