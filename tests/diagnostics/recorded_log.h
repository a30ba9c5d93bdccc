#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "runtime/diagnostics/nccl_log_parser.h"

/// NCCL's log from text, and from the files in logs/.
namespace ddptrain {

inline NcclLog parse(const std::string& text) {
  std::istringstream log(text);
  return read_nccl_log(log);
}

inline std::string recorded_text(const std::string& name) {
  std::ifstream log(DDP_SOURCE_DIR "/tests/diagnostics/logs/" + name);
  EXPECT_TRUE(log) << name;
  return {std::istreambuf_iterator<char>(log), {}};
}

inline NcclLog recorded(const std::string& name) { return parse(recorded_text(name)); }

}  // namespace ddptrain
