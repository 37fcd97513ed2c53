#include "engine/replica/checkpoint_rounds.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "engine/bytes.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/kv_source.hpp"
#include "engine/model/split.hpp"

namespace longhaul::engine {
namespace {

/// Number of ranks that write heads of a model with so many KV heads.
int writing_ranks(std::int64_t num_kv_heads, Group& group) {
    return static_cast<int>(std::min<std::int64_t>(group.size(), num_kv_heads));
}

/// Reads positions from `first` on, which are in `kv` from its beginning. Committed positions never change, so the
/// writer may read them while decoding appends. It holds a reference to the KV (the item may finish meanwhile) and a
/// copy of the page list (which may grow).
KvExport reader_of(std::shared_ptr<KvSequence> kv, std::int64_t first) {
    std::vector<std::vector<std::byte*>> pages;
    for (std::size_t group = 0; group < kv->num_groups(); ++group)
        pages.emplace_back(kv->pages(group).begin(), kv->pages(group).end());
    return [kv = std::move(kv), pages = std::move(pages), first](std::size_t group, kernels::KvBox box, std::byte* to,
                                                                 std::size_t head_stride) {
        box.first -= first;
        kv->pool().device().kv_export_box(kv->layout(group), pages[group], box, to, head_stride);
    };
}

template <class Archive>
void fields(Archive& archive, RoundResult& result) {
    archive(result.round);
    archive(result.committed);
    archive(result.error);
    archive(result.seconds);
    bool has_file = result.kv_file.has_value();
    archive(has_file);
    if (!has_file) return;
    if (!result.kv_file) result.kv_file.emplace();
    archive(result.kv_file->name);
    archive(result.kv_file->num_bytes);
    archive(result.kv_file->checksum);
    archive(result.kv_file->first_kv_head);
    archive(result.kv_file->num_kv_heads);
}

}  // namespace

DrafterState within_budget(DrafterState state, std::int64_t& bytes_left) {
    std::size_t num_words = state.rows.size();
    for (const NamedTensor& tensor : state.tensors) num_words += tensor.words.size();
    bytes_left -= static_cast<std::int64_t>(num_words * sizeof(std::int32_t));
    if (bytes_left >= 0) return state;
    return {.kind = "left out", .row_width = 0, .rows = {}};
}

CheckpointRounds::CheckpointRounds(const CheckpointOptions& options, const Model& model, const Drafter& drafter,
                                   Group& group)
    : options_(options),
      model_(model),
      layer_kind_(drafter.layer_kv_kind()),
      position_bytes_(position_bytes(model.kv_layouts()) + (layer_kind_ ? drafter.bytes_per_token() : 0)),
      group_(group),
      kv_bytes_on_disk_(options.earlier_bytes) {
    if (!options.folder.empty()) writer_ = std::make_unique<CheckpointWriter>(options.folder);
}

std::int64_t CheckpointRounds::room_for_positions(bool begins) const {
    if (!enabled() || !options_.store_kv) return std::numeric_limits<std::int64_t>::max() / 2;
    const std::int64_t left = begins ? std::max<std::int64_t>(tokens_since_ - max_positions(), 0) : tokens_since_;
    return std::max<std::int64_t>(max_positions() - left, 0);
}

/// Of one round.
std::int64_t CheckpointRounds::max_positions() const {
    return options_.max_bytes / std::max<std::int64_t>(position_bytes_, 1);
}

bool CheckpointRounds::due() const {
    if (!enabled() || active_ || !error_.empty()) return false;
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - last_begin_;
    return tokens_since_ > 0 &&
           (tokens_since_ >= options_.every_tokens || since.count() >= options_.every_seconds ||
            record_bytes_since_ >= options_.max_bytes || (options_.store_kv && tokens_since_ >= max_positions()));
}

RoundContents CheckpointRounds::next_contents() const {
    const bool kv = options_.store_kv && (options_.quota_bytes == 0 || kv_bytes_on_disk_ < options_.quota_bytes);
    constexpr std::int64_t states_per_kv = 4;  // bytes
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - last_states_;
    const bool worth_it = states_per_kv * tokens_since_states_ * position_bytes_ >= num_states_ * state_bytes();
    return {.kv = kv, .states = worth_it || since.count() >= options_.every_seconds, .max_positions = max_positions()};
}

/// Of one sequence, on this rank.
std::int64_t CheckpointRounds::state_bytes() const {
    const kernels::KvLayout* const layout = state_layout(model_.kv_layouts());
    return layout == nullptr ? 0 : engine::state_bytes(*layout);
}

bool CheckpointRounds::keeps_kv(const Sequence& sequence, bool store_kv) const {
    return store_kv && !sequence.outgrew_keys(model_.config().longest_short_text());
}

ItemDelta CheckpointRounds::delta_of(Sequence& sequence, RoundContents contents) const {
    ItemDelta delta;
    delta.key = sequence.item.checkpoint_key;
    delta.previous_commit = sequence.last_commit;
    delta.prompt_tokens = sequence.prompt_size();
    delta.first_token = sequence.saved_tokens;
    const auto fresh = sequence.output().subspan(sequence.saved_tokens);
    delta.tokens.assign(fresh.begin(), fresh.end());
    const auto saved_words = sequence.saved_tokens * logprob_words(sequence.num_logprobs);
    if (group_.is_first())  // only the first rank has logprobs
        delta.logprobs.assign(sequence.logprobs.begin() + saved_words, sequence.logprobs.end());
    delta.kv_begin = sequence.saved_kv;
    delta.kv_end = keeps_kv(sequence, contents.kv) ? sequence.kv->committed() : sequence.saved_kv;
    // After a preemption the sequence's KV may be shorter than what is already saved.
    delta.kv_end = std::max(delta.kv_end, delta.kv_begin);
    // What was copied at once may be more than a round stores. Windows are stored whole: the next step overwrites them.
    if (sequence.kv->keeps_positions())
        delta.kv_end = delta.kv_begin + std::min(delta.kv_end - delta.kv_begin, contents.max_positions);
    // States belong to positions of their round: where all are stored already, the last one is stored again.
    const bool states_are_newer = sequence.saved_states < delta.kv_end && sequence.kv->committed() == delta.kv_end;
    if (contents.states && state_bytes() > 0 && delta.kv_begin == delta.kv_end && states_are_newer) --delta.kv_begin;
    return delta;
}

/// Adds the new keys and values of the drafter's layer.
void CheckpointRounds::add_layer_kv(Sequence& sequence, RoundJob& job) const {
    DraftLayerKv layer = sequence.drafter->layer_kv();
    if (!layer.kv) return;
    const std::int64_t begin = std::max(sequence.saved_layer_kv, layer.first);
    const std::int64_t end = layer.first + layer.kv->committed();
    if (begin >= end) return;
    job.kv.push_back({sequence.item.checkpoint_key, begin, end, reader_of(std::move(layer.kv), layer.first)});
    sequence.saved_layer_kv = end;
}

/// Adds the states behind the last position. They are copied now: the next step changes them.
void CheckpointRounds::add_states(Sequence& sequence, RoundJob& job) {
    const kernels::KvLayout* const layout = state_layout(model_.kv_layouts());
    if (layout == nullptr) return;
    const kernels::DeltaShape shape = layout->delta;
    const std::int64_t floats = shape.head_floats();
    std::vector<float> states(static_cast<std::size_t>(shape.sequence_floats(layout->num_layers)));
    model_.device().download(states.data(), sequence.kv->state_page(), states.size() * sizeof(float));
    const std::int64_t end = sequence.kv->committed();
    job.kv.push_back({sequence.item.checkpoint_key, end - 1, end,
                      [shape, floats, states = std::make_shared<const std::vector<float>>(std::move(states))](
                          std::size_t /*group*/, const kernels::KvBox& box, std::byte* to, std::size_t head_stride) {
                          const std::int64_t half = floats / 2;
                          for (std::int64_t i = 0; i < box.num_layers * box.num_heads; ++i) {
                              const std::int64_t layer = box.first_layer + i / box.num_heads;
                              const std::int64_t head = box.first_head + i % box.num_heads;
                              std::memcpy(to + static_cast<std::size_t>(i) * head_stride,
                                          states->data() + shape.head_offset(layer, head) + (box.values ? half : 0),
                                          static_cast<std::size_t>(half) * sizeof(float));
                          }
                      }});
    sequence.saved_states = end;
    with_states_.push_back(sequence.item.number);
}

/// Has this rank's KV files written. Every rank knows how many there are in all.
void CheckpointRounds::submit_kv(RoundJob target, RoundJob states, RoundJob layer) {
    missing_kv_files_ = 0;
    const auto submit = [&](RoundJob& job, std::int64_t num_kv_heads, bool writes) {
        if (job.kv.empty()) return;
        // Where ranks hold all heads, one of them writes.
        missing_kv_files_ += job.num_kv_heads == num_kv_heads ? 1 : writing_ranks(num_kv_heads, group_);
        job.round = round_;
        if (writes) writer_->submit(std::move(job));
    };
    target.identity = options_.identity;
    target.kv_name = kv_file_name(options_.replica, options_.epoch, round_, group_.rank());
    const Split& split = model_.split();
    target.first_kv_head = split.first_kv_head;
    target.num_kv_heads = split.num_kv_heads;
    submit(target, model_.config().num_kv_heads, split.writes_kv);
    if (const kernels::KvLayout* const layout = state_layout(model_.kv_layouts())) {
        states.identity = options_.identity.of_states();
        states.kv_name = kv_file_name(options_.replica, options_.epoch, round_, group_.rank(), KvFile::Of::states);
        states.num_kv_heads = layout->delta.num_key_heads;
        states.first_kv_head = group_.rank() * states.num_kv_heads;
        submit(states, options_.identity.states.num_heads, true);
    }
    if (!layer_kind_) return;
    layer.identity = options_.identity.of_drafter(layer_kind_->kind, layer_kind_->num_kv_heads, layer_kind_->head_dim);
    layer.kv_name = kv_file_name(options_.replica, options_.epoch, round_, group_.rank(), KvFile::Of::drafter);
    layer.first_kv_head = layer_kind_->first_kv_head;
    layer.num_kv_heads = layer_kind_->num_kv_heads_here;
    submit(layer, layer_kind_->num_kv_heads, layer_kind_->writes_kv);
}

std::int64_t CheckpointRounds::num_unsaved(const Sequence& sequence, RoundContents contents) const {
    const bool is_kept = keeps_kv(sequence, contents.kv) && sequence.kv->keeps_positions();
    return is_kept ? std::max<std::int64_t>(sequence.kv->committed() - sequence.saved_kv, 0) : 0;
}

void CheckpointRounds::begin(std::span<Sequence* const> sequences, RoundContents contents) {
    std::int64_t unsaved = 0;
    for (const Sequence* sequence : sequences) unsaved += num_unsaved(*sequence, contents);
    // A state belongs to the last of an item's positions: a round has those of all its items, or none.
    contents.states = contents.states && unsaved <= contents.max_positions;
    ++round_;
    tokens_since_ = std::max<std::int64_t>(unsaved - contents.max_positions, 0);
    record_bytes_since_ = 0;
    last_begin_ = std::chrono::steady_clock::now();
    commit_ = Commit{commit_name(options_.replica, options_.epoch, round_),
                     options_.identity,
                     options_.replica,
                     options_.epoch,
                     round_,
                     {},
                     {}};
    RoundJob job, state_job, layer_job;
    with_states_.clear();
    std::int64_t drafter_bytes_left = max_drafter_bytes;
    for (Sequence* sequence : sequences) {
        ItemDelta delta = delta_of(*sequence, contents);
        contents.max_positions = std::max<std::int64_t>(contents.max_positions - (delta.kv_end - delta.kv_begin), 0);
        if (delta.tokens.empty() && delta.kv_end == delta.kv_begin && sequence->saved_once) continue;
        ++sequence->statistics.checkpoint_rounds;
        if (group_.is_first()) {
            delta.drafter = within_budget(sequence->drafter->take_delta(), drafter_bytes_left);
            delta.statistics = statistics_to_json(sequence->statistics);
        }
        if (delta.kv_end > delta.kv_begin) {
            job.kv.push_back({delta.key, delta.kv_begin, delta.kv_end, reader_of(sequence->kv, 0)});
            if (contents.states) add_states(*sequence, state_job);
        }
        if (keeps_kv(*sequence, contents.kv)) add_layer_kv(*sequence, layer_job);
        sequence->saved_tokens = sequence->num_output();
        sequence->saved_kv = delta.kv_end;
        sequence->last_commit = commit_.name;
        sequence->saved_once = true;
        if (group_.is_first()) {
            files_[commit_.name].items.insert(sequence->item.number);
            commits_of_item_[sequence->item.number].push_back(commit_.name);
            commit_.items.push_back(std::move(delta));
        }
    }
    if (!with_states_.empty()) {
        last_states_ = last_begin_;
        tokens_since_states_ = 0;
        num_states_ = std::ssize(with_states_);
    }
    submit_kv(std::move(job), std::move(state_job), std::move(layer_job));
    if (!group_.is_first()) return;
    active_ = !commit_.items.empty();
    if (active_ && missing_kv_files_ == 0) writer_->submit(commit_);
}

void CheckpointRounds::take(const RoundResult& result) {
    write_seconds_ += result.seconds;
    if (result.round != round_) return;
    if (!result.error.empty()) {
        if (error_.empty()) error_ = result.error;
        active_ = false;
        return;
    }
    if (result.committed) {
        ++committed_rounds_;
        active_ = false;
        forget_old_states();
        forget_if_unneeded(commit_.name);  // its items may have finished while it was written
    } else if (result.kv_file && active_) {
        File& file = files_[commit_.name];
        const bool of_states = result.kv_file->of() == KvFile::Of::states;
        (of_states ? file.state_files : file.kv_files).push_back(result.kv_file->name);
        if (of_states) file.state_bytes += static_cast<std::int64_t>(result.kv_file->num_bytes);
        file.kv_bytes += static_cast<std::int64_t>(result.kv_file->num_bytes);
        kv_bytes_on_disk_ += static_cast<std::int64_t>(result.kv_file->num_bytes);
        commit_.kv_files.push_back(*result.kv_file);
        if (--missing_kv_files_ == 0) writer_->submit(commit_);
    }
}

void CheckpointRounds::progress() {
    if (!enabled()) return;
    if (group_.size() == 1) {
        for (const RoundResult& result : writer_->poll()) take(result);
        return;
    }
    FieldWriter message;
    for (RoundResult& result : writer_->poll()) fields(message, result);
    for (const std::vector<std::byte>& part : group_.gather(message.bytes())) {
        FieldReader reader(part);
        while (!reader.empty()) {
            RoundResult result;
            fields(reader, result);
            take(result);
        }
    }
}

bool CheckpointRounds::drain(const std::function<void()>& poke) {
    if (!enabled()) return true;
    enum class State : std::uint8_t { under_way, good, failed };
    for (;;) {
        progress();
        std::vector<std::byte> message(1);
        message[0] = static_cast<std::byte>(active_ ? State::under_way : error_.empty() ? State::good : State::failed);
        group_.broadcast(message);
        const auto state = static_cast<State>(message[0]);
        if (state != State::under_way) return state == State::good;
        if (poke) poke();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void CheckpointRounds::forget_if_unneeded(const std::string& commit) {
    const auto file = files_.find(commit);
    if (file == files_.end() || !file->second.items.empty()) return;
    if (active_ && commit == commit_.name) return;  // checked again once it is committed
    std::vector<std::string> names = file->second.kv_files;
    names.insert(names.end(), file->second.state_files.begin(), file->second.state_files.end());
    names.push_back(commit);
    kv_bytes_on_disk_ -= file->second.kv_bytes;
    writer_->remove(std::move(names));
    files_.erase(file);
}

/// States are stored whole in each round, so those of earlier rounds are of use only if the newest are damaged.
void CheckpointRounds::forget_old_states() {
    if (options_.identity.states.num_layers == 0) return;
    for (const std::int64_t index : with_states_) {
        std::deque<std::string>& commits = states_of_item_[index];
        commits.push_back(commit_.name);
        if (std::ssize(commits) <= CheckpointIdentity::States::kept_rounds) continue;
        const std::string old = commits.front();
        commits.pop_front();
        forget_states_if_unneeded(old);
    }
}

void CheckpointRounds::forget_states_if_unneeded(const std::string& commit) {
    const auto file = files_.find(commit);
    if (file == files_.end()) return;
    const bool needed = std::any_of(file->second.items.begin(), file->second.items.end(), [&](std::int64_t index) {
        const std::deque<std::string>& commits = states_of_item_[index];
        return std::find(commits.begin(), commits.end(), commit) != commits.end();
    });
    if (needed) return;
    file->second.kv_bytes -= file->second.state_bytes;
    kv_bytes_on_disk_ -= file->second.state_bytes;
    file->second.state_bytes = 0;
    writer_->remove(std::exchange(file->second.state_files, {}));
}

void CheckpointRounds::results_durable(std::span<const std::int64_t> item_numbers) {
    if (!enabled()) return;
    for (const std::int64_t number : item_numbers) {
        const auto commits = commits_of_item_.find(number);
        if (commits == commits_of_item_.end()) continue;
        for (const std::string& commit : commits->second) {
            files_[commit].items.erase(number);
            forget_if_unneeded(commit);
        }
        commits_of_item_.erase(commits);
        for (const std::string& commit : std::exchange(states_of_item_[number], {})) forget_states_if_unneeded(commit);
        states_of_item_.erase(number);
    }
}

}  // namespace longhaul::engine
