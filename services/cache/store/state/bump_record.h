#pragma once
// The named records in which the persistent tier keeps the bumps that a node knows, each with those
// that came together. docs/inside/formats/record.md draws the bytes. Builds that know no bumps pass
// over records of this name.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "services/cache/store/state/bump.h"

namespace cairn::cache {

inline constexpr std::string_view kBumpMetaPrefix = "bumps/";
// Names sort by their sequence.
std::string BumpMetaName(uint64_t sequence);
// nullopt: it is no name of such a record.
std::optional<uint64_t> BumpSequenceOf(std::string_view name);

// REQUIRES: at most BumpPage::kMost.
std::string EncodeBumps(std::span<const Bump> bumps);
// DATA_LOSS: it is damaged. UNIMPLEMENTED: another version wrote it.
Result<std::vector<Bump>> DecodeBumps(std::string_view bytes);

}  // namespace cairn::cache
