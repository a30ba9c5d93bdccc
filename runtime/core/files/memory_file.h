#pragma once

#include <string>

#include "runtime/core/files/descriptor.h"

namespace ddptrain {

/// A file in memory, for libraries and programs that insist on a file. Gone with its owner.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& name);  ///< Error if the system gives none.

  int descriptor() const { return file_.get(); }  ///< Closed in programs that are started.
  std::string path() const;                       ///< For this process only.
  std::string text() const;
  void write(const std::string& text) const;  ///< Makes it the whole content, read from the start. Throws Error.

 private:
  Descriptor file_;
};

}  // namespace ddptrain
