#pragma once

#include <string>

namespace ddptrain {

/// Whether exp(loss) is a perplexity: if models of this unit predict text.
inline bool has_perplexity(const std::string& unit) { return unit == "tokens"; }

}  // namespace ddptrain
