#include "runtime/core/files/file_kind.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using namespace std::string_view_literals;

struct Signature {
  std::string_view bytes;
  std::string_view what;
  std::size_t offset = 0;
};

/// Small text files in place of large files.
constexpr std::array kPointers = {
    Signature{"version https://git-lfs.github.com/spec/"sv, "a Git LFS pointer (git lfs pull fetches the file itself)"},
    Signature{"version https://hawser.github.com/spec/"sv, "a Git LFS pointer (git lfs pull fetches the file itself)"},
    Signature{"/annex/objects/"sv, "a git-annex pointer (git annex get fetches the file itself)"},
    Signature{"# xet version"sv, "a pointer of Xet (download the file itself)"},
};

constexpr std::array kSignatures = {
    Signature{"\x93NUMPY"sv, "a NumPy array (.npy)"},
    Signature{"PK\x03\x04"sv, "a zip archive (PyTorch checkpoints and .npz files are zip archives)"},
    Signature{"PK\x05\x06"sv, "an empty zip archive"},
    Signature{"\x1f\x8b\x08"sv, "gzip data (gunzip it)"},
    Signature{"1AY&SY"sv, "bzip2 data (bunzip2 it)", 4},
    Signature{"\xfd\x37zXZ\0"sv, "xz data (unxz it)"},
    Signature{"\x28\xb5\x2f\xfd"sv, "Zstandard data (unzstd it)"},
    Signature{"\x04\x22\x4d\x18"sv, "LZ4 data (unlz4 it)"},
    Signature{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive (unpack it)"},
    Signature{"Rar!\x1a\x07"sv, "a RAR archive (unpack it)"},
    Signature{"ustar"sv, "a tar archive (unpack it)", 257},
    Signature{"PAR1"sv, "a Parquet file"},
    Signature{"ARROW1\0\0"sv, "an Arrow file"},
    Signature{"\xff\xff\xff\xff\x10\0\0\0"sv, "an Arrow stream (Hugging Face datasets are stored so)"},
    Signature{"FEA1"sv, "a Feather file"},
    Signature{"Obj\x01"sv, "an Avro file"},
    Signature{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    Signature{"SQLite format 3\0"sv, "an SQLite database"},
    Signature{"GGUF"sv, "a GGUF model of llama.cpp"},
    Signature{"lmgg"sv, "a GGML model of llama.cpp"},
    Signature{"tjgg"sv, "a GGJT model of llama.cpp"},
    Signature{"MMIDIDX\0\0"sv, "the index of a Megatron data set (.idx)"},
    Signature{"TNTIDX\0\0"sv, "the index of a fairseq or Megatron data set (.idx)"},
    Signature{"LITPKDS"sv, "a packed data set of LitGPT"},
    Signature{"BIN.TOK"sv, "a token file of llmq (BIN.TOK)"},
    Signature{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9"sv, "a PyTorch checkpoint of an old version"},
    Signature{"\x80\x02}q"sv, "a Python pickle"},
    Signature{"\x80\x03}q"sv, "a Python pickle"},
    Signature{"\x80\x04\x95"sv, "a Python pickle"},
    Signature{"\x80\x05\x95"sv, "a Python pickle"},
    Signature{"\x89PNG\r\n\x1a\n"sv, "a PNG image"},
    Signature{"\xff\xd8\xff"sv, "a JPEG image"},
    Signature{"GIF8"sv, "a GIF image"},
    Signature{"%PDF-"sv, "a PDF document"},
    Signature{"\x7f"
              "ELF"sv,
              "a program (ELF)"},
    Signature{"\0\x05\x16\x07\0\x02\0\0"sv, "the metadata that macOS stores beside a file (AppleDouble: delete it)"},
    Signature{"\xff\xfe"sv, "UTF-16 text (convert it: iconv -f UTF-16 -t UTF-8)"},
    Signature{"\xfe\xff"sv, "UTF-16 text (convert it: iconv -f UTF-16 -t UTF-8)"},
};

template <std::size_t Count>
std::string kind_among(const std::array<Signature, Count>& signatures, std::string_view begin) {
  for (const Signature& signature : signatures) {
    if (begin.size() < signature.offset) continue;
    if (begin.substr(signature.offset).starts_with(signature.bytes)) return std::string(signature.what);
  }
  return "";
}

bool begins_with_any_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char expected, char c) {
           return std::tolower(static_cast<unsigned char>(c)) == expected;
         });
}

bool is_web_page(std::string_view begin) {
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);
  const std::size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  begin.remove_prefix(first);
  const std::array pages = {"<!doctype html"sv, "<html"sv, "<head"sv, "<body"sv, "<script"sv, "<!--"sv};
  return std::any_of(pages.begin(), pages.end(), [&](auto page) { return begins_with_any_case(begin, page); });
}

/// The JSON header of a safetensors file comes after its length in 8 bytes.
bool is_safetensors(std::string_view begin) {
  return begin.size() > 10 && begin[8] == '{' && (begin[9] == '"' || begin[9] == '}') &&
         begin.substr(5, 3) == "\0\0\0"sv;
}

/// The length of the UTF-8 character that `text` begins with. 0: not UTF-8. A character that is cut off at the end of
/// `text` counts.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80   ? 1
                             : byte(0) < 0xc2 ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
  for (std::size_t i = 1; i < std::min(length, text.size()); ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return std::min(length, text.size());
}

bool is_utf8(std::string_view text) {
  for (int i = 0; i < 3 && !text.empty() && (text.front() & 0xc0) == 0x80; ++i) text.remove_prefix(1);
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == 0x7f || (byte < ' ' && (byte < '\b' || byte > '\r') && byte != '\x1b');
}

}  // namespace

std::string pointer_kind(std::string_view begin) { return kind_among(kPointers, begin); }

std::string file_kind(std::string_view begin) {
  std::string kind = pointer_kind(begin);
  if (kind.empty()) kind = kind_among(kSignatures, begin);
  if (!kind.empty()) return kind;
  if (is_web_page(begin)) return "a web page (a failed download?)";
  if (begins_with_any_case(begin, "<?xml")) return "an XML document (storage servers send their errors so)";
  if (is_safetensors(begin)) return "a safetensors file (weights of a model)";
  return "";
}

bool is_text(std::string_view piece) {
  if (piece.empty() || std::any_of(piece.begin(), piece.end(), is_control)) return false;
  const auto ascii = static_cast<std::size_t>(std::count_if(piece.begin(), piece.end(), [](char c) { return c >= 0; }));
  return ascii >= piece.size() - piece.size() / 20 || is_utf8(piece);
}

std::string looks_like(std::string_view begin) {
  begin = begin.substr(0, 512);
  std::string kind = file_kind(begin);
  if (kind.empty() && is_text(begin)) kind = fmt::format("text that begins with '{}'", printable(begin, 40));
  return kind.empty() ? "" : fmt::format("; it looks like {}", kind);
}

}  // namespace ddptrain
