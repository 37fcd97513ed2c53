// Lists of kernel launches, and the cache of CUDA graphs (launches.hpp).
#include "kernels/cuda/launches.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

std::size_t max_shared_bytes(const KernelCall& call) {
    return call.cluster == Extent{} ? block_shared_bytes : cluster_shared_bytes;
}

void check_call(const KernelCall& call) {
    constexpr unsigned max_blocks = 0x7fffffff, max_blocks_beside = 65535, max_threads = 1024, max_deep = 64;
    const unsigned threads = call.block.x * call.block.y * call.block.z;
    if (threads == 0 || threads > max_threads || call.block.z > max_deep) {
        throw std::logic_error("launch: a block has 1 to 1024 threads, not " + std::to_string(threads));
    }
    const Extent& grid = call.grid;
    if (grid.x > max_blocks || grid.y > max_blocks_beside || grid.z > max_blocks_beside) {
        throw std::logic_error("launch: a grid has at most 2^31 - 1 x 65535 x 65535 blocks, not " +
                               std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                               std::to_string(grid.z));
    }
    if (call.shared_bytes > max_shared_bytes(call)) {
        throw std::logic_error("launch: a block has at most " + std::to_string(max_shared_bytes(call) >> 10) +
                               " KB of shared memory, not " + std::to_string(call.shared_bytes) + " bytes");
    }
}

void LaunchList::add(const KernelCall& call, const std::byte* parameters) {
    if (call.beside) end_pair();
    calls_.push_back(call);
    first_bytes_.push_back(bytes_.size());
    bytes_.insert(bytes_.end(), parameters, parameters + call.type->num_bytes);
}

void LaunchList::end_pair() {
    if (!calls_.empty()) calls_.back().beside = false;
}

void LaunchList::set(std::size_t i, const LaunchList& list) {
    calls_[i] = list.calls_[i];
    std::memcpy(bytes_.data() + first_bytes_[i], list.parameters(i), calls_[i].type->num_bytes);
}

void LaunchList::clear() {
    calls_.clear();
    first_bytes_.clear();
    bytes_.clear();
}

std::vector<std::size_t> LaunchList::before(std::size_t i) const {
    if (i > 0 && calls_[i - 1].beside) --i;  // both calls of a pair start together
    if (i == 0) return {};
    if (i > 1 && calls_[i - 2].beside) return {i - 2, i - 1};
    return {i - 1};
}

bool LaunchList::turns_into(const LaunchList& other, std::size_t most, std::vector<std::size_t>& changed) const {
    changed.clear();
    if (size() != other.size()) return false;
    for (std::size_t i = 0; i < size(); ++i) {
        const KernelCall &mine = calls_[i], &theirs = other.calls_[i];
        if (mine.kernel != theirs.kernel || mine.beside != theirs.beside || mine.early != theirs.early) return false;
        if (mine == theirs && std::memcmp(parameters(i), other.parameters(i), mine.type->num_bytes) == 0) continue;
        if (changed.size() == most) return false;
        changed.push_back(i);
    }
    return true;
}

void GraphCache::launch(LaunchList& list) {
    if (full_ || list.size() < policy_.min_calls) return launcher_->launch(list);
    const Place found = find(list);
    if (found == entries_.end()) {
        launcher_->launch(list);
        return remember(list);
    }
    entries_.splice(entries_.begin(), entries_, found);
    if (last_ != entries_.end()) last_->next = found;
    last_ = found;
    count_launch(*found);
    if (found->graph != nullptr || make_room(*found)) return launch_graph(*found, list);
    launcher_->launch(list);
    std::swap(found->list, list);
}

GraphCache::Place GraphCache::find(const LaunchList& list) {
    const auto matches = [&](const Entry& entry) {
        return entry.list.turns_into(list, list.size() / policy_.change_part, changed_);
    };
    // The lists of a pass come in the same order as the last time: no search through those of other layers and shapes.
    if (last_ != entries_.end() && last_->next != entries_.end() && matches(*last_->next)) return last_->next;
    return std::find_if(entries_.begin(), entries_.end(), matches);
}

void GraphCache::remember(LaunchList& list) {
    if (entries_.size() == policy_.max_lists) {
        auto oldest =
            std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& e) { return e.graph == nullptr; });
        if (oldest == entries_.rend()) oldest = entries_.rbegin();
        const auto victim = std::prev(oldest.base());
        drop_graph(*victim);
        for (Entry& entry : entries_) {
            if (entry.next == victim) entry.next = entries_.end();
        }
        if (last_ == victim) last_ = entries_.end();
        entries_.erase(victim);
    }
    entries_.emplace_front().next = entries_.end();
    std::swap(entries_.front().list, list);
    if (last_ != entries_.end()) last_->next = entries_.begin();
    last_ = entries_.begin();
}

void GraphCache::count_launch(Entry& entry) {
    ++entry.launches;
    if (++num_launches_ < 16 * policy_.max_lists) return;
    num_launches_ = 0;
    for (Entry& each : entries_) each.launches /= 2;
}

bool GraphCache::make_room(const Entry& entry) {
    while (graph_calls_ + entry.list.size() > policy_.max_graph_calls) {
        Entry* rarest = nullptr;
        for (Entry& each : entries_) {
            if (each.graph != nullptr && (rarest == nullptr || each.launches <= rarest->launches)) rarest = &each;
        }
        if (rarest == nullptr || rarest->launches >= entry.launches) return false;
        drop_graph(*rarest);
    }
    return true;
}

void GraphCache::drop_graph(Entry& entry) {
    if (entry.graph == nullptr) return;
    graph_calls_ -= entry.list.size();
    entry.graph = nullptr;
}

void GraphCache::launch_graph(Entry& entry, LaunchList& list) {
    if (entry.graph != nullptr) graph_calls_ -= entry.list.size();
    std::unique_ptr<Graph> graph = std::exchange(entry.graph, nullptr);  // dropped if a step below fails
    try {
        if (graph != nullptr) {
            for (const std::size_t i : changed_) graph->set(i, list);
        } else {
            graph = launcher_->instantiate(list);
        }
        graph->launch();  // runs completely or not at all
    } catch (const std::bad_alloc&) {
        full_ = true;
        graph = nullptr;
        entries_.clear();
        last_ = entries_.end();
        return launcher_->launch(list);
    }
    std::swap(entry.list, list);
    entry.graph = std::move(graph);
    graph_calls_ += entry.list.size();
}

void Launches::add(const KernelCall& call, const std::byte* parameters) {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (call.grid.x == 0 || call.grid.y == 0 || call.grid.z == 0) return list_.end_pair();
    check_call(call);
    list_.add(call, parameters);
    if (list_.size() >= max_calls_ && !call.beside) hand_over();
}

void Launches::flush() {
    const std::lock_guard lock(mutex_);
    hand_over();
}

void Launches::hand_over() {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (list_.empty()) return;
    struct Clearing {
        LaunchList& list;
        ~Clearing() { list.clear(); }
    } clearing{list_};
    try {
        cache_.launch(list_);
    } catch (...) {
        failure_ = std::current_exception();
        throw;
    }
}

}  // namespace longhaul::kernels::cuda
