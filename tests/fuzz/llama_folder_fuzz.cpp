#include "models/llama/llama_folder.h"
#include "tests/fuzz/fuzz.h"

/// As gpt2_folder_fuzz: config.json, model.safetensors.index.json and a safetensors file that the index may name
/// (weights.safetensors), a byte of value 0 between them.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  static const Folder folder;
  std::string_view rest = text_of(data, size);
  folder.write("config.json", take_part(rest));
  folder.write("model.safetensors.index.json", take_part(rest));
  folder.write("weights.safetensors", rest);
  const auto model = result_of(folder.path(), [&] {
    ddptrain::LlamaFolder opened(folder.path());
    opened.check_values();
    return opened;
  });
  if (!model) return 0;
  for (const ddptrain::ParameterSpec& spec : ddptrain::llama_parameters(model->shape())) {
    require(static_cast<std::int64_t>(model->read(spec.name).size()) == spec.size(), "all values");
  }
  return 0;
}
