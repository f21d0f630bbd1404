#pragma once
// All codecs, in the order of their ids. To add one, add its card's header and its name here.

#include "kernels/codecs/cachegen/cachegen.h"
#include "kernels/codecs/fp8/fp8.h"
#include "kernels/codecs/int4/int4.h"
#include "kernels/codecs/int8/int8.h"
#include "kernels/codecs/mixed/mixed.h"
#include "kernels/codecs/raw/raw.h"
#include "kernels/codecs/turbo/turbo.h"

namespace cairn::codecs {

template <typename... Card>
struct CardList {};

using AllCards = CardList<Raw, Int8, Int4, Turbo, Fp8, Mixed, CacheGen>;

}  // namespace cairn::codecs
