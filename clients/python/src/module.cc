// cairn._native: the C++ client for Python. Private to the package, whose modules give it its names
// and types; _native.pyi next to them describes it for type checkers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cairn/client/next_action.h"
#include "cairn/client/rect_assembler.h"
#include "clients/python/src/arguments.h"
#include "clients/python/src/calls.h"
#include "clients/python/src/cluster_calls.h"
#include "clients/python/src/page_moves.h"
#include "clients/python/src/released_gil.h"
#include "clients/python/src/status_error.h"
#include "common/log/log.h"

namespace nb = nanobind;
using namespace nanobind::literals;

namespace cairn::python {
namespace {

// cairn.errors knows the class of each code.
void TranslateStatus(const std::exception_ptr& pending, void*) {
  try {
    std::rethrow_exception(pending);
  } catch (const StatusError& error) {
    try {
      const nb::object raised =
          nb::module_::import_("cairn.errors")
              .attr("error_for")(static_cast<int>(error.status().code()), Message(error.status()));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    } catch (nb::python_error& e) {
      e.restore();
    }
  }
}

nb::bytes FingerprintOf(nb::handle spec) { return FromDigest(Fingerprint(ToSpec(spec))); }

nb::list BlockKeys(nb::handle fingerprint, nb::handle tokens, nb::handle block_tokens) {
  BlockKeyChain chain(ToDigest(fingerprint, "fingerprint"));
  const std::vector<int32_t> native = Tokens(tokens);
  const auto size = static_cast<uint32_t>(Integer(block_tokens, UINT32_MAX, "block_tokens"));
  if (size == 0) {
    throw StatusError(InvalidArgument("field 'block_tokens': got 0, expected at least 1"));
  }
  std::vector<BlockKey> keys;
  {
    const ReleasedGil released;
    keys = chain.Keys(native, size);
  }
  nb::list out;
  for (const BlockKey& key : keys) out.append(FromDigest(key));
  return out;
}

nb::list PoolKeysOf(nb::handle unit_keys, nb::handle units, nb::handle pool) {
  const std::vector<BlockKey> native = Keys(unit_keys);
  const auto each = static_cast<uint32_t>(Integer(units, UINT32_MAX, "units"));
  if (each == 0) throw StatusError(InvalidArgument("field 'units': got 0, expected at least 1"));
  const auto number = static_cast<uint32_t>(Integer(pool, kMaxPools - 1, "pool"));
  nb::list out;
  for (const BlockKey& key : PoolKeys(native, each, number)) out.append(FromDigest(key));
  return out;
}

nb::bytes BlockKeyOf(nb::handle fingerprint, nb::handle tokens, nb::handle parent,
                     nb::handle extra) {
  BlockKeyChain chain(ToDigest(fingerprint, "fingerprint"));
  return FromDigest(
      chain.Next(ToOptionalDigest(parent, "parent"), Tokens(tokens), Bytes(extra, "extra")));
}

uint64_t RectBytes(nb::handle layout, nb::handle rect) {
  const Layout native = ToLayout(layout);
  NamespaceSpec spec;  // Only to check the layout.
  spec.model = spec.revision = spec.numerics = "any";
  spec.layout = native;
  ThrowIfError(Validate(spec));
  return client::RectAssembler::Bytes(native, ToRect(rect, native, "rect"));
}

void SetLogLevel(const std::string& level) {
  log::Configure({.level = ValueOrThrow(log::ParseLevel(level))});
}

std::string ActionOf(int code) {
  return std::string(client::Name(client::NextAction(static_cast<StatusCode>(code))));
}

}  // namespace

// Long: the list of everything that Python sees.
NB_MODULE(_native, m) {
  // At exit modules may be cleared in an order in which objects are not; nothing is lost by it.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(TranslateStatus);
  // stderr belongs to the program: what it should know is in answers and totals.
  SetLogLevel("error");

  nb::class_<Connection>(m, "Connection")
      .def("open_namespace", &Open, "spec"_a.none(), "block_life"_a.none(), "deadline"_a.none(),
           "trace"_a)
      .def(
          "match",
          [](Connection& connection, nb::handle fingerprint, nb::handle keys,
             const nb::kwargs& named) {
            return Match(connection, fingerprint, keys, ToMatchOptions(named));
          },
          "fingerprint"_a.none(), "keys"_a.none(), "options"_a)
      .def("begin_match", &BeginMatch, "fingerprint"_a.none(), "keys"_a.none(),
           "prefetch_in"_a.none(), "deadline"_a.none(), "trace"_a)
      .def("fetch", &Fetch, "lease"_a, "into"_a.none(), "first_block"_a.none(), "rect"_a.none(),
           "progress"_a.none(), "deadline"_a.none(), "cancel"_a.none(), "trace"_a)
      .def("fetch_on_device", &FetchOnDevice, "lease"_a, "into"_a.none(), "device"_a,
           "first_block"_a.none(), "rect"_a.none(), "deadline"_a.none())
      .def(
          "get",
          [](Connection& connection, nb::handle fingerprint, nb::handle keys, nb::handle into,
             const std::stop_source* cancel, const nb::kwargs& named) {
            return Get(connection, fingerprint, keys, into, cancel, ToGetOptions(named));
          },
          "fingerprint"_a.none(), "keys"_a.none(), "into"_a.none(), "cancel"_a.none(), "options"_a)
      .def("push", &Push, "fingerprint"_a.none(), "parts"_a.none(), "reservation_ttl"_a.none(),
           "deadline"_a.none(), "trace"_a)
      .def("stage", &Stage, "fingerprint"_a.none(), "parts"_a.none(), "reservation_ttl"_a.none(),
           "deadline"_a.none(), "commit_deadline"_a.none(), "trace"_a)
      .def("commit_staged", &CommitStaged, "push"_a)
      .def("drop_staged", &Connection::DropStaged, "push"_a, nb::call_guard<ReleasedGil>())
      .def("prefetch", &Prefetch, "fingerprint"_a.none(), "keys"_a.none(), "needed_in"_a.none(),
           "deadline"_a.none(), "trace"_a)
      .def("exists", &Exists, "fingerprint"_a.none(), "keys"_a.none(), "deadline"_a.none(),
           "trace"_a)
      .def("renew_lease", &RenewLease, "lease"_a, "ttl"_a.none(), "deadline"_a.none(), "trace"_a)
      .def("flush", &Flush, "deadline"_a.none(), "trace"_a)
      .def("stat", &Stat, "deadline"_a.none(), "trace"_a)
      .def("stats", &Stats)
      .def("watch", &Watch, "fingerprint"_a.none(), "snapshot"_a)
      .def("next_event", &NextEvent, "stream"_a, "wait"_a.none())
      .def("end_watch", &Connection::EndWatch, "stream"_a, nb::call_guard<ReleasedGil>())
      .def("close", &Connection::Close, nb::call_guard<ReleasedGil>());
  m.def(
      "connect",
      [](const std::optional<std::pair<std::string, uint32_t>>& device, const nb::kwargs& named) {
        return Connect(device, ToConnectOptions(named));
      },
      "device"_a.none(), "options"_a);

  nb::class_<ClusterWatch>(m, "ClusterWatch")
      .def("next", &NextMemberEvent, "wait"_a.none())
      .def("members", &MemberIds)
      .def("close", &ClusterWatch::Close, nb::call_guard<ReleasedGil>());
  m.def("watch_cluster", &WatchCluster, "address"_a, "client_name"_a, "tls"_a.none(), "tenant"_a,
        "fingerprint"_a.none(), "refresh"_a.none(), "lost_after"_a.none());

  nb::class_<PendingMatch>(m, "PendingMatch")
      .def("done", &PendingMatch::Done)
      .def(
          "wait",
          [](PendingMatch& pending, nb::handle seconds) {
            const TimePoint until = std::chrono::steady_clock::now() + Seconds(seconds, "seconds");
            const ReleasedGil released;
            return ValueOrThrow(pending.Wait(until));
          },
          "seconds"_a.none())
      .def("answer", &MatchAnswer)
      .def("seconds", [](const PendingMatch& pending) {
        return pending.Done() ? cairn::Seconds(pending.answer().time) : 0.0;
      });

  nb::class_<LeaseHandle>(m, "Lease",
                          "The promise of a node to keep a matched prefix readable.\n\n"
                          "Ends with `release()`, with the `with` block, or when it is "
                          "collected.")
      .def_prop_ro("held", &LeaseHandle::held, "False when nothing matched, and once released.")
      .def_prop_ro("id", [](const LeaseHandle& l) { return l.info().id; })
      .def_prop_ro("fingerprint",
                   [](const LeaseHandle& l) { return FromDigest(l.info().fingerprint); })
      .def_prop_ro(
          "blocks", [](const LeaseHandle& l) { return l.info().blocks; },
          "Blocks of the matched prefix.")
      .def_prop_ro(
          "expires_in",
          [](const LeaseHandle& l) {
            const Duration left = l.info().expires_at - std::chrono::steady_clock::now();
            return l.held() ? std::max(0.0, cairn::Seconds(left)) : 0.0;
          },
          "Seconds that the lease lives as it was given, renewals not counted.")
      .def("release", &LeaseHandle::Release,
           "Gives the lease back, without waiting. May be repeated.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](LeaseHandle& l, const nb::args&) { l.Release(); });

  nb::class_<std::stop_source>(m, "Cancellation", "Ends fetches from another thread.")
      .def(nb::init<>())
      .def(
          "cancel", [](std::stop_source& s) { s.request_stop(); },
          "Ends the fetches that were given this, now and later, with `CancelledError`.")
      .def_prop_ro("cancelled", [](const std::stop_source& s) { return s.stop_requested(); });

  nb::class_<pages::Transfer>(m, "Transfer")
      .def("wait", &AwaitTransfer, "seconds"_a)
      .def("error", &TransferError)
      .def("refused", &pages::Transfer::refused);
  nb::class_<pages::Fence>(m, "Fence");
  nb::class_<DeviceTarget>(m, "DeviceTarget");
  nb::class_<DeviceBlocks, DeviceTarget>(m, "DeviceBlocks");
  nb::class_<PageMoves>(m, "PageMoves")
      .def_prop_ro("save_slots", &PageMoves::save_slots)
      .def_prop_ro("load_slots", &PageMoves::load_slots)
      .def("block_bytes", &PageMoves::BlockBytes, "first_position"_a)
      .def_prop_ro("runs_kernels", &PageMoves::RunsKernels)
      .def("save", &PageMoves::Save, "stream"_a, "blocks"_a, "positions"_a)
      .def("save_slot", &PageMoves::SaveSlot, "slot"_a)
      .def("give_back_save_slots", &PageMoves::GiveBackSaveSlots, "slots"_a)
      .def("fence", &PageMoves::MakeFence, "stream"_a)
      .def("await_load_slots", &PageMoves::AwaitLoadSlots, "most"_a, "seconds"_a)
      .def("load_slot", &PageMoves::LoadSlot, "slot"_a)
      .def("load", &PageMoves::Load, "fence"_a, "slots"_a, "blocks"_a, "positions"_a)
      .def("give_back_load_slots", &PageMoves::GiveBackLoadSlots, "slots"_a)
      .def_prop_ro("reads_chunks", &PageMoves::ReadsChunks)
      .def("on_device", &PageMoves::OnDevice, "fence"_a, "blocks"_a, "positions"_a,
           nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>())
      .def("close", &PageMoves::Close);
  m.def("open_pages", &PageMoves::Open, "where"_a, "runs"_a, "blocks"_a);
  m.def("open_coded_pages", &PageMoves::OpenCoded, "where"_a, "codec"_a, "shape"_a, "layers"_a,
        "blocks"_a, "k_strides"_a, "v_strides"_a, "bfloat16"_a);
  m.def("coded_block", &CodedBlock, "codec"_a, "shape"_a);

  m.def("fingerprint", &FingerprintOf, "spec"_a.none());
  m.def("block_keys", &BlockKeys, "fingerprint"_a.none(), "tokens"_a.none(),
        "block_tokens"_a.none());
  m.def("block_key", &BlockKeyOf, "fingerprint"_a.none(), "tokens"_a.none(), "parent"_a.none(),
        "extra"_a.none());
  m.def("pool_keys", &PoolKeysOf, "unit_keys"_a.none(), "units"_a.none(), "pool"_a.none());
  m.def("rect_bytes", &RectBytes, "layout"_a.none(), "rect"_a.none());
  m.def("next_action", &ActionOf, "code"_a);
  m.def("set_log_level", &SetLogLevel, "level"_a);
}

}  // namespace cairn::python
