#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/workload.h"

namespace ddptrain {

/// All models that there are.
std::vector<std::string> model_names();

/// UsageError, with the names there are, where `model` is none of them.
std::unique_ptr<Workload> make_workload(const std::string& model);

}  // namespace ddptrain
