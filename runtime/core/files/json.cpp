#include "runtime/core/files/json.h"

#include "runtime/core/error.h"
#include "runtime/core/files/file_kind.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr int kDeepest = 16;

}  // namespace

nlohmann::json parse_json_object(std::string_view text, const std::string& name) {
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > kDeepest) usage_error("{}: damaged JSON: nested more than {} deep", name, kDeepest);
    return true;
  };
  try {
    nlohmann::json json = nlohmann::json::parse(text, check_depth);
    if (json.is_object()) return json;
  } catch (const nlohmann::json::exception& error) {
    const std::string kind = file_kind(text.substr(0, 512));
    if (!kind.empty()) usage_error("{}: not JSON; it looks like {}", name, kind);
    usage_error("{}: damaged JSON: {}", name, printable(error.what(), 200));
  }
  usage_error("{}: not a JSON object", name);
}

}  // namespace ddptrain
