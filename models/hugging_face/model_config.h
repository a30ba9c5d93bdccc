#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/files/json.h"
#include "runtime/core/flags.h"

namespace ddptrain {

/// config.json of a model, in the format of Hugging Face's transformers. Every fault is a UsageError with the file, the
/// entry and its value.
class ModelConfig {
 public:
  /// `models` are the models that can be read, for messages: "GPT-2 models".
  ModelConfig(const std::filesystem::path& path, std::string models);
  /// An object within `name`, such as "config.json: rope_scaling".
  ModelConfig(std::string name, nlohmann::json content, std::string models);

  const std::string& name() const { return name_; }
  /// Null if there is no such entry.
  nlohmann::json entry(const char* key) const { return content_.value(key, nlohmann::json()); }
  bool has(const char* key) const { return !entry(key).is_null(); }

  /// UsageError unless the entry is one of `allowed`. `otherwise` is its value if it is missing.
  void expect(const char* key, const std::vector<nlohmann::json>& allowed, const nlohmann::json& otherwise) const;
  /// UsageError if there is an entry other than `known`, whose meaning would be ignored.
  void expect_only(const std::vector<std::string>& known) const;
  /// UsageError about the entry, whose value cannot be read; `advice` says what can.
  [[noreturn]] void refuse(const char* key, const std::string& advice) const;

  // An entry that is missing has the value `otherwise`, or is an error if that is empty. For count() and flag() a null
  // is missing, too.
  std::int64_t count(const char* key, std::optional<std::int64_t> otherwise) const;  ///< From 1 on.
  double number(const char* key, const Range& range, std::optional<double> otherwise) const;
  bool flag(const char* key, bool otherwise) const;

 private:
  std::string name_;
  nlohmann::json content_;
  std::string models_;
};

/// The config.json of the model that `path` names: in the folder, or next to the file. Nothing if `path` is a file
/// without one. UsageError if there is no such path.
std::optional<std::filesystem::path> find_model_config(const std::filesystem::path& path);
/// Nothing if the config.json at `path` has no model_type, or one that is no text.
std::optional<std::string> model_type_in(const std::filesystem::path& path);

}  // namespace ddptrain
