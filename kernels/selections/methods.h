#pragma once
// All selections. To add one, add its header and its name here.

#include "kernels/selections/methods/ada_criticalkv.h"
#include "kernels/selections/methods/ada_expected.h"
#include "kernels/selections/methods/ada_pyramidkv.h"
#include "kernels/selections/methods/ada_snapkv.h"
#include "kernels/selections/methods/cake.h"
#include "kernels/selections/methods/chunkkv.h"
#include "kernels/selections/methods/criticalkv.h"
#include "kernels/selections/methods/defensive.h"
#include "kernels/selections/methods/duo.h"
#include "kernels/selections/methods/expected.h"
#include "kernels/selections/methods/h2o.h"
#include "kernels/selections/methods/headkv.h"
#include "kernels/selections/methods/keydiff.h"
#include "kernels/selections/methods/keyformer.h"
#include "kernels/selections/methods/knorm.h"
#include "kernels/selections/methods/lagkv.h"
#include "kernels/selections/methods/layer_defensive.h"
#include "kernels/selections/methods/nacl.h"
#include "kernels/selections/methods/prefixkv.h"
#include "kernels/selections/methods/pyramidkv.h"
#include "kernels/selections/methods/random.h"
#include "kernels/selections/methods/razor.h"
#include "kernels/selections/methods/sepllm.h"
#include "kernels/selections/methods/simlayer.h"
#include "kernels/selections/methods/snapkv.h"
#include "kernels/selections/methods/streaming.h"
#include "kernels/selections/methods/tova.h"

namespace cairn::selections {

template <typename... Method>
struct MethodList {};

using AllMethods =
    MethodList<Streaming, Random, SnapKv, AdaSnapKv, PyramidKv, AdaPyramidKv, ChunkKv, CriticalKv,
               AdaCriticalKv, Defensive, LayerDefensive, H2o, Tova, Knorm, KeyDiff, LagKv, Expected,
               AdaExpected, SimLayer, SepLlm, Cake, Duo, Razor, HeadKv, PrefixKv, Nacl, Keyformer>;

}  // namespace cairn::selections
