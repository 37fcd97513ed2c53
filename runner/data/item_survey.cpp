#include "runner/data/item_survey.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

namespace longhaul::runner {
namespace {

/// Findings of one thread; later the total.
struct Findings {
    ItemSurvey survey;
    std::int64_t longest = -1;

    void add(std::int64_t index, Prompt prompt, const Settings& settings, std::int64_t max_failures) {
        if (!prompt.error.empty()) {
            ++survey.failed;
            if (static_cast<std::int64_t>(survey.failures.size()) < max_failures)
                survey.failures.push_back({index, std::move(prompt.id), std::move(prompt.error)});
            return;
        }
        const std::int64_t tokens = prompt.tokens.size();
        const std::int64_t at_most = (prompt.settings ? *prompt.settings : settings).max_tokens;
        const std::int64_t given = prompt.continuation.size();
        survey.prompt_tokens.add(tokens);
        note_longest(tokens, index);
        survey.choices += std::ssize(prompt.choices);
        for (const PromptChoice& choice : prompt.choices) add_texts(tokens, std::ssize(choice.tokens), 1);
        if (prompt.choices.empty()) add_texts(tokens, given > 0 ? given : at_most, settings.samples);
    }

    void add_texts(std::int64_t prompt_tokens, std::int64_t new_tokens, std::int64_t count) {
        survey.positions.add(prompt_tokens + new_tokens, count);
        survey.new_tokens += new_tokens * count;
    }

    void merge(Findings& other) {
        survey.failed += other.survey.failed;
        std::move(other.survey.failures.begin(), other.survey.failures.end(), std::back_inserter(survey.failures));
        survey.prompt_tokens.add(other.survey.prompt_tokens);
        survey.positions.add(other.survey.positions);
        survey.new_tokens += other.survey.new_tokens;
        survey.choices += other.survey.choices;
        if (other.longest >= 0) note_longest(other.longest, other.survey.longest_index);
    }

    /// If several are equally long, keeps the first one in the input, so that the result does not depend on threads.
    void note_longest(std::int64_t tokens, std::int64_t index) {
        if (std::pair(tokens, -index) <= std::pair(longest, -survey.longest_index)) return;
        longest = tokens;
        survey.longest_index = index;
    }
};

}  // namespace

void Counts::add(const Counts& others) {
    for (const auto& [number, times] : others.times_) add(number, times);
}

std::int64_t Counts::size() const {
    std::int64_t all = 0;
    for (const auto& [number, times] : times_) all += times;
    return all;
}

std::int64_t Counts::sum() const {
    std::int64_t total = 0;
    for (const auto& [number, times] : times_) total += number * times;
    return total;
}

std::int64_t Counts::quantile(double share) const {
    const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(size())));
    std::int64_t passed = 0;
    for (const auto& [number, times] : times_) {
        passed += times;
        if (passed >= wanted) return number;
    }
    return 0;
}

std::vector<std::int64_t> Counts::largest(std::int64_t count) const {
    std::vector<std::int64_t> numbers;
    for (auto at = times_.rbegin(); at != times_.rend(); ++at) {
        const std::int64_t remaining = count - numbers.size();
        if (remaining <= 0) break;
        numbers.insert(numbers.end(), static_cast<std::size_t>(std::min(remaining, at->second)), at->first);
    }
    return numbers;
}

ItemSurvey survey_items(const DataSet& data, const engine::Tokenizer& tokenizer, const Settings& settings,
                        std::int64_t max_positions, int threads, std::int64_t max_failures) {
    constexpr std::int64_t block = 64;
    Findings all;
    all.survey.inputs = settings.shard.share_of(data.size());
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&] {
        try {
            Findings mine;
            for (std::int64_t begin = next.fetch_add(block); begin < data.size(); begin = next.fetch_add(block)) {
                const std::int64_t end = std::min(begin + block, data.size());
                for (std::int64_t index = begin; index < end; ++index)
                    if (settings.shard.has(index))
                        mine.add(index, data.prompt(index, tokenizer, max_positions), settings, max_failures);
            }
            const std::lock_guard lock(mutex);
            all.merge(mine);
        } catch (...) {
            const std::lock_guard lock(mutex);
            failure = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);

    std::vector<ItemSurvey::Failure>& failures = all.survey.failures;
    std::sort(failures.begin(), failures.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
    if (static_cast<std::int64_t>(failures.size()) > max_failures) failures.resize(max_failures);
    return std::move(all.survey);
}

}  // namespace longhaul::runner
