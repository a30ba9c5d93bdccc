#include "runtime/core/files/outputs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "runtime/core/files/descriptor.h"
#include "runtime/core/files/writable.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

class Outputs : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  static OutputFile metrics(const std::string& path) { return {"--metrics", path, {"{\"event\":"}}; }
  static OutputFile trace(const std::string& path) { return {"--trace", path, {"{\"traceEvents\":"}}; }
  static std::string message(const std::vector<OutputFile>& outputs, const std::vector<InputPath>& inputs = {},
                             bool force = false) {
    try {
      check_outputs(outputs, inputs, force);
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  }

  tests::TempFolder folder_;
};

TEST_F(Outputs, AFileOfAnEarlierRunIsOverwrittenAndAnyOtherWithForceAlone) {
  const std::string own = write("own", "{ \"event\": \"start\"}\n"), other = write("other", "words");
  EXPECT_EQ(message({metrics(own)}), "");
  EXPECT_EQ(message({metrics(path("new"))}), "");
  EXPECT_EQ(message({metrics(write("empty", ""))}), "");
  EXPECT_EQ(message({metrics("/dev/null"), trace("/dev/null")}), "");
  EXPECT_EQ(message({metrics(other)}),
            "--metrics " + other +
                ": the file exists, and was not written as --metrics of an earlier run. Give "
                "another name, or --force to overwrite it.");
  EXPECT_CONTAINS(message({trace(own)}), "--trace");
  const OutputFile picture = {
      "--svg", write("picture", "<?xml version=\"1.0\"?>\n<!-- made by others -->"), {"<?xml"}, "ddptrain"};
  EXPECT_CONTAINS(message({picture}), "--force");
  write("picture", "<?xml version=\"1.0\"?>\n<dc:title>ddptrain</dc:title>");
  EXPECT_EQ(message({picture}), "");
  EXPECT_EQ(message({metrics(other)}, {}, true), "");
}

TEST_F(Outputs, AnInputIsNeverOverwritten) {
  const std::string data = write("data", "{\"event\":1}");
  fs::create_symlink("data", folder_ / "link");
  fs::create_hard_link(data, folder_ / "name");
  fs::create_symlink("late", folder_ / "early");
  for (const std::string& output : {data, path("link"), path("name"), path("sub/../data"), path("./data")}) {
    fs::create_directories(folder_ / "sub");
    EXPECT_EQ(message({metrics(output)}, {{"--data", data}}, true),
              "--metrics " + output + ": --data reads this file. Give another name.");
  }
  EXPECT_CONTAINS(message({metrics(data)}, {{"--data", path("*at*")}}), "--data reads this file");
  EXPECT_CONTAINS(message({metrics(path("early"))}, {{"--data", path("late")}}), "--data reads this file");
}

TEST_F(Outputs, AFileOfAFolderThatIsReadIsKept) {
  const std::string file = write("model/model.safetensors", "weights");
  fs::create_symlink(write("elsewhere", "weights"), folder_ / "model/link");
  fs::create_hard_link(file, folder_ / "name");
  for (const std::string& output : {file, path("elsewhere"), path("name"), path("model/link")}) {
    EXPECT_CONTAINS(message({metrics(output)}, {{"--init", path("model")}}, true),
                    "--init reads the folder of this file");
  }
  EXPECT_EQ(message({metrics(path("model/new"))}, {{"--init", path("model")}}), "");
  EXPECT_EQ(message({metrics(write("model/run", "{\"event\":1}"))}, {{"--init", path("model")}}), "");
}

TEST_F(Outputs, TwoOutputsAreTwoFiles) {
  fs::create_symlink("x", folder_ / "y");
  EXPECT_CONTAINS(message({metrics(path("x")), trace(path("x"))}), "--metrics writes this file, too");
  EXPECT_CONTAINS(message({metrics(path("x")), trace(path("y"))}, {}, true), "--metrics writes this file, too");
}

TEST_F(Outputs, APipeMayBeWrittenByAll) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message({metrics(path("pipe"))}, {{"--data", path("pipe")}}), "");
}

/// Without a writer its reader would end, and the next opening would wait for another one.
TEST_F(Outputs, TheCheckOfAPipeKeepsItsReader) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const Descriptor reader(open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK));
  pollfd state{reader.get(), POLLIN, 0};
  {
    const Descriptor pipe = require_writable("--metrics", path("pipe"));
    EXPECT_EQ(poll(&state, 1, 0), 0) << "the pipe has a writer";
  }
  EXPECT_EQ(poll(&state, 1, 0), 1);
  EXPECT_NE(state.revents & POLLHUP, 0) << "the pipe has had a writer";
}

/// They would wait for ever, without a word.
TEST_F(Outputs, PipesThatNobodyOpensAreNamed) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const auto fault = [](const auto& check) {
    try {
      check();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto writes = [&] { static_cast<void>(require_writable("--metrics", path("pipe"))); };
  EXPECT_EQ(fault(writes), "--metrics " + path("pipe") +
                               ": no program reads this pipe, and writing would wait for one. " +
                               "Start its reader first.");
  EXPECT_CONTAINS(fault([&] { require_regular("--config", path("pipe")); }), "is a pipe, and a regular file is needed");
  EXPECT_CONTAINS(fault([&] { require_regular("--config", "/dev/zero"); }), "is a device or a socket");
  EXPECT_CONTAINS(fault([&] { require_regular("--config", folder_.path().string()); }), "is a folder");
  for (const std::string& good : {std::string("/dev/null"), write("file", ""), path("none")}) {
    EXPECT_EQ(fault([&] { require_regular("--config", good); }), "");
  }
}

TEST_F(Outputs, WeightsMayReplaceThoseTheyStartedFromIfForced) {
  OutputFile save = {"--save", write("model/model.safetensors", "12345678{\"mine\""), {"{\"mine\""}};
  save.begins_at = 8;
  save.may_replace_input = true;
  EXPECT_EQ(message({save}), "");
  EXPECT_EQ(message({save}, {{"--init", path("model")}}), "") << "it is a file of an earlier run";
  EXPECT_CONTAINS(message({save}, {{"--init", save.path}}), "--init reads this file");
  EXPECT_EQ(message({save}, {{"--init", save.path}}, true), "");
}

}  // namespace
}  // namespace ddptrain
