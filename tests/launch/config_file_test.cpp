#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <regex>

#include "launch/app/flags/options.h"
#include "runtime/core/error.h"
#include "tests/launch/command_line.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

TEST(ConfigFile, FlagsWinOverTheFile) {
  const std::string path = file_with("flags.toml", "batch = 64\nlr = 0.5\noverlap = \"off\"\nbaseline = \"off\"\n");
  const Options options = parse({"--config", path.c_str(), "--lr", "0.25", "--overlap=none"}).options;
  EXPECT_EQ(options.trainer.batch, 64);
  EXPECT_FLOAT_EQ(options.trainer.optimizer.schedule.peak, 0.25f);
  EXPECT_EQ(options.trainer.overlap, OverlapMode::none);
  EXPECT_FALSE(options.run.baseline);
}

TEST(ConfigFile, PrintedConfigurationReadsBackTheSame) {
  const auto printed = parse({"--optimizer", "adamw", "--zero", "1", "--comm-dtype", "fp32", "--lr", "0.02", "--batch",
                              "96", "--graph", "off", "--data", "/a b", "--warmup", "7", "--print-config"})
                           .print;
  ASSERT_TRUE(printed);
  const std::string path = file_with("round_trip.toml", *printed);
  EXPECT_EQ(parse({"--config", path.c_str(), "--print-config"}).print, printed);
  const Options read = parse({"--config", path.c_str()}).options;
  EXPECT_EQ(read.trainer.optimizer.kind, OptimizerKind::adamw);
  EXPECT_EQ(read.trainer.zero, Zero::state);
  EXPECT_EQ(read.trainer.gradient_type, DType::f32);
  EXPECT_CONTAINS(*printed, "data = \"/a b\"\n");
  EXPECT_FALSE(read.trainer.graph);
  EXPECT_EQ(read.trainer.optimizer.schedule.warmup_steps, 7u);
}

/// Without --model, a file is read twice, and by each rank.
TEST(ConfigFile, APipeIsNoFile) {
  const std::string pipe = testing::TempDir() + "/config.pipe";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  try {
    parse({"--config", pipe.c_str()});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(), "--config " + pipe + ": is a pipe, and a regular file is needed. Give the name of one.");
  }
  EXPECT_EQ(parse({"--config", "/dev/null"}).options.model, "cnn");
}

TEST(ConfigFile, ALongDottedKeyIsToldInOneLine) {
  const auto key = [](std::size_t parts) {
    std::string text = "a";
    while (parts-- > 0) text += ".a";
    return file_with("dots.toml", text + "=1\n");
  };
  EXPECT_CONTAINS(error_message([&] { parse({"--config", key(30000).c_str()}); }), "dots.toml:1:1: a is a table");
  EXPECT_CONTAINS(error_message([&] { parse({"--config", key(100000).c_str()}); }), "it has 200004 bytes");
}

TEST(ConfigFile, NamesOfOtherProgramsTakeTrueAndFalseInQuotes) {
  const auto printed = [](const std::string& line) {
    return *parse({"--config", file_with("names.toml", line + "\n").c_str(), "--print-config"}).print;
  };
  for (const char* no : {"bf16 = false", "bf16 = \"false\"", "bf16 = 0", "bf16 = \"no\""}) {
    EXPECT_CONTAINS(printed(no), "precision = \"auto\"\n");
  }
  EXPECT_CONTAINS(printed("bf16 = \"True\""), "precision = \"bf16\"\n");
  EXPECT_CONTAINS(printed("use_cpu = \"False\""), "device = \"auto\"\n");
  EXPECT_CONTAINS(error_message([&] { printed("bf16 = \"banana\""); }),
                  "names.toml:1:1: bf16 = \"banana\": give true or false");
}

