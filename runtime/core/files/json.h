#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ddptrain {

/// UsageError, naming the file `name`, where `text` is not JSON with an object at the top, or is nested beyond
/// what any file of ours needs.
nlohmann::json parse_json_object(std::string_view text, const std::string& name);

}  // namespace ddptrain
