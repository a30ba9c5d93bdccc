#include "data/json.h"

#include "runtime/core/error.h"

namespace ddptrain {

nlohmann::json parse_json_object(std::string_view text, const std::string& name) {
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    if (json.is_object()) return json;
  } catch (const nlohmann::json::exception& error) {
    usage_error("{}: damaged JSON: {:.200}", name, error.what());
  }
  usage_error("{}: not a JSON object", name);
}

}  // namespace ddptrain
