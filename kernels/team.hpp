// Threads that do one operation after another together. Between two of them they wait awake for a while: an operation
// of a small model takes as long as waking a thread.
//
// Why not OpenMP: its regions take more hand-overs between cores. Measured on two Zen 5 cores (tests/bench/team_bench;
// larger teams were not measured): a call 0.13 microseconds instead of 0.44 where they share a third cache, 0.55
// instead of 1.0 where they do not; with a barrier in it 0.14 instead of 0.64, and 0.59 instead of 1.4.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace longhaul::kernels {

class Team;

/// A thread's place in a team at work.
class Member {
  public:
    [[nodiscard]] int index() const { return index_; }  ///< 0: the thread that called
    [[nodiscard]] int size() const { return size_; }

    /// Until all members are here. Each passes as many as the others.
    void barrier();

    /// The part of [0, count) that is this member's: equal and fixed parts.
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
    std::uint64_t rounds_;  ///< of barriers, of all runs
    int index_, size_;
};

/// Which processors the teams of this process stand on, and how they wait.
struct TeamRules {
    /// Member i stays on processor i of these, but for the calling thread, which finds the one that they leave: threads
    /// that it starts for other things must not stay on its own. Empty: wherever the process may run.
    std::vector<int> processors = {};
    /// Who waits sleeps or lets others go first, as always where this process has more threads than processors.
    bool give_way = false;
};

/// For teams that grow from now on (not while another thread's does).
void set_team_rules(TeamRules rules);

class Team {
  public:
    /// The team of the calling thread, which lives as long as it and has as many threads as it was ever asked for.
    static Team& mine();

    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    /// work(Member&) in `size` threads, of which the calling one is the first; all have ended when it returns. Inside
    /// of a team at work: in one. `work` may not throw. Throws std::system_error, before anything is done, where
    /// threads cannot be had.
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

    /// What a member says to the others. A line of its own: nobody else writes it.
    struct alignas(64) Said {
        std::atomic<std::uint64_t> rounds = 0;  ///< of barriers
        std::atomic<std::uint64_t> done = 0;    ///< the last run
    };
    [[nodiscard]] Said& said_by(int member);

    Said first_;
    std::vector<std::unique_ptr<Worker>> workers_;
    alignas(64) std::uint64_t runs_ = 0;  // not on a line that the members read
    bool at_work_ = false;
};

}  // namespace longhaul::kernels
