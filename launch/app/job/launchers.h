#pragma once

#include <string>

namespace ddptrain {

/// What the environment says about how this process was started. Read it before MPI starts: MPI sets variables, too.
struct Launch {
  /// A launcher of several processes started it, so MPI has to tell how many ranks there are.
  bool by_launcher = false;
  /// Why it is a mistake if MPI knows one rank: the launcher started several processes, and MPI has not connected them.
  /// The message names the launcher's variable and the right command. Empty: it is none.
  std::string mistake;
  /// The same where the variables may be those of a shell or of a batch script. Empty: nothing to say.
  std::string warning;
};

/// `program`: its name, for the command in a message. `at_terminal`: standard input is a terminal.
Launch find_launch(const std::string& program, bool at_terminal);
Launch find_launch(const std::string& program);

}  // namespace ddptrain
