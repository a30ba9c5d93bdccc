#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/workload.h"

namespace ddptrain {

/// All models that there are.
std::vector<std::string> model_names();

/// The first model whose --init reads files with this model_type in config.json. Empty: none does.
std::optional<std::string> model_that_reads(const std::string& model_type);

/// UsageError, with the names there are, where `model` is none of them. The message begins with `named_by`.
std::unique_ptr<Workload> make_workload(const std::string& model, const std::string& named_by = "--model");

}  // namespace ddptrain
