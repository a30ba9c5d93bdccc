#include "launch/app/flags/config_file.h"
#include "tests/fuzz/fuzz.h"

/// A --config file: what is read from it and printed reads back the same.

namespace ddptrain::fuzz {
namespace {

/// A flag of each type that the program has.
class Line {
 public:
  void read(const std::filesystem::path& path) { read_config(flags_, path.string()); }
  std::string text() const { return config_text(settings_of(flags_)); }

 private:
  std::int64_t batch_ = 32;
  bool auto_batch_ = false;
  std::uint64_t seed_ = 1;
  double lr_ = 0.1;
  std::string model_ = "cnn";
  bool overlap_ = true;
  std::string metrics_;
  Flags flags_ = {{"--batch", or_word("auto", auto_batch_, number(batch_, kOneOrMore))},
                  {"--seed", number(seed_, kZeroOrMore)},
                  {"--lr", number(lr_)},
                  {"--model", ddptrain::text(model_)},
                  {"--overlap", on_off(overlap_)},
                  {"--metrics", ddptrain::text(metrics_), "", Effect::output, "", false}};
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
