#include "data/images/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>

#include "runtime/core/error.h"
#include "runtime/core/files/file_kind.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kMostEntries = 1'000'000;  // EMNIST has 814,255
constexpr std::uint32_t kMostSide = 1024;
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;

/// gzfread passes a file that is not gzip through unchanged.
class GzipReader {
 public:
  explicit GzipReader(const std::filesystem::path& path) : path_(path.string()) {
    if (std::filesystem::is_directory(path)) usage_error("{}: is a folder, not an IDX file", path_);
    errno = 0;
    file_.reset(gzopen(path.c_str(), "rb"));
    if (!file_) usage_error("{}: cannot be opened: {}", path_, std::strerror(errno != 0 ? errno : ENOMEM));
    gzbuffer(file_.get(), 1u << 18);
  }

  /// Number of bytes read: less than asked for only at the end of the file.
  std::size_t read(std::uint8_t* to, std::size_t bytes) {
    const std::size_t done = gzfread(to, 1, bytes, file_.get());
    if (done < bytes) check();
    return done;
  }

 private:
  /// At an end: did zlib reach it in good order?
  void check() const {
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (code == Z_BUF_ERROR) usage_error("{}: truncated gzip file; fetch it again", path_);
    if (code == Z_ERRNO) usage_error("{}: cannot be read: {}", path_, std::strerror(errno));
    usage_error("{}: damaged gzip file ({}); fetch it again", path_, message);
  }

  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

/// The first bytes of a file of which `word` has been read.
std::string beginning(GzipReader& reader, const std::array<std::uint8_t, 4>& word) {
  std::array<std::uint8_t, 508> rest{};
  const std::size_t bytes = reader.read(rest.data(), rest.size());
  return std::string(word.begin(), word.end()) + std::string(rest.begin(), rest.begin() + bytes);
}

std::vector<std::uint32_t> read_header(GzipReader& reader, const std::string& path, std::uint32_t expected_magic) {
  std::array<std::uint8_t, 4> word{};
  const auto next = [&] {
    if (reader.read(word.data(), word.size()) != word.size()) usage_error("{}: truncated in its header", path);
    return big_endian(word.data());
  };
  const std::uint32_t magic = next();
  if (magic != expected_magic) {
    const char* expected = expected_magic == kIdxLabels ? "labels" : "images";
    usage_error("{}: not the IDX file of {} expected here: magic number {:#010x} in place of {:#010x}{}", path,
                expected, magic, expected_magic, looks_like(beginning(reader, word)));
  }
  std::vector<std::uint32_t> dims(magic & 0xFFu);
  std::generate(dims.begin(), dims.end(), next);
  return dims;
}

/// Number of the values. A small gzip file can hold more of them than memory does.
std::uint64_t checked_product(const std::vector<std::uint32_t>& dims, const std::string& path) {
  if (dims.at(0) > kMostEntries) usage_error("{}: {} entries, more than {}", path, dims[0], kMostEntries);
  if (dims.size() > 1 && (dims.at(1) > kMostSide || dims.at(2) > kMostSide)) {
    usage_error("{}: images of {}x{}, larger than {}x{}", path, dims[1], dims[2], kMostSide, kMostSide);
  }
  const std::uint64_t total = std::accumulate(dims.begin(), dims.end(), std::uint64_t{1}, std::multiplies<>());
  if (total == 0) usage_error("{}: holds nothing: a dimension of size 0", path);
  if (total > kMostBytes) usage_error("{}: {} bytes of images, more than {}", path, total, kMostBytes);
  return total;
}

}  // namespace

IdxFile read_idx(const std::filesystem::path& path, std::uint32_t expected_magic) {
  GzipReader reader(path);
  const std::string name = path.string();
  IdxFile file;
  file.dims = read_header(reader, name, expected_magic);
  const std::uint64_t total = checked_product(file.dims, name);
  std::uint64_t done = 0;
  while (done < total) {
    const std::uint64_t step = std::min(total - done, std::max(kReadBytes, done));  // a damaged header promises more
    file.bytes.resize(done + step);
    const std::size_t got = reader.read(file.bytes.data() + done, step);
    done += got;
    if (got < step) usage_error("{}: truncated: {} of the {} bytes that its header promises", name, done, total);
  }
  // Reading past the end also makes zlib compare the checksum.
  std::uint8_t extra = 0;
  if (reader.read(&extra, 1) != 0)
    usage_error("{}: holds more than the {} bytes that its header promises", name, total);
  return file;
}

}  // namespace ddptrain
