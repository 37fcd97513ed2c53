#include "engine/replica/step_header.hpp"

#include "engine/bytes.hpp"

namespace longhaul::engine {
namespace {

template <class Archive>
void fields(Archive& archive, Admission& a);
template <class Archive>
void fields(Archive& archive, DrafterState& state);

template <class Archive>
void fields(Archive& archive, NamedTensor& tensor) {
    archive(tensor.name);
    archive(tensor.shape);
    archive(tensor.words);
}

template <class Archive>
void fields(Archive& archive, std::string& text) {
    archive(text);
}

template <class Archive, class T>
void list(Archive& archive, std::vector<T>& items) {
    auto count = static_cast<std::uint64_t>(items.size());
    archive.count(count);
    items.resize(count);
    for (T& item : items) fields(archive, item);
}

template <class Archive>
void fields(Archive& archive, DrafterState& state) {
    archive(state.kind);
    archive(state.row_width);
    archive(state.rows);
    list(archive, state.tensors);
}

template <class Archive>
void fields(Archive& archive, GenerationOptions& options) {
    archive(options.max_tokens);
    archive(options.seed);
    archive(options.sampling);
    list(archive, options.dry_breakers);
    archive(options.eos_ids);
    archive(options.logit_bias);
    archive(options.reasoning.end);
    archive(options.reasoning.max_tokens);
    archive(options.format.kind);
    list(archive, options.format.texts);
    list(archive, options.stop);
    archive(options.stop_loops);
    archive(options.logprobs);
}

template <class Archive>
void fields(Archive& archive, WorkItem& item) {
    archive(item.number);
    archive(item.id);
    archive(item.sample);
    archive(item.checkpoint_key);
    archive(item.prompt);
    archive(item.continuation);
    archive(item.known_tokens);
    bool has_options = item.options != nullptr;  // false for Admission::is_readmission
    archive(has_options);
    if (!has_options) return;
    GenerationOptions options = item.options ? *item.options : GenerationOptions();
    fields(archive, options);
    if (!item.options) item.options = std::make_shared<const GenerationOptions>(std::move(options));
}

template <class Archive>
void fields(Archive& archive, Admission& a) {
    fields(archive, a.item);
    archive(a.is_readmission);
    archive(a.restored);
    archive(a.output);
    archive(a.kv_tokens);
    archive(a.last_commit);
    archive(a.statistics);
    list(archive, a.drafter);
}

template <class Archive>
void fields(Archive& archive, StepHeader& header) {
    archive(header.kind);
    archive(header.min_probability);
    archive(header.prices);
    archive(header.trees);
    archive(header.feed_drafter);
    archive(header.prefill_rows);
    archive(header.max_copied);
    archive(header.begin_round);
    archive(header.poll_round);
    archive(header.round);
    archive(header.release_prefix);
    archive(header.wait);
    archive(header.preempt);
    archive(header.too_large);
    list(archive, header.admissions);
}

}  // namespace

void share_header(Group& group, StepHeader& header) {
    if (group.size() == 1) return;
    FieldWriter writer;
    if (group.is_first()) fields(writer, header);
    group.broadcast(writer.bytes());
    if (group.is_first()) return;
    FieldReader reader(writer.bytes());
    fields(reader, header);
}

}  // namespace longhaul::engine
