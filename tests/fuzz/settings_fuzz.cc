// Any text as a file of settings, or as the words of a command line: an error, or settings that are
// printed as a file with the same settings.
//
// First byte: 0 a file, 1 a command line with a word a line, 2 one setting "name=value".

#include <algorithm>
#include <memory>

#include "common/config/config.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using fuzz::Expect;

// One field of each type.
struct Settings {
  std::string listen = "127.0.0.1:7400";
  std::string level = "info";
  std::string node;
  std::vector<std::string> admins;
  uint64_t capacity = 1ull << 30;
  uint64_t blocks = 3;
  uint32_t threads = 4;
  double ratio = 0.5;
  bool tls = false;
  bool json = false;
  Duration flush_after = std::chrono::seconds(1);

  std::unique_ptr<config::Schema> Schema() {
    auto schema = std::make_unique<config::Schema>("program", "Summary.");
    schema->Text("listen", &listen, "Address.");
    schema->Text("log.level", &level, "Level.", {.choices = {"debug", "info"}});
    schema->Text("node.id", &node, "Node.", {.max_length = 64});
    schema->TextList("tls.admins", &admins, "Admins.", {.max_length = 64});
    schema->Bool("tls.enabled", &tls, "TLS.");
    schema->Bytes("host.capacity", &capacity, "Arena.", {.min = 1, .max = 1ull << 40});
    schema->Integer("host.blocks", &blocks, "Blocks.", {.unit = "blocks"});
    schema->Integer("rpc.threads", &threads, "Threads.", {.min = 1, .max = 64});
    schema->Real("ratio", &ratio, "Share.", {.min = 0, .max = 1});
    schema->Time("disk.flush_after", &flush_after, "Delay.", {.max = std::chrono::hours(1)});
    schema->Switch("json", &json, "JSON.");
    return schema;
  }
};

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Status Apply(uint8_t way, std::string_view text, config::Schema* schema) {
  if (way == 0) return schema->ApplyYaml(std::string(text), "file");
  if (way == 2) {
    const size_t equal = std::min(text.find('='), text.size());
    return schema->Set(text.substr(0, equal), text.substr(std::min(equal + 1, text.size())),
                       "flag");
  }
  std::vector<std::string> words = Lines(text);
  // No file of this machine is an input.
  std::erase_if(words, [](const std::string& word) { return word.starts_with("--config"); });
  return config::Load(*schema, words).status();
}

}  // namespace

CAIRN_FUZZ_ENTRY(settings)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t way = input.U8() % 3;
  Settings settings;
  const auto schema = settings.Schema();
  const std::string_view text = input.Rest();
  if (!Apply(way, text, schema.get()).ok()) return 0;
  Expect(settings.capacity >= 1 && settings.capacity <= 1ull << 40);
  Expect(settings.threads >= 1 && settings.threads <= 64);
  Expect(settings.ratio >= 0 && settings.ratio <= 1);
  Expect(settings.level == "debug" || settings.level == "info");
  Expect(settings.flush_after >= Duration(0) && settings.flush_after <= std::chrono::hours(1));

  // YAML is text: other bytes can come from a command line only, and cannot be printed.
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (!std::all_of(text.begin(), text.end(), ascii)) return 0;
  Settings again;
  const auto other = again.Schema();
  const std::string printed = schema->PrintYaml();
  Expect(other->ApplyYaml(printed, "printed").ok());
  Expect(again.listen == settings.listen && again.level == settings.level);
  Expect(again.node == settings.node && again.admins == settings.admins);
  Expect(again.capacity == settings.capacity && again.blocks == settings.blocks);
  Expect(again.threads == settings.threads && again.ratio == settings.ratio);
  Expect(again.tls == settings.tls && again.flush_after == settings.flush_after);
  Expect(other->PrintYaml() == printed);
  return 0;
}
