#pragma once

#include <string>

namespace ddptrain {

/// A file in memory, for libraries and programs that insist on a file. Gone with its owner.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& name);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  bool is_open() const { return file_ >= 0; }  ///< False where the system gave none.
  int descriptor() const { return file_; }     ///< Closed in programs that are started.
  std::string path() const;                    ///< For this process only.
  std::string text() const;
  void write(const std::string& text) const;  ///< Makes it the whole content, read from the start. Throws Error.

 private:
  int file_;
};

}  // namespace ddptrain
