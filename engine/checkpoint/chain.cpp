#include "engine/checkpoint/chain.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace longhaul::engine::detail {
namespace {

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

enum class Completeness { unknown, being_followed, whole, broken };

class ChainFinder {
  public:
    ChainFinder(const std::vector<Link>& links, const std::vector<CommitInfo>& commits)
        : links_(links), commits_(commits), state_(links.size(), Completeness::unknown) {
        for (std::size_t i = 0; i < links.size(); ++i) {
            if (!commit_of(i).damaged) by_commit_.emplace(commit_of(i).name, i);
        }
    }

    Chain run() {
        Chain chain;
        std::size_t best = none;
        for (std::size_t i = 0; i < links_.size(); ++i) {
            follow(i);
            if (state_[i] == Completeness::whole && (best == none || rank(i) > rank(best))) best = i;
        }
        for (std::size_t at = best; at != none; at = previous(at)) chain.links.push_back(at);
        std::reverse(chain.links.begin(), chain.links.end());
        const std::int64_t kept = best == none ? 0 : links_[best].end_token;
        const bool lost = std::any_of(links_.begin(), links_.end(),
                                      [&](const Link& link) { return best == none || link.end_token > kept; });
        if (lost) add_broken(chain);
        return chain;
    }

  private:
    const CommitInfo& commit_of(std::size_t link) const { return commits_[links_[link].commit_index]; }

    /// The link of the previous round; `none` for the first round or if it is missing.
    std::size_t previous(std::size_t link) const {
        const auto found = by_commit_.find(links_[link].previous_commit);
        return found == by_commit_.end() ? none : found->second;
    }

    bool fits(const Link& link, const Link& before) const {
        return link.prompt_tokens == before.prompt_tokens && link.first_token == before.end_token;
    }

    /// Determines the state of `start` and of all its previous rounds. A loop instead of recursion: chains have
    /// thousands of rounds.
    void follow(std::size_t start) {
        std::vector<std::size_t> path;
        std::size_t at = start;
        while (at != none && state_[at] == Completeness::unknown) {
            state_[at] = Completeness::being_followed;
            path.push_back(at);
            at = links_[at].previous_commit.empty() ? none : previous(at);
        }
        // `being_followed` means that the path is a cycle: then no link on it is whole.
        if (at != none && state_[at] == Completeness::being_followed) cycles_.insert(path.back());
        for (; !path.empty(); path.pop_back()) state_[path.back()] = judge(path.back());
    }

    Completeness judge(std::size_t at) const {
        const Link& link = links_[at];
        if (commit_of(at).damaged) return Completeness::broken;
        if (link.previous_commit.empty()) return link.first_token == 0 ? Completeness::whole : Completeness::broken;
        const std::size_t before = previous(at);
        const bool whole = before != none && state_[before] == Completeness::whole && fits(link, links_[before]);
        return whole ? Completeness::whole : Completeness::broken;
    }

    std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t> rank(std::size_t at) const {
        const CommitInfo& commit = commit_of(at);
        return {links_[at].end_token, links_[at].kv_end, commit.epoch, commit.round, commit.replica};
    }

    /// Collects the links at which a chain breaks: the link is broken, and its previous round is missing, damaged,
    /// intact or does not fit, or the link closes a cycle.
    void add_broken(Chain& chain) const {
        for (std::size_t i = 0; i < links_.size(); ++i) {
            if (state_[i] != Completeness::broken || commit_of(i).damaged) continue;
            const std::size_t before = previous(i);
            const bool breaks_here = before == none || cycles_.contains(i) || state_[before] == Completeness::whole ||
                                     !fits(links_[i], links_[before]) || commit_of(before).damaged;
            if (breaks_here) chain.broken.push_back(i);
        }
    }

    const std::vector<Link>& links_;
    const std::vector<CommitInfo>& commits_;
    std::vector<Completeness> state_;
    std::unordered_set<std::size_t> cycles_;  ///< links that close a cycle
    std::unordered_map<std::string, std::size_t> by_commit_;
};

}  // namespace

Chain find_chain(const std::vector<Link>& links, const std::vector<CommitInfo>& commits) {
    return ChainFinder(links, commits).run();
}

}  // namespace longhaul::engine::detail
