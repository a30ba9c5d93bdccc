#include <zlib.h>

#include "data/images/idx.h"
#include "tests/fuzz/fuzz.h"

/// An IDX file, plain or gzip: the same result where the test packs it with gzip.

namespace ddptrain::fuzz {
namespace {

void pack(const std::filesystem::path& path, std::string_view content) {
  gzFile file = gzopen(path.c_str(), "wb1");
  require(file != nullptr && gzwrite(file, content.data(), static_cast<unsigned>(content.size())) >= 0 &&
              gzclose(file) == Z_OK,
          "gzip files can be written");
}

std::optional<IdxFile> read(const std::filesystem::path& path, std::uint32_t magic) {
  return result_of(path, [&] { return read_idx(path, magic); });
}

bool is_gzip(std::string_view content) { return content.substr(0, 2) == "\x1f\x8b"; }

}  // namespace
}  // namespace ddptrain::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  static const Folder folder;
  const std::string_view content = text_of(data, size);
  const std::filesystem::path plain = folder.write("plain", content);
  const std::filesystem::path packed = folder.path() / "packed";
  pack(packed, content);
  for (const std::uint32_t magic : {ddptrain::kIdxImages, ddptrain::kIdxLabels}) {
    const auto from_plain = read(plain, magic);
    const auto from_packed = read(packed, magic);
    if (from_plain) {
      std::uint64_t total = 1;
      for (const std::uint32_t dim : from_plain->dims) total *= dim;
      require(from_plain->dims.size() == (magic & 0xff) && from_plain->bytes.size() == total, "sizes as the header's");
    }
    if (is_gzip(content)) continue;
    require(from_plain.has_value() == from_packed.has_value(), "gzip changes nothing");
    require(!from_plain || (from_plain->dims == from_packed->dims && from_plain->bytes == from_packed->bytes),
            "gzip changes no value");
  }
  return 0;
}
