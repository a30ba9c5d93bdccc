#include "models/registry.h"

#include <algorithm>
#include <iterator>

#include "models/cnn/cnn.h"
#include "models/gpt/gpt.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

struct Entry {
  const char* name;
  bool language;
  std::unique_ptr<Model> (*make)(Device&, const ModelOptions&);
  bool f32_gradients = false;  ///< Takes f32 gradients beside bf16 weights.
};

constexpr Entry kModels[] = {
    {"cnn", false, [](Device& device, const ModelOptions& options) { return make_cnn(device, options); }},
    {"gpt", true, make_gpt, true},
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

bool is_language_model(const std::string& name) {
  return std::any_of(std::begin(kModels), std::end(kModels),
                     [&](const Entry& entry) { return entry.language && name == entry.name; });
}

std::unique_ptr<Model> make_model(const std::string& name, Device& device, const ModelOptions& options) {
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry.make(device, options);
  }
  usage_error("--model {}: there is no such model. Models: {}.", name, fmt::join(model_names(), ", "));
}

bool takes_f32_gradients(const std::string& name) {
  return std::any_of(std::begin(kModels), std::end(kModels),
                     [&](const Entry& entry) { return name == entry.name && entry.f32_gradients; });
}

}  // namespace ddptrain
