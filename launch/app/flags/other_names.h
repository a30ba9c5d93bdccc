#pragma once

#include <string>
#include <vector>

#include "runtime/core/flags.h"

/// Flags of other training programs: Horovod, torchrun, PyTorch Lightning, Keras, DeepSpeed, Hugging Face, Megatron,
/// llm.c and nanoGPT. A name that means the same here is an alias. For any other name there is a hint.

namespace ddptrain {

/// The words of a command line after the program's name. Aliases are replaced by the names of `flags`, and underscores
/// in names by hyphens. Words that name no flag stay as they are.
std::vector<std::string> with_own_names(int argc, const char* const* argv, const Flags& flags);

/// What to tell about the name of a flag, with dashes, whose value means something else in some programs: "--save-freq
/// is
/// --checkpoint-every here: ...". Empty: nothing.
std::string note_about(const std::string& name, const Flags& flags);
/// The same for all words of a command line after the program's name.
std::vector<std::string> notes_about(int argc, const char* const* argv, const Flags& flags);

/// A line of a file of --config under the name of one of `flags`. `value` is changed if the alias stands for a value:
/// bf16 = true is precision = "bf16". The name is empty if the line asks for nothing, as bf16 = false does. `value`: of
/// the line, without quotes.
struct OwnLine {
  std::string name;
  std::string value;        ///< Empty: the value of the line.
  std::string advice = {};  ///< What to give in place of `value`. Empty: it is good.
};
OwnLine own_line(const std::string& key, const std::string& value, const Flags& flags);

/// The flag of some model that the alias stands for; any other flag as it is. With dashes.
std::string own_name(const std::string& flag);

/// What to do in place of a flag that other programs have, such as "-b" or "--nproc-per-node". Empty: unknown.
std::string hint_about(const std::string& flag);

/// Lets the flags take the values of other programs, such as `--precision bfloat16`.
void take_other_values(Flags& flags);

/// All aliases and hints, for --help names.
std::string other_names_text();

}  // namespace ddptrain
