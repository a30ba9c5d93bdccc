#pragma once

#include "runtime/train/model.h"
#include "tests/fuzz/fuzz.h"

namespace ddptrain::fuzz {

/// Opens a folder of a model with `Model`: config.json, model.safetensors.index.json and a safetensors file that the
/// index may name (weights.safetensors), a byte of value 0 between them. A folder that is taken has all values of
/// `parameters_of` its shape.
template <class Model, class ParametersOf>
int try_model_folder(const std::uint8_t* data, std::size_t size, const ParametersOf& parameters_of) {
  static const Folder folder;
  std::string_view rest = text_of(data, size);
  folder.write("config.json", take_part(rest));
  folder.write("model.safetensors.index.json", take_part(rest));
  folder.write("weights.safetensors", rest);
  const auto model = result_of(folder.path(), [&] {
    Model opened(folder.path());
    opened.check_values();
    return opened;
  });
  if (!model) return 0;
  for (const ParameterSpec& spec : parameters_of(model->shape())) {
    require(static_cast<std::int64_t>(model->read(spec.name).size()) == spec.size(), "all values");
  }
  return 0;
}

}  // namespace ddptrain::fuzz
