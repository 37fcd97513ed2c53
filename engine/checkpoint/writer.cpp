// CheckpointWriter: a thread that processes a queue of work (KV files, commits, removals) one at a time and returns
// every outcome, errors included, as a RoundResult.
#include "engine/checkpoint/writer.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>

#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

using Removal = std::vector<std::string>;
using Work = std::variant<RoundJob, Commit, Removal>;

/// Blocks all signals while the writer thread is created; the new thread inherits the mask. The main thread handles
/// signals. In the writer a signal could cut a write short, and SIGXFSZ (file size limit) would end the process
/// although write() can report the error.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

}  // namespace

struct CheckpointWriter::State {
    std::filesystem::path folder;

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> queue;
    std::vector<RoundResult> results;
    bool busy = false;
    bool stop = false;
    std::thread thread;

    void add(Work work) {
        {
            const std::lock_guard lock(mutex);
            queue.push_back(std::move(work));
        }
        changed.notify_all();
    }

    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return stop || !queue.empty(); });
            if (stop) break;
            busy = true;
            std::optional<RoundResult> result;
            {
                // The exports keep KV pages alive. This scope releases them before the result becomes visible.
                const Work work = std::move(queue.front());
                queue.pop_front();
                lock.unlock();
                result = std::visit([&](const auto& piece) { return timed(piece); }, work);
            }
            lock.lock();
            if (result) results.push_back(std::move(*result));
            busy = false;
            changed.notify_all();
        }
        for (const Work& work : queue) {
            if (const auto* names = std::get_if<Removal>(&work)) perform(*names);
        }
    }

    template <class Piece>
    std::optional<RoundResult> timed(const Piece& piece) const {
        const auto start = std::chrono::steady_clock::now();
        std::optional<RoundResult> result = perform(piece);
        if (result) result->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return result;
    }

    /// Runs `action` and stores any exception in `result`, also an unexpected one: a round that cannot be written costs
    /// only recomputation, but an exception in this thread would end the process.
    template <class Action>
    static void keep_error(RoundResult& result, Action&& action) {
        try {
            action();
        } catch (const std::bad_alloc&) {
            result.error = out_of_memory;
        } catch (const std::exception& error) {
            result.error = error.what();
            if (result.error.empty()) result.error = "unknown error";
        }
    }

    std::optional<RoundResult> perform(const RoundJob& job) const {
        RoundResult result;
        result.round = job.round;
        keep_error(result, [&] {
            result.kv_file =
                write_kv_file(folder, job.kv_name, job.identity, job.first_kv_head, job.num_kv_heads, job.kv);
        });
        return result;
    }

    std::optional<RoundResult> perform(const Commit& commit) const {
        RoundResult result;
        result.round = commit.round;
        keep_error(result, [&] {
            write_commit(folder, commit);
            result.committed = true;
        });
        return result;
    }

    std::optional<RoundResult> perform(const Removal& names) const {
        for (const bool commits : {true, false}) {  // commits first, so that none names missing files
            for (const std::string& name : names) {
                const auto parts = detail::parse_file_name(name);
                if (parts && (parts->rank < 0) == commits) detail::remove_file((folder / name).string());
            }
        }
        return std::nullopt;
    }
};

CheckpointWriter::CheckpointWriter(std::filesystem::path folder) : state_(std::make_unique<State>()) {
    state_->folder = std::move(folder);
    std::error_code ignored;  // if the folder cannot be created, the first round reports why
    std::filesystem::create_directories(state_->folder, ignored);
    const SignalsBlocked inherited;
    state_->thread = std::thread([state = state_.get()] { state->run(); });
}

CheckpointWriter::~CheckpointWriter() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stop = true;
    }
    state_->changed.notify_all();
    state_->thread.join();
}

void CheckpointWriter::submit(RoundJob job) {
    state_->add(std::move(job));
}
void CheckpointWriter::submit(Commit commit) {
    state_->add(std::move(commit));
}
void CheckpointWriter::remove(std::vector<std::string> names) {
    state_->add(std::move(names));
}

std::vector<RoundResult> CheckpointWriter::poll() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->results, {});
}

void CheckpointWriter::wait_idle() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->queue.empty() && !state_->busy; });
}

}  // namespace longhaul::engine
