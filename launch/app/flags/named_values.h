#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddptrain {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

}  // namespace ddptrain
