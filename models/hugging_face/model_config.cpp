#include "models/hugging_face/model_config.h"

#include <algorithm>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& path) {
  const MappedFile file(path);
  return parse_json_object(file.text(), path.string());
}

std::string dump(const json& value) { return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 60); }

std::vector<std::string> dump_all(const std::vector<json>& values) {
  std::vector<std::string> texts;
  for (const json& value : values) texts.push_back(dump(value));
  return texts;
}

}  // namespace

ModelConfig::ModelConfig(const fs::path& path, std::string models)
    : name_(path.string()), content_(read_json(path)), models_(std::move(models)) {}

ModelConfig::ModelConfig(std::string name, json content, std::string models)
    : name_(std::move(name)), content_(std::move(content)), models_(std::move(models)) {}

void ModelConfig::expect(const char* key, const std::vector<json>& allowed, const json& otherwise) const {
  const json value = content_.value(key, otherwise);
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  usage_error("{}: {} {}: only {} with {} {} can be read", name_, key, dump(value), models_, key,
              fmt::join(dump_all(allowed), " or "));
}

void ModelConfig::expect_only(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : content_.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    usage_error("{}: {} {}: {} with this entry cannot be read, only with {}", name_, printable(key, 60), dump(value),
                models_, fmt::join(known, ", "));
  }
}

void ModelConfig::refuse(const char* key, const std::string& advice) const {
  usage_error("{}: {} {}: {}", name_, key, dump(entry(key)), advice);
}

std::int64_t ModelConfig::count(const char* key, std::optional<std::int64_t> otherwise) const {
  const json value = entry(key);
  if (value.is_null() && otherwise) return *otherwise;
  constexpr std::uint64_t kMost = 1'000'000'000;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > kMost) {
    refuse(key, fmt::format("not a number from 1 to {}", kMost));
  }
  return value.get<std::int64_t>();
}

double ModelConfig::number(const char* key, const Range& range, std::optional<double> otherwise) const {
  if (content_.find(key) == content_.end() && otherwise) return *otherwise;
  const json value = entry(key);
  if (!value.is_number() || !(value.get<double>() >= range.least && value.get<double>() <= range.most)) {
    refuse(key, fmt::format("not a number {}", range.words));
  }
  return value.get<double>();
}

bool ModelConfig::flag(const char* key, bool otherwise) const {
  const json value = entry(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) refuse(key, "not true or false");
  return value.get<bool>();
}

std::optional<fs::path> find_model_config(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) usage_error("{}: there is no such file or folder", path.string());
  const bool folder = fs::is_directory(path, ignored);
  const fs::path config = (folder ? path : path.parent_path()) / "config.json";
  if (folder || fs::exists(config, ignored)) return config;
  return std::nullopt;
}

std::optional<std::string> model_type_in(const fs::path& path) {
  const json type = ModelConfig(path, "models").entry("model_type");
  return type.is_string() ? std::optional(type.get<std::string>()) : std::nullopt;
}

}  // namespace ddptrain