TEST(ConfigFile, AModelThatIsNoNameIsNotTheDefaultOne) {
  for (const char* value : {"5", "true"}) {
    const std::string path = file_with("model.toml", fmt::format("model = {}\n", value));
    EXPECT_CONTAINS(error_message([&] {
                      parse({"--config", path.c_str()});
                    }),
                    fmt::format("model.toml: model = {}: there is no such model; there are: cnn, ", value));
  }
}

TEST(ConfigFile, TextComesBackWhateverItHolds) {
  for (const char* data : {"\"a\" \\ 'b'\n\té # = [c]", "007", "true"}) {
    const auto printed = parse({"--data", data, "--print-config"}).print;
    const std::string path = file_with("text.toml", *printed);
    EXPECT_EQ(parse({"--config", path.c_str(), "--print-config"}).print, printed) << data;
  }
  EXPECT_CONTAINS(*parse({"--data", "007", "--print-config"}).print, "data = \"007\"\n");
}

TEST(ConfigFile, NumbersAndNamesNeedNoQuotesWhereTheyAreNumbers) {
  const std::string path = file_with("numbers.toml", "model = \"gpt\"\nzero = 1\ndropout = 0.25\nlr = 1\n");
  const auto printed = parse({"--config", path.c_str(), "--print-config"}).print;
  for (const char* line : {"zero = \"1\"\n", "dropout = \"0.25\"\n", "lr = 1\n"}) {
    EXPECT_CONTAINS(*printed, line);
  }
}

TEST(ConfigFile, NamesOfOtherProgramsAreTaken) {
  const std::string path = file_with(
      "other_names.toml",
      "arch = \"gpt\"\nbatch_size = 12\nn_layer = 3\nblock_size = 64\nmax_iters = 5\nbf16 = true\nfp32 = false\n");
  const std::string printed = *parse({"--config", path.c_str(), "--print-config"}).print;
  for (const char* line :
       {"model = \"gpt\"\n", "batch = 12\n", "layers = 3\n", "seq = 64\n", "steps = 5\n", "precision = \"bf16\"\n"}) {
    EXPECT_CONTAINS(printed, line);
  }
  EXPECT_EQ(parse({"--config", path.c_str(), "--micro-batch-size", "2"}).options.trainer.batch, 2);
}

TEST(ConfigFile, EveryValueMayHaveQuotes) {
  for (const char* model : {"cnn", "gpt", "llama", "mlp"}) {
    const std::string printed = *parse({"--model", model, "--print-config"}).print;
    const std::string quoted = std::regex_replace(printed, std::regex("= ([^\"\n]+)\n"), "= \"$1\"\n");
    EXPECT_NE(quoted, printed);
    EXPECT_EQ(*parse({"--config", file_with("quoted.toml", quoted).c_str(), "--print-config"}).print, printed);
  }
}

TEST(ConfigFile, WhatTheCommandLineTakesAFileTakes) {
  const auto printed = [](const std::string& flag) {
    return *parse({"--model", "gpt", "--sample-every", "5", flag.c_str(), "--print-config"}).print;
  };
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{{"log-every", "off"},
                                                                                    {"log-every", "auto"},
                                                                                    {"log-every", "7"},
                                                                                    {"batch", "auto"},
                                                                                    {"batch", "48"},
                                                                                    {"max-tokens", "auto"},
                                                                                    {"bucket-mb", "512K"},
                                                                                    {"bucket-mb", "0.5"},
                                                                                    {"checkpoint-every", "90s"},
                                                                                    {"checkpoint-every", "1000"},
                                                                                    {"timeout", "2h"},
                                                                                    {"timeout", "1.5"},
                                                                                    {"seed", "9223372036854775807"},
                                                                                    {"zero", "1"},
                                                                                    {"dropout", "0.25"},
                                                                                    {"tune-cache", "off"}}) {
    const auto of_file = [&](const std::string& text) {
      return printed("--config=" + file_with("one_value.toml", flag + " = " + text + "\n"));
    };
    const std::string typed = printed("--" + flag + "=" + value);
    EXPECT_EQ(of_file("\"" + value + "\""), typed) << flag;
    const bool is_number = std::regex_match(value, std::regex("[0-9.]+"));
    EXPECT_EQ(of_file(is_number ? value : "'" + value + "'"), typed) << flag;
  }
}

