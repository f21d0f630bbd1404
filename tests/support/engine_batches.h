#pragma once
// Batches of KV events as engines write them, in each of their encodings, by a library that the
// product does not use.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cairn::router {

// How an engine writes: its events, and the hashes in these.
enum class EventForm : uint8_t { kMaps, kArrays };
enum class HashForm : uint8_t { kBytes, kSigned, kUnsigned };

// For the names of tests: "MapsBytes".
inline std::string FormName(EventForm events, HashForm hashes) {
  static const char* const kHashes[] = {"Bytes", "Signed", "Unsigned"};
  return std::string(events == EventForm::kMaps ? "Maps" : "Arrays") +
         kHashes[static_cast<size_t>(hashes)];
}

struct WrittenStored {
  std::vector<uint64_t> hashes = {};
  std::optional<uint64_t> parent = {};
  std::vector<int64_t> tokens = {};
  uint32_t block_size = 4;
  std::optional<int> lora_id = {};
  std::optional<std::string> medium = "GPU";
  std::optional<std::string> lora_name = {};
  std::optional<std::vector<std::vector<std::string>>> extra_keys = {};
  std::optional<uint32_t> group = {};
  std::optional<std::string> spec_kind = {};
  std::optional<uint32_t> window = {};
  std::optional<std::string> locality = {};
};

struct WrittenRemoved {
  std::vector<uint64_t> hashes = {};
  std::optional<std::string> medium = "GPU";
  std::optional<uint32_t> group = {};
  std::optional<std::string> locality = {};
};

// Writes one batch. Not thread-safe. The headers of the library are slow to compile: only the .cc
// has them.
class BatchWriter {
 public:
  BatchWriter(EventForm events, HashForm hashes);
  ~BatchWriter();

  BatchWriter& Stored(const WrittenStored& event);
  BatchWriter& Removed(const WrittenRemoved& event);
  BatchWriter& Cleared();
  BatchWriter& Unknown();
  // The whole message. The writer is empty again.
  std::string Take();

 private:
  class Events;
  const std::unique_ptr<Events> events_;
};

// One stored block of two tokens as SGLang writes it, an array that ends with `values`; nullptr is
// nil.
std::string SGLangStored(std::initializer_list<const char*> values);

// Tokens begin, begin + 1, ...
inline std::vector<int64_t> Counting(int64_t begin, size_t count) {
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(begin + static_cast<int64_t>(i));
  return tokens;
}

}  // namespace cairn::router
