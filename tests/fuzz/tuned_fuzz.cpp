#include <array>

#include "runtime/device/tuned_choices.h"
#include "tests/fuzz/fuzz.h"

/// A file of tuned choices: one that is taken is the same when written and read again, and so are bytes in it.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  const ddptrain::TunedFor machine = {{"GPU", "NVIDIA H200"}, {"cuBLAS", "13.1.0"}};
  const std::string name = "cache/NVIDIA-H200.json";
  const auto choices = result_of(name, [&] { return ddptrain::parse_tuned(text_of(data, size), name, machine); });
  if (!choices) return 0;
  const std::string written = ddptrain::tuned_text(machine, *choices);
  require(ddptrain::parse_tuned(written, name, machine) == *choices, "the same when written and read again");
  std::array<std::uint8_t, 4> bytes{};
  for (const auto& [work, choice] : *choices) {
    if (!ddptrain::read_choice(choice, bytes.data(), bytes.size())) continue;
    std::array<std::uint8_t, 4> again{};
    const std::string text = ddptrain::choice_of(bytes.data(), bytes.size());
    require(ddptrain::read_choice(text, again.data(), again.size()) && again == bytes, "the same bytes");
  }
  return 0;
}
