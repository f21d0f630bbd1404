#pragma once
// The part of NCCL that we use, declared by ourselves: NCCL is loaded at run time, and no header of
// it is needed to build. The declarations are those of the oldest version that we accept, 2.29.2;
// newer ones accept them (NCCL's structs grow at their ends and carry their size and version).
// Source: nccl.h of NCCL 2.29.2, and its guide, chapters "Communicator Creation and Management
// Functions" and "Point To Point Communication Functions".

#include <climits>
#include <cstddef>
#include <cstdint>

namespace cairn::link::nccl {

// As ncclGetVersion gives it: 10000 * major + 100 * minor + patch. 2.29 is the first one with
// ncclCommRevoke and ncclPutSignal.
inline constexpr int32_t kOldestVersion = 22902;

struct CommHandle;
struct WindowHandle;
struct UniqueIdBytes {
  char internal[128];
};

enum class Answer : int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

inline constexpr int32_t kUndefined = INT_MIN;

// ncclConfig_t of 2.29.2.
struct Config {
  size_t size = sizeof(Config);
  uint32_t magic = 0xcafebeef;
  uint32_t version = static_cast<uint32_t>(kOldestVersion);
  int32_t blocking = kUndefined;
  int32_t cga_cluster_size = kUndefined;
  int32_t min_ctas = kUndefined;
  int32_t max_ctas = kUndefined;
  const char* net_name = nullptr;
  int32_t split_share = kUndefined;
  int32_t traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int32_t collnet_enable = kUndefined;
  int32_t cta_policy = kUndefined;
  int32_t shrink_share = kUndefined;
  int32_t nvls_ctas = kUndefined;
  int32_t channels_per_net_peer = kUndefined;
  int32_t nvlink_centric_sched = kUndefined;
  int32_t graph_usage_mode = kUndefined;
  int32_t num_rma_ctx = kUndefined;
};
static_assert(sizeof(Config) == 88 && offsetof(Config, net_name) == 32 &&
              offsetof(Config, comm_name) == 48 && offsetof(Config, num_rma_ctx) == 84);

// ncclWaitSignalDesc_t.
struct WaitDescription {
  int32_t operations = 0;
  int32_t peer = 0;
  int32_t signal = 0;   // NCCL takes 0 only.
  int32_t context = 0;  // As this.
};

inline constexpr int32_t kUint8 = 1;         // ncclUint8.
inline constexpr int32_t kSymmetric = 0x01;  // NCCL_WIN_COLL_SYMMETRIC.

// Streams are the driver's own handles (device::Stream::native). In the order of the names below.
struct Functions {
  Answer (*get_version)(int32_t* version) = nullptr;
  Answer (*get_unique_id)(UniqueIdBytes* id) = nullptr;
  const char* (*get_error_string)(Answer) = nullptr;
  // The id goes by value.
  Answer (*comm_init_rank_config)(CommHandle**, int32_t ranks, UniqueIdBytes id, int32_t rank,
                                  Config*) = nullptr;
  Answer (*comm_get_async_error)(CommHandle*, Answer* state) = nullptr;
  Answer (*comm_revoke)(CommHandle*, int32_t flags) = nullptr;
  Answer (*comm_abort)(CommHandle*) = nullptr;
  Answer (*comm_window_register)(CommHandle*, void* address, size_t bytes, WindowHandle**,
                                 int32_t flags) = nullptr;
  Answer (*group_start)() = nullptr;
  Answer (*group_end)() = nullptr;
  Answer (*send)(const void* from, size_t count, int32_t type, int32_t peer, CommHandle*,
                 void* stream) = nullptr;
  Answer (*recv)(void* to, size_t count, int32_t type, int32_t peer, CommHandle*,
                 void* stream) = nullptr;
  Answer (*put_signal)(const void* from, size_t count, int32_t type, int32_t peer, WindowHandle*,
                       size_t offset, int32_t signal, int32_t context, uint32_t flags, CommHandle*,
                       void* stream) = nullptr;
  Answer (*wait_signal)(int32_t descriptions, WaitDescription*, CommHandle*,
                        void* stream) = nullptr;
};

inline constexpr const char* kFunctionNames[] = {
    "ncclGetVersion",        "ncclGetUniqueId", "ncclGetErrorString", "ncclCommInitRankConfig",
    "ncclCommGetAsyncError", "ncclCommRevoke",  "ncclCommAbort",      "ncclCommWindowRegister",
    "ncclGroupStart",        "ncclGroupEnd",    "ncclSend",           "ncclRecv",
    "ncclPutSignal",         "ncclWaitSignal"};
inline constexpr size_t kFunctions = sizeof(kFunctionNames) / sizeof(kFunctionNames[0]);
static_assert(sizeof(Functions) == kFunctions * sizeof(void*));

}  // namespace cairn::link::nccl
