#include "launch/config_file.h"
#include "runtime/core/flags.h"
#include "tests/fuzz/fuzz.h"

/// A --config file: what is read from it and printed reads back the same.

namespace ddptrain::fuzz {
namespace {

/// An option of each type that the programs have.
class Line {
 public:
  Line() {
    app_.option_defaults()->always_capture_default();
    app_.add_option("--batch,--micro-batch", batch_);
    app_.add_option("--seed", seed_);
    app_.add_option("--lr", lr_);
    app_.add_option("--model", model_);
    add_choice(app_, "--overlap", overlap_, kOnOff, "");
    app_.add_option("--metrics", metrics_)->configurable(false);
    app_.parse("");
  }

  void read(const std::filesystem::path& path) { read_config(app_, path.string()); }
  std::string text() const { return config_text(app_); }

 private:
  CLI::App app_;
  std::int64_t batch_ = 32;
  std::uint64_t seed_ = 1;
  double lr_ = 0.1;
  std::string model_ = "cnn";
  bool overlap_ = true;
  std::string metrics_;
};

}  // namespace
}  // namespace ddptrain::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  static const Folder folder;
  const std::filesystem::path path = folder.write("config.toml", text_of(data, size));
  (void)ddptrain::text_in_config(path.string(), "model");
  const auto text = result_of(path, [&] {
    Line line;
    line.read(path);
    return line.text();
  });
  if (!text) return 0;
  Line again;
  again.read(folder.write("printed.toml", *text));
  require(again.text() == *text, "the printed configuration reads back the same: " + *text);
  return 0;
}
