// Draft method `ngram`: trees of what followed the last tokens before, in the prompt and the output so far.
#pragma once

#include <memory>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {

std::unique_ptr<Drafter> make_ngram_drafter(const DraftOptions& options);

}  // namespace longhaul::engine
