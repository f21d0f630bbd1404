// Any text as a node's file of settings, or as one of its settings: an error, or settings that are
// printed as a file with the same settings.
//
// First byte: 0 a file, 1 one setting "name=value". Checks across settings do not run: they look at
// this machine.

#include <algorithm>
#include <memory>

#include "common/config/config.h"
#include "common/memory/memory_account.h"
#include "services/cache/serve/node/node_config.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using fuzz::Expect;

struct Settings {
  Settings() { cache::NodeConfig::Register(&config, &schema); }
  cache::NodeConfig config;
  config::Schema schema{"cairn-cache", "Summary."};
};

}  // namespace

CAIRN_FUZZ_ENTRY(node_config)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool file = input.U8() % 2 == 0;
  const std::string_view text = input.Rest();
  Settings settings;
  const size_t equal = std::min(text.find('='), text.size());
  const Status applied =
      file ? settings.schema.ApplyYaml(std::string(text), "file")
           : settings.schema.Set(text.substr(0, equal),
                                 text.substr(std::min(equal + 1, text.size())), "flag");
  if (!applied.ok()) {
    Expect(!Message(applied).empty());
    return 0;
  }
  // Every sum is one that can be compared with what the machine has.
  Expect(Sum(settings.config.MemoryBounds()) >= settings.config.host_capacity);
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (!std::all_of(text.begin(), text.end(), ascii)) return 0;
  Settings again;
  const std::string printed = settings.schema.PrintYaml();
  Expect(again.schema.ApplyYaml(printed, "printed").ok());
  Expect(again.schema.PrintYaml() == printed);
  return 0;
}
