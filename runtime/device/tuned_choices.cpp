#include "runtime/device/tuned_choices.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr int kFormat = 1;

/// The hash reveals a changed file. It matters because choices go to a library unchecked.
std::string hash_of(const TunedFor& machine, const TunedChoices::Map& choices) {
  Hash128 hash;
  for (const auto* map : {&machine, &choices}) {
    hash.add(static_cast<std::int64_t>(map->size()));
    for (const auto& [name, value] : *map) {
      hash.add(name);
      hash.add(value);
    }
  }
  return hash.hex();
}

std::string described(const TunedFor& machine) {
  std::string text;
  for (const auto& [name, value] : machine) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text;
}

}  // namespace

const std::string* TunedChoices::find(const std::string& work) const {
  const auto found = choices_.find(work);
  return found == choices_.end() ? nullptr : &found->second;
}

std::string TunedChoices::choose(const std::string& work, const std::string& mine) {
  DDP_CHECK(open(), "{}: a choice where ranks do not meet", work);
  std::string choice = agree_ ? agree_(mine) : mine;
  choices_[work] = choice;
  new_[work] = choice;
  return choice;
}

void TunedChoices::refuse(const std::string& work) {
  choices_.erase(work);
  refused_.insert(work);
}

std::string choice_of(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(data);
  return fmt::format("{:02x}", fmt::join(first, first + bytes, ""));
}

bool read_choice(const std::string& choice, void* data, std::size_t bytes) {
  if (choice.size() != 2 * bytes) return false;
  std::vector<unsigned char> read(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const char* const begin = choice.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, read[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  std::copy(read.begin(), read.end(), static_cast<unsigned char*>(data));
  return true;
}

std::string tuned_text(const TunedFor& machine, const TunedChoices::Map& choices) {
  const nlohmann::json json = {{"format", "ddptrain tuned choices"},
                               {"version", kFormat},
                               {"machine", machine},
                               {"choices", choices},
                               {"xxh3_128", hash_of(machine, choices)}};
  return json.dump(1) + "\n";
}

TunedChoices::Map parse_tuned(std::string_view text, const std::string& name, const TunedFor& machine) {
  const nlohmann::json json = parse_json_object(text, name);
  try {
    if (json.at("format") != "ddptrain tuned choices" || json.at("version") != kFormat) {
      usage_error("{}: not a file of tuned choices of version {}", name, kFormat);
    }
    const auto written_for = json.at("machine").get<TunedFor>();
    auto choices = json.at("choices").get<TunedChoices::Map>();
    if (json.at("xxh3_128") != hash_of(written_for, choices)) {
      usage_error("{}: damaged: the hash of its contents is another one", name);
    }
    if (written_for != machine) {
      usage_error("{}: written for {}", name, printable(described(written_for), 300));
    }
    return choices;
  } catch (const nlohmann::json::exception& error) {
    usage_error("{}: not a file of tuned choices: {}", name, printable(error.what(), 200));
  }
}

}  // namespace ddptrain
