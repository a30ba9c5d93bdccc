// errors_program WHAT: for program_test.cpp; a program whose ranks fail in the way that WHAT names.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "launch/app/job/program.h"
#include "runtime/core/error.h"

namespace {

void fail_as(const ddptrain::World& world, const std::string& what) {
  const bool last = world.rank() == world.size() - 1;
  if (what == "agreed_usage") {
    world.agree([&] {
      if (last) ddptrain::usage_error("the last rank has no file");
    });
  }
  if (what == "agreed_error") {
    world.agree([&] {
      if (last) throw std::out_of_range("the last rank is out of range");
    });
  }
  if (last && what == "usage") ddptrain::usage_error("the last rank has no file");
  if (last && what == "error") ddptrain::fail("the last rank has no memory");
  if (last && what == "other") throw std::out_of_range("the last rank is out of range");
  if (what == "killed") {
    if (last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::raise(SIGKILL);
    }
    ddptrain::fail("the last rank is gone");
  }
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argv[1];
  const auto work = [&](const ddptrain::World& world) {
    fail_as(world, what);
    if (world.rank() == 0) std::puts("done");
  };
  return ddptrain::run_program(
      "errors_program", &argc, &argv, [] {}, work);
}
