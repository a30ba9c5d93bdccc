// gpt2_resave FROM TO: reads a GPT-2 folder and writes it again, for gpt2_transformers_check.py.

#include <cstdio>
#include <exception>

#include "tests/models/gpt/load_gpt2.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "gpt2_resave FROM TO\n");
    return 2;
  }
  try {
    ddptrain::save_gpt2(argv[2], ddptrain::load_gpt2(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
