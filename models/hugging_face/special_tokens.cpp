#include "models/hugging_face/special_tokens.h"

#include <filesystem>
#include <limits>
#include <vector>

namespace ddptrain {
namespace {

using nlohmann::json;

std::vector<std::uint32_t> ids_in(const json& entry) {
  std::vector<std::uint32_t> ids;
  for (const json& id : entry.is_array() ? entry : json::array({entry})) {
    if (id.is_number_unsigned() && id.get<std::uint64_t>() <= std::numeric_limits<std::uint32_t>::max()) {
      ids.push_back(id.get<std::uint32_t>());
    }
  }
  return ids;
}

}  // namespace

SpecialTokens special_tokens_of(const ModelConfig& config) {
  SpecialTokens tokens;
  const auto take = [&](const char* name, const json& entry) {
    if (const auto ids = ids_in(entry); !ids.empty()) tokens[name] = ids;
  };
  for (const char* name : {kBeginToken, kEndToken, kPaddingToken}) take(name, config.entry(name));
  const auto generation = std::filesystem::path(config.name()).parent_path() / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    take(kEndToken, ModelConfig(generation, "models").entry(kEndToken));
  }
  return tokens;
}

json special_token_json(const SpecialTokens& tokens, const std::string& name) {
  const auto found = tokens.find(name);
  if (found == tokens.end() || found->second.empty()) return {};
  if (found->second.size() == 1) return found->second.front();
  return found->second;
}

}  // namespace ddptrain
