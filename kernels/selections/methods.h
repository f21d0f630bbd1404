#pragma once
// All selections there are. One more: its header and its name here.

#include "kernels/selections/ada-criticalkv/ada_criticalkv.h"
#include "kernels/selections/ada-expected/ada_expected.h"
#include "kernels/selections/ada-pyramidkv/ada_pyramidkv.h"
#include "kernels/selections/ada-snapkv/ada_snapkv.h"
#include "kernels/selections/cake/cake.h"
#include "kernels/selections/chunkkv/chunkkv.h"
#include "kernels/selections/criticalkv/criticalkv.h"
#include "kernels/selections/defensive/defensive.h"
#include "kernels/selections/duo/duo.h"
#include "kernels/selections/expected/expected.h"
#include "kernels/selections/h2o/h2o.h"
#include "kernels/selections/keydiff/keydiff.h"
#include "kernels/selections/knorm/knorm.h"
#include "kernels/selections/lagkv/lagkv.h"
#include "kernels/selections/layer-defensive/layer_defensive.h"
#include "kernels/selections/pyramidkv/pyramidkv.h"
#include "kernels/selections/random/random.h"
#include "kernels/selections/razor/razor.h"
#include "kernels/selections/sepllm/sepllm.h"
#include "kernels/selections/simlayer/simlayer.h"
#include "kernels/selections/snapkv/snapkv.h"
#include "kernels/selections/streaming/streaming.h"
#include "kernels/selections/tova/tova.h"

namespace cairn::selections {

template <typename... Method>
struct MethodList {};

using AllMethods =
    MethodList<Streaming, Random, SnapKv, AdaSnapKv, PyramidKv, AdaPyramidKv, ChunkKv, CriticalKv,
               AdaCriticalKv, Defensive, LayerDefensive, H2o, Tova, Knorm, KeyDiff, LagKv, Expected,
               AdaExpected, SimLayer, SepLlm, Cake, Duo, Razor>;

}  // namespace cairn::selections
