// Any bytes as a file of API keys: an error that names the line, or keys that the same file written
// again has, too.

#include "services/router/http/api_keys.h"
#include "tests/fuzz/input.h"

using cairn::fuzz::Expect;
using namespace cairn::router;

CAIRN_FUZZ_ENTRY(api_keys)(const uint8_t* data, size_t size) {
  const std::string text(cairn::fuzz::Text(data, size));
  const auto keys = ParseApiKeys(text);
  if (!keys.ok()) {
    Expect(cairn::Message(keys.status()).starts_with("line "));
    return 0;
  }
  std::string again;
  for (const ApiKey& key : *keys) {
    Expect(IsTenant(key.tenant) && key.tenant.front() != '#');
    again += key.tenant + " " + key.digest.Hex() + "\n";
  }
  const auto same = ParseApiKeys(again);
  Expect(same.ok() && same->size() == keys->size());
  for (size_t i = 0; i < keys->size(); ++i) {
    Expect((*same)[i].tenant == (*keys)[i].tenant && (*same)[i].digest == (*keys)[i].digest);
  }
  return 0;
}
