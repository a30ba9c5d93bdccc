#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

/// Nothing is null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  template <class Json>
  static void to_json(Json& json, const std::optional<T>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
};

namespace ddptrain {

/// UsageError, naming the file `name`, where `text` is not JSON with an object at the top, or is nested beyond
/// what any file of ours needs.
nlohmann::json parse_json_object(std::string_view text, const std::string& name);

}  // namespace ddptrain
