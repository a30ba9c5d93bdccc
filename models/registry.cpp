#include "models/registry.h"

#include <algorithm>

#include "runtime/core/error.h"

/// A line per model. A folder of models/ defines make_<name>_workload(): models/<name>/, or models/gpt2/ for gpt.
// clang-format off
#define DDPTRAIN_MODELS(model) \
  model(cnn) \
  model(gpt) \
  model(llama) \
  model(mlp) \
  /* end */
// clang-format on

namespace ddptrain {

#define DECLARE(name) std::unique_ptr<Workload> make_##name##_workload();
DDPTRAIN_MODELS(DECLARE)
#undef DECLARE

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Workload> (*make)();
};

#define ENTRY(name) {#name, make_##name##_workload},
constexpr Entry kModels[] = {DDPTRAIN_MODELS(ENTRY)};
#undef ENTRY

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

std::optional<std::string> model_that_reads(const std::string& model_type) {
  for (const Entry& entry : kModels) {
    const std::vector<std::string> types = entry.make()->model_types();
    if (std::ranges::find(types, model_type) != types.end()) return entry.name;
  }
  return std::nullopt;
}

std::unique_ptr<Workload> make_workload(const std::string& model, const std::string& named_by) {
  for (const Entry& entry : kModels) {
    if (model == entry.name) return entry.make();
  }
  usage_error("{} {}: there is no such model; there are: {}", named_by, model, fmt::join(model_names(), ", "));
}

}  // namespace ddptrain