TEST(ConfigFile, WhatIsNotTomlIsToldWithLineAndColumn) {
  const std::map<std::string, std::string> files = {{"batch = = 3\n", "1:9"},
                                                    {"batch = 3\noverlap = off\n", "2:1[0-9]"},
                                                    {"batch = [1,2\n", "[12]:[0-9]+"},
                                                    {"batch = 3\nbatch = 4\n", "2:[0-9]"},
                                                    {"[a]\n[a]\n", "2:[0-9]"}};
  for (const auto& [text, place] : files) {
    const std::string path = file_with("not.toml", text);
    const std::string message = message_of({"--config", path.c_str()});
    EXPECT_TRUE(std::regex_search(message, std::regex("^" + path + ":" + place + ": this is not TOML: "))) << message;
  }
}

TEST(ConfigFile, WhatIsWrongInItIsToldWithFileAndLine) {
  for (const auto& [text, message] :
       {std::pair{"batch = [1, 2]\n", ":1:1: batch = [...]: give an integer"},
        {"batch = [nan]\n", ":1:1: batch = [...]: give an integer"},
        {"batch = 1e73\n", ":1:1: batch = 1e+73: give an integer"},
        {"\"\\u001b[2J\" = 1\n", ":1:1: ?[2J is not an option"},
        {"batch = 3\n  epochs = 1.5\n", ":2:3: epochs = 1.5: give an integer"},
        {"\n\nbatch = \"3x\"\n", ":3:1: batch = \"3x\": give an integer, or auto"},
        {"log-every = [1]\n", ":1:1: log-every = [...]: give an integer, \"auto\" or \"off\""},
        {"log-every = false\n", ":1:1: log-every = false: give an integer, auto or off"},
        {"lr = \"fast\"\n", ":1:1: lr = \"fast\": give a number"},
        {"batch = \"automatic\"\n", ":1:1: batch = \"automatic\": give an integer, or auto"},
        {"seed = -1\n", ":1:1: seed = -1: give 0 to 2^63 - 1"},
        {"overlap = true\n", ":1:1: overlap = true: give one of on|backward|off|none"},
        {"data = 1979-05-27\n", ":1:1: data = 1979-05-27: give a text"},
        {"[optimizer]\nlr = 1\n", ":1:2: optimizer is a table"},
        {"zero = 4\nbatch = 1.5\n", ":1:1: zero = 4: give one of 0|1|2|3"},
        {"batch = 3\nthreads = 0\n", ":2:1: threads = 0: give 1 to 1024"},
        {"batch = 64\nbatches = 3\n", ":2:1: batches is not an option"},
        {"\"\" = 3\n", ":1:1:  is not an option that a file can give"},
        {"heads = 3\n", ":1:1: heads is not an option that a file can give: it is a flag of model gpt, not of cnn"},
        {"batch = 64\nbatch_size = 3\n", ":2:1: batch and batch_size are the same option"},
        {"nproc_per_node = 3\n", ":1:1: nproc_per_node is not an option that a file can give: mpirun sets"},
        {"weight-decay = inf\n", ":1:1: weight-decay = inf: give 0 or more, not infinite"},
        {"fail-at = \"0:1\"\n", ":1:1: fail-at is not an option"}}) {
    const std::string path = file_with("wrong.toml", text);
    const std::string found = message_of({"--config", path.c_str()});
    EXPECT_TRUE(found.starts_with(path + message)) << found;
  }
  EXPECT_CONTAINS(message_of({"--config", "/nonexistent"}), "the file cannot be read (No such file or directory)");
}

}  // namespace
}  // namespace ddptrain
