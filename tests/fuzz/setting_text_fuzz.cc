// Any text as a size, a duration, an address or a digest: an error, or a value that is printed as a
// text with the same value.

#include "cairn/common/hash.h"
#include "common/config/config.h"
#include "common/net/address.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(setting_text)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  const std::string text(fuzz::Text(data, size));
  if (const auto bytes = config::ParseBytes(text); bytes.ok()) {
    // Beyond 2^53 only whole numbers without a unit are exact.
    if (*bytes < uint64_t{1} << 53) {
      Expect(fuzz::Get(config::ParseBytes(config::FormatBytes(*bytes))) == *bytes);
    }
  }
  if (const auto time = config::ParseDuration(text); time.ok()) {
    Expect(*time >= Duration(0));
    if (time->count() < int64_t{1} << 53) {
      Expect(fuzz::Get(config::ParseDuration(config::FormatDuration(*time))) == *time);
    }
  }
  if (const auto address = net::ParseListenAddress(text, "listen"); address.ok()) {
    const auto again =
        fuzz::Get(net::ParseListenAddress(address->WithPort(address->port), "listen"));
    Expect(again.is_unix == address->is_unix && again.host == address->host);
    Expect(again.port == address->port);
    Expect(net::IsLocal(again) == net::IsLocal(*address));
  }
  if (const auto digest = Digest::FromHex(text, "digest"); digest.ok()) {
    Expect(fuzz::Get(Digest::FromHex(digest->Hex(), "digest")) == *digest);
  }
  if (const auto digest = Digest::FromBytes(text, "digest"); digest.ok()) {
    Expect(digest->View() == text);
  }
  return 0;
}
