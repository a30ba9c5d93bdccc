#include "models/gpt2/gpt2_folder.h"
#include "tests/fuzz/model_folder.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain;
  return fuzz::try_model_folder<Gpt2Folder>(data, size, [](const Gpt2Shape& shape) { return gpt2_parameters(shape); });
}
