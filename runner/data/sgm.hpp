// Minimal parser for NIST's SGM, as far as test sets use it: <doc docid="…"> around <seg id="…">text</seg>; names are
// case-insensitive. Used by LineSource.
#pragma once

#include <string>
#include <string_view>

namespace longhaul::runner {

/// Name of the tag at the start of `bytes` ("<DOC docid="), in lower case: "doc", "/seg", …. `bytes` may end within the
/// name.
std::string sgm_tag_name(std::string_view bytes);

/// Value of an attribute of the tag at the start of `bytes`, entities resolved; "" if there is none.
std::string sgm_attribute(std::string_view bytes, std::string_view name);

/// Text of a <seg> element; `bytes` is the element without its end tag. Entities are resolved, each run of white space
/// becomes one blank, and blanks at the ends are removed, as sacrebleu reads these files.
std::string segment_text(std::string_view bytes);

}  // namespace longhaul::runner
