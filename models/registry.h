#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

namespace ddptrain {

std::vector<std::string> model_names();
/// Whether model `name` is trained on tokens, not on images; false where there is none of that name.
bool is_language_model(const std::string& name);

/// Throws UsageError, with the names there are, where `name` is none of them.
std::unique_ptr<Model> make_model(const std::string& name, Device& device, const ModelOptions& options);

/// Whether the model can be bound to f32 gradients beside bf16 weights.
bool takes_f32_gradients(const std::string& name);

}  // namespace ddptrain
