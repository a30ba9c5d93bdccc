#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/fuzz/fuzz.h"

/// Drives a fuzz target without libFuzzer, so that the targets run with every compiler: replays the files of its
/// corpus, then mutations of them from a fixed seed.
///   TARGET LAST_INPUT MUTATIONS CORPUS...
/// CORPUS: files, and folders of them. The file LAST_INPUT holds what was tried last, to be replayed after a crash with
/// `TARGET LAST_INPUT.copy 0 LAST_INPUT`. A target that allocates more than a gigabyte, or takes 20 s of a processor
/// over one input, fails.

namespace {

namespace fs = std::filesystem;
using Input = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 1 << 16;
constexpr unsigned kSeconds = 20;
constexpr long kMostKilobytes = 1 << 20;

/// A file that keeps its content whatever ends the process.
class LastInput {
 public:
  explicit LastInput(const char* path) {
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ddptrain::fuzz::require(file >= 0 && ftruncate(file, kLongest) == 0, std::string(path) + " can be written");
    memory_ = mmap(nullptr, kLongest, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ddptrain::fuzz::require(memory_ != MAP_FAILED, std::string(path) + " can be mapped");
    file_ = file;
  }

  void keep(const Input& input) const {
    ddptrain::fuzz::require(ftruncate(file_, static_cast<off_t>(input.size())) == 0, "a file can be made shorter");
    std::copy(input.begin(), input.end(), static_cast<std::uint8_t*>(memory_));
  }

 private:
  int file_ = -1;
  void* memory_ = nullptr;
};

Input content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Input content{std::istreambuf_iterator<char>(file), {}};
  content.resize(std::min(content.size(), kLongest));
  return content;
}

/// In an order that does not depend on the file system.
std::vector<Input> read_corpus(const std::vector<fs::path>& places) {
  std::vector<fs::path> files;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(place)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const fs::path& file : files) corpus.push_back(content_of(file));
  return corpus;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Input>& corpus) : corpus_(corpus) {}

  Input next() {
    Input input = any_of_corpus();
    for (std::size_t left = 1 + below(4); left > 0; --left) change(input);
    input.resize(std::min(input.size(), kLongest));
    return input;
  }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  const Input& any_of_corpus() { return corpus_[below(corpus_.size())]; }

  void change(Input& input) {
    if (input.empty()) return insert(input);
    const std::size_t at = below(input.size());
    switch (below(6)) {
      case 0:
        input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        return;
      case 1:
        input[at] = static_cast<std::uint8_t>(random_());
        return;
      case 2:
        return put_number(input, at);
      case 3: {
        const std::size_t count = 1 + below(std::min<std::size_t>(input.size() - at, below(8) == 0 ? kLongest : 16));
        input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                    input.begin() + static_cast<std::ptrdiff_t>(at + count));
        return;
      }
      default:
        return insert(input);
    }
  }

  /// A number at the edge of its type, little- or big-endian.
  void put_number(Input& input, std::size_t at) {
    static constexpr std::uint64_t kNumbers[] = {
        0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff, ~0ull};
    const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
    const std::size_t bytes = std::min(std::size_t{1} << below(4), input.size() - at);
    const bool big_endian = below(2) == 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      input[at + i] = static_cast<std::uint8_t>(number >> 8 * (big_endian ? bytes - 1 - i : i));
    }
  }

  /// A piece of this or another input of the corpus, now and then often.
  void insert(Input& input) {
    const Input& from = any_of_corpus();
    if (from.empty()) return;
    const std::size_t begin = below(from.size());
    const std::size_t count = 1 + below(std::min<std::size_t>(from.size() - begin, below(4) == 0 ? kLongest : 16));
    const Input piece(from.begin() + static_cast<std::ptrdiff_t>(begin),
                      from.begin() + static_cast<std::ptrdiff_t>(begin + count));
    const std::size_t at = below(input.size() + 1);
    for (std::size_t times = below(16) == 0 ? 1 + below(200) : 1; times > 0 && input.size() < kLongest; --times) {
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
    }
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_{1};
};

/// Then SIGPROF ends the process. 0: no limit.
void limit_processor_time(unsigned seconds) {
  const itimerval limit{{0, 0}, {seconds, 0}};
  ddptrain::fuzz::require(setitimer(ITIMER_PROF, &limit, nullptr) == 0, "a timer");
}

void try_one(const Input& input, const LastInput& last) {
  last.keep(input);
  limit_processor_time(kSeconds);
  // Memory of its own, so that a sanitizer sees what is read beyond its end.
  const auto copy = std::make_unique<std::uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), input.size());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  ddptrain::fuzz::require(usage.ru_maxrss < kMostKilobytes, "less than a gigabyte of memory");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s LAST_INPUT MUTATIONS CORPUS...\n", argv[0]);
    return 2;
  }
  const LastInput last(argv[1]);
  const std::vector<Input> corpus = read_corpus({argv + 3, argv + argc});
  ddptrain::fuzz::require(!corpus.empty(), "a corpus");
  for (const Input& input : corpus) try_one(input, last);
  const long mutations = std::atol(argv[2]);
  Mutator mutator(corpus);
  for (long i = 0; i < mutations; ++i) try_one(mutator.next(), last);
  limit_processor_time(0);
  std::printf("%zu inputs of the corpus and %ld mutations of them\n", corpus.size(), mutations);
  return 0;
}
