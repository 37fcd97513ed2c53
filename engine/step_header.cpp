#include "engine/step_header.hpp"

#include "engine/bytes.hpp"

namespace longhaul::engine {
namespace {

template <class Archive>
void fields(Archive& archive, Admission& a);

template <class Archive>
void fields(Archive& archive, DrafterState& state) {
    archive(state.kind);
    archive(state.row_width);
    archive(state.rows);
}

template <class Archive, class T>
void list(Archive& archive, std::vector<T>& items) {
    auto count = static_cast<std::uint64_t>(items.size());
    archive(count);
    items.resize(count);
    for (T& item : items) fields(archive, item);
}

template <class Archive>
void fields(Archive& archive, Admission& a) {
    archive(a.item.index);
    archive(a.item.id);
    archive(a.item.sample);
    archive(a.item.checkpoint_key);
    archive(a.item.prompt);
    archive(a.item.max_tokens);
    archive(a.item.known_tokens);
    archive(a.put_back);
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
    archive(header.begin_round);
    archive(header.store_kv);
    archive(header.poll_round);
    archive(header.wait);
    archive(header.put_back);
    archive(header.give_up);
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
