// Any text as the config.json of a model: an error, or a shape that a namespace can have.

#include "tests/fuzz/input.h"
#include "tools/cairn/size/config_shape.h"
#include "tools/cairn/size/sizes.h"

using namespace cairn;

CAIRN_FUZZ_ENTRY(model_config)(const uint8_t* data, size_t size) {
  const auto shape = cli::size::ShapeOfConfig(fuzz::Text(data, size), "input", std::nullopt);
  if (!shape.ok()) return 0;
  fuzz::Expect(cli::size::BytesOfToken(shape->layers) > 0);
  for (const auto* layers : {&shape->layers, &shape->cross_layers}) {
    fuzz::Expect(layers->size() <= cli::size::kMaxLayers);
    if (layers->empty()) continue;
    // Groups that alternate may be more than a namespace takes; nothing else is wrong.
    const auto raw = cli::size::SizeOf(cli::size::LayoutOf(*layers), 64, "raw");
    if (!raw.ok()) continue;
    fuzz::Expect(raw->host.bytes == raw->host.header_bytes + 64 * cli::size::BytesOfToken(*layers));
  }
  return 0;
}
