#pragma once

#include "models/gpt/gpt2_folder.h"

namespace ddptrain {

/// All weights of a GPT-2 on disk.
inline Gpt2Weights load_gpt2(const std::filesystem::path& path) {
  const Gpt2Folder folder(path);
  folder.check_values();
  Gpt2Weights weights{folder.shape(), {}};
  for (const ParameterSpec& spec : gpt_parameters(folder.shape())) {
    weights.tensors[spec.name] = {spec.shape, folder.read(spec.name)};
  }
  return weights;
}

}  // namespace ddptrain
