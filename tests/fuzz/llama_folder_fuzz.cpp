#include "models/llama/llama_folder.h"
#include "tests/fuzz/model_folder.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain;
  return fuzz::try_model_folder<LlamaFolder>(data, size,
                                             [](const LlamaShape& shape) { return llama_parameters(shape); });
}
