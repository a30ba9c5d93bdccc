#pragma once

#include <string>

namespace ddptrain {

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ddptrain
