// Any bytes as the message NamespaceSpec: an error, or a namespace that goes back onto the wire,
// and into a record, without a change.

#include "cairn/v1/common.pb.h"
#include "common/keys/part_codec.h"
#include "protocol/wire/convert.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(namespace_spec)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  v1::NamespaceSpec message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto spec = wire::FromProto(message);
  if (!spec.ok()) return 0;
  v1::NamespaceSpec back;
  wire::ToProto(*spec, &back);
  Expect(fuzz::Get(wire::FromProto(back)) == *spec);
  Expect(fuzz::Get(DecodeNamespaceSpec(Encode(*spec))).tenant == spec->tenant);

  const auto checked = CheckNamespace(*spec);
  Expect(checked.ok() == Validate(*spec).ok());
  if (!checked.ok()) return 0;
  Expect(checked->fingerprint == Fingerprint(*spec));
  Expect(Fingerprint(fuzz::Get(DecodeNamespaceSpec(Encode(*spec)))) == checked->fingerprint);
  Expect(Differences(*spec, *spec).empty());
  const Layout& layout = spec->layout;
  Expect(layout.Layers() >= 1 && layout.Layers() <= 65535 && layout.KvHeads() >= 1);
  const auto codecs = PartCodecsOf(*checked);
  if (!codecs.ok()) return 0;
  Expect(codecs->rungs.empty() == !layout.IsNative());
  for (const auto& rung : codecs->rungs) Expect(rung != nullptr);
  return 0;
}
