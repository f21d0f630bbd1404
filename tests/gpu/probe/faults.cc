// Mistakes and shortages, each of which must come back as an error that says what it is, after
// which the device works on.

#include <fcntl.h>
#include <unistd.h>

#include <functional>

#include "cairn/kernels/batch/slice_table.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"

namespace cairn::gpu {
namespace {

constexpr int kRank = 500;

class FaultProbe {
 public:
  explicit FaultProbe(Bench* bench) : bench_(*bench) {}

  Status Run() {
    CAIRN_RETURN_IF_ERROR(TooMuchMemory());
    CAIRN_RETURN_IF_ERROR(WrongDescriptor());
    CAIRN_RETURN_IF_ERROR(NotExportable());
    CAIRN_RETURN_IF_ERROR(PinnedTwice());
    CAIRN_RETURN_IF_ERROR(UnknownTable());
    return WrongLength();
  }

 private:
  // The error that came back, and that the device still copies.
  Status Expect(const std::string& what, const Status& got, std::vector<StatusCode> expected) {
    for (const StatusCode code : expected) {
      if (got.code() != code) continue;
      CAIRN_RETURN_IF_ERROR(StillCopies(what));
      Print({.rank = kRank + ++count_,
             .what = what,
             .value = 1,
             .unit = "ok",
             .note = cairn::Message(got)});
      return OkStatus();
    }
    return Errorf(StatusCode::kInternal, "{}: got {}", what, ToString(got));
  }
  Status StillCopies(const std::string& what) {
    const std::vector<uint32_t> numbers = {1, 2, 3, 5, 8};
    CAIRN_ASSIGN_OR_RETURN(const uint32_t* const there, bench_.Upload(numbers));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> back,
                           bench_.Download(there, std::ssize(numbers)));
    if (back == numbers) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "{}: copies bring other bytes afterwards", what);
  }

  Status TooMuchMemory() {
    CAIRN_ASSIGN_OR_RETURN(const auto state, bench_.device()->GetMemoryState());
    const auto memory = bench_.device()->Allocate(2 * state.total_bytes, /*exportable=*/false);
    return Expect("twice the device's memory is refused", memory.status(),
                  {StatusCode::kResourceExhausted});
  }

  Status WrongDescriptor() {
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const auto memory = bench_.device()->Import(fd, bench_.device()->info().granularity);
    close(fd);
    return Expect("a descriptor of something else is refused", memory.status(),
                  {StatusCode::kInvalidArgument, StatusCode::kInternal, StatusCode::kUnimplemented,
                   StatusCode::kPermissionDenied});
  }

  Status NotExportable() {
    CAIRN_ASSIGN_OR_RETURN(const device::DeviceMemory memory,
                           bench_.device()->Allocate(1, /*exportable=*/false));
    const auto descriptor = memory.Export();
    if (descriptor.ok()) close(*descriptor);
    return Expect("memory that was not allocated for it is not exported", descriptor.status(),
                  {StatusCode::kUnimplemented, StatusCode::kInvalidArgument});
  }

  Status PinnedTwice() {
    constexpr char kWhat[] = "memory that is pinned is not pinned again";
    constexpr size_t kBytes = 1 << 20;
    // Whole pages that nothing else is in.
    const std::unique_ptr<std::byte, decltype(&std::free)> memory(
        static_cast<std::byte*>(std::aligned_alloc(4096, kBytes)), &std::free);
    const std::span<const std::byte> bytes(memory.get(), kBytes);
    auto first = bench_.device()->Register(bytes, /*read_only=*/false);
    if (!first.ok()) {
      PrintSkipped(kRank + ++count_, kWhat, cairn::Message(first.status()));
      return OkStatus();
    }
    const auto second = bench_.device()->Register(bytes, /*read_only=*/false);
    return Expect(
        kWhat, second.status(),
        {StatusCode::kInvalidArgument, StatusCode::kPermissionDenied, StatusCode::kInternal});
  }

  Status UnknownTable() {
    const auto table = bench_.device()->Kernels(kernels::batch::kSliceTableName, 1'000'000);
    return Expect("kernels of another version are not found", table.status(),
                  {StatusCode::kNotFound});
  }

  // A slice of another length is marked, and not decoded.
  Status WrongLength() {
    constexpr char kWhat[] = "a slice of the wrong length is marked, and not decoded";
    using kernels::batch::SliceTable;
    CAIRN_ASSIGN_OR_RETURN(const SliceTable* const table,
                           bench_.FindTable<SliceTable>(kernels::batch::kSliceTableName,
                                                        kernels::batch::kSliceTableVersion));
    if (table == nullptr) {
      PrintSkipped(kRank + ++count_, kWhat, "the library has no table of slices");
      return OkStatus();
    }
    kernels::SliceForm form;
    form.k = {.coding = kernels::HeadCoding::kInt8,
              .parameter = 64,
              .heads = 1,
              .dim = 64,
              .head_stride = 16 * 64,
              .token_stride = 64};
    form.v = form.k;
    const std::vector<uint16_t> untouched(16 * 64, 0x1234);
    kernels::SliceTask task;
    CAIRN_ASSIGN_OR_RETURN(task.k, bench_.Upload(untouched));
    CAIRN_ASSIGN_OR_RETURN(task.v, bench_.Upload(untouched));
    CAIRN_ASSIGN_OR_RETURN(task.faults, bench_.Upload(std::vector<uint32_t>{0}));
    task.first_position = task.tokens = 16;
    task.bytes = static_cast<uint64_t>(kernels::SliceBytes(form, task)) - 1;
    CAIRN_ASSIGN_OR_RETURN(task.encoded,
                           bench_.Upload(std::vector<std::byte>(task.bytes, std::byte{0})));
    const int error = table->decode_slices(bench_.stream().native(), {form, &task, 1});
    if (error != 0) return Errorf(StatusCode::kInternal, "{}: launch error {}", kWhat, error);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> faults, bench_.Download(task.faults, 1));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint16_t> k,
                           bench_.Download(task.k, std::ssize(untouched)));
    if (faults[0] != kernels::kLengthFault || k != untouched) {
      return Errorf(StatusCode::kDataLoss, "{}: got faults {}, and keys that are {}", kWhat,
                    faults[0], k == untouched ? "untouched" : "overwritten");
    }
    return Expect(kWhat, Errorf(StatusCode::kDataLoss, "faults {}", faults[0]),
                  {StatusCode::kDataLoss});
  }

  Bench& bench_;
  int count_ = 0;
};

}  // namespace

Status ProbeFaults(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  return FaultProbe(bench.get()).Run();
}

}  // namespace cairn::gpu
