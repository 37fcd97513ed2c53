// The little of NIST's SGM that test sets use: <doc docid="…"> around <seg id="…">text</seg>, names in any case.
#pragma once

#include <string>
#include <string_view>

namespace longhaul::runner {

/// "doc", "/seg", …: the name of the tag that `bytes` begins with ("<DOC docid="), in small letters, at most what is
/// there of it.
std::string sgm_tag_name(std::string_view bytes);

/// The value of an attribute of the tag that `bytes` begins with, entities resolved; "" where there is none.
std::string sgm_attribute(std::string_view bytes, std::string_view name);

/// The text of `bytes`, a <seg> element without its end tag: entities resolved, every run of white space one blank and
/// none at the ends (as sacrebleu reads these files).
std::string segment_text(std::string_view bytes);

}  // namespace longhaul::runner
